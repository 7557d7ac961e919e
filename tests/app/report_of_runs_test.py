"""A report on what `precis eval` really writes: every suite that needs no data set, two models, both query modes."""

import csv
import io
import os
import subprocess
import tempfile
import unittest

PRECIS = os.environ["PRECIS_BIN"]
TINY = os.environ["PRECIS_TINY_DIR"]
SHORT = ["--method", "full,selkv", "--keep", "50%", "-t", "1"]
BOTH = ["--query", "agnostic,aware"]


class ReportOfRuns(unittest.TestCase):
    def test_a_mixture(self):
        with tempfile.TemporaryDirectory() as folder:
            def path(name, text=None):
                if text is not None:
                    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                        file.write(text)
                return os.path.join(folder, name)

            document = path("doc.txt", "The sky is blue over the old town. " * 20)
            questions = path("q.txt", 'Which colour?\n{"question": "What is blue?", "answers": ["sky"]}\n')
            files = []
            for model in ("qwen2", "llama"):
                for suite, arguments in (
                        ("ruler", ["--length", "700", "-n", "2", "--task", "niah_single_1", *BOTH]),
                        ("needle", ["--length", "500,700", "--depth", "0,100", "-n", "1"]),
                        ("ask", ["-f", document, "--questions", questions, *BOTH]),
                        ("fidelity", ["-f", document, "-n", "1", "--context", "256", "--continuation", "16"])):
                    if model == "llama" and suite in ("needle", "ask"):
                        continue
                    files.append(path("%s-%s.jsonl" % (suite, model)))
                    run = subprocess.run([PRECIS, "eval", suite, "-m", os.path.join(TINY, model + ".gguf"), "-o",
                                          files[-1], *SHORT, *arguments], capture_output=True, text=True, timeout=600)
                    self.assertEqual(run.returncode, 0, run.stderr)
            texts = {}
            for format in ("html", "md", "csv", "cells"):
                run = subprocess.run([PRECIS, "report", "--strict", "--format", format, *files], capture_output=True,
                                     text=True, timeout=120)
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                texts[format] = run.stdout
            lines = list(csv.DictReader(io.StringIO(texts["csv"])))
            self.assertEqual({(line["model"], line["suite"], line["query"]) for line in lines if line["table"] == "task"},
                             {("qwen2.gguf", "ruler", "agnostic"), ("qwen2.gguf", "ruler", "aware"),
                              ("llama.gguf", "ruler", "agnostic"), ("llama.gguf", "ruler", "aware"),
                              ("qwen2.gguf", "needle", "agnostic"), ("qwen2.gguf", "ask", "agnostic"),
                              ("qwen2.gguf", "ask", "aware")})
            # One question of two has a known answer.
            self.assertEqual({line["n_answers"] for line in lines if line["table"] == "task"
                              and line["suite"] == "ask"}, {"1"})
            self.assertEqual(len([line for line in lines if line["table"] == "fidelity"]), 2 * 2)
            for line in lines:
                if line["table"] == "speed":
                    self.assertGreater(float(line["decode_tokens_per_s"]), 0, line)
                    self.assertGreater(float(line["peak_bytes"]), 0, line)
            cells = list(csv.DictReader(io.StringIO(texts["cells"])))
            self.assertEqual({line["suite"] for line in cells if line["table"] == "kept"}, {"ruler", "needle", "ask"})
            self.assertTrue(any(float(line["merged"] or 0) > 0 for line in cells))
            for part in ("Answers without a score</h2>", "Needle by depth and length", "What was kept</h2>",
                         "mean merged mass", "mean bias", "Speed and memory</h2>", "Fidelity to the full cache (qwen2",
                         "ruler, question known while condensing (llama.gguf)"):
                self.assertIn(part, texts["html"], part)
            self.assertIn("4 answers are to questions without a known answer", texts["md"])


if __name__ == "__main__":
    unittest.main()
