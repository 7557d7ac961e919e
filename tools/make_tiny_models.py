#!/usr/bin/env python3
"""Writes tiny random GGUF models, one or more per architecture, for the tests.

Standard library only, and the same bytes on every machine. The models are small (3 to 7 layers), their weights
are f32, and between them every switch of the architecture table occurs. Each weight is seeded by its own
name, so a model and its ablation (the same model without one feature, in OUT/ablated) share all others.

Usage: make_tiny_models.py OUT
"""
import array
import math
import os
import random
import struct
import sys

# GGUF value types.
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
_PACK = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?",
         U64: "<Q", I64: "<q", F64: "<d"}
ALIGNMENT = 32


def pack_string(text):
    data = text if isinstance(text, bytes) else text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def pack_value(kind, value):
    if kind == STR:
        return pack_string(value)
    if kind == ARR:
        item, items = value
        return struct.pack("<IQ", item, len(items)) + b"".join(pack_value(item, v) for v in items)
    return struct.pack(_PACK[kind], value)


class Tensor:
    """One tensor: ne as in ggml (ne[0] is the contiguous dimension), data as bytes."""

    def __init__(self, name, ne, data, kind=0):
        self.name, self.ne, self.data, self.kind = name, ne, data, kind


def write_gguf(path, keys, tensors, version=3, magic=b"GGUF"):
    """keys: list of (key, type, value), written as they are, wrong or not."""
    out = bytearray(magic + struct.pack("<IQQ", version, len(tensors), len(keys)))
    for key, kind, value in keys:
        out += pack_string(key) + struct.pack("<I", kind) + pack_value(kind, value)
    offset = 0
    for t in tensors:
        out += pack_string(t.name) + struct.pack("<I", len(t.ne))
        out += b"".join(struct.pack("<q", n) for n in t.ne)
        out += struct.pack("<IQ", t.kind, offset)
        offset += -(-len(t.data) // ALIGNMENT) * ALIGNMENT
    out += b"\0" * (-len(out) % ALIGNMENT)
    for t in tensors:
        out += t.data + b"\0" * (-len(t.data) % ALIGNMENT)
    with open(path, "wb") as f:
        f.write(out)


def random_tensor(family, name, ne, spread, mean=0.0):
    """Nearly normal values: the sum of four uniforms, from the generator whose stream Python guarantees."""
    draw = random.Random(f"{family}/{name}").random
    scale = spread * math.sqrt(3.0)
    n = math.prod(ne)
    values = array.array("f", ((draw() + draw() + draw() + draw() - 2.0) * scale + mean for _ in range(n)))
    if sys.byteorder == "big":
        values.byteswap()
    return Tensor(name, ne, values.tobytes())


PIECES = ("th he in er an re on at en nd ti es or te of ed is it al ar st to nt the and ing ion ent ati ation "
          "you for not this that with work code program public license copy use free soft ware software")
CONTROL = ["<|im_start|>", "<|im_end|>"]
CHATML = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
          "{{ '<|im_start|>system\\nYou are small.<|im_end|>\\n' }}{% endif %}"
          "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def spm_vocab():
    """SentencePiece: control tokens, all bytes, the printable characters, a few longer pieces."""
    tokens = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    tokens += [(f"<0x{b:02X}>", 0.0, 6) for b in range(256)]
    tokens += [(text, 0.0, 3) for text in CONTROL]
    pieces = ["\u2581" + p for p in "t a o s w i the of and to a in is".split()] + PIECES.split()
    pieces += ["\u2581"] + [chr(c) for c in range(33, 127)] + ["\u00e9", "\u4e2d"]
    seen = {t[0] for t in tokens}
    for rank, piece in enumerate(p for p in dict.fromkeys(pieces) if p not in seen):
        tokens.append((piece, -float(rank), 1))
    return [("tokenizer.ggml.model", STR, "llama"),
            ("tokenizer.ggml.tokens", ARR, (STR, [t[0] for t in tokens])),
            ("tokenizer.ggml.scores", ARR, (F32, [t[1] for t in tokens])),
            ("tokenizer.ggml.token_type", ARR, (I32, [t[2] for t in tokens])),
            ("tokenizer.ggml.bos_token_id", U32, 1),
            ("tokenizer.ggml.eos_token_id", U32, 2),
            ("tokenizer.ggml.unknown_token_id", U32, 0),
            ("tokenizer.ggml.add_bos_token", BOOL, True)], len(tokens)


def bpe_vocab():
    """Byte-level BPE as GPT-2 writes it: 256 byte characters, merges, control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    tokens = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]
    merges = []
    for word in ["\u0120" + p for p in "t a o s w i the of and to".split()] + PIECES.split():
        left = word[0]
        for c in word[1:]:  # left to right, so every prefix of a word is a token too
            if left + c not in tokens:
                merges.append(left + " " + c)
                tokens.append(left + c)
            left += c
    kinds = [1] * len(tokens) + [3] * 3
    tokens += ["<|endoftext|>"] + CONTROL
    eos = tokens.index("<|endoftext|>")
    return [("tokenizer.ggml.model", STR, "gpt2"), ("tokenizer.ggml.pre", STR, "qwen2"),
            ("tokenizer.ggml.tokens", ARR, (STR, tokens)),
            ("tokenizer.ggml.token_type", ARR, (I32, kinds)),
            ("tokenizer.ggml.merges", ARR, (STR, merges)),
            ("tokenizer.ggml.bos_token_id", U32, eos),
            ("tokenizer.ggml.eos_token_id", U32, eos),
            ("tokenizer.ggml.add_bos_token", BOOL, False)], len(tokens)


DEFAULTS = dict(layers=4, embd=64, heads=4, kv_heads=2, dim=16, ff=96, vocab=spm_vocab, keys=(), tied=False,
                bias=False, qk_norm=False, post_norm=False, factors=False, context=1024, template=None,
                kv_heads_key=True, dim_keys=False, seed=None)

# Attention must be sharp enough that a wrong rotation shows, hence weights larger than a trained model's.
MODELS = {
    "llama": dict(arch="llama", factors=True, template=CHATML, keys=[("rope.freq_base", F32, 10000.0)]),
    "llama-hd80": dict(arch="llama", layers=3, embd=160, heads=2, kv_heads=1, dim=80, tied=True,
                       keys=[("attention.sliding_window", U32, 16)]),  # Mistral's key, which libllama ignores
    "llama-hd64": dict(arch="llama", embd=96, heads=6, dim=64, dim_keys=True,
                       keys=[("rope.freq_base", F32, 10000.0)]),
    "llama-mha": dict(arch="llama", layers=3, kv_heads=4, kv_heads_key=False,
                      keys=[("rope.scaling.type", STR, "linear"), ("rope.scaling.factor", F32, 4.0)]),
    "qwen2": dict(arch="qwen2", embd=112, heads=7, kv_heads=1, vocab=bpe_vocab, bias=True, template=CHATML,
                  keys=[("rope.freq_base", F32, 1e6)]),
    "qwen2-hd32": dict(arch="qwen2", embd=112, heads=7, kv_heads=1, dim=32, dim_keys=True, vocab=bpe_vocab, bias=True,
                       keys=[("rope.freq_base", F32, 1e6)]),
    "qwen2-yarn": dict(arch="qwen2", embd=112, heads=7, kv_heads=1, vocab=bpe_vocab, bias=True, seed="qwen2",
                       keys=[("rope.freq_base", F32, 1e6), ("rope.scaling.type", STR, "yarn"),
                             ("rope.scaling.factor", F32, 4.0),
                             ("rope.scaling.original_context_length", U32, 256)]),
    "qwen3": dict(arch="qwen3", dim=32, dim_keys=True, vocab=bpe_vocab, qk_norm=True, tied=True,
                  keys=[("rope.freq_base", F32, 1e6)]),
    "gemma3": dict(arch="gemma3", layers=7, embd=48, heads=4, kv_heads=1, dim=32, dim_keys=True, qk_norm=True,
                   post_norm=True, tied=True,
                   keys=[("attention.sliding_window", U32, 16), ("rope.freq_base", F32, 1e6)]),
    "gemma3-scaled": dict(arch="gemma3", layers=6, embd=48, heads=4, kv_heads=2, dim=32, dim_keys=True,
                          qk_norm=True, post_norm=True, tied=True,
                          keys=[("attention.sliding_window", U32, 32), ("rope.freq_base", F32, 1e6),
                                ("rope.freq_base_swa", F32, 5000.0), ("rope.scaling.type", STR, "linear"),
                                ("rope.scaling.factor", F32, 8.0), ("final_logit_softcapping", F32, 3.0),
                                ("attention.sliding_window_pattern", U32, 3)]),
}

# (model, feature): the model with the feature taken away. The test checks that this changes the logits.
ABLATIONS = {
    ("llama", "factors"): dict(factors=False),
    ("llama-mha", "scaling"): dict(keys=[]),
    ("qwen2", "bias"): dict(bias=False),
    ("qwen2-yarn", "scaling"): dict(keys=[("rope.freq_base", F32, 1e6)]),
    ("qwen3", "qk-norm-weights"): dict(qk_norm="flat"),
    ("gemma3", "window"): dict(keys=[("attention.sliding_window", U32, 1024), ("rope.freq_base", F32, 1e6)]),
    ("gemma3", "global-base"): dict(keys=[("attention.sliding_window", U32, 16)]),
    ("gemma3-scaled", "softcap"): dict(keys=MODELS["gemma3-scaled"]["keys"][:5]
                                       + MODELS["gemma3-scaled"]["keys"][6:]),
    ("gemma3-scaled", "local-base"): dict(keys=MODELS["gemma3-scaled"]["keys"][:2]
                                          + MODELS["gemma3-scaled"]["keys"][3:]),
    ("gemma3-scaled", "scaling"): dict(keys=MODELS["gemma3-scaled"]["keys"][:3]
                                       + MODELS["gemma3-scaled"]["keys"][5:]),
    ("gemma3-scaled", "pattern"): dict(keys=MODELS["gemma3-scaled"]["keys"][:6]),
}


def model_keys(spec, vocab_keys):
    arch = spec["arch"]
    keys = [("general.architecture", STR, arch), ("general.name", STR, "tiny " + arch),
            (arch + ".context_length", U32, spec["context"]), (arch + ".block_count", U32, spec["layers"]),
            (arch + ".embedding_length", U32, spec["embd"]), (arch + ".feed_forward_length", U32, spec["ff"]),
            (arch + ".attention.head_count", U32, spec["heads"]),
            (arch + ".attention.layer_norm_rms_epsilon", F32, 1e-6)]
    if spec["kv_heads_key"]:
        keys.append((arch + ".attention.head_count_kv", U32, spec["kv_heads"]))
    if spec["dim_keys"]:
        keys += [(f"{arch}.attention.{part}_length", U32, spec["dim"]) for part in ("key", "value")]
    keys += [(f"{arch}.{key}", kind, value) for key, kind, value in spec["keys"]] + vocab_keys
    if spec["template"]:
        keys.append(("tokenizer.chat_template", STR, spec["template"]))
    return keys


def layer_shapes(spec):
    """(name, ne, spread, mean) of one layer's tensors, without the "blk.N." prefix."""
    embd, ff, dim = spec["embd"], spec["ff"], spec["dim"]
    q, kv = spec["heads"] * dim, spec["kv_heads"] * dim
    sharp = 1.4 / math.sqrt(embd)
    shapes = [("attn_norm.weight", [embd], 0.2, 1.0),
              ("attn_q.weight", [embd, q], sharp, 0.0), ("attn_k.weight", [embd, kv], sharp, 0.0),
              ("attn_v.weight", [embd, kv], 1 / math.sqrt(embd), 0.0),
              ("attn_output.weight", [q, embd], 1 / math.sqrt(q), 0.0),
              ("ffn_norm.weight", [embd], 0.2, 1.0),
              ("ffn_gate.weight", [embd, ff], 1 / math.sqrt(embd), 0.0),
              ("ffn_up.weight", [embd, ff], 1 / math.sqrt(embd), 0.0),
              ("ffn_down.weight", [ff, embd], 1 / math.sqrt(ff), 0.0)]
    if spec["bias"]:
        shapes += [("attn_q.bias", [q], 0.7, 0.0), ("attn_k.bias", [kv], 0.7, 0.0),
                   ("attn_v.bias", [kv], 0.5, 0.0)]
    if spec["qk_norm"]:
        spread, mean = (0.0, 1.0) if spec["qk_norm"] == "flat" else (0.3, 1.3)
        shapes += [("attn_q_norm.weight", [dim], spread, mean), ("attn_k_norm.weight", [dim], spread, mean)]
    if spec["post_norm"]:
        shapes += [("post_attention_norm.weight", [embd], 0.2, 1.0), ("post_ffw_norm.weight", [embd], 0.2, 1.0)]
    return shapes


def model_tensors(family, spec, n_vocab):
    embd, dim = spec["embd"], spec["dim"]
    # A tied embedding must be small, or every token just predicts itself.
    spread = 1.5 / math.sqrt(embd) if spec["tied"] else 1.0
    tensors = [random_tensor(family, "token_embd.weight", [embd, n_vocab], spread),
               random_tensor(family, "output_norm.weight", [embd], 0.2, 1.0)]
    if not spec["tied"]:
        tensors.append(random_tensor(family, "output.weight", [embd, n_vocab], 1.5 / math.sqrt(embd)))
    if spec["factors"]:  # as in Llama 3.1: high frequencies stay, low ones are divided by up to 8
        half = dim // 2
        factors = [min(8.0, max(1.0, 16.0 * i / half - 4.0)) for i in range(half)]
        tensors.append(Tensor("rope_freqs.weight", [half], struct.pack(f"<{half}f", *factors)))
    for layer in range(spec["layers"]):
        for name, ne, spread, mean in layer_shapes(spec):
            tensors.append(random_tensor(family, f"blk.{layer}.{name}", ne, spread, mean))
    return tensors


def build(name, **changes):
    """(keys, tensors) of a model of MODELS, with some of its settings changed."""
    spec = {**DEFAULTS, **MODELS[name], **changes}
    vocab_keys, n_vocab = spec["vocab"]()
    return model_keys(spec, vocab_keys), model_tensors(spec["seed"] or name, spec, n_vocab)


def main():
    out = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    os.makedirs(os.path.join(out, "ablated"), exist_ok=True)
    for name in MODELS:
        write_gguf(os.path.join(out, name + ".gguf"), *build(name))
    for (name, feature), changes in ABLATIONS.items():
        write_gguf(os.path.join(out, "ablated", f"{name}.{feature}.gguf"), *build(name, **changes))


if __name__ == "__main__":
    main()
