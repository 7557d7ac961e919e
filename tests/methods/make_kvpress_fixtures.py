#!/usr/bin/env python3
r"""Makes tests/data/kvpress: what NVIDIA's kvpress 0.5.5 keeps of real keys, values and queries.

    make_kvpress_fixtures.py CAPTURE_LAYERS MODELS FOLDER

CAPTURE_LAYERS is the program of that name (cmake target capture_layers), MODELS the folder that
`make models MODELS=all` fills, FOLDER where the fixtures go. Environment, on the CPU, some 6 GB:

    python3 -m venv V
    V/bin/pip install kvpress==0.5.5 transformers==4.57.3 torch==2.6.0 gguf==0.19.0
    V/bin/python tests/methods/make_kvpress_fixtures.py build/release/tests/capture_layers models \
        tests/data/kvpress

No model runs here: rows and queries come from Precis' own engine, and kvpress' classes score and
select on them, with small stand-ins for the attention module. One function of kvpress is replaced,
the one that computes queries from hidden states (get_prerope_query_states): it returns the captured
queries, turned back by RoPE; kvpress turns them forward again where its formula wants that. Queries
are rounded to f16 first, so that the fixtures are small and hold exactly what kvpress saw.

kvpress runs in float64, so that the rounding that a difference may come from is Precis' own. (Its
SnapKV rounds logits and probabilities to f32 all the same.)

A fixture is NAME.json and NAME.bin. The .bin holds the arrays of "arrays", little-endian and
row-major, each {"type": f16 | f32, "shape": [...], "at": offset in bytes}. G KV heads, H query
heads (query head h belongs to KV head h // (H / G)), n tokens, d channels, q the last tokens whose
queries are there:

    keys, values [G, n, d] f16       after RoPE, as the cache holds them
    queries [H, q, d] f16            after RoPE; logit = scale * q.k, causal
    output_norms [G, n] f32          mean over the group of ||W_O v||_1, with the model's own W_O
    scores of a press [G, n] f32     named by the case's "scores"
    merged_... [G, kept, d] f16      values after MergingPress, in ascending order of the tokens

Beside them, "rope_base", and "rope_pairs": "halves" where RoPE turns channels i and i + d / 2
together, "neighbours" for 2 i and 2 i + 1; "layer" of "n_layers", as PyramidKV counts.

For KVzip, the rows of context, demand and the context again, and the queries but for the context's
own; scores [G, context].

"cases" has one entry per press, parameters and compression ratio: {"press": name in add_cases(),
"ratio": evicted share, "scores": array, "kept": tokens of every KV head, ascending}.
"""

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import torch
from gguf import GGUFReader, dequantize
import kvpress
from kvpress.presses import expected_attention_press, kvzip_press, snapkv_press

# With these numbers the last, partial chunk of ChunkKV's 20 tokens is the window of 12, LagKV's
# partitions of 8 leave nothing over, and the smallest budget (17) is above what either protects.
N_TOKENS = 172
WINDOW = 12
RATIOS = (0.5, 0.75, 0.9)
# Of KVzip's fixture, where demand and text follow once more.
CONTEXT = 32
# (file, model, index among the compressible layers, captured queries; None: KVzip's fixture)
LAYERS = (
    ("smollm2_early", "SmolLM2-135M-Instruct.Q4_1.gguf", 0, 64),
    ("smollm2_late", "SmolLM2-135M-Instruct.Q4_1.gguf", 24, N_TOKENS),
    ("qwen2_early", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 0, 64),
    ("qwen2_late", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 20, N_TOKENS),
    ("smollm2_repeat", "SmolLM2-135M-Instruct.Q4_1.gguf", 24, None),
)


