#!/usr/bin/env python3
"""Compares Precis' SelKV with tools/selkv_reference.py, stage by stage.

    compare_selkv.py SELKV_DUMP                      random and structured layers (a test)
    compare_selkv.py SELKV_DUMP LAYER SPEC KEEP      one dumped layer, for example of a real model

Each stage of the reference starts from what Precis' stage before it decided, so that one near-tie
does not hide what follows. A decision may differ only where the reference's own numbers differ by
less than NEAR_TIE, relative; such near-ties are counted and must be rare.
"""

import os
import re
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: this Python has no numpy")
    sys.exit(77)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import selkv_reference as ref  # noqa: E402
from array_checks import Mismatch, expect, expect_close  # noqa: E402

NEAR_TIE = 1e-6
# Rounding of float32 logits near 10 moves a probability by about this much.
NEAR_TIE_ROUTE = 1e-5


def equal_bits(a, b):
    return a.view(np.uint16) == b.view(np.uint16)


def params_of(spec):
    def stage(kind):
        found = re.search(kind + r"=(\w+)\(([^)]*)\)", spec)
        return found.group(1), dict(part.split("=") for part in found.group(2).split(","))

    score, score_args = stage("score")
    expect(score == "selkv", "the reference knows score=selkv only, not", score)
    select, select_args = stage("select")
    params = ref.Params(score_window=int(score_args["window"]), pool=int(score_args["pool"]),
                        select=select, recent=int(select_args["recent"]),
                        sinks=int(select_args["sinks"]), alpha=0.0)
    if "merge=" in spec:
        _, args = stage("merge")
        params.block, params.window = int(args["block"]), int(args["window"])
        params.gate = args["gate"]
    if "bias=" in spec:
        _, args = stage("bias")
        params.alpha, params.mode = float(args["alpha"]), args["mode"]
    return params


def near_selection_tie(token, scores, m, params):
    """Whether the token lies within NEAR_TIE of a cut-off that includes or excludes it."""
    n = scores.shape[1]
    always = ref.protected_tokens(n, params)
    free = [t for t in range(n) if t not in always]
    count = m - len(always)
    cuts = [(scores[h], ref.best(free, scores[h], count)) for h in range(len(scores))]
    if params.select == "shared":
        mean = scores.mean(axis=0)
        cuts.append((mean, ref.best(set().union(*(c for _, c in cuts)), mean, count)))
    for values, chosen in cuts:
        inside = min((values[t] for t in chosen), default=np.inf)
        outside = max((values[t] for t in free if t not in chosen), default=-np.inf)
        for edge in (inside, outside):
            if abs(values[token] - edge) <= NEAR_TIE * abs(edge):
                return True
    return False


def compare_selection(scores, header, heads, params, counts):
    m = header["m"]
    actual = np.array([head["scores"] for head in heads])
    expect_close(actual, scores, 1e-4, 1e-6 * scores.max(), "scores")
    # On the same numbers, the same choice; ties included.
    kept, targets = ref.select(actual.astype(np.float64), m, params)
    for h, head in enumerate(heads):
        expect(list(head["kept"]) == kept[h], "head", h, "kept", head["kept"])
        expect(list(head["targets"]) == targets[h], "head", h, "targets", head["targets"])
    kept, targets = ref.select(scores, m, params)
    for h, head in enumerate(heads):
        counts["selected"] += len(kept[h])
        for name, wanted in (("kept", kept[h]), ("targets", targets[h])):
            for token in set(int(t) for t in head[name]) ^ set(wanted):
                near = near_selection_tie(token, scores, m, params)
                expect(near, "head", h, name, "token", token)
                counts["selection_ties"] += 1


