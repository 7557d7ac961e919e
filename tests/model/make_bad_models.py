#!/usr/bin/env python3
"""Writes damaged GGUF files and a list of what loading each must say.

OUT/list.tsv: file name, expected error code or "ok", text that the message must contain. Every file is a small
sound model but for one thing.

Usage: make_bad_models.py OUT
"""
import os
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import make_tiny_models as tiny  # noqa: E402
from make_tiny_models import ARR, BOOL, F32, F64, I32, I64, STR, U16, U32, U64, U8, Tensor  # noqa: E402

INT_KEYS = ["block_count", "embedding_length", "feed_forward_length", "context_length",
            "attention.head_count", "attention.head_count_kv", "attention.key_length",
            "attention.value_length", "rope.dimension_count", "rope.scaling.original_context_length",
            "expert_count"]
FLOAT_KEYS = ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor",
              "rope.scaling.attn_factor"]


class Writer:
    """Writes variants of one base model and remembers what each must lead to."""

    def __init__(self, out):
        self.out, self.rows = out, []
        keys, tensors = tiny.build("llama", layers=1, embd=16, heads=2, kv_heads=1, dim=8, ff=16,
                                   tied=True, factors=False, dim_keys=True)
        self.keys = keys + [("llama.rope.dimension_count", U32, 8)]
        self.tensors = tensors

    def add(self, name, code, text, keys=None, tensors=None, **header):
        tiny.write_gguf(os.path.join(self.out, name + ".gguf"), keys or self.keys,
                        tensors or self.tensors, **header)
        self.rows.append((name + ".gguf", code, text))

    def add_bytes(self, name, code, text, data):
        with open(os.path.join(self.out, name), "wb") as f:
            f.write(data)
        self.rows.append((name, code, text))

    def with_key(self, key, kind, value):
        """The keys with one replaced or added; kind None removes it."""
        keys = [k for k in self.keys if k[0] != key]
        return keys if kind is None else keys + [(key, kind, value)]

    def key(self, label, key, kind, value, code="format", text=None):
        self.add(f"{key}.{label}", code, key if text is None else text,
                 keys=self.with_key(key, kind, value))

    def tensor(self, label, name, change, code="format", text=None):
        """change(tensor) -> list of tensors that take its place."""
        tensors = [new for t in self.tensors for new in (change(t) if t.name == name else [t])]
        self.add(f"{name}.{label}", code, name if text is None else text, tensors=tensors)


def wrong_types(w):
    for suffix in INT_KEYS:
        key = "llama." + suffix
        for label, kind, value in [("text", STR, "4"), ("float", F32, 4.0), ("bool", BOOL, True),
                                   ("texts", ARR, (STR, ["4"]))]:
            w.key(label, key, kind, value)
    for suffix in FLOAT_KEYS:
        key = "llama." + suffix
        for label, kind, value in [("text", STR, "1"), ("int", U32, 1), ("floats", ARR, (F32, [1.0]))]:
            w.key(label, key, kind, value)
    for key in ["general.architecture", "general.name", "llama.rope.scaling.type", "tokenizer.ggml.model",
                "tokenizer.ggml.pre", "tokenizer.chat_template"]:
        for label, kind, value in [("int", U32, 1), ("bool", BOOL, True), ("texts", ARR, (STR, ["a"]))]:
            w.key(label, key, kind, value)
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"]:
        n = len(dict((k[0], k[2]) for k in w.keys)[key][1])
        w.key("scalar", key, U32, n)
        w.key("u8s", key, ARR, (U8, [1] * n))
        w.key("f64s", key, ARR, (F64, [1.0] * n))
    w.key("ints", "tokenizer.ggml.tokens", ARR, (I32, [1, 2]))
    w.key("texts", "tokenizer.ggml.scores", ARR, (STR, ["x"] * 417))
    for key in ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"]:
        w.key("text", key, STR, "1")
        w.key("bool", key, BOOL, True)
    for label, kind, value in [("int", U32, 1), ("text", STR, "true")]:
        w.key(label, "tokenizer.ggml.add_bos_token", kind, value)