class Rope:
    """RoPE as transformers has it: channels i and i + d / 2 are a pair."""

    def __init__(self, base, head_dim):
        self.base = base
        half = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        self.frequencies = 1.0 / base**half

    def __call__(self, _, position_ids):
        angles = position_ids.double().unsqueeze(-1) * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def paired_by_halves(x):
    """llama.cpp's llama models pair the channels 2 i and 2 i + 1; products are the same."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)


@functools.lru_cache(maxsize=1)
def open_model(path):
    return GGUFReader(path)


class Layer:
    """One captured layer, as float64 tensors with a batch of 1, and the module for the presses."""

    def __init__(self, head, data, model_path, layer, n_queries):
        groups, heads, n = head["n_kv_heads"], head["n_heads"], head["n_tokens"]
        dim, captured = head["head_dim"], head["n_queries"]
        self.at, self.n_queries = 0, n_queries
        self.keys_f16 = self._take(data, "<f2", (groups, n, dim))
        self.values_f16 = self._take(data, "<f2", (groups, n, dim))
        queries = self._take(data, "<f4", (heads, captured, dim))
        assert captured == n and head["softcap"] == 0 and head["scale"] == 1 / math.sqrt(dim)
        self.queries_f16 = np.ascontiguousarray(queries[:, n - n_queries :]).astype("<f2")
        assert np.isfinite(self.queries_f16).all()
        self._read_model(model_path, layer, groups, heads, dim)
        self.pairs = "neighbours" if self.arch == "llama" else "halves"
        convert = paired_by_halves if self.arch == "llama" else lambda x: x
        self.keys = convert(self._tensor(self.keys_f16))
        self.queries = convert(self._tensor(self.queries_f16))
        self.values = self._tensor(self.values_f16)
        self.n_tokens, self.n_heads, self.scale = n, heads, head["scale"]
        # Stands for the hidden states: the number of the token.
        self.hidden = torch.arange(n, dtype=torch.float64).view(1, n, 1)
        self.position_embeddings = self.module.rotary_emb(None, torch.arange(n).view(1, n))
        self.module.layer = self

    def _take(self, data, kind, shape):
        count = int(np.prod(shape))
        array = np.frombuffer(data, kind, count, self.at).reshape(shape)
        self.at += array.nbytes
        return array

    @staticmethod
    def _tensor(array):
        return torch.from_numpy(array.astype(np.float64)).unsqueeze(0)

    def _read_model(self, path, layer, groups, heads, dim):
        reader = open_model(path)
        value = lambda key: reader.fields[key].contents()
        self.arch = value("general.architecture")
        wanted = f"blk.{layer}.attn_output.weight"
        tensor = next(t for t in reader.tensors if t.name == wanted)
        output = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        assert output.shape == (value(self.arch + ".embedding_length"), heads * dim)
        config = SimpleNamespace(
            num_attention_heads=heads, num_key_value_heads=groups, head_dim=dim,
            hidden_size=output.shape[0], num_hidden_layers=value(self.arch + ".block_count"),
            _attn_implementation="sdpa")
        self.module = SimpleNamespace(
            config=config, head_dim=dim, layer_idx=layer, num_key_value_groups=heads // groups,
            o_proj=SimpleNamespace(weight=torch.from_numpy(output)),
            rotary_emb=Rope(value(self.arch + ".rope.freq_base"), dim))

    def queries_before_rope(self, tokens):
        rows = self.queries[:, :, [t - (self.n_tokens - self.n_queries) for t in tokens]]
        cos, sin = self.module.rotary_emb(None, torch.tensor(tokens).view(1, -1))
        return rows * cos.unsqueeze(1) - rotate_half(rows) * sin.unsqueeze(1)

    def attention(self):
        """Causal attention of all queries, [1, H, n, n]."""
        keys = self.keys.repeat_interleave(self.module.num_key_value_groups, dim=1)
        logits = self.queries @ keys.transpose(2, 3) * self.scale
        hidden = torch.ones(self.n_tokens, self.n_tokens, dtype=torch.bool).triu(1)
        return logits.masked_fill(hidden, float("-inf")).softmax(-1)


def captured_queries(module, hidden):
    tokens = [int(t) for t in hidden[0, :, 0]]
    assert min(tokens) >= module.layer.n_tokens - module.layer.n_queries, "not captured"
    return module.layer.queries_before_rope(tokens)


for patched in (snapkv_press, expected_attention_press, kvzip_press):
    patched.get_prerope_query_states = captured_queries


def arguments(layer, attention):
    return (layer.module, layer.hidden, layer.keys, layer.values, attention,
            {"position_embeddings": layer.position_embeddings})


def unmasked_tokens(module, groups, n_tokens):
    _, heads, tokens = module.masked_key_indices
    gone = set(zip(heads.tolist(), tokens.tolist()))
    return [[t for t in range(n_tokens) if (h, t) not in gone] for h in range(groups)]


def kept_tokens(layer, press, attention=None):
    """Runs the press. Returns the kept tokens of every head and the values it returned for them."""
    layer.module.masked_key_indices = None
    keys, values = press.compress(*arguments(layer, attention))
    if layer.module.masked_key_indices is not None:
        return unmasked_tokens(layer.module, layer.keys.shape[1], layer.n_tokens), None
    kept, merged = [], []
    for h in range(layer.keys.shape[1]):
        same = (keys[0, h].unsqueeze(1) == layer.keys[0, h].unsqueeze(0)).all(-1)
        assert (same.sum(1) == 1).all(), "two tokens have the same key"
        tokens = same.int().argmax(1)
        order = tokens.argsort()
        kept.append(tokens[order].tolist())
        assert len(set(kept[-1])) == len(kept[-1])
        merged.append(values[0, h][order])
    return kept, torch.stack(merged)


class Fixture:
    def __init__(self, layer):
        self.layer, self.arrays, self.cases, self.data = layer, {}, [], b""
        self.add_array("keys", layer.keys_f16, "f16")
        self.add_array("values", layer.values_f16, "f16")
        self.add_array("queries", layer.queries_f16, "f16")

    def add_array(self, name, array, kind):
        raw = np.ascontiguousarray(array, dtype={"f16": "<f2", "f32": "<f4"}[kind])
        if name in self.arrays:
            at, size = self.arrays[name]["at"], raw.nbytes
            assert self.data[at : at + size] == raw.tobytes(), name
            return
        self.arrays[name] = {"type": kind, "shape": list(raw.shape), "at": len(self.data)}
        self.data += raw.tobytes()

    def add(self, name, press, ratios=RATIOS, attention=None, scorer=None, scores=None):
        """One case per ratio. scorer: whose scores() these are, if not the press's own."""
        for ratio in ratios:
            press.compression_ratio = ratio
            table = (scorer or press).score(*arguments(self.layer, attention))[0]
            array = scores or name
            changing = isinstance(press, (kvpress.StreamingLLMPress, kvpress.CriticalKVPress))
            array += f"_{ratio}" if changing else ""
            limit = np.finfo(np.float32).max  # kvpress marks what it keeps with float64's largest
            self.add_array("scores_" + array, table.clamp(max=limit), "f32")
            kept, merged = kept_tokens(self.layer, press, attention)
            self.cases.append({"press": name, "ratio": ratio, "scores": "scores_" + array,
                               "kept": kept})
            if isinstance(press, kvpress.MergingPress):
                self.cases[-1]["merged"] = f"merged_{ratio}"
                self.add_array(f"merged_{ratio}", merged, "f16")

    def write(self, folder, name):
        module = self.layer.module
        head = {"format": "precis-kvpress", "kvpress": "0.5.5", "layer": module.layer_idx,
                "n_layers": module.config.num_hidden_layers, "scale": self.layer.scale,
                "rope_base": module.rotary_emb.base, "rope_pairs": self.layer.pairs,
                "arrays": self.arrays, "cases": self.cases}
        line = lambda part: json.dumps(part, separators=(",", ":"))
        fields = (f'"{key}":{line(value)}' for key, value in head.items() if key != "cases")
        cases = ",\n".join(line(case) for case in self.cases)
        text = "{\n" + ",\n".join(fields) + ',\n"cases":[\n' + cases + "\n]\n}"
        assert json.loads(text) == head
        with open(os.path.join(folder, name + ".json"), "w", encoding="ascii") as file:
            file.write(text + "\n")
        with open(os.path.join(folder, name + ".bin"), "wb") as file:
            file.write(self.data)


