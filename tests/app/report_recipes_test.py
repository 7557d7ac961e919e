"""The recipes of docs/EVALUATION_REPORT.md for runs in shards, taken from that text and run on a tiny model.

The merged file is the file of the run without shards, byte for byte. Without GNU parallel its recipe is skipped.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

PRECIS = os.environ["PRECIS_BIN"]
MODEL = os.path.join(os.environ["PRECIS_TINY_DIR"], "qwen2.gguf")
DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "EVALUATION_REPORT.md")
# Of the docs, and what a tiny model can do in seconds: 9 samples do not fill 8 shards evenly.
WORK = "--length 4096 -n 50"
SMALL = "--length 700 -n 9 --task niah_single_1 --method full,snapkv --keep 50%"


class Recipes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.symlink(MODEL, self.path("model.gguf"))
        os.mkdir(self.path("bin"))
        os.symlink(PRECIS, self.path("bin/precis"))
        self.environment = dict(os.environ, PATH=self.path("bin") + ":" + os.environ["PATH"])

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def recipe(self, word):
        with open(DOCS, encoding="utf-8") as file:
            blocks = re.findall(r"^```\n(.*?)^```$", file.read(), flags=re.S | re.M)
        found = [block for block in blocks if word in block]
        self.assertEqual(len(found), 1, word)
        self.assertEqual(found[0].count(WORK), 1)
        return found[0].replace(WORK, SMALL)

    def shell(self, script, **environment):
        result = subprocess.run(["bash", "-e", "-u", "-o", "pipefail", "-c", script], cwd=self.folder.name,
                                env=dict(self.environment, **environment), capture_output=True, text=True, timeout=800)
        self.assertEqual(result.returncode, 0, result.stderr)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def check_whole(self, threads):
        self.shell("precis eval ruler -m model.gguf %s --threads %s -o whole.jsonl" % (SMALL, threads))
        whole = self.read("whole.jsonl")
        self.assertEqual(whole.count(b"\n"), 1 + 9 * 2 + 1)  # of the first sample also what was kept
        self.assertEqual(self.read("results.jsonl"), whole)
        times = self.read("results.timing.jsonl")
        self.assertEqual(times.count(b"\n"), 1 + 9 * 2)
        return whole

    def test_gnu_parallel(self):
        if not shutil.which("parallel"):
            self.skipTest("no GNU parallel")
        recipe = self.recipe("parallel --jobs")
        self.shell(recipe)
        self.check_whole(2)
        self.assertIn(b"All figures of each task and method", self.read("report.html"))
        # A shard that was killed: the recipe again completes it.
        part = self.read("part2.jsonl")
        with open(self.path("part2.jsonl"), "wb") as file:
            file.write(part[:len(part) * 2 // 3])
        os.remove(self.path("results.jsonl"))
        self.shell(recipe)
        self.assertEqual(self.read("results.jsonl"), self.read("whole.jsonl"))

    def test_slurm_array(self):
        script = self.recipe("#SBATCH")
        self.assertTrue(script.startswith("#!/bin/bash\n"))
        tasks = re.search(r"^#SBATCH --array=1-(\d+)$", script, flags=re.M)
        for task in range(int(tasks[1]), 0, -1):
            self.shell(script, SLURM_ARRAY_TASK_ID=str(task), SLURM_CPUS_PER_TASK="1")
        self.shell("precis report merge part*.jsonl -o results.jsonl")
        self.check_whole(1)
        refused = subprocess.run([PRECIS, "report", "merge", self.path("part1.jsonl"), self.path("whole.jsonl"), "-o",
                                  self.path("no.jsonl")], capture_output=True, text=True, timeout=60)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("is of 1 shards", refused.stderr)


if __name__ == "__main__":
    unittest.main()
