"""`precis methods` from outside: the registry as JSON beside the list, audits on a tiny model, errors."""

import json
import os
import re
import subprocess
import tempfile
import unittest

PRECIS = os.environ["PRECIS_BIN"]
LLAMA = os.path.join(os.environ["PRECIS_TINY_DIR"], "llama.gguf")
TEXT = " ".join(f"word{i * i % 97}" for i in range(3000))


def methods(*arguments, environment=None):
    return subprocess.run([PRECIS, "methods", *arguments], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **(environment or {})})


class Listed(unittest.TestCase):
    def setUp(self):
        result = methods("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("\n"), 1)
        self.registry = json.loads(result.stdout)
        self.presets = {preset["name"]: preset for preset in self.registry["presets"]}

    def test_json_has_what_the_list_has(self):
        text = methods().stdout
        listed = dict(re.findall(r"^  (\S+) .*\n +(= .*)$", text.split("\nStages")[0], flags=re.M))
        self.assertEqual(listed, {name: "= " + preset["method"] for name, preset in self.presets.items()})
        stages = re.findall(r"^  (\w+=\w+)  ", text.split("\nStages")[1], flags=re.M)
        self.assertEqual(stages, [f"{stage['kind']}={stage['name']}" for stage in self.registry["stages"]])
        fields = re.findall(r"^      (\w+=\S+)  ", text, flags=re.M)
        self.assertEqual(fields, [f"{field['name']}={field['default']}" for stage in self.registry["stages"]
                                  for field in stage["fields"]])

    def test_every_stage_of_a_spec_is_there_with_all_its_parameters(self):
        fields = {f"{stage['kind']}={stage['name']}": [f"{field['name']}={field['default']}" for field in stage["fields"]]
                  for stage in self.registry["stages"]}
        for preset in self.presets.values():
            for word in preset["method"].split() if preset["stages"] else []:
                name, _, values = word.rstrip(")").partition("(")
                names = [value.split("=")[0] for value in values.split(",") if value]
                self.assertEqual(names, [field.split("=")[0] for field in fields[name]], word)

    # From the papers: what each of these reads of a prompt's attention.
    def test_needs(self):
        def needs(name):
            found = self.presets[name]["needs"]
            self.assertEqual(found["of_tokens"], 8192)
            self.assertEqual(found["repeat_chunk"], 2048 if name == "kvzip" else 0)
            self.assertEqual(found["all_layers"], name in ("kvzip", "lava"))
            return found["queries"], found["block"]

        self.assertEqual(needs("kvzip"), (0, 0))
        self.assertEqual(needs("lava"), (32, 0))
        self.assertEqual(needs("full"), (0, 0))
        self.assertEqual(needs("knorm"), (0, 0))
        self.assertEqual(needs("tova"), (1, 0))
        self.assertEqual(needs("snapkv"), (32, 0))
        self.assertEqual(needs("h2o"), (8192, 0))
        self.assertEqual(needs("selkv"), (32, 32))

    def test_the_environment_cannot_spoil_the_list(self):
        environment = {f"PRECIS_ARG_{name}": "no number" for name in ["SEED", "THREADS", "KEEP", "METHOD", "MODEL", "FILE"]}
        self.assertEqual(methods(environment=environment).returncode, 0)
        self.assertEqual(methods("--json", environment=environment).returncode, 0)


class Audited(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = os.path.join(self.folder.name, "text.txt")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write(TEXT)

    def audit(self, *arguments, text=None, tokens="300"):
        return methods("--audit", "-m", LLAMA, "-f", text or self.text, "-t", "1", "--tokens", tokens, *arguments)

    def refused(self, result, *words):
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_table_and_json_agree(self):
        chosen = ["--method", "full,streaming,snapkv,merging"]
        table = self.audit(*chosen)
        self.assertEqual(table.returncode, 0, table.stderr)
        rows = {row[0]: row for row in ([cell.strip() for cell in line.strip("|").split(" | ")]
                                        for line in table.stdout.splitlines() if line.startswith("| "))}
        out = json.loads(self.audit(*chosen, "--json").stdout)
        self.assertEqual((out["n_tokens"], out["keep"], out["n_faults"]), (300, "25%", 0))
        self.assertEqual(len(out["pairs"]), 6)
        for method in out["methods"]:
            row = rows[method["label"]]
            self.assertEqual(row[1:4], [str(method["n_entries"]), method["nearest"], f"{100 * method['overlap']:.1f} %"])
            same = [pair for pair in out["pairs"] if method["label"] in (pair["first"], pair["second"])
                    and pair["relation"] != "other_entries"]
            self.assertEqual(row[4] == "its own set", same == [], row)
        self.assertIn("same set as snapkv by design; other values", rows["merging"][4])

    def test_one_method_under_two_names_is_a_fault(self):
        result = self.audit("--method", "snapkv,score=snapkv select=head(recent=32,sinks=0),streaming")
        self.assertEqual(result.returncode, 1)
        self.assertIn("FAULT: same cache as snapkv", result.stdout)
        self.assertEqual(result.stderr.strip().splitlines()[-1],
                         "precis: audit: 'snapkv' and 'score=snapkv select=head(recent=32,sinks=0)' leave the same cache")
        self.assertNotIn("FAULT", [line for line in result.stdout.splitlines() if "| streaming" in line][0])

    # The score of recency is the same in all heads, so that both keep the first and the last tokens.
    def test_other_stages_that_keep_the_same_are_a_fault_whatever_is_merged(self):
        other = "score=recency select=shared(recent=8,sinks=4) merge=merging"
        result = self.audit("--json", "--method", f"streaming,{other}")
        self.assertEqual(result.returncode, 1)
        pair, = json.loads(result.stdout)["pairs"]
        self.assertEqual((pair["relation"], pair["overlap"]), ("same_entries", 1))
        self.assertGreater(pair["n_values_differ"], 0)
        self.assertIn(f"'streaming' and '{other}' keep the same entries", result.stderr)

    # Ada-KV shares a budget between the heads of a layer.
    def test_one_kv_head_is_said(self):
        for name, is_single in [("gemma3", True), ("llama", False)]:
            model = os.path.join(os.path.dirname(LLAMA), f"{name}.gguf")
            heads = json.loads(subprocess.run([PRECIS, "inspect", "--json", model], capture_output=True).stdout)
            result = methods("--audit", "-m", model, "-f", self.text, "--tokens", "300", "--method", "snapkv,adakv")
            self.assertEqual(heads["n_kv_heads"] == 1, is_single)
            self.assertEqual("one KV head" in result.stdout, is_single, result.stderr)
            self.assertEqual(result.returncode, 1 if is_single else 0, result.stdout)

    def test_errors_are_one_line(self):
        self.refused(methods("--audit"), "-m", "-f")
        self.refused(methods("--keep", "25%"), "--audit")
        self.refused(self.audit("--method", "snapkb,selkv"), "snapkb", "snapkv")
        self.refused(self.audit("--method", "snapkv"), "2 methods")
        self.refused(self.audit("--keep", "0%"), "keep")
        self.refused(self.audit("--keep", "99%", tokens="12"), "random", "12 tokens")
        self.refused(self.audit(text=os.path.join(self.folder.name, "missing.txt")), "missing.txt")


if __name__ == "__main__":
    unittest.main()
