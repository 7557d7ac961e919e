"""Result files as a run would write them, with made-up numbers. For tests; also a program:

  sample_results.py FOLDER      writes ruler.jsonl, needle.jsonl, fidelity.jsonl and their times
"""

import json
import math
import os
import random
import sys

FULL_BYTES_PER_TOKEN = 23040
METHODS = [("full", "100%"), ("selkv", "50%"), ("selkv", "25%"), ("selkv", "10%"), ("snapkv", "50%"),
           ("snapkv", "25%"), ("snapkv", "10%"), ("streaming", "50%"), ("streaming", "25%"), ("streaming", "10%")]
SKILL = {"full": 0.0, "selkv": 0.6, "snapkv": 1.0, "streaming": 2.2}
SPEC = {"full": "full", "selkv": "selkv(alpha=0.5)", "snapkv": "snapkv(window=32)",
        "streaming": "streaming(sinks=4)"}


def run(suite, **changes):
    row = {"kind": "run", "format": 1, "suite": suite, "version": "0.1.0", "commit": "c59db4400",
           "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "model_sha256": "ab" * 32, "model_type": "llama 135M Q4_1",
           "seed": 1, "threads": 2, "shard": 1, "n_shards": 1,
           "left_out": ["qa_1: needs --squad FILE"] if suite == "ruler" else [],
           "settings": {"suite": [suite], "method": ["full", "selkv", "snapkv", "streaming"],
                        "keep": ["50%", "25%", "10%"], "query": ["agnostic", "aware"], "seed": ["1"]},
           "input_sha256": {"essay.txt": "cd" * 32}}
    row.update(changes)
    return row


ORIGIN = {"version": "0.1.0", "model_sha256": "ab" * 32, "seed": 1}


def key(suite, task, length, index, label, keep, question=0, query="agnostic", types=("f16", "f16")):
    return {"suite": suite, "task": task, "length": length, "index": index, "question": question, "query": query,
            "label": label, "method": SPEC.get(label, label), "keep": keep, "type_k": types[0], "type_v": types[1]}


def share(keep):
    return float(keep.rstrip("%")) / 100


def score(k, value, n_context, **changes):
    row = {"kind": "score", **k, **ORIGIN, "used_template": True, "metric": "contain_all", "score": value,
           "exact": value == 1, "chance": 0.0, "n_context": n_context, "n_question": 24, "n_answer": 6 + k["index"] % 5, "ended": True,
           "n_truncated": 0, "kv_bytes": round(FULL_BYTES_PER_TOKEN * n_context * share(k["keep"])),
           "kv_bytes_full": FULL_BYTES_PER_TOKEN * n_context,
           "n_entries": round(90 * n_context * share(k["keep"])),
           "prompt_sha256": "%s/%s/%s/%s/%s" % (k["task"], k["length"], k["index"], k["question"], k["query"]),
           "answer": "The number is %d." % (1000 + k["index"]), "references": [str(1000 + k["index"])]}
    row.update(changes)
    return row


def timing(k, n_context, rng):
    condensed = k["label"] != "full"
    return {"kind": "timing", **k, "prefill_ms": n_context * 2.1 * rng.uniform(0.98, 1.02),
            "compress_ms": n_context * 0.11 * rng.uniform(0.9, 1.1) if condensed else 0.0,
            "question_ms": 60 * rng.uniform(0.9, 1.1), "decode_ms": 7 * (14 + 22 * share(k["keep"]) * n_context / 4096),
            "n_decoded": 7, "peak_bytes": 400000000 + n_context * 9000}


def quality(label, keep, hardness):
    """Chance of a right answer."""
    loss = SKILL[label] * hardness * (1 - share(keep)) ** 2 * (2.2 if keep == "10%" else 1)
    return 1 / (1 + math.exp(-(2.4 - 2 * hardness - 2.6 * loss)))


def ruler(rng, lengths=(2048, 4096), n_samples=12):
    rows, times = [run("ruler")], [run("ruler")]
    tasks = {"niah_single_1": 0.1, "niah_multikey_1": 0.5, "niah_multivalue": 0.6, "vt": 0.8, "cwe": 1.0, "fwe": 0.9}
    for length in lengths:
        for t, (task, hardness) in enumerate(tasks.items()):
            for index in range(n_samples):
                for query in ("agnostic", "aware"):
                    luck = rng.random()
                    for label, keep in METHODS:
                        k = key("ruler", task, length, index, label, keep, query=query)
                        p = quality(label, keep, hardness * (0.6 if query == "aware" else 1))
                        right = 0.75 * luck + 0.25 * rng.random() < p
                        value = 1.0 if right else rng.choice([0.0, 0.0, 0.25, 0.5]) if t > 1 else 0.0
                        rows.append(score(k, value, length - 40, chance=0.25 if task == "fwe" else 0.0,
                                          n_truncated=0 if index else 37))
                        times.append(timing(k, length - 40, rng))
    return rows, times


