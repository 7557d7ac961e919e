#!/usr/bin/env python3
"""Compares Precis' ResKV with an implementation of its own, in float64 and straight from the
description (docs/DESIGN.md, "Summaries of what is not kept"), not from the C++.

    compare_reskv.py RESKV_DUMP

The base method's selection is taken as Precis made it (other tests check that); everything after it
is worked out here from the layer's keys, values and queries: clusters, means, biases, errors on
held-out queries for every split and gate, and the choice.
"""

import json
import math
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

from array_checks import Mismatch, expect, expect_close  # noqa: E402

FEWEST_CLUSTERS = 4
MOST_CORRECTION = 10.0


class Layer:
    def __init__(self, seed, n_tokens, n_kv_heads, group, head_dim, scale, softcap, offset):
        rng = np.random.default_rng(seed)
        # A few topics, so that there is something to cluster; offset: what all keys share.
        topics = rng.normal(size=(n_kv_heads, 12, head_dim))
        topic = rng.integers(0, 12, size=(n_kv_heads, n_tokens))
        shape = (n_kv_heads, n_tokens, head_dim)
        mean = np.take_along_axis(topics, topic[:, :, None], axis=1)
        self.keys = (mean + 0.4 * rng.normal(size=shape) + offset).astype(np.float16)
        self.values = (0.5 * mean + rng.normal(size=shape)).astype(np.float16)
        self.queries = rng.normal(size=(n_kv_heads * group, n_tokens, head_dim)).astype(np.float32)
        self.scale, self.softcap, self.group = scale, softcap, group

    def logits(self, head, member, tokens, keys):
        query = self.queries[head * self.group + member][tokens].astype(np.float64)
        z = self.scale * (query @ np.asarray(keys, np.float64).T)
        return self.softcap * np.tanh(z / self.softcap) if self.softcap else z

    def write(self, path):
        n_kv_heads, n, d = self.keys.shape
        header = {"format": "precis-layer", "version": 1, "n_kv_heads": n_kv_heads,
                  "n_heads": n_kv_heads * self.group, "n_tokens": n, "n_queries": n,
                  "head_dim": d, "scale": self.scale, "softcap": self.softcap}
        sums = np.zeros((n_kv_heads * self.group, n), np.float32)
        for head in range(n_kv_heads):
            for member in range(self.group):
                z = self.logits(head, member, np.arange(n), self.keys[head])
                z[np.triu_indices(n, 1)] = -np.inf
                sums[head * self.group + member] = np.log(np.exp(z).sum(axis=1))
        with open(path, "wb") as out:
            out.write((json.dumps(header) + "\n").encode())
            for array in (self.keys, self.values, self.queries, sums):
                out.write(array.tobytes())


def params_of(spec):
    found = re.search(r"residual=reskv\(([^)]*)\)", spec)
    raw = dict(part.split("=") for part in found.group(1).split(","))
    params = {key: value for key, value in raw.items()}
    for key in ("scale", "delta", "low", "high", "least"):
        params[key] = float(raw[key])
    for key in ("span", "steps", "queries"):
        params[key] = int(raw[key])
    return params


def f32(x):
    return float(np.float32(x))


def gates_of(p):
    given = (f32(p["low"]), f32(p["high"]), f32(p["least"]))
    off = (1.0, 1.0, 1.0)
    return {"off": [off], "linear": [given],
            "choose": [off, (given[0], given[1], (1 + given[2]) / 2), given]}[p["gate"]]


def gate_factor(gate, sharpness):
    low, high, least = gate
    if least == 1:
        return np.ones_like(sharpness)
    slope = 1 - (1 - least) * (sharpness - low) / max(high - low, 1e-300)
    return np.where(sharpness <= low, 1.0, np.where(sharpness >= high, least, slope))


def lloyd(points, seeds, steps):
    points = points - points.mean(axis=0)
    means = points[seeds].copy()
    owner = None
    for _ in range(steps):
        if owner is not None:
            means = np.stack([points[owner == j].mean(axis=0) for j in range(len(seeds))])
        distance = ((points[:, None, :] - means[None]) ** 2).sum(axis=2)
        new = distance.argmin(axis=1)
        while True:
            empty = [j for j in range(len(seeds)) if not (new == j).any()]
            if not empty:
                break
            new[seeds[empty[0]]] = empty[0]
        if owner is not None and (new == owner).all():
            break
        owner = new
    return owner


