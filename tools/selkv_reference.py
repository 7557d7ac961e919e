#!/usr/bin/env python3
"""SelKV (arXiv 2607.16213) for one layer in float64: the reference that Precis is compared with.

Written from the description of the method (docs/DESIGN.md, "SelKV, all six stages"), not from the
C++, and slow on purpose: one head after another, one token after another. Needs numpy only.

    selkv_reference.py LAYER --m M [--select shared|head] [--mode layer|head] ...

reads a dumped layer and prints, as one JSON object, what SelKV keeps of it and what becomes of it.

Formats (tests/compress/layer_dump.h and tests/compress/selkv_dump.cpp write the same ones): one
line of JSON, then arrays, raw, little-endian, without padding, row-major. G KV heads, H query heads
(query head h belongs to KV head h // (H / G)), n tokens, d channels.

  a layer   {"format": "precis-layer", "version": 1, "n_kv_heads": G, "n_heads": H,
             "n_tokens": n, "n_queries": q, "head_dim": d, "scale": s, "softcap": c}
            keys f16 [G, n, d]      after RoPE
            values f16 [G, n, d]
            queries f32 [H, q, d]   of the last q tokens, after RoPE
            log_sum_exp f32 [H, q]  of the rows' logits; not used here: computed anew
            logit = cap(s * q.k), cap(x) = c * tanh(x / c), or x if c is 0; causal.

  a result  {"format": "precis-condensed", "version": 1, "spec": "...", "m": m, "bytes": b,
             "n_routed": r, "n_dropped": x, "n_floored": f,
             "kept": [G counts], "targets": [G counts], "evicted": [G counts, or empty]}
            and for each KV head:
            scores f32 [n], kept u32 [kept], targets u32 [targets],
            if the method merges: evicted u32, slots u32 (index into kept, 0xffffffff: dropped),
            gates f32 (all [evicted]), ratios f32 [kept]: R of Eq. 6,
            keys f16 [kept, d], values f16 [kept, d], biases f32 [kept]
"""

import argparse
import dataclasses
import json
import sys

import numpy as np

MASS_FLOOR = 1e-8
DROPPED = 0xFFFFFFFF


@dataclasses.dataclass
class Layer:
    keys: np.ndarray  # float16 [G, n, d]
    values: np.ndarray  # float16 [G, n, d]
    queries: np.ndarray  # float32 [H, q, d]
    scale: float
    softcap: float = 0.0

    @property
    def group(self):
        return self.queries.shape[0] // self.keys.shape[0]


@dataclasses.dataclass
class Params:
    score_window: int = 32
    pool: int = 5
    select: str = "shared"
    recent: int = 16
    sinks: int = 0
    block: int = 32
    window: int = 32
    gate: str = "cos"
    alpha: float = 0.5
    mode: str = "layer"


# ---- files


def _take(data, offset, dtype, shape):
    count = int(np.prod(shape))
    array = np.frombuffer(data, dtype=dtype, count=count, offset=offset).reshape(shape)
    return array, offset + array.nbytes


def _split(path, wanted):
    with open(path, "rb") as file:
        header = json.loads(file.readline())
        data = file.read()
    if header.get("format") != wanted or header.get("version") != 1:
        raise ValueError(f"{path}: not a {wanted} file of version 1")
    return header, data


def read_layer(path):
    header, data = _split(path, "precis-layer")
    g, h, n = header["n_kv_heads"], header["n_heads"], header["n_tokens"]
    q, d = header["n_queries"], header["head_dim"]
    keys, at = _take(data, 0, "<f2", (g, n, d))
    values, at = _take(data, at, "<f2", (g, n, d))
    queries, at = _take(data, at, "<f4", (h, q, d))
    _, at = _take(data, at, "<f4", (h, q))
    if at != len(data):
        raise ValueError(f"{path}: {len(data)} bytes of arrays, {at} expected")
    return Layer(keys, values, queries, header["scale"], header["softcap"])


def write_layer(path, layer):
    g, n, d = layer.keys.shape
    h, q, _ = layer.queries.shape
    header = {"format": "precis-layer", "version": 1, "n_kv_heads": g, "n_heads": h, "n_tokens": n,
              "n_queries": q, "head_dim": d, "scale": layer.scale, "softcap": layer.softcap}
    rows = [log_sum_exp(layer, head, range(n - q, n)) for head in range(h)]
    with open(path, "wb") as file:
        file.write(json.dumps(header).encode() + b"\n")
        for array, dtype in ((layer.keys, "<f2"), (layer.values, "<f2"), (layer.queries, "<f4"),
                             (np.array(rows), "<f4")):
            file.write(np.ascontiguousarray(array.astype(dtype)).tobytes())


