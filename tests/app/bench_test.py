"""`precis bench` from outside: columns, formats, options, errors. On tiny models; no time is judged."""

import csv
import io
import json
import os
import subprocess
import tempfile
import unittest

PRECIS = os.environ["PRECIS_BIN"]
TINY = os.environ["PRECIS_TINY_DIR"]
LLAMA = os.path.join(TINY, "llama.gguf")
GEMMA = os.path.join(TINY, "gemma3.gguf")

# llama-bench's names first, then ours.
COLUMNS = ["build_commit", "cpu_info", "backends", "model_filename", "model_type", "model_size", "model_n_params",
           "n_threads", "type_k", "type_v", "n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns",
           "avg_ts", "stddev_ts",
           "version", "weights", "weights_added_bytes", "method", "keep", "n_sessions", "synthetic", "median_ts", "median_ratio", "min_ratio",
           "max_ratio", "kv_bytes", "gb_per_s", "read_bandwidth_gb_s", "share_of_bandwidth", "bound_share",
           "compress_ms", "ttft_ms", "peak_bytes", "break_even_prompt"]


def bench(*arguments, model=LLAMA):
    return subprocess.run([PRECIS, "bench", "-m", model, "-t", "1", *arguments], capture_output=True, text=True,
                          timeout=300)


