"""tools/compare_llama.py with stand-ins for both programs: order of the rounds, arithmetic, errors.

The stand-ins print what the real ones print, with speeds that grow by a fixed step from call to call, and
log their command lines.
"""

import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "compare_llama.py")

LLAMA = """#!/usr/bin/env python3
import json, os, sys
log = os.environ["STAND_IN_LOG"]
with open(log, "a") as file:
    file.write("llama " + " ".join(sys.argv[1:]) + "\\n")
option = lambda name: sys.argv[sys.argv.index(name) + 1]
calls = sum(line.startswith("llama") for line in open(log))
speed = 10.0 + calls if option("-fa") == "0" else 20.0 + calls
if option("-ctk") == "q8_0":
    speed = 40.0
    if option("-fa") != "1":
        sys.exit(1)
print(json.dumps([{"samples_ts": [speed] * int(option("-r")), "build_commit": "theirs"}]))
"""

PRECIS = """#!/usr/bin/env python3
import json, os, sys
if sys.argv[1] == "inspect":
    print(json.dumps({"context": 1024}))
    sys.exit(0)
with open(os.environ["STAND_IN_LOG"], "a") as file:
    file.write("precis " + " ".join(sys.argv[1:]) + "\\n")
methods = sys.argv[sys.argv.index("--method") + 1].split(",")
print(json.dumps([{"samples_ts": [100.0 * (i + 1), 1.0, 1e6], "cpu_info": "a CPU", "build_commit": "ours"}
                  for i, _ in enumerate(methods)]))
"""


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.log = os.path.join(self.folder, "log")
        self.llama = self.write("llama-bench", LLAMA)
        self.precis = self.write("precis", PRECIS)
        self.model = self.write("model.gguf", "")

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def compare(self, *words, model=None):
        command = [sys.executable, TOOL, "--llama-bench", self.llama, "--precis", self.precis,
                   "-m", model or self.model, "-t", "2", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120,
                              env=dict(os.environ, STAND_IN_LOG=self.log))

    def calls(self):
        with open(self.log, encoding="utf-8") as file:
            return [line.split() for line in file]

    def test_rounds_alternate_and_ratios_are_of_a_round(self):
        result = self.compare("-p", "none", "-d", "500", "-n", "4", "--pairs", "2", "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        out = json.loads(result.stdout)
        # Three calls choose the setting: f16 with and without flash attention, q8_0 with it.
        self.assertEqual([c[0] for c in self.calls()],
                         ["llama"] * 3 + ["llama", "precis", "llama", "llama", "precis", "llama"])
        rows = {(r["precis"], r["llama"]): r for r in out["rows"]}
        self.assertEqual(set(rows), {("full", "f16, fa 1"), ("selkv 25%", "f16, fa 1"),
                                     ("full", "q8_0, fa 1"), ("selkv 25%", "q8_0, fa 1")})
        # The 4th and the 6th call of llama-bench are the f16 ones of the rounds: 24 and 26.
        row = rows["selkv 25%", "f16, fa 1"]
        self.assertEqual(row["llama_samples_ts"], [24.0, 26.0])
        self.assertEqual(row["precis_samples_ts"], [200.0, 200.0])
        self.assertAlmostEqual(row["ratio"], (200 / 24 + 200 / 26) / 2)
        self.assertAlmostEqual(row["ratio_min"], 200 / 26)
        self.assertAlmostEqual(row["ratio_max"], 200 / 24)
        self.assertAlmostEqual(rows["full", "q8_0, fa 1"]["ratio"], 100 / 40)
        self.assertEqual((out["precis_commit"], out["llama_commit"], out["threads"]), ("ours", "theirs", 2))

    def test_both_sides_get_the_same_sizes_inside_the_context(self):
        result = self.compare("-p", "512,8192", "-d", "0,8192", "-n", "16", "--pairs", "1", "-r", "3")
        self.assertEqual(result.returncode, 0, result.stderr)
        sizes = {"llama": set(), "precis": set()}
        for call in self.calls():
            self.assertEqual(call[call.index("-t") + 1], "2")
            self.assertEqual(call[call.index("-r") + 1], "3")
            sizes[call[0]].add(tuple(call[call.index(name) + 1] for name in ("-p", "-n", "-d")))
        self.assertEqual(sizes["llama"], sizes["precis"])
        self.assertEqual(sizes["llama"], {("512", "0", "0"), ("1024", "0", "0"), ("0", "16", "0"), ("0", "16", "1007")})
        for words in ["| pp512 | full |", "| tg16 @ d1007 | selkv 25% |", "a CPU, 2 threads", "1 rounds"]:
            self.assertIn(words, result.stdout)
        self.assertNotIn("| tg16 | selkv", result.stdout)  # nothing is condensed at depth 0

    def test_errors_are_one_line(self):
        for words, expected in [(("-p", "none", "-d", "none"), "no test"),
                                (("-n", "5000"), "context of 1024")]:
            result = self.compare(*words)
            self.assertEqual(result.returncode, 1, words)
            self.assertIn(expected, result.stderr)
            self.assertEqual(result.stdout, "")
        result = self.compare(model=os.path.join(self.folder, "missing.gguf"))
        self.assertIn("missing.gguf", result.stderr)
        self.write("llama-bench", "#!/bin/sh\necho broken >&2\nexit 3\n")
        result = self.compare("-p", "512", "-d", "none")
        self.assertEqual(result.returncode, 1)
        self.assertIn("broken", result.stderr)


if __name__ == "__main__":
    unittest.main()