def snap(window=WINDOW):
    return kvpress.SnapKVPress(window_size=window)


def finch():
    """Without the hook that finds the question's length, and with keys where they were."""
    press = kvpress.FinchPress(rerotate_keys=False)
    press.window_size = WINDOW
    return press


def add_cases(fixture):
    layer = fixture.layer
    norms = kvpress.CriticalKVPress.vwl1norm(layer.values, layer.module)
    fixture.add_array("output_norms", norms[0], "f32")
    fixture.add("streaming", kvpress.StreamingLLMPress())
    fixture.add("knorm", kvpress.KnormPress())
    fixture.add("keydiff", kvpress.KeyDiffPress())
    fixture.add("lagkv", kvpress.LagKVPress())  # too short for its default lag: recency
    fixture.add("lagkv8", kvpress.LagKVPress(lag_size=8))
    fixture.add("lagkv8_cross", kvpress.LagKVPress(lag_size=8, cross_scoring=True))
    fixture.add("tova", kvpress.TOVAPress())
    # The default window, 64, is above the smaller budgets, where kvpress keeps a part of it.
    fixture.add("snapkv", snap(64), ratios=(0.5,))
    fixture.add("snapkv12", snap())
    fixture.add("adakv", kvpress.AdaKVPress(snap(64)), ratios=(0.5,), scorer=snap(64),
                scores="snapkv")
    fixture.add("adakv12", kvpress.AdaKVPress(snap()), scorer=snap(), scores="snapkv12")
    # The default floor binds nowhere here.
    fixture.add("adakv12_floor90", kvpress.AdaKVPress(snap(), alpha_safeguard=0.9), scorer=snap(),
                scores="snapkv12")
    # The default beta, 20, falls back to SnapKV's budget in a prompt as short as this one.
    fixture.add("pyramidkv12_beta3", kvpress.PyramidKVPress(window_size=WINDOW, beta=3),
                scores="snapkv12")
    fixture.add("chunkkv12", kvpress.ChunkKVPress(snap()), scorer=snap(), scores="snapkv12")
    fixture.add("chunkkv_knorm", kvpress.ChunkKVPress(kvpress.KnormPress()),
                scorer=kvpress.KnormPress(), scores="knorm")
    fixture.add("finch12", finch())
    fixture.add("criticalkv12", kvpress.CriticalKVPress(snap()))
    # The norms decide less here, and more where scores are below 0.
    fixture.add("criticalkv12_first90", kvpress.CriticalKVPress(snap(), first_stage_ratio=0.9))
    fixture.add("criticalkv_knorm", kvpress.CriticalKVPress(kvpress.KnormPress()))
    fixture.add("criticaladakv12", kvpress.CriticalAdaKVPress(snap()), scorer=snap(),
                scores="snapkv12")
    if layer.n_queries == layer.n_tokens:
        fixture.add("merging_knorm", kvpress.MergingPress(kvpress.KnormPress()), ratios=(0.75,),
                    scorer=kvpress.KnormPress(), scores="knorm")
        fixture.add("h2o", kvpress.ObservedAttentionPress(), attention=layer.attention())
        fixture.add("expected", kvpress.ExpectedAttentionPress())
        fixture.add("expected_mean", kvpress.ExpectedAttentionPress(
            n_future_positions=64, use_covariance=False, epsilon=0.02))