class Formats(unittest.TestCase):
    def output(self, *arguments, model=LLAMA):
        result = bench(*arguments, model=model)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def rows(self, *arguments, model=LLAMA):
        return json.loads(self.output("-o", "json", *arguments, model=model))

    def test_json_has_every_column_in_order(self):
        rows = self.rows("-p", "96", "-n", "3", "-d", "0,200", "-r", "2", "--warmup", "0")
        self.assertEqual(len(rows), 2 + 1 + 2 + 2)  # pp96; tg3; pp96 @ d200; tg3 @ d200
        for row in rows:
            self.assertEqual(list(row), COLUMNS + ["samples_ns", "samples_ts"])
            self.assertEqual(len(row["samples_ns"]), 2)
            self.assertEqual((row["n_threads"], row["type_k"], row["type_v"]), (1, "f16", "f16"))
            self.assertIs(row["synthetic"], False)
            mean = sum(row["samples_ts"]) / 2
            self.assertAlmostEqual(row["avg_ts"], mean, delta=1e-9 * mean)
            tokens = row["n_prompt"] + row["n_gen"]
            self.assertAlmostEqual(row["samples_ts"][0], tokens * 1e9 / row["samples_ns"][0],
                                   delta=1e-3 * row["samples_ts"][0])
            self.assertRegex(row["test_time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            self.assertGreater(row["read_bandwidth_gb_s"], 0)
            decodes = row["n_gen"] > 0
            self.assertEqual(row["gb_per_s"] is not None, decodes)
            self.assertEqual(row["bound_share"] is not None, decodes and row["method"] != "full")
        full, condensed = rows[-2], rows[-1]
        self.assertEqual((full["method"], full["keep"]), ("full", "100%"))
        self.assertIn("score=selkv", condensed["method"])
        self.assertEqual(condensed["keep"], "25%")
        self.assertLessEqual(condensed["kv_bytes"], 0.25 * full["kv_bytes"])
        self.assertEqual(full["median_ratio"], 1)
        self.assertGreater(condensed["ttft_ms"], condensed["compress_ms"])
        ratio = [a / b for a, b in zip(full["samples_ns"], condensed["samples_ns"])]
        self.assertAlmostEqual(condensed["median_ratio"], sum(ratio) / 2, delta=1e-3 * max(ratio))
        size = os.path.getsize(LLAMA)
        self.assertLess(full["model_size"], size)
        self.assertGreater(full["model_size"], 0.8 * size)

    def test_bytes_a_second_follow_from_the_columns(self):
        full, condensed = self.rows("-p", "0", "-n", "4", "-d", "300", "-r", "3")
        info = json.loads(subprocess.run([PRECIS, "inspect", "--json", LLAMA], capture_output=True).stdout)
        embedding = 4 * info["n_embd"] * info["n_vocab"]  # f32, and only looked up: the output is another
        weights = full["model_size"] - embedding
        read = {}
        for row in (full, condensed):
            read[row["method"]] = weights + row["kv_bytes"] + 2 * info["kv_bytes_per_token"]
            median = sorted(row["samples_ns"])[1]
            self.assertAlmostEqual(row["gb_per_s"], read[row["method"]] * 4 / median, delta=1e-3 * row["gb_per_s"])
            self.assertAlmostEqual(row["share_of_bandwidth"], row["gb_per_s"] / row["read_bandwidth_gb_s"], delta=1e-6)
        allowed = read[full["method"]] / read[condensed["method"]]
        self.assertAlmostEqual(condensed["bound_share"], condensed["median_ratio"] / allowed,
                               delta=1e-3 * condensed["bound_share"])

    def test_csv_and_jsonl_hold_the_same_columns(self):
        options = ["-p", "64", "-n", "2", "-d", "150", "-r", "1", "--method", "full", "--method",
                   "selkv(alpha=1,mode=head)", "--keep", "40%,120"]
        text = self.output("-o", "csv", *options)
        rows = list(csv.reader(io.StringIO(text)))
        self.assertEqual(rows[0], COLUMNS)
        self.assertEqual(len(rows), 1 + 2 * 3)
        self.assertTrue(all(len(row) == len(COLUMNS) for row in rows))
        table = [dict(zip(rows[0], row)) for row in rows[1:]]
        self.assertEqual([r["keep"] for r in table], ["100%", "40%", "120"] * 2)
        self.assertIn("alpha=1,mode=head", table[1]["method"])  # a comma inside the field
        self.assertEqual(table[0]["gb_per_s"], "")
        lines = [json.loads(line) for line in self.output("-o", "jsonl", *options).splitlines()]
        self.assertEqual(len(lines), 6)
        fixed = ["method", "keep", "n_prompt", "n_gen", "n_depth", "kv_bytes", "model_filename", "model_size"]
        for line, row in zip(lines, table):
            self.assertEqual([str(line[name]) for name in fixed], [row[name] for name in fixed])

    def test_markdown(self):
        text = self.output("-p", "96", "-n", "2", "-d", "0,200", "-r", "2")
        lines = text.splitlines()
        header = [cell.strip() for cell in lines[0].strip("|").split("|")]
        self.assertEqual(header[:7], ["model", "size", "threads", "method", "keep", "test", "t/s"])
        self.assertRegex(lines[1], r"^\|( -+[-:] \|)+$")
        table = [line for line in lines if line.startswith("|")]
        self.assertEqual(len({len(line) for line in table}), 1)  # aligned
        self.assertEqual([line.split("|")[6].strip() for line in table[2:]],
                         ["pp96", "pp96", "tg2", "pp96 @ d200", "pp96 @ d200", "tg2 @ d200", "tg2 @ d200"])
        self.assertRegex(table[2].split("|")[7], r"\d+\.\d\d \u00b1 \d+\.\d\d")
        self.assertRegex(lines[-1], r"^build: precis \S+ \(\S+\) on .+, 1 thread; they read memory at \d+\.\d\d GB/s$")
        self.assertNotIn("synthetic", text)

    def test_synthetic_depths_say_so(self):
        options = ["-p", "0", "-n", "2", "-d", "9000", "-r", "1", "--synthetic"]
        text = self.output(*options)
        self.assertIn("tg2 @ d9000 (s)", text)
        self.assertIn("synthetic rows", text)
        full, condensed = self.rows(*options)
        self.assertIs(full["synthetic"], True)
        self.assertIsNone(full["ttft_ms"])
        self.assertLessEqual(condensed["kv_bytes"], 0.25 * full["kv_bytes"])
        self.assertGreater(condensed["kv_bytes"], 0.249 * full["kv_bytes"])

    def test_models_lists_and_ranges(self):
        result = subprocess.run([PRECIS, "bench", "-m", f"{LLAMA},{GEMMA}", "-p", "16-64*2,20-30+5", "-n", "0", "-t", "1,2",
                                 "--method", "full", "-r", "1", "-ctk", "f16", "-ctv", "f16", "-o", "json"],
                                capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = [(os.path.basename(r["model_filename"]), r["n_threads"], r["n_prompt"]) for r in json.loads(result.stdout)]
        self.assertEqual(found, [(model, threads, n) for model in ("llama.gguf", "gemma3.gguf") for threads in (1, 2)
                                 for n in (16, 32, 64, 20, 25, 30)])

    def test_break_even_needs_two_lengths(self):
        rows = self.rows("-p", "0", "-n", "2", "-d", "100,400", "-r", "2", "--keep", "40%")
        self.assertEqual([r["break_even_prompt"] is None for r in rows], [True, False, True, False])
        for row in self.rows("-p", "0", "-n", "2", "-d", "400", "-r", "2"):
            self.assertIsNone(row["break_even_prompt"])

    def test_a_text_takes_the_place_of_random_tokens(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "text.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write("Some words of a text. " * 30)
            self.assertEqual(len(self.rows("-p", "96", "-n", "0", "-r", "1", "-f", path)), 2)
            result = bench("-p", "900", "-n", "0", "-r", "1", "-f", path)
            self.assertEqual(result.returncode, 1)
            self.assertIn("900", result.stderr)

    def test_environment_sets_options(self):
        result = subprocess.run([PRECIS, "bench", "-p", "8", "-n", "0", "-r", "1", "--method", "full", "-o", "json"],
                                capture_output=True, text=True, timeout=300,
                                env=dict(os.environ, PRECIS_ARG_MODEL=LLAMA, PRECIS_ARG_THREADS="2"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([row["n_threads"] for row in json.loads(result.stdout)], [2])

    def test_growth(self):
        options = ["--growth", "-d", "600-9600*4", "-p", "128,256,512", "-n", "2", "-r", "2"]
        out = json.loads(self.output("-o", "json", *options))
        decode = [p for p in out["points"] if p["series"] == "decode"]
        self.assertEqual([p["n"] for p in decode], [600, 2400, 9600])
        self.assertEqual([p["n"] for p in out["points"] if p["series"] == "prefill"], [128, 256, 512])
        series = {s["series"]: s for s in out["series"]}
        self.assertLessEqual({"decode", "compress", "prefill"}, set(series))
        for s in ("decode", "compress", "prefill"):
            terms = series[s]
            for p in out["points"]:
                if p["series"] == s:
                    fitted = terms["constant_ms"] + terms["linear_ms"] * p["n"] + terms["quadratic_ms"] * p["n"] ** 2
                    self.assertAlmostEqual(p["fitted"], fitted, delta=1e-6 * fitted)
                    self.assertLessEqual(abs(p["measured"] - fitted) / p["measured"], terms["worst_residual"] + 1e-9)
        quadratic = series["prefill"]["quadratic_ms"] * 512 ** 2
        total = quadratic + series["prefill"]["linear_ms"] * 512
        self.assertAlmostEqual(series["prefill"]["quadratic_share"], quadratic / total, delta=1e-9)
        text = self.output(*options)
        for words in ["| decode", "| compress", "| prefill", "decode: ", "prefill: ", "quadratic part", "build: precis"]:
            self.assertIn(words, text)
        points = list(csv.DictReader(io.StringIO(self.output("-o", "csv", *options))))
        self.assertEqual([p["n"] for p in points if p["series"] == "decode"], ["600", "2400", "9600"])


class Errors(unittest.TestCase):
    def refused(self, arguments, *words, model=LLAMA):
        result = bench(*arguments, model=model)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_bad_options_are_named(self):
        self.refused(["-p", "12x"], "--n-prompt", "12x")
        self.refused(["-p", "9-3"], "9-3")
        self.refused(["-p", ","], "--n-prompt")
        self.refused(["-n", "0-8*2"], "0-8*2")
        self.refused(["-n", "1-9+0"], "1-9+0")
        self.refused(["-n", "1-99999"], "1-99999")
        self.refused(["-p", "99999999999999999999"], "9999")
        self.refused(["-o", "xml"], "xml", "jsonl")
        self.refused(["-ctk", "q8_0"], "q8_0", "f16")
        self.refused(["-ctv", "f17"], "f17", "f16")
        self.refused(["-b", "65"], "65", "64")
        self.refused(["-r", "0"], "0")
        self.refused(["--method", "selkw"], "selkv")
        self.refused(["--keep", "0%"], "0%")
        self.refused(["-p", "512,40"], "25%", "protected")
        self.refused(["-d", "1020"], "1024", "--synthetic")
        self.refused(["-n", "1024", "-p", "0", "--synthetic", "-d", "5"], "1024")
        self.refused(["-p", "0", "-n", "0"], "no test")
        self.refused(["-p", "16", "-f", "no-such-file"], "no-such-file")
        self.refused([], "cannot open", model="missing.gguf")
        self.refused(["--keep", ","], "no method")
        self.refused(["-ctk", ","], "cache type")
        self.refused([], "names no file", model=",")
        self.refused(["--growth", "--method", "full"], "full")
        self.refused(["--growth", "-d", "0"], "0 entries")
        self.refused(["--growth", "-p", "4096"], "4096", "1024")

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([PRECIS, "bench", "-m", LLAMA, "-p", "8", "-n", "0", "-r", "1", "-t", "1"],
                                    stdout=full, stderr=subprocess.PIPE, timeout=300)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"cannot write", result.stderr)


if __name__ == "__main__":
    unittest.main()