def compare_routes(layer, h, head, params, counts):
    """Returns the choices {evicted: (target, gate)} of Precis, once they are found right."""
    kept = [int(t) for t in head["kept"]]
    routes = ref.route(layer, h, head["kept"], head["targets"], params)
    expect([r[0] for r in routes] == list(head["evicted"]), "head", h, "evicted tokens")
    choices = {}
    for (token, near, probabilities), slot, gate in zip(routes, head["slots"], head["gates"]):
        if not near:
            expect(slot == ref.DROPPED and gate == 0, "head", h, "token", token, "has no target")
            counts["dropped"] += 1
            continue
        expect(slot != ref.DROPPED, "head", h, "token", token, "was dropped")
        target = kept[slot]
        expect(target in near, "head", h, "token", token, "went to", target, "of", near)
        counts["routed"] += 1
        index = int(np.argmax(probabilities))
        if near[index] != target:
            short = 1 - probabilities[near.index(target)] / probabilities[index]
            expect(short <= NEAR_TIE_ROUTE, "head", h, "token", token, "went to", target, "not to",
                   near[index], "short by", short)
            counts["route_ties"] += 1
        wanted = ref.gate_of(layer, h, token, target, params)
        expect(abs(gate - wanted) <= 1e-5, "head", h, "token", token, "gate", gate, wanted)
        choices[token] = (target, wanted)
    return choices


def compare_head(layer, h, head, params, counts):
    """Merging of one head. Returns the reference's R and number of floored targets."""
    tokens = head["kept"].astype(np.int64)
    expect(equal_bits(head["keys"], layer.keys[h][tokens]).all(), "keys changed")
    same = equal_bits(head["values"], layer.values[h][tokens])
    if "slots" not in head:
        expect(same.all(), "values changed")
        return np.ones(len(tokens)), 0
    choices = compare_routes(layer, h, head, params, counts)
    values, changed, ratios, floored = ref.merge(layer, h, tokens, choices, params)
    expect_close(head["ratios"], ratios, 2e-3, 0, "head", h, "ratios")
    expect(same[~changed].all(), "head", h, "an unmerged value changed its bits")
    # Half a unit of f16 is 2^-11 of the value; sums that cancel are judged by what went in.
    size = float(np.abs(layer.values[h].astype(np.float64)).max())
    expect_close(head["values"], values, 2e-3, 2e-5 * size + 6e-8, "head", h, "values")
    counts["merged"] += int(changed.sum())
    return ratios, floored


def compare(tool, layer_path, spec, keep, counts):
    layer = ref.read_layer(layer_path)
    result_path = layer_path + ".result"
    subprocess.run([tool, layer_path, spec, keep, result_path], check=True)
    n_heads, n, width = layer.keys.shape
    header, heads = ref.read_result(result_path, n, width)
    os.remove(result_path)
    params = params_of(header["spec"])
    scores = np.array([ref.importance(layer, h, params) for h in range(n_heads)])
    compare_selection(scores, header, heads, params, counts)
    before = counts["routed"], counts["dropped"]
    merged = [compare_head(layer, h, head, params, counts) for h, head in enumerate(heads)]
    kept = [head["kept"] for head in heads]
    wanted = ref.biases(kept, [ratios for ratios, _ in merged], params)
    for h, head in enumerate(heads):
        expect_close(head["biases"], wanted[h], 2e-3, 1e-5, "head", h, "biases")
    expect(header["n_routed"] == counts["routed"] - before[0], "n_routed")
    expect(header["n_dropped"] == counts["dropped"] - before[1], "n_dropped")
    expect(header["n_floored"] == sum(floored for _, floored in merged), "n_floored")
    counts["floored"] += header["n_floored"]
    counts["layers"] += 1


# ---- random layers