def wrong_values(w):
    for suffix in INT_KEYS[:-1]:
        key = "llama." + suffix
        w.key("negative", key, I32, -1)
        w.key("2e63", key, U64, 1 << 63)
        w.key("2e31", key, U32, (1 << 31) - 1, text="")
        w.key("zero", key, U32, 0)
    for suffix in INT_KEYS[:4] + INT_KEYS[4:5]:
        w.key("missing", "llama." + suffix, None, None)
    for suffix in FLOAT_KEYS:
        for label, value in [("nan", float("nan")), ("infinite", float("inf")), ("negative", -1.0)]:
            w.key(label, "llama." + suffix, F32, value)
    w.key("missing", "llama.attention.layer_norm_rms_epsilon", None, None)
    w.key("zero", "llama.rope.freq_base", F32, 0.0)
    w.key("unknown", "llama.rope.scaling.type", STR, "magic", "unsupported", "magic")
    w.key("three", "llama.attention.head_count_kv", U32, 3, text="head_count_kv 3")
    w.key("not-8", "llama.attention.key_length", U32, 12, "any", "12")
    w.key("not-key", "llama.attention.value_length", U32, 16, "unsupported", "16")
    w.key("odd", "llama.rope.dimension_count", U32, 7, text="7")
    w.key("half", "llama.rope.dimension_count", U32, 4, text="4")
    w.key("large", "llama.rope.dimension_count", U32, 16, text="16")
    w.key("uneven", "llama.embedding_length", U32, 15, text="")
    w.key("layers-differ", "llama.feed_forward_length", ARR, (U32, [16, 32]), "unsupported", "differ")
    w.key("empty-array", "llama.attention.head_count", ARR, (U32, []))
    w.key("more", "llama.block_count", U32, 2, text="blk.1.")
    w.key("mamba", "general.architecture", STR, "mamba", "unsupported", "gemma3, llama, qwen2, qwen3")
    w.key("empty", "general.architecture", STR, "", "unsupported", "llama")
    w.key("missing", "general.architecture", None, None)
    w.key("eight", "llama.expert_count", U32, 8, "unsupported", "8 experts")
    w.key("two", "split.count", U16, 2, "unsupported", "2 parts")


def wrong_vocabulary(w):
    base = dict((k[0], k[2]) for k in w.keys)
    tokens, scores = base["tokenizer.ggml.tokens"][1], base["tokenizer.ggml.scores"][1]
    n = len(tokens)
    w.key("fewer", "tokenizer.ggml.tokens", ARR, (STR, tokens[:-1]), text=str(n - 1))
    w.key("missing", "tokenizer.ggml.tokens", None, None, text="")
    w.key("empty-array", "tokenizer.ggml.tokens", ARR, (STR, []), text="")
    w.key("duplicate", "tokenizer.ggml.tokens", ARR, (STR, tokens[:-1] + [tokens[-2]]), text="")
    w.key("no-bytes", "tokenizer.ggml.tokens", ARR,
          (STR, [t.replace("<0x", "<byte") for t in tokens]), "any-or-ok", "")
    w.key("not-utf8", "tokenizer.ggml.tokens", ARR, (STR, tokens[:-1] + [b"\xff\xfe"]), "any-or-ok", "")
    w.key("empty-texts", "tokenizer.ggml.tokens", ARR, (STR, [""] * n), "any-or-ok", "")
    w.key("fewer", "tokenizer.ggml.scores", ARR, (F32, scores[:-1]))
    w.key("nan", "tokenizer.ggml.scores", ARR, (F32, [float("nan")] * n), "any-or-ok", "")
    w.key("fewer", "tokenizer.ggml.token_type", ARR, (I32, [1] * (n - 1)))
    w.key("out-of-range", "tokenizer.ggml.token_type", ARR, (I32, [-77] * n), "any-or-ok", "")
    w.key("out-of-range", "tokenizer.ggml.bos_token_id", U32, n)
    w.key("negative", "tokenizer.ggml.bos_token_id", I32, -5)
    w.key("missing", "tokenizer.ggml.model", None, None)
    w.key("unknown", "tokenizer.ggml.model", STR, "magic", "unsupported", "magic")
    for model in ["bert", "t5", "rwkv", "plamo2", "gemma4", "no_vocab", "test", "hybriddna", "whitespace"]:
        w.key(model, "tokenizer.ggml.model", STR, model, "unsupported", model)
    w.key("no-merges", "tokenizer.ggml.model", STR, "gpt2", text="merges")
    bpe = [k for k in w.keys if k[0] != "tokenizer.ggml.model"] + [("tokenizer.ggml.model", STR, "gpt2")]
    w.add("merges-of-bytes", "format", "merges", keys=bpe + [("tokenizer.ggml.merges", ARR, (U8, [1]))])
    w.add("merges-scalar", "format", "merges", keys=bpe + [("tokenizer.ggml.merges", STR, "a b")])
    w.add("merges-odd", "any-or-ok", "", keys=bpe + [("tokenizer.ggml.pre", STR, "qwen2"),
                                                     ("tokenizer.ggml.merges", ARR, (STR, ["", "ab", " "]))])
    w.key("unknown", "tokenizer.ggml.pre", STR, "magic", "ok", "")  # read for BPE only
    w.key("broken", "tokenizer.chat_template", STR, "{% for x in %}{{", text="template")
    w.key("unclosed", "tokenizer.chat_template", STR, "{% if true %}", text="template")


