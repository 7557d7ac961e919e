"""`precis eval ruler|needle|longbench|ask` and `--from`, from outside, on tiny models."""

import json
import os
import subprocess
import tempfile
import time
import unittest

from kill_and_resume import killed_ten_times

PRECIS = os.environ["PRECIS_BIN"]
TINY = os.environ["PRECIS_TINY_DIR"]
QWEN = os.path.join(TINY, "qwen2.gguf")
LONGBENCH = os.path.join(os.path.dirname(__file__), "..", "tasks", "longbench")
NO_MATERIALS = ["niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe"]
# Short enough for tiny models, whose tokens are mostly single letters.
SHORT = ["--method", "full,snapkv", "--keep", "50%", "-t", "1"]


class EvalTasks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name, text=None):
        path = os.path.join(self.folder.name, name)
        if text is not None:
            with open(path, "w") as file:
                file.write(text)
        return path

    def precis(self, *arguments):
        return subprocess.run([PRECIS, "eval", *arguments], capture_output=True, text=True, timeout=600)

    def rows(self, suite, output, *arguments):
        result = self.precis(suite, "-m", QWEN, "-o", self.path(output), *SHORT, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in self.read(output).splitlines()]

    def read(self, output):
        with open(self.path(output), "rb") as file:
            return file.read()

    def test_ruler_leaves_out_what_it_cannot_make_and_says_so(self):
        run, *rows = self.rows("ruler", "r.jsonl", "--length", "900", "-n", "1", "--task",
                               "niah_single_1,niah_single_2,qa_1")
        self.assertEqual([text.split(":")[0] for text in run["left_out"]], ["niah_single_2", "qa_1"])
        self.assertIn("--essay", run["left_out"][0])
        self.assertEqual({row["task"] for row in rows}, {"niah_single_1"})
        scores = [row for row in rows if row["kind"] == "score"]
        self.assertEqual([(row["label"], row["query"]) for row in scores],
                         [("full", "agnostic"), ("snapkv", "agnostic")])
        self.assertEqual([row["label"] for row in rows if row["kind"] == "kept"], ["snapkv"])
        for row in scores:
            self.assertEqual((row["metric"], row["chance"], row["length"]), ("contain_all", 0, 900))
            self.assertEqual(len(row["references"]), 1)
            for field in ("version", "model_sha256", "seed"):
                self.assertEqual(row[field], run[field])

    def test_the_seed_makes_the_samples(self):
        arguments = ["--length", "900", "-n", "1", "--task", "niah_single_1", "--no-maps"]
        prompts = [self.rows("ruler", f"{name}.jsonl", *arguments, "-s", seed)[1]["prompt_sha256"]
                   for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))]
        self.assertEqual(prompts[0], prompts[1])
        self.assertNotEqual(prompts[0], prompts[2])

    def test_needles_at_every_depth_and_length(self):
        _, *rows = self.rows("needle", "n.jsonl", "--length", "700,900", "--depth", "0,33.3,100", "-n", "2",
                             "--query", "agnostic,aware", "--no-maps")
        self.assertEqual(len(rows), 2 * 2 * 3 * 2 * 2)
        self.assertEqual({row["task"] for row in rows},
                         {"needle_depth_0", "needle_depth_33.3", "needle_depth_100"})
        self.assertEqual({row["query"] for row in rows}, {"agnostic", "aware"})

    def test_longbench_reads_its_files(self):
        run, *rows = self.rows("longbench", "l.jsonl", "-f", LONGBENCH, "--limit", "300", "--no-maps",
                               "--task", "trec,passage_count,lcc")
        self.assertEqual(list(run["input_sha256"]), ["trec.jsonl", "passage_count.jsonl", "lcc.jsonl"])
        self.assertEqual([row["task"] for row in rows[::2]],
                         ["trec", "passage_count", "lcc"] * (len(rows) // 6))
        metrics = {row["task"]: row["metric"] for row in rows}
        self.assertEqual(metrics, {"trec": "classification", "passage_count": "count", "lcc": "edit_similarity"})
        self.assertEqual({row["used_template"] for row in rows if row["task"] == "lcc"}, {False})
        for row in rows:
            self.assertLessEqual(row["n_context"] + row["n_question"], 300 + 128, row)

    def test_own_questions_on_an_own_document(self):
        document = self.path("doc.txt", "The sky is blue. " * 20)
        questions = self.path("q.txt", 'Which colour?\n{"question": "What is blue?", "answers": ["sky"]}\n')
        _, *rows = self.rows("ask", "a.jsonl", "-f", document, "--questions", questions, "-n", "5",
                             "--query", "agnostic,aware", "--no-maps")
        self.assertEqual(len(rows), 2 * 2 * 2)
        self.assertEqual([row["references"] for row in rows[:2]], [[], ["sky"]])
        self.assertEqual({row["task"] for row in rows}, {"doc.txt"})

    def test_killed_anywhere_and_resumed_gives_the_same_file(self):
        arguments = ["--length", "700", "-n", "3", "--task", "niah_single_1,vt,fwe", "--query", "agnostic,aware"]
        start = time.monotonic()
        self.rows("ruler", "undisturbed.jsonl", *arguments)
        seconds = time.monotonic() - start
        whole = self.read("undisturbed.jsonl")
        command = [PRECIS, "eval", "ruler", "-m", QWEN, "-o", self.path("killed.jsonl"), *SHORT, *arguments]
        self.assertEqual(killed_ten_times(command, self.path("killed.jsonl"), whole, seconds, 2), 10)
        self.rows("ruler", "killed.jsonl", *arguments)
        self.assertEqual(self.read("killed.jsonl"), whole)

    def test_a_run_is_repeated_from_its_results(self):
        essay = self.path("essay, with commas.txt", "Ships sail at dawn. Nobody knows where they go. " * 30)
        self.rows("ruler", "r.jsonl", "--length", "800", "-n", "2", "--task", "niah_single_2,fwe", "--essay", essay,
                  "--raw", "-s", "7", "--shard", "2/2")
        repeat = ["--from", self.path("r.jsonl"), "-m", QWEN, "-o", self.path("again.jsonl")]
        result = self.precis(*repeat)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.read("again.jsonl"), self.read("r.jsonl"))
        # Other threads are other words in the first line, and the same rows.
        result = self.precis(*repeat[:-1], self.path("threads.jsonl"), "-t", "2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.read("threads.jsonl").splitlines()[1:], self.read("r.jsonl").splitlines()[1:])
        # Another text or model is another run.
        self.path("essay, with commas.txt", "Ships sail at night. " * 90)
        result = self.precis(*repeat[:-1], self.path("other.jsonl"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("input_sha256", result.stderr)
        result = self.precis(*repeat[:-3], os.path.join(TINY, "llama.gguf"), "-o", self.path("other.jsonl"))
        self.assertEqual(result.returncode, 1)
        self.assertFalse(os.path.exists(self.path("other.jsonl")))

    def test_errors_are_one_line(self):
        text = self.path("t.txt", "Some text.")
        empty = self.path("e.txt", "")
        ruler = ["ruler", "-m", QWEN, "-o", self.path("x.jsonl")]
        ask = ["ask", "-m", QWEN, "-o", self.path("x.jsonl"), "-f", text]
        for arguments, message in [
            ([], "what is to be evaluated?"),
            (["--from", text, "-m", QWEN, "-o", self.path("x.jsonl")], "no result file"),
            (["--from", self.path("missing"), "-m", QWEN, "-o", self.path("x.jsonl")], "missing"),
            (["--from", text], "needs a model"),
            (ruler + ["--task", "niah"], "niah_single_1"),
            (ruler + ["--task", "qa_1", "--length", "900"], "--squad"),
            (ruler + ["--length", "100000"], "context"),
            (ruler + ["--length", "60", "--task", "vt"], "at least"),
            (ruler + ["--length", "0"], "--length"),
            (ruler + ["--query", "both"], "agnostic, aware"),
            (ruler + ["--squad", text], "SQuAD"),
            (ruler + ["--essay", "-"], "standard input"),
            (["needle", "-m", QWEN, "-o", self.path("x.jsonl"), "--depth", "101"], "--depth '101'"),
            (["longbench", "-m", QWEN, "-o", self.path("x.jsonl"), "-f", text], "t.txt"),
            (["longbench", "-m", QWEN, "-o", self.path("x.jsonl"), "-f", LONGBENCH, "--task", "nosuch"], "nosuch"),
            (["longbench", "-m", QWEN, "-o", self.path("x.jsonl"), "-f", LONGBENCH, "--prompts", text], "JSON"),
            (ask + ["--questions", empty], "no question"),
            (ask + ["--questions", self.path("missing")], "missing"),
        ]:
            result = self.precis(*arguments)
            self.assertEqual(result.returncode, 1, (arguments, result.stderr))
            self.assertIn(message, result.stderr)
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
            self.assertFalse(os.path.exists(self.path("x.jsonl")) and self.read("x.jsonl").count(b"\n") > 1)


if __name__ == "__main__":
    unittest.main()