def make_layer(draw, kind, g, group, n, d):
    shape_k, shape_q = (g, n, d), (g * group, n, d)
    keys, values = draw.standard_normal(shape_k), draw.standard_normal(shape_k)
    queries = draw.standard_normal(shape_q)
    scale, softcap = 1 / np.sqrt(d), 0.0
    if kind == "repeated":  # few distinct tokens: scores and routes tie
        pick = draw.integers(0, 6, n)
        keys, values, queries = keys[:, pick], values[:, pick], queries[:, pick]
    elif kind == "local":  # neighbours are alike: gates open, routes matter
        keys, values = (np.cumsum(x, axis=1) * 0.3 for x in (keys, values))
    elif kind == "peaked":  # a few keys take nearly all attention: masses underflow
        scale *= 6
    elif kind == "clustered":  # the window looks at one stretch only: most blocks keep nothing
        look = queries[::group, n - 40 :].mean(axis=1, keepdims=True)
        keys[:, n // 3 : n // 3 + 20] += 3 * look
    elif kind == "softcap":
        scale, softcap = scale * 4, 3.0
    elif kind == "far":  # every third token is invisible to the window: no mass where it is kept
        direction = draw.standard_normal((1, 1, d))
        queries[:, n - 40 :] += 2 * direction
        keys[:, ::3] -= 2 * direction
    half = [np.ascontiguousarray(x.astype(np.float16)) for x in (keys, values)]
    return ref.Layer(*half, np.ascontiguousarray(queries.astype(np.float32)), scale=float(np.float32(scale)), softcap=softcap)


SPECS = (
    "selkv",
    "selkv(mode=head)",
    "selkv(select=head)",
    "selkv(select=head,mode=head,alpha=1)",
    "selkv(window=8,block=8,pool=1,sinks=4,recent=5)",
    "selkv(gate=one,select=head,recent=0,sinks=2,window=16)",
    "selkv(gate=zero,alpha=0)",
    "selkv merge=none bias=none",
    "selkv bias=none",
)
KINDS = ("random", "repeated", "local", "peaked", "clustered", "softcap", "far")
SHAPES = ((1, 1, 16), (2, 3, 16), (3, 1, 24), (4, 2, 32), (2, 7, 64))


COUNTED = ("layers", "selected", "selection_ties", "routed", "dropped", "route_ties", "merged",
           "floored")
# The random cases must reach everything that is compared.
AT_LEAST = {"routed": 1000, "dropped": 1000, "merged": 300, "floored": 8}


def print_counts(title, counts):
    print(title, " ".join(f"{key}={value}" for key, value in counts.items()))


def compare_random(tool):
    draw = np.random.default_rng(2607)
    # Where tokens repeat, ties are the point; elsewhere they must be rare.
    tied, plain = dict.fromkeys(COUNTED, 0), dict.fromkeys(COUNTED, 0)
    with tempfile.TemporaryDirectory() as folder:
        for number, kind in enumerate(KINDS * 6):
            g, group, d = SHAPES[number % len(SHAPES)]
            n = int(draw.integers(60, 260))
            path = os.path.join(folder, f"{number}.layer")
            ref.write_layer(path, make_layer(draw, kind, g, group, n, d))
            spec = SPECS[number % len(SPECS)]
            keep = (("40%", "60%", "75%") if n < 120 else ("25%", "40%", "60%"))[number % 3]
            try:
                compare(tool, path, spec, keep, tied if kind == "repeated" else plain)
            except Mismatch as mismatch:
                print(f"{kind} g={g} group={group} n={n} d={d} {spec} {keep}: {mismatch}")
                return 1
    print_counts("repeated tokens:", tied)
    print_counts("all others:", plain)
    for key, count in AT_LEAST.items():
        if plain[key] < count:
            print("too few cases with", key)
            return 1
    if plain["selection_ties"] > 2 or plain["route_ties"] > 2:
        print("too many near-ties")
        return 1
    return 0


def main():
    if len(sys.argv) == 2:
        return compare_random(sys.argv[1])
    if len(sys.argv) != 5:
        print(__doc__)
        return 2
    tool, layer, spec, keep = sys.argv[1:]
    counts = dict.fromkeys(COUNTED, 0)
    try:
        compare(tool, layer, spec, keep, counts)
    except Mismatch as mismatch:
        print(mismatch)
        return 1
    print_counts("equal:", counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