def needle(rng):
    rows, times = [run("needle", left_out=[])], [run("needle", left_out=[])]
    for length in (1024, 2048, 4096, 8192):
        for depth in range(0, 101, 20):
            for index in range(3):
                for label, keep in METHODS[:7]:
                    k = key("needle", "needle_depth_%d" % depth, length, index, label, keep)
                    far = abs(depth - 50) / 50
                    right = rng.random() < quality(label, keep, 1.1 - 0.6 * far + length / 16384)
                    rows.append(score(k, float(right), length - 30))
                    if index == 0 and length == 2048 and depth == 40 and label != "full":
                        rows.append(kept(k, length - 30, rng))
                    times.append(timing(k, length - 30, rng))
    return rows, times


def kept(k, n_tokens, rng, layers=30, heads=3, bins=64):
    words = ("It was a mild morning when the <b>ferry</b> left the harbour and turned north & "
             "nobody on deck knew that the code was 7421 or what it opened in the old town hall").split()
    cells = []
    for layer in range(layers):
        for head in range(heads):
            focus = rng.random()
            for b in range(bins):
                base = share(k["keep"]) * (0.4 + 1.2 * math.exp(-((b / bins - focus) / 0.2) ** 2))
                if b == 0 or b >= bins - 2:
                    base = 1
                if 24 <= b <= 26:
                    base += 0.35
                cells.append(min(1.0, max(0.0, base + rng.uniform(-0.05, 0.05))))
    merges = k["label"] == "selkv"
    return {"kind": "kept", **k, "n_tokens": n_tokens, "n_layers": layers, "n_heads": heads, "n_bins": bins,
            "kept": cells, "merged": [3 * (1 - c) for c in cells] if merges else [],
            "bias": [0.5 * math.log(1 + 3 * (1 - c)) for c in cells] if merges else [],
            "residual": [rng.choice([0, 0, 0.1, 0.2]) for _ in range(layers * heads)] if merges else [],
            "words": [" ".join(words[(b + i) % len(words)] for i in range(4)) for b in range(bins)]}


def fidelity(rng, layers=30, heads=3):
    rows, times = [run("fidelity")], [run("fidelity")]
    for text in ("novel", "licence"):
        for index in range(6):
            hard = rng.uniform(0.7, 1.3)
            for label, keep in METHODS[1:]:
                k = key("fidelity", text, 2048, index, label, keep)
                kl = 0.02 * hard * SKILL[label] * (1 - share(keep)) ** 2 * rng.uniform(0.9, 1.1)
                rows.append({"kind": "fidelity", **k, **ORIGIN, "n_context": 2048, "n_continuation": 256,
                             "kv_bytes": round(FULL_BYTES_PER_TOKEN * 2048 * share(keep)),
                             "kv_bytes_full": FULL_BYTES_PER_TOKEN * 2048, "n_entries": round(90 * 2048 * share(keep)),
                             "mean_kl": kl, "median_kl": kl / 4, "p99_kl": kl * 12, "same_top": 1 - 2 * kl,
                             "log_likelihood": -2.6 - kl * 0.7, "log_likelihood_full": -2.6,
                             "output_error": [[0.05 + kl * rng.uniform(0, 8) for _ in range(heads)]
                                              for _ in range(layers)]})
                times.append(timing(k, 2048, rng))
    return rows, times


def write(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_suite(folder, name, parts):
    rows, times = parts
    path = os.path.join(folder, name + ".jsonl")
    write(path, rows)
    write(os.path.join(folder, name + ".timing.jsonl"), times)
    return path


def write_all(folder, seed=5):
    rng = random.Random(seed)
    return [write_suite(folder, "ruler", ruler(rng)), write_suite(folder, "needle", needle(rng)),
            write_suite(folder, "fidelity", fidelity(rng))]


if __name__ == "__main__":
    write_all(sys.argv[1])
