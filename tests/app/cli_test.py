"""The binary from outside: exit codes, one-line errors, JSON, nothing half-written.

Runs on tiny random models (PRECIS_TINY_DIR), so it is quick even with sanitizers.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import make_tiny_models as tiny  # noqa: E402

PRECIS = os.environ["PRECIS_BIN"]
TINY = os.environ["PRECIS_TINY_DIR"]
LLAMA = os.path.join(TINY, "llama.gguf")
GEMMA = os.path.join(TINY, "gemma3.gguf")
TEXT = "The quick brown fox jumps over the lazy dog. " * 5

JSON_FIELDS = {
    "answer": str, "method": str, "keep": str, "n_prompt": int, "next_position": int,
    "kv_bytes_full": int, "kv_bytes": int, "entries_per_layer_head": list, "prefill_ms": float,
    "compress_ms": float, "decode_tokens_per_s": float, "peak_bytes": int, "seed": int,
    "threads": int, "model_sha256": str, "matmul": dict,
    "compress_stages_ms": dict,
    "weights": dict,
}


def precis(*arguments, stdin=None, environment=None):
    # Two processes may measure differently, and their answers are compared.
    env = dict(os.environ, PRECIS_ARG_MATMUL="sgemm", PRECIS_ARG_WEIGHTS="file")
    env.update(environment or {})
    return subprocess.run([PRECIS, *arguments], input=stdin, capture_output=True, timeout=300, env=env)


class BadInput(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, data):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def refused(self, arguments, *words):
        """Exit code 1, no output, exactly one line on stderr, and it holds every word."""
        result = precis(*arguments)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, 1, message)
        self.assertEqual(result.stdout, b"")
        self.assertEqual(message.count("\n"), 1, message)
        for word in words:
            self.assertIn(word, message)

    def run_with(self, **changes):
        options = {"-m": LLAMA, "-p": "hello", "-n": "1"}
        options.update(changes)
        return ["run"] + [word for pair in options.items() for word in pair]

    def test_models(self):
        missing = os.path.join(self.folder.name, "missing.gguf")
        self.refused(self.run_with(**{"-m": missing}), "cannot open", missing)
        self.refused(self.run_with(**{"-m": self.folder.name}), "directory")
        self.refused(self.run_with(**{"-m": self.write("empty.gguf", b"")}), "0 bytes")
        self.refused(self.run_with(**{"-m": self.write("x.gguf", b"GGML" + bytes(100))}), "not a GGUF")
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
        self.refused(self.run_with(**{"-m": self.write("p.gguf", pointer)}), "git-lfs")
        self.refused(["inspect", missing], "cannot open")

    def test_model_cut_anywhere(self):
        with open(LLAMA, "rb") as file:
            data = file.read()
        for i in range(50):
            path = self.write("cut.gguf", data[: len(data) * i // 50])
            self.refused(self.run_with(**{"-m": path}), "cut.gguf")

    def test_documents(self):
        missing = os.path.join(self.folder.name, "missing.txt")
        self.refused(self.run_with(**{"-f": missing}), "cannot open", missing)
        self.refused(self.run_with(**{"-f": self.folder.name}), "directory")
        empty = self.write("empty.txt", b"")
        self.refused(["run", "-m", LLAMA, "-f", empty], "empty")
        self.refused(["run", "-m", LLAMA, "-f", self.write("blank.txt", b" \n\t ")], "empty")
        self.refused(["run", "-m", LLAMA, "-f", empty, "-p", "What?"], "empty")
        self.refused(["run", "-m", LLAMA, "-f", self.write("big.txt", b"a " * 400000)], "800000", "1024")
        self.refused(["run", "-m", LLAMA], "empty")
        self.refused(self.run_with(**{"-f": "/dev/zero"}), "more than")
        long_text = self.write("long.txt", b"a b " * 20000)
        result = precis("inspect", "--json", LLAMA)
        context = json.loads(result.stdout)["context"]
        self.refused(self.run_with(**{"-f": long_text}), str(context), "tokens")

    def test_budgets(self):
        text = self.write("t.txt", TEXT.encode())
        for keep in ["0", "0%", "200%", "-5%", "1.5", "12XB", "nonsense", "0MiB"]:
            self.refused(self.run_with(**{"-f": text, "--keep": keep}), "keep")
        self.refused(self.run_with(**{"-f": text, "--keep": "1%"}), "entries", "protected")

    def test_templates(self):
        for source in ["{# nothing #}", "{{ messages[7].content }}", "{{ x"]:
            path = os.path.join(self.folder.name, "template.gguf")
            tiny.write_gguf(path, *tiny.build("llama", template=source))
            self.refused(self.run_with(**{"-m": path}), "template")

    def test_nothing_is_printed_when_condensing_fails(self):
        text = self.write("t.txt", TEXT.encode())
        self.refused(self.run_with(**{"-f": text, "--keep": "1"}) + ["--compare"], "entries")

    def test_full_disk_is_an_error(self):
        for command in [["methods"], ["inspect", LLAMA], self.run_with(), self.run_with() + ["--json"]]:
            with open("/dev/full", "wb") as full:
                result = subprocess.run([PRECIS, *command], stdout=full, stderr=subprocess.PIPE, timeout=300)
            self.assertEqual(result.returncode, 1, command)
            self.assertIn(b"cannot write", result.stderr)

    def test_an_environment_variable_of_another_command_does_no_harm(self):
        result = precis("inspect", LLAMA, environment={"PRECIS_ARG_N_PREDICT": "abc"})
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_matmul(self):
        self.refused(self.run_with(**{"--matmul": "blas"}), "matmul", "sgemm")

    def test_weights(self):
        self.refused(self.run_with(**{"--weights": "q4_1"}), "weights", "q8_0")

    def test_methods(self):
        self.refused(self.run_with(**{"--method": "selkw"}), "selkw", "selkv")
        self.refused(self.run_with(**{"--method": "snapkb"}), "snapkv")
        self.refused(self.run_with(**{"--method": "selkv(window=32"}), "16")
        self.refused(self.run_with(**{"--method": "selkv(windo=32)"}), "windo", "window")
        self.refused(self.run_with(**{"--method": "score=selkv("}), "13")
        self.refused(self.run_with(**{"--method": "selkv(window=0)"}), "window", "0")
        self.refused(self.run_with(**{"--method": "selkv select=sharing"}), "sharing", "shared")

    def test_command_line(self):
        self.refused([])
        self.refused(["rum"], "rum")
        self.refused(["run", "-m", LLAMA, "-p", "x", "--no-such-option"], "no-such-option")
        self.refused(self.run_with(**{"-n": "0"}), "0")
        self.refused(self.run_with(**{"-t": "-1"}), "-1")
        self.refused(self.run_with(**{"--temp": "hot"}), "hot")
        self.refused(self.run_with(**{"--temp": "nan"}), "nan")
        self.refused(self.run_with(**{"-c": "-1"}), "-1")
        self.refused(["run", "-m", "x\x1b[2J", "-p", "x"], "x?[2J")


class GoodInput(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = os.path.join(self.folder.name, "text.txt")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write(TEXT)

    def run_json(self, *arguments, model=LLAMA, text=None, n_answer="8"):
        result = precis("run", "-m", model, "-f", text or self.text, "-p", "Which animal?", "-n", n_answer,
                        "--json", "-t", "1", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        lines = result.stdout.decode().splitlines()
        self.assertEqual(len(lines), 1)
        return json.loads(lines[0]), result.stderr.decode()

    def test_json_has_every_field(self):
        out, _ = self.run_json("--keep", "50%", "--ignore-eos")
        for name, kind in JSON_FIELDS.items():
            self.assertIsInstance(out[name], kind, name)
        self.assertIsNone(out["skipped"])
        self.assertEqual(out["n_prompt"], out["n_condensed"] + out["n_question"])
        self.assertEqual(out["next_position"], out["n_prompt"] + out["n_answer"])
        self.assertEqual(out["n_answer"], 8)
        self.assertLessEqual(out["kv_bytes"], 0.5 * out["kv_bytes_full"])
        self.assertGreater(out["kv_bytes"], 0.45 * out["kv_bytes_full"])
        digest = subprocess.run(["sha256sum", LLAMA], capture_output=True, check=True).stdout.decode().split()[0]
        self.assertEqual(out["model_sha256"], digest)
        stages = out["compress_stages_ms"]
        self.assertEqual(list(stages), ["score", "select", "merge", "residual", "freeze"])
        self.assertIsNone(out["residual"])
        self.assertTrue(all(time >= 0 for time in stages.values()), stages)
        self.assertLess(0, sum(stages.values()))
        self.assertLess(sum(stages.values()), 1.01 * out["compress_ms"] + 0.1)

    def test_entries_agree_with_bytes(self):
        for method in ["random", "streaming", "snapkv", "selkv", "reskv(validate=off)"]:
            out, _ = self.run_json("--keep", "50%", "--method", method)
            info = json.loads(precis("inspect", "--json", LLAMA).stdout)
            entries = sum(sum(layer) for layer in out["entries_per_layer_head"])
            per_entry = 4 * info["head_dim"] + 4 + (4 if "bias=ratio" in out["method"] else 0)
            self.assertEqual(out["kv_bytes"], entries * per_entry, method)

    def test_decode_step_keeps_the_size(self):
        out, _ = self.run_json("--keep", "60%", "--method", "h2o(recent=8) decode=step", "--ignore-eos", n_answer="40")
        self.assertTrue(out["method"].endswith(" decode=step"), out["method"])
        self.assertEqual(out["kv_bytes_end"], out["kv_bytes"])
        once, _ = self.run_json("--keep", "60%", "--method", "h2o(recent=8)", "--ignore-eos", n_answer="40")
        self.assertNotIn("decode", once["method"])
        self.assertGreater(once["kv_bytes_end"], once["kv_bytes"])
        refused = precis("run", "-m", LLAMA, "-p", TEXT, "--method", "snapkv decode=step")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(b"presets that have it: streaming, tova, h2o", refused.stderr)

    def test_residual_entries_are_reported(self):
        long = os.path.join(self.folder.name, "long.txt")
        with open(long, "w", encoding="utf-8") as file:
            file.write(TEXT * 4)
        out, _ = self.run_json("--keep", "40%", "--method", "reskv(validate=off)", text=long)
        residual = out["residual"]
        heads = [head for layer in residual["per_layer_head"] for head in layer]
        self.assertEqual(residual["n_heads"], len(heads))
        self.assertEqual(residual["n_heads_taking"], len(heads))
        self.assertEqual(residual["n_entries"], sum(head["entries"] for head in heads))
        self.assertGreater(residual["n_entries"], 0)
        for head in heads:
            self.assertGreater(head["error_before"], 0)
            self.assertTrue(0 <= head["evicted_mass"] <= 1 and 0 <= head["gate_factor"] <= 1, head)
            gate = head["decode_gate"]
            self.assertTrue(0 < gate["n_open"] + gate["n_closed"] <= gate["n_queries"], gate)
            self.assertTrue(0 < gate["mean_factor"] <= 1, gate)
        self.assertEqual(residual["decode_gate"]["n_queries"],
                         sum(head["decode_gate"]["n_queries"] for head in heads))

    def test_keeping_everything_is_full(self):
        full, _ = self.run_json("--method", "full")
        for method in ["random", "streaming", "snapkv", "selkv", "reskv(validate=off)"]:
            out, _ = self.run_json("--method", method, "--keep", "100%")
            self.assertEqual(out["answer"], full["answer"], method)
            self.assertEqual(out["kv_bytes"], out["kv_bytes_full"])

    def test_sliding_layers_are_left_alone(self):
        out, _ = self.run_json("--keep", "50%", model=GEMMA)
        info = json.loads(precis("inspect", "--json", GEMMA).stdout)
        self.assertGreater(info["n_sliding_layers"], 0)
        self.assertEqual(len(out["entries_per_layer_head"]), info["n_layers"] - info["n_sliding_layers"])

    def test_short_prompt_is_left_whole(self):
        short = os.path.join(self.folder.name, "short.txt")
        with open(short, "w", encoding="utf-8") as file:
            file.write("Hi")
        out, _ = self.run_json("--raw", "--keep", "50%", text=short)
        self.assertIn("protected", out["skipped"])
        self.assertEqual(out["kv_bytes"], out["kv_bytes_full"])

    def test_without_keep_short_prompts_stay_whole(self):
        out, _ = self.run_json()
        self.assertIn("whole cache", out["skipped"])  # about 250 tokens, the floor is 256

    def test_seed_and_threads_repeat(self):
        options = ["--keep", "50%", "--temp", "1", "-s", "7", "--method", "random"]
        first, _ = self.run_json(*options)
        second, _ = self.run_json(*options)
        self.assertEqual(first["answer"], second["answer"])

    def test_invalid_utf8_is_replaced_and_said_once(self):
        path = os.path.join(self.folder.name, "bytes.txt")
        with open(path, "wb") as file:
            file.write(TEXT.encode() + b"\xff\xfe broken \xc3" + TEXT.encode())
        _, stderr = self.run_json("--keep", "50%", text=path)
        self.assertEqual(stderr.count("UTF-8"), 1)
        self.assertIn("3 places", stderr)

    def test_compare(self):
        result = precis("run", "-m", LLAMA, "-f", self.text, "-p", "Which?", "-n", "6", "--compare", "--ignore-eos",
                        "--keep", "50%")
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        text = result.stdout.decode()
        for words in ["condensed cache", "full cache", "KV cache", "prefill", "decode", "memory", "KL"]:
            self.assertIn(words, text)
        out, _ = self.run_json("--compare", "--keep", "100%", "--ignore-eos")
        self.assertEqual(out["full"]["mean_kl"], 0)
        self.assertEqual(out["full"]["answer"], out["answer"])

    def test_environment_sets_options(self):
        result = precis("run", "-p", "hello there", "--json", environment={"PRECIS_ARG_MODEL": LLAMA, "PRECIS_ARG_N_PREDICT": "2"})
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        self.assertLessEqual(json.loads(result.stdout)["n_answer"], 2)

    def test_matmul_is_chosen_and_reported(self):
        info = json.loads(precis("inspect", "--json", LLAMA).stdout)
        for mode, expected in [("ggml", [None]), ("sgemm", [2])]:
            out, _ = self.run_json("--matmul", mode)
            self.assertEqual(out["matmul"]["mode"], mode)
            kinds = out["matmul"]["kinds"]
            self.assertEqual([k["sgemm_from_tokens"] for k in kinds], expected * len(kinds))
            shapes = {(k["n_in"], k["n_out"]) for k in kinds}
            self.assertIn((info["n_embd"], info["n_vocab"]), shapes)
            self.assertEqual({k["type"] for k in kinds}, {"f32"})
        out, _ = self.run_json("--matmul", "auto")
        self.assertEqual(out["matmul"]["mode"], "auto")
        for kind in out["matmul"]["kinds"]:
            least = kind["sgemm_from_tokens"]
            self.assertTrue(least is None or 2 <= least <= 256, least)
        by_variable = precis("run", "-m", LLAMA, "-p", "hello", "--json", "-n", "1",
                             environment={"PRECIS_ARG_MATMUL": "ggml"})
        self.assertEqual(json.loads(by_variable.stdout)["matmul"]["mode"], "ggml")

    def test_form_of_weights_is_reported(self):
        out, _ = self.run_json()
        self.assertEqual(out["weights"]["mode"], "file")  # by the variable
        for mode in ["auto", "q8_0"]:
            out, _ = self.run_json("--weights", mode)
            self.assertEqual(out["weights"]["mode"], mode)
            self.assertEqual((out["weights"]["added_bytes"], out["weights"]["forms"]), (0, []))  # all are f32

    def test_document_from_standard_input(self):
        result = precis("run", "-m", LLAMA, "-f", "-", "-n", "2", "--json", stdin=TEXT.encode())
        self.assertEqual(result.returncode, 0, result.stderr.decode())

    def test_lists_and_help(self):
        methods = precis("methods").stdout.decode()
        for name in ["full", "random", "streaming", "snapkv", "selkv"]:
            self.assertIn(name, methods)
        inspected = precis("inspect", GEMMA).stdout.decode()
        for words in ["gemma3", "sliding", "KV bytes per token", "context"]:
            self.assertIn(words, inspected)
        for command in [[], ["run"], ["methods"], ["inspect"], ["bench"]]:
            result = precis(*command, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn(b"help", result.stdout)
        self.assertTrue(precis("--version").stdout.startswith(b"precis "))


if __name__ == "__main__":
    unittest.main()
