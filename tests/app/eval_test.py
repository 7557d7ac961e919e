"""`precis eval fidelity` from outside: result files, resuming after SIGKILL, shards, errors. On tiny models."""

import json
import os
import subprocess
import tempfile
import time
import unittest

from kill_and_resume import killed_ten_times

PRECIS = os.environ["PRECIS_BIN"]
TINY = os.environ["PRECIS_TINY_DIR"]
LLAMA = os.path.join(TINY, "llama.gguf")
TEXT = " ".join(f"word{i * i % 97}" for i in range(3000))


class Eval(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = self.path("text.txt")
        with open(self.text, "w") as file:
            file.write(TEXT)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def command(self, output, *arguments):
        return [PRECIS, "eval", "fidelity", "-m", LLAMA, "-t", "1", "-f", self.text, "-o", self.path(output),
                "--context", "400", "--continuation", "12", "-n", "10", *arguments]

    def run_eval(self, output, *arguments):
        return subprocess.run(self.command(output, *arguments), capture_output=True, text=True, timeout=300)

    def rows(self, output, *arguments):
        result = self.run_eval(output, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path(output)) as file:
            return [json.loads(line) for line in file]

    def read(self, output):
        with open(self.path(output), "rb") as file:
            return file.read()

    def test_rows_say_what_was_run(self):
        run, *rows = self.rows("results.jsonl")
        self.assertEqual(run["kind"], "run")
        self.assertEqual(run["suite"], "fidelity")
        self.assertEqual(run["model"], "llama.gguf")
        self.assertEqual(len(run["model_sha256"]), 64)
        self.assertEqual(list(run["input_sha256"]), ["text.txt"])
        self.assertEqual(run["settings"]["context"], ["400"])
        # full once, two methods at three budgets, ten passages.
        self.assertEqual(len(rows), 10 * (1 + 2 * 3))
        self.assertEqual({row["kind"] for row in rows}, {"fidelity"})
        for row in rows:
            self.assertEqual(row["mean_kl"] == 0, row["label"] == "full", row)
        with open(self.path("results.timing.jsonl")) as file:
            times = [json.loads(line) for line in file]
        self.assertEqual(len(times), len(rows) + 1)

    def test_a_finished_run_is_left_as_it_is(self):
        self.rows("results.jsonl")
        before = self.read("results.jsonl")
        self.rows("results.jsonl")
        self.assertEqual(self.read("results.jsonl"), before)

    def test_killed_anywhere_and_resumed_gives_the_same_file(self):
        start = time.monotonic()
        self.rows("undisturbed.jsonl")
        seconds = time.monotonic() - start
        whole = self.read("undisturbed.jsonl")
        self.assertEqual(killed_ten_times(self.command("killed.jsonl"), self.path("killed.jsonl"), whole, seconds, 1), 10)
        self.rows("killed.jsonl")
        self.assertEqual(self.read("killed.jsonl"), whole)

    def test_shards_hold_the_rows_of_the_whole(self):
        whole = self.rows("whole.jsonl")[1:]
        dealt = []
        for shard in (1, 2, 3):
            run, *rows = self.rows(f"shard{shard}.jsonl", "--shard", f"{shard}/3")
            self.assertEqual((run["shard"], run["n_shards"]), (shard, 3))
            dealt += rows
        key = lambda row: json.dumps(row, sort_keys=True)
        self.assertEqual(sorted(dealt, key=key), sorted(whole, key=key))

    def test_another_run_does_not_touch_the_file(self):
        self.rows("results.jsonl")
        before = self.read("results.jsonl")
        result = self.run_eval("results.jsonl", "--seed", "9")
        self.assertEqual(result.returncode, 1)
        self.assertIn("field 'seed' is 1 and 9", result.stderr)
        self.assertEqual(self.read("results.jsonl"), before)

    def test_the_environment_is_heard_by_the_command_that_runs_only(self):
        environment = {**os.environ, "PRECIS_ARG_SEED": "5", "PRECIS_ARG_MODEL": LLAMA}
        command = [word for word in self.command("results.jsonl") if word not in ("-m", LLAMA)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(self.read("results.jsonl").splitlines()[0])["seed"], 5)
        environment["PRECIS_ARG_SEED"] = "no number"
        result = subprocess.run([PRECIS, "methods"], capture_output=True, text=True, timeout=300, env=environment)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_errors_are_one_line(self):
        for arguments, message in [
            (["--shard", "3/2"], "--shard '3/2'"),
            (["--shard", "1/2x"], "--shard '1/2x'"),
            (["--method", "nosuch"], "nosuch"),
            (["--keep", "0%"], "0%"),
            (["-ctk", "q3"], "q3"),
            (["-f", self.path("missing.txt")], "missing.txt"),
            (["--context", "100000000"], "context"),
            (["--context", "3000"], "no text is long enough"),
        ]:
            if message == "no text is long enough":
                with open(self.text, "w") as file:
                    file.write("short")
                arguments = []
            result = self.run_eval("errors.jsonl", *arguments)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertIn(message, result.stderr)
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        with open(self.text, "w") as file:
            file.write(TEXT)
        result = self.run_eval("errors.jsonl", "-f", "-")
        self.assertIn("not standard input", result.stderr)
        result = self.run_eval("errors.jsonl", "-f", self.text)
        self.assertIn("two texts have the name 'text.txt'", result.stderr)
        self.assertFalse(os.path.exists(self.path("errors.jsonl")))
        empty = self.path("empty")
        os.mkdir(empty)
        result = self.run_eval("errors.jsonl", "-f", empty)
        self.assertEqual(result.returncode, 1)
        self.assertIn("has no files", result.stderr)


if __name__ == "__main__":
    unittest.main()
