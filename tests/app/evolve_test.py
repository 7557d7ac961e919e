"""`precis eval evolve` and the budgets that it writes, from outside: resuming, interrupts, errors. On tiny models."""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from kill_and_resume import killed_ten_times

PRECIS = os.environ["PRECIS_BIN"]
TINY = os.environ["PRECIS_TINY_DIR"]
LLAMA = os.path.join(TINY, "llama.gguf")
TEXT = " ".join(f"word{i * i % 97}" for i in range(3000))


class Evolve(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = self.path("text.txt")
        with open(self.text, "w") as file:
            file.write(TEXT)
        self.short_text = self.path("short.txt")
        with open(self.short_text, "w") as file:
            file.write(TEXT[:900])

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def command(self, output, **changes):
        options = {"model": LLAMA, "threads": "1", "file": self.text, "output": self.path(output), "keep": "20%",
                   "context": "300", "continuation": "12", "passages": "2", "generations": "3", **changes}
        return [PRECIS, "eval", "evolve", *(f"--{name}={value}" for name, value in options.items())]

    def call(self, *words):
        return subprocess.run(words, capture_output=True, text=True, timeout=300)

    def evolve(self, output, **changes):
        return self.call(*self.command(output, **changes))

    def found(self, output, **changes):
        result = self.evolve(output, **changes)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.read(output)

    def read(self, output):
        with open(self.path(output), "rb") as file:
            return file.read()

    def refused(self, result, *parts):
        self.assertEqual(result.returncode, 1, result.stdout)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)

    def test_same_seed_same_file(self):
        first = self.found("a.json")
        self.assertEqual(first, self.found("b.json", threads="2"))
        self.assertNotEqual(first, self.found("c.json", seed="2"))
        budgets = json.loads(first)
        self.assertEqual(budgets["model"], "llama.gguf")
        self.assertEqual(len(budgets["shares"]), budgets["n_layers"])
        self.assertTrue(budgets["search"]["finished"])
        values = budgets["search"]["values"]
        self.assertLess(min(values), values[0])
        again = self.evolve("a.json")
        self.assertEqual(again.returncode, 0)
        self.assertIn("finished", again.stdout)
        self.assertEqual(first, self.read("a.json"))

    def test_killed_and_resumed_is_the_same(self):
        start = time.monotonic()
        whole = self.found("whole.json", generations="12")
        seconds = time.monotonic() - start
        command = self.command("killed.json", generations="12")
        killed_ten_times(command, self.path("killed.json"), whole, seconds, seed=5)
        self.assertEqual(self.call(*command).returncode, 0)
        self.assertEqual(self.read("killed.json"), whole)
        self.assertEqual([name for name in os.listdir(self.folder.name) if name.endswith(".tmp")
                          and name.startswith("whole")], [])

    def test_interrupted_leaves_budgets_that_work(self):
        process = subprocess.Popen(self.command("cut.json", generations="10000"), stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if "candidates" in line:
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        budgets = json.loads(self.read("cut.json"))
        self.assertFalse(budgets["search"]["finished"])
        self.run_with("cut.json")

    def run_with(self, output):
        spec = f'snapkv layers=evolkv(path="{self.path(output)}")'
        result = self.call(PRECIS, "run", "-m", LLAMA, "-t", "1", "-f", self.short_text, "-n", "2", "--keep", "20%", "--raw",
                           "--json", "--method", spec)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_budgets_are_run_and_evaluated(self):
        shares = json.loads(self.found("a, (1).json"))["shares"]
        ran = self.run_with("a, (1).json")
        self.assertIn("layers=weights(list=" + "-".join(f"{share:g}" for share in shares) + ",fit=exact)", ran["method"])
        # Results have the shares and not the file.
        spec = f'snapkv layers=evolkv(path="{self.path("a, (1).json")}")'
        command = [PRECIS, "eval", "fidelity", "-m", LLAMA, "-t", "1", "-f", self.text, "--context", "300",
                   "--continuation", "12", "-n", "2", "--keep", "20%", "--method", "snapkv," + spec]
        result = self.call(*command, "-o", self.path("r.jsonl"))
        self.assertEqual(result.returncode, 0, result.stderr)
        run, *rows = map(json.loads, self.read("r.jsonl").decode().splitlines())
        self.assertEqual(run["settings"]["method"], ["snapkv", ran["method"]])
        kl = {}
        for row in rows:
            kl.setdefault(row["label"], []).append(row["mean_kl"])
        values = json.loads(self.read("a, (1).json"))["search"]["values"]
        for label, value in (("snapkv", values[0]), (ran["method"], min(values))):
            self.assertAlmostEqual(sum(kl[label]) / 2, value, delta=1e-3 * value)
        os.remove(self.path("a, (1).json"))
        result = self.call(PRECIS, "eval", "--from", self.path("r.jsonl"), "-m", LLAMA, "-o", self.path("again.jsonl"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.read("again.jsonl"), self.read("r.jsonl"))

    def test_refused(self):
        self.found("a.json")
        self.refused(self.evolve("a.json", keep="30%"), "keep is '20%' there and '30%' here", "a.json")
        self.refused(self.evolve("a.json", model=os.path.join(TINY, "qwen2.gguf")), "sha256")
        with open(self.path("mine.json"), "w") as file:
            json.dump({"format": "precis layer budgets", "version": 1, "model": "", "model_sha256": "", "n_layers": 3,
                       "shares": [1, 2, 3]}, file)
        self.refused(self.evolve("mine.json"), "not searched")
        with open(self.path("text.json"), "w") as file:
            file.write(TEXT)
        self.refused(self.evolve("text.json"), "line 1, column 1")
        self.refused(self.evolve("b.json", method="full"), "'full'")
        self.refused(self.evolve("b.json", method="snapkv layers=pyramid"), "leave out its layers stage")
        self.refused(self.evolve("b.json", population="1"), "at least 2")
        self.refused(self.evolve("b.json", sigma="nan"), "--sigma is nan")
        self.refused(self.evolve("b.json", generations="10000", population="10000"), "100000")
        self.refused(self.evolve("b.json", context="100000"), "context")
        self.refused(self.evolve("nowhere/b.json"), "nowhere")
        self.refused(self.evolve("b.json", file="-"), "standard input")
        self.assertFalse(os.path.exists(self.path("b.json")))

    def test_budgets_of_another_model_are_refused(self):
        with open(self.path("mine.json"), "w") as file:
            json.dump({"format": "precis layer budgets", "version": 1, "model": "", "model_sha256": "", "n_layers": 17,
                       "shares": list(range(1, 18))}, file)
        command = [PRECIS, "run", "-m", LLAMA, "-f", self.short_text, "-n", "2", "--keep", "20%", "--raw", "--method"]
        self.refused(self.call(*command, f'snapkv layers=evolkv(path="{self.path("mine.json")}")'), "17 layers, but")
        self.refused(self.call(*command, f'snapkv layers=evolkv(path="{self.path("none.json")}")'), "none.json",
                     "no such file")


if __name__ == "__main__":
    unittest.main()