def clusters_of(keys, tokens, scores, k, span, steps, metric):
    n = len(tokens)
    k = min(k, n)
    n_runs = min(max(math.ceil(n / span), 1), max(1, k // FEWEST_CLUSTERS))
    groups = []
    for run in range(n_runs):
        own = tokens[n * run // n_runs:n * (run + 1) // n_runs]
        count = k * (run + 1) // n_runs - k * run // n_runs
        best = sorted(range(len(own)), key=lambda i: (-scores[own[i]], i))[:count]
        points = keys[own].astype(np.float64)
        if metric is not None:
            values, vectors = np.linalg.eigh(metric)
            points = points @ (vectors * np.sqrt(np.maximum(values, 0)))
        owner = lloyd(points, sorted(best), steps)
        groups += [[own[i] for i in np.flatnonzero(owner == j)] for j in range(len(best))]
    return sorted(groups, key=lambda members: members[-1])


class Head:
    def __init__(self, layer, head, params, scores):
        self.layer, self.head, self.p, self.scores = layer, head, params, scores
        n = layer.keys.shape[1]
        window = min(params["queries"], n // 4)
        own = list(range(n - window, n))
        self.horizon = n - window if params["local"] == "exact" else n
        self.held = [t for i, t in enumerate(own) if i % 4 == 3]
        self.fit = [t for i, t in enumerate(own) if i % 4 != 3]
        self.keys, self.values = layer.keys[head], layer.values[head].astype(np.float64)

    def build(self, split):
        kept = set(split["kept"]) | set(split["absorbed"])
        evicted = [t for t in range(self.keys.shape[0]) if t not in kept]
        metric = None
        if self.p["metric"] == "query":
            rows = np.concatenate([self.layer.queries[self.head * self.layer.group + g][self.fit]
                                   for g in range(self.layer.group)]).astype(np.float64)
            metric = rows.T @ rows / len(rows)
        groups = clusters_of(self.keys, evicted, self.scores, split["n_residual"], self.p["span"],
                             self.p["steps"], metric)
        keys = np.stack([self.keys[g].astype(np.float64).mean(axis=0) for g in groups])
        values = np.stack([self.values[g].mean(axis=0) for g in groups])
        bias = np.array([math.log(len(g)) for g in groups])
        if self.p["calibrate"] == "mass":
            for j, members in enumerate(groups):
                true = mean = 0.0
                for g in range(self.layer.group):
                    for t in self.fit:
                        everything = self.layer.logits(self.head, g, [t], self.keys[:t + 1])[0]
                        total = np.exp(everything).sum()
                        seen = [m for m in members if m <= t and m < self.horizon]
                        true += np.exp(everything[seen]).sum() / total
                        own = self.layer.logits(self.head, g, [t], keys[j:j + 1])[0, 0]
                        mean += len(seen) * math.exp(own) / total
                if true == 0:
                    continue
                bias[j] += min(max(math.log(true / mean), -MOST_CORRECTION), MOST_CORRECTION)
        return groups, keys, values, bias + math.log(self.p["scale"])

    # Error on the held-out queries for each gate.
    def judge(self, split, built):
        errors = {gate: 0.0 for gate in gates_of(self.p)}
        energy = pure = 0.0
        kept = np.array([k for k in split["kept"] if k < self.horizon] +
                        list(range(self.horizon, self.keys.shape[0])))
        expect(not split["main_bias"], "bases with a bias are not known here")
        for g in range(self.layer.group):
            for t in self.held:
                z = self.layer.logits(self.head, g, [t], self.keys[:t + 1])[0]
                full = np.exp(z) @ self.values[:t + 1] / np.exp(z).sum()
                seen = kept <= t
                e = np.exp(z[kept[seen]])
                main = e @ self.values[kept[seen]]
                energy += (full ** 2).sum()
                # Nothing seen gives 0.
                pure += ((main / max(e.sum(), 1e-300) - full) ** 2).sum()
                if built is None:
                    continue
                groups, keys, values, bias = built
                share = np.array([sum(m <= t and m < self.horizon for m in members) / len(members)
                                  for members in groups])
                r = share * np.exp(self.layer.logits(self.head, g, [t], keys)[0] + bias)
                for gate in errors:
                    factor = gate_factor(gate, e.max() / e.sum() if len(e) else 0.0)
                    total = max(e.sum() + factor * r.sum(), 1e-300)
                    out = (main + factor * (r @ values)) / total
                    errors[gate] += ((out - full) ** 2).sum()
        return energy, pure, errors


def choose(p, errors, usable):
    """errors, usable [head][split] -> chosen split of every head."""
    n_heads, n_splits = len(errors), len(errors[0])
    if p["validate"] == "off":
        return [1 if n_splits > 1 and usable[h][1] else 0 for h in range(n_heads)]
    if p["validate"] == "layer":
        sums = [sum(errors[h][s if usable[h][s] else 0] for h in range(n_heads))
                for s in range(n_splits)]
        sums[0] *= 1 - p["delta"]
        best = int(np.argmin(sums))
        return [best if usable[h][best] else 0 for h in range(n_heads)]
    out = []
    for h in range(n_heads):
        own = [(1 - p["delta"]) * errors[h][0]]
        own += [errors[h][s] if usable[h][s] else math.inf for s in range(1, n_splits)]
        out.append(int(np.argmin(own)))
    return out


def compare(dump, layer, spec, keep, folder):
    path = os.path.join(folder, "layer")
    layer.write(path)
    result = json.loads(subprocess.run([dump, path, spec, keep], check=True,
                                       stdout=subprocess.PIPE).stdout)
    p = params_of(result["spec"])
    n_kv_heads, _, d = layer.keys.shape
    errors, usable, n_residual = [], [], 0
    for h in range(n_kv_heads):
        record = result["heads"][h]
        head = Head(layer, h, p, record["scores"])
        errors.append([])
        usable.append([])
        for s, split in enumerate(record["splits"]):
            what = f"head {h} split {s}"
            if s > 0:
                base = record["splits"][0]
                expect(len(split["kept"]) + split["n_residual"] == len(base["kept"]), what,
                       "does not spend the budget")
            built = head.build(split) if split["n_residual"] > 0 else None
            energy, pure, gated = head.judge(split, built)
            expect_close(split["energy"], energy, 1e-4, 0, what, "energy")
            if built is None:
                best = pure
            else:
                groups, keys, values, bias = built
                expect_close(np.reshape(split["keys"], (-1, d)), keys, 1e-5, 1e-5, what, "keys")
                expect_close(np.reshape(split["values"], (-1, d)), values, 1e-5, 1e-5, what, "values")
                expect_close(split["bias"], bias, 0, 4e-3, what, "biases")
                gate = min(gated, key=lambda g: gated[g])
                best = gated[gate]
                taken = min(gated, key=lambda g: sum(abs(a - b) for a, b in zip(g, split["gate"])))
                expect_close(split["gate"], taken, 0, 1e-6, what, "gate")
                expect_close(gated[taken], best, 1e-3, 0, what, "choice of the gate")
            errors[-1].append(best)
            usable[-1].append(s == 0 or split["n_residual"] > 0)
            # Means are rounded to f16 where Precis attends to them.
            expect_close(split["error"], best, 4e-3, 1e-9 * energy, what, "error")
    # The choice from Precis' own errors, which a near-tie of the reference's would leave open.
    own = [[split["error"] for split in record["splits"]] for record in result["heads"]]
    expect(result["chosen"] == choose(p, own, usable), "chosen", result["chosen"])
    for h, s in enumerate(choose(p, errors, usable)):
        taken = result["chosen"][h]
        expect(taken == s or abs(errors[h][taken] - errors[h][s]) < 0.01 * errors[h][0] or
               p["validate"] == "layer", "head", h, "took", taken, "reference", s)
    for h, stored in enumerate(result["stored"]):
        split = result["heads"][h]["splits"][result["chosen"][h]]
        expect(stored["kept"] == split["kept"], "head", h, "main entries")
        expect(stored["bias"] == split["bias"], "head", h, "stored biases")
        for rows in ("keys", "values"):
            rounded = np.array(split[rows], np.float32).astype(np.float16).astype(np.float32)
            expect(np.array_equal(np.array(stored.get(rows, []), np.float32), rounded),
                   "head", h, "stored", rows)
        n_residual += len(stored["bias"])
    return n_residual, result["chosen"]


def main():
    dump = sys.argv[1]
    plain = dict(n_kv_heads=2, group=2, head_dim=16, scale=0.25, softcap=0.0, offset=0.0)
    cases = [
        (1, dict(plain, n_tokens=240), "snapkv residual=reskv(gate=off)", "30%"),
        (2, dict(plain, n_tokens=240), "snapkv residual=reskv(validate=off,parts=0.5,gate=linear,local=kept)",
         "40%"),
        (3, dict(plain, n_tokens=320), "snapkv residual=reskv(calibrate=mass,gate=choose)", "25%"),
        (4, dict(plain, n_tokens=280, group=3, n_kv_heads=3),
         "adakv residual=reskv(calibrate=mass,metric=query,validate=layer,delta=0.01)", "30%"),
        (5, dict(plain, n_tokens=520, offset=20.0, scale=0.02),
         "h2o residual=reskv(span=64,steps=2,scale=0.75,delta=0.01)", "20%"),
        (6, dict(plain, n_tokens=200, softcap=3.0),
         "tova residual=reskv(calibrate=mass,queries=40,gate=choose,low=0.05,high=0.2,local=kept)", "50%"),
        (7, dict(plain, n_tokens=240), "snapkv residual=reskv(delta=0.99)", "60%"),
    ]
    n_residual, n_none = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed, shape, spec, keep in cases:
            try:
                n, chosen = compare(dump, Layer(seed, **shape), spec, keep, folder)
            except Mismatch as error:
                print(f"FAILED: {spec} at {keep}: {error}")
                return 1
            n_residual += n
            n_none += chosen.count(0)
            print(f"ok: {spec} at {keep}: splits {chosen}, {n} residual entries")
    if n_residual == 0 or n_none == 0:
        print(f"FAILED: the cases show too little: {n_residual} residual entries, "
              f"{n_none} heads without")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