def read_result(path, n_tokens, head_dim):
    header, data = _split(path, "precis-condensed")
    at = 0
    heads = []
    for h, n_kept in enumerate(header["kept"]):
        head = {}
        head["scores"], at = _take(data, at, "<f4", (n_tokens,))
        head["kept"], at = _take(data, at, "<u4", (n_kept,))
        head["targets"], at = _take(data, at, "<u4", (header["targets"][h],))
        if header["evicted"]:
            n_evicted = header["evicted"][h]
            head["evicted"], at = _take(data, at, "<u4", (n_evicted,))
            head["slots"], at = _take(data, at, "<u4", (n_evicted,))
            head["gates"], at = _take(data, at, "<f4", (n_evicted,))
            head["ratios"], at = _take(data, at, "<f4", (n_kept,))
        head["keys"], at = _take(data, at, "<f2", (n_kept, head_dim))
        head["values"], at = _take(data, at, "<f2", (n_kept, head_dim))
        head["biases"], at = _take(data, at, "<f4", (n_kept,))
        heads.append(head)
    if at != len(data):
        raise ValueError(f"{path}: {len(data)} bytes of arrays, {at} expected")
    return header, heads


# ---- attention


def logits_of(layer, query_head, token):
    """Logits of a token's own row: over the keys 0..token of its KV head."""
    n, n_queries = layer.keys.shape[1], layer.queries.shape[1]
    query = layer.queries[query_head, token - (n - n_queries)].astype(np.float64)
    keys = layer.keys[query_head // layer.group, : token + 1].astype(np.float64)
    # Not a matrix product: equal keys must give equal bits.
    logits = layer.scale * (keys * query).sum(axis=1)
    return layer.softcap * np.tanh(logits / layer.softcap) if layer.softcap else logits


def softmax_row(layer, query_head, token):
    logits = logits_of(layer, query_head, token)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def log_sum_exp(layer, query_head, tokens):
    out = []
    for token in tokens:
        logits = logits_of(layer, query_head, token)
        out.append(logits.max() + np.log(np.exp(logits - logits.max()).sum()))
    return out


def group_heads(layer, head):
    return range(head * layer.group, (head + 1) * layer.group)


def window_mass(layer, head, window):
    """a[j]: attention from the last `window` queries, summed over them and over the group."""
    n = layer.keys.shape[1]
    mass = np.zeros(n)
    for token in range(max(0, n - window), n):
        for query_head in group_heads(layer, head):
            mass[: token + 1] += softmax_row(layer, query_head, token)
    return mass


# ---- the six stages


def importance(layer, head, params):
    """Eq. 1, average-pooled with zero padding."""
    norms = np.sqrt((layer.values[head].astype(np.float64) ** 2).sum(axis=1))
    product = window_mass(layer, head, params.score_window) * norms
    reach = params.pool // 2
    padded = np.concatenate([np.zeros(reach), product, np.zeros(reach)])
    return np.array([padded[j : j + params.pool].sum() / params.pool for j in range(len(product))])


def protected_tokens(n, params):
    return set(range(min(params.sinks, n))) | set(range(max(0, n - params.recent), n))


def best(tokens, scores, count):
    """The `count` highest scores; the earlier token of equals."""
    return set(sorted(tokens, key=lambda t: (-scores[t], t))[:count])


def select(scores, m, params):
    """Eq. 2. scores [G, n] -> (kept, targets), one ascending list per head."""
    n_heads, n = scores.shape
    always = protected_tokens(n, params)
    free = [t for t in range(n) if t not in always]
    own = [best(free, scores[h], m - len(always)) for h in range(n_heads)]
    if params.select == "head":
        kept = [sorted(own[h] | always) for h in range(n_heads)]
        return kept, [list(k) for k in kept]
    union = set().union(*own)
    mean = scores.mean(axis=0, dtype=np.float64)
    common = best(union, mean, m - len(always))
    kept = [sorted(common | always)] * n_heads
    targets = [sorted((common & own[h]) | always) for h in range(n_heads)]
    return kept, targets


def route(layer, head, kept, targets, params):
    """Eq. 3: for each evicted token, the earlier targets of its block and their probabilities,
    summed over the group. [(token, targets, probabilities)]"""
    kept, targets = set(int(t) for t in kept), sorted(int(t) for t in targets)
    out = []
    for token in range(layer.keys.shape[1]):
        if token in kept:
            continue
        near = [i for i in targets if i // params.block == token // params.block and i < token]
        probabilities = np.zeros(len(near))
        if near:
            for query_head in group_heads(layer, head):
                probabilities += softmax_row(layer, query_head, token)[near]
        out.append((token, near, probabilities))
    return out


def gate_of(layer, head, token, target, params):
    """Eq. 4."""
    if params.gate != "cos":
        return 1.0 if params.gate == "one" else 0.0
    a = layer.values[head, token].astype(np.float64)
    b = layer.values[head, target].astype(np.float64)
    norms = np.sqrt((a * a).sum()) * np.sqrt((b * b).sum())
    return max((a * b).sum() / norms, 0.0) if norms > 0 else 0.0


def merge(layer, head, kept, choices, params):
    """Eq. 5 and R of Eq. 6. choices: {evicted token: (target, gate)}.
    Returns values float64 [kept, d], changed [kept], ratios [kept], number of floored targets."""
    mass = window_mass(layer, head, params.window)
    values = layer.values[head].astype(np.float64)
    kept = [int(t) for t in kept]
    merged = np.array([values[t] for t in kept])
    changed = np.zeros(len(kept), dtype=bool)
    ratios = np.ones(len(kept))
    floored = 0
    for index, i in enumerate(kept):
        arriving = [(gate * mass[j], j) for j, (target, gate) in choices.items() if target == i]
        routed = sum(weight for weight, _ in arriving)
        if routed <= 0:
            continue
        total = mass[i] * values[i]
        for weight, j in arriving:
            total = total + weight * values[j]
        merged[index] = total / (mass[i] + routed)
        changed[index] = True
        floored += mass[i] < MASS_FLOOR
        own = max(mass[i], MASS_FLOOR)
        ratios[index] = (own + routed) / own
    return merged, changed, ratios, floored


def biases(kept, ratios, params):
    """Eq. 6, per head or with R averaged over the heads of the layer that keep the token."""
    if params.mode == "head":
        return [params.alpha * np.log(r) for r in ratios]
    by_token = {}
    for tokens, own in zip(kept, ratios):
        for token, ratio in zip(tokens, own):
            by_token.setdefault(int(token), []).append(ratio)
    return [np.array([params.alpha * np.log(np.mean(by_token[int(t)])) for t in tokens])
            for tokens in kept]


def condense(layer, m, params):
    """The whole method. Returns one dict per KV head."""
    n_heads = layer.keys.shape[0]
    scores = np.array([importance(layer, h, params) for h in range(n_heads)])
    kept, targets = select(scores, m, params)
    heads = []
    for h in range(n_heads):
        choices, n_dropped = {}, 0
        for token, near, probabilities in route(layer, h, kept[h], targets[h], params):
            if near:
                target = near[int(np.argmax(probabilities))]
                choices[token] = (target, gate_of(layer, h, token, target, params))
            else:
                n_dropped += 1
        values, changed, ratios, floored = merge(layer, h, kept[h], choices, params)
        heads.append({"kept": kept[h], "targets": targets[h], "choices": choices, "values": values,
                      "changed": changed, "ratios": ratios, "n_dropped": n_dropped,
                      "n_floored": int(floored)})
    for head, bias in zip(heads, biases(kept, [head["ratios"] for head in heads], params)):
        head["biases"] = bias
    return heads


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("layer")
    parser.add_argument("--m", type=int, required=True, help="entries per KV head")
    for field in dataclasses.fields(Params):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default),
                            default=field.default)
    args = vars(parser.parse_args())
    layer = read_layer(args.pop("layer"))
    m = args.pop("m")
    out = []
    for head in condense(layer, m, Params(**args)):
        head = {key: value.tolist() if isinstance(value, np.ndarray) else value
                for key, value in head.items()}
        head["choices"] = {str(token): choice for token, choice in head["choices"].items()}
        out.append(head)
    json.dump(out, sys.stdout)
    print()


if __name__ == "__main__":
    main()