def add_kvzip(fixture):
    """KVzip's scoring and selection after its second pass, for this layer alone (layerwise)."""
    layer, groups = fixture.layer, fixture.layer.keys.shape[1]
    first = layer.n_tokens - layer.n_queries
    cos, sin = layer.position_embeddings
    for ratio in (0.5, 0.75):  # whole entries per head are left
        press = kvpress.KVzipPress(ratio, layerwise=True)
        press.context_length, press.start_idx, press.end_idx = CONTEXT, 0, CONTEXT
        press.score_val = torch.zeros(1, 1, groups, CONTEXT, dtype=torch.float64)
        module = SimpleNamespace(**{**vars(layer.module), "layer_idx": 0})
        press.score_kvzip(module, layer.hidden[:, first:], layer.keys, layer.values, None,
                          {"position_embeddings": (cos[:, first:], sin[:, first:])})
        fixture.add_array("scores_kvzip", press.score_val[0, 0], "f32")
        attention_layer = SimpleNamespace(self_attn=module)
        press.compress_post(SimpleNamespace(model=SimpleNamespace(layers=[attention_layer])))
        fixture.cases.append({"press": "kvzip", "ratio": ratio, "scores": "scores_kvzip",
                              "kept": unmasked_tokens(module, groups, CONTEXT)})


def capture(tool, model, n_tokens, layer, *options):
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([tool, *options, model, str(n_tokens), scratch, str(layer)], check=True,
                       stdout=subprocess.DEVNULL)
        with open(os.path.join(scratch, f"layer{layer}.bin"), "rb") as file:
            return json.loads(file.readline()), file.read()


def main():
    if len(sys.argv) != 4:
        print(__doc__)
        return 2
    tool, models, folder = sys.argv[1:]
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name, model, layer, n_queries in LAYERS:
        path = os.path.join(models, model)
        if n_queries is None:
            head, data = capture(tool, path, CONTEXT, layer, "--repeat")
            fixture = Fixture(Layer(head, data, path, layer, head["n_tokens"] - CONTEXT))
            add_kvzip(fixture)
        else:
            head, data = capture(tool, path, N_TOKENS, layer)
            fixture = Fixture(Layer(head, data, path, layer, n_queries))
            add_cases(fixture)
        fixture.write(folder, name)
        print(name, len(fixture.cases), "cases,", len(fixture.data), "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