def resized(t, ne):
    count = 1
    for n in ne:
        count *= max(n, 0)
    return [Tensor(t.name, ne, (t.data * (count * 4 // len(t.data) + 1))[:count * 4])]


def wrong_tensors(w):
    for t in w.tensors:
        w.tensor("missing", t.name, lambda t: [])
        w.tensor("longer", t.name, lambda t: resized(t, [t.ne[0] + 1] + t.ne[1:]))
        w.tensor("deeper", t.name, lambda t: resized(t, (t.ne + [1, 1])[:2] + [2]))
        if len(t.ne) == 1:
            w.tensor("f16", t.name, lambda t: [Tensor(t.name, t.ne, t.data[:len(t.data) // 2], 1)],
                     "unsupported")
        for label, kind, size in [("i8", 24, 1), ("i16", 25, 2), ("i32", 26, 4), ("i64", 27, 8), ("f64", 28, 8)]:
            w.tensor(label, t.name, lambda t: [Tensor(t.name, t.ne, (t.data * 2)[:len(t.data) // 4 * size],
                                                      kind)], "unsupported")
    name = "blk.0.attn_q.weight"
    w.tensor("twice", name, lambda t: [t, t])
    w.tensor("empty", name, lambda t: [Tensor(t.name, [16, 0], b"")])
    w.tensor("negative", name, lambda t: [Tensor(t.name, [-16, -16], t.data)])
    w.tensor("overflow", name, lambda t: [Tensor(t.name, [1 << 40, 1 << 40], t.data)], text="")
    w.tensor("huge", name, lambda t: [Tensor(t.name, [1 << 20, 1 << 20], t.data)], text="")
    w.tensor("rank-9", name, lambda t: [Tensor(t.name, [1] * 9, t.data)])
    w.tensor("type-200", name, lambda t: [Tensor(t.name, t.ne, t.data, 200)])
    w.tensor("removed-type", name, lambda t: [Tensor(t.name, t.ne, t.data, 4)], text="")
    w.tensor("q4_0-width-16", name, lambda t: [Tensor(t.name, t.ne, t.data, 2)], text="")
    w.tensor("long-name", name, lambda t: [Tensor("x" * 64, t.ne, t.data)], text="")
    extra = Tensor("rope_freqs.weight", [3], struct.pack("<3f", 1, 1, 1))
    w.add("rope_freqs.short", "format", "rope_freqs.weight", tensors=w.tensors + [extra])
    extra = Tensor("rope_factors_long.weight", [4], struct.pack("<4f", 1, 1, 1, 1))
    w.add("longrope", "unsupported", "rope_factors_long", tensors=w.tensors + [extra])
    extra = Tensor("blk.0.attn_q.scale", [1], struct.pack("<f", 1))
    w.add("scale", "unsupported", "attn_q.scale", tensors=w.tensors + [extra])


def wrong_files(w):
    w.add("magic", "format", "GGUF", magic=b"GGML")
    w.add("version-1", "format", "", version=1)
    w.add("version-99", "format", "", version=99)
    w.add("duplicate-key", "format", "", keys=w.keys + [w.keys[3]])
    w.add("empty-key", "format", "", keys=w.keys + [("", U32, 1)])
    w.add("alignment-7", "format", "", keys=w.keys + [("general.alignment", U32, 7)])
    w.add("alignment-text", "format", "alignment", keys=w.keys + [("general.alignment", STR, "32")])
    w.add("alignment-0", "format", "", keys=w.keys + [("general.alignment", U32, 0)])
    w.add_bytes("empty.gguf", "format", "empty", b"")
    w.add_bytes("short.gguf", "format", "short", b"GGUF\3\0\0\0")
    w.add_bytes("text.gguf", "format", "GGUF", b"This is not a model, but a letter of more than 24 bytes.\n")
    w.add_bytes("pointer.gguf", "format", "git-lfs",
                b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 98362432\n")
    head = b"GGUF\3\0\0\0"
    big = 1 << 62
    w.add_bytes("many-keys.gguf", "format", "", head + struct.pack("<QQ", 0, big))
    w.add_bytes("many-tensors.gguf", "format", "", head + struct.pack("<QQ", big, 0))
    w.add_bytes("no-keys.gguf", "format", "general.architecture", head + struct.pack("<QQ", 0, 0))
    w.add_bytes("long-key.gguf", "format", "", head + struct.pack("<QQQ", 0, 1, big) + b"abc")
    w.add_bytes("long-array.gguf", "format", "",
                head + struct.pack("<QQ", 0, 1) + tiny.pack_string("a") + struct.pack("<IIQ", ARR, U8, big))
    w.add_bytes("nested-array.gguf", "format", "",
                head + struct.pack("<QQ", 0, 1) + tiny.pack_string("a") + struct.pack("<IIQ", ARR, ARR, 1) + b"\0" * 16)
    w.add_bytes("unknown-value.gguf", "format", "",
                head + struct.pack("<QQ", 0, 1) + tiny.pack_string("a") + struct.pack("<I", 99) + b"\0" * 16)


def sound_ones(w):
    """What may be written in more than one way."""
    w.add("ok-base", "ok", "")
    w.key("u64", "llama.block_count", U64, 1, "ok", "")
    w.key("i64", "llama.embedding_length", I64, 16, "ok", "")
    w.key("u16", "llama.attention.head_count", U16, 2, "ok", "")
    w.key("per-layer", "llama.attention.head_count_kv", ARR, (U32, [1]), "ok", "")
    w.key("per-layer", "llama.feed_forward_length", ARR, (I32, [16]), "ok", "")
    w.key("f64", "llama.rope.freq_base", F64, 1e4, "ok", "")
    w.key("none", "llama.rope.scaling.type", STR, "none", "ok", "")
    w.key("zero", "llama.expert_count", U32, 0, "ok", "")
    w.key("one", "split.count", U16, 1, "ok", "")
    w.key("missing", "general.name", None, None, "ok", "")
    w.key("missing", "llama.attention.head_count_kv", None, None, "format", "attn_k.weight")
    w.add("version-2", "ok", "", version=2)


def main():
    out = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    os.makedirs(out, exist_ok=True)
    w = Writer(out)
    for part in (wrong_types, wrong_values, wrong_vocabulary, wrong_tensors, wrong_files, sound_ones):
        part(w)
    names = [row[0] for row in w.rows]
    assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
    with open(os.path.join(out, "list.tsv"), "w", encoding="ascii") as f:
        f.writelines("\t".join(row) + "\n" for row in w.rows)


if __name__ == "__main__":
    main()
