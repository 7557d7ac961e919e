"""docs/METHODS.md says what the binary says, and the check of that finds what is out of date."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGE = os.path.join(ROOT, "docs", "METHODS.md")


def make(*arguments):
    return subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make_methods_doc.py"), "--precis",
                           os.environ["PRECIS_BIN"], *arguments], capture_output=True, text=True, timeout=300)


class Page(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.copy = os.path.join(self.folder.name, "METHODS.md")
        with open(PAGE, encoding="utf-8") as file:
            self.text = file.read()

    def check(self, text):
        with open(self.copy, "w", encoding="utf-8") as file:
            file.write(text)
        return make("--check", "-o", self.copy)

    def changed(self, old, new):
        self.assertIn(old, self.text)
        return self.text.replace(old, new, 1)

    def test_the_committed_page_is_up_to_date(self):
        result = make("--check")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    # Against the list that people read, not against what the page is made of.
    def test_every_stage_parameter_and_preset_is_on_the_page(self):
        listed = subprocess.run([os.environ["PRECIS_BIN"], "methods"], capture_output=True, text=True).stdout
        presets, stages = listed.split("\nStages")
        for line in presets.splitlines():
            if line.startswith("               = "):
                self.assertIn(f"= `{line.strip()[2:]}`", self.text)
        for line in stages.splitlines():
            if line.startswith("      "):
                assignment, domain = line.strip().split(")")[0].split("  (")
                self.assertIn(f"`{assignment}` (`{domain}`)", self.text)
            elif line.startswith("  "):
                self.assertIn(f"- `{line.split()[0]}` ", self.text)

    def test_what_is_out_of_date_is_found(self):
        for text in [self.changed("`window=32` (`1..4096`)", "`window=31` (`1..4096`)"),
                     self.changed("- `score=selkv` ", "- `score=selkw` "), self.changed("| `tova` |", "| `tovb` |"),
                     self.changed("the last query", "the last 2 queries"), self.text + "more\n", ""]:
            result = self.check(text)
            self.assertEqual(result.returncode, 1)
            self.assertIn("out of date", result.stderr)

    def test_presets_without_figures_are_named(self):
        result = make("--results", self.folder.name, "-o", self.copy)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("snapkv: not measured yet: ", result.stderr)
        with open(self.copy, encoding="utf-8") as file:
            self.assertIn("| `snapkv` | not measured yet |", file.read())


if __name__ == "__main__":
    unittest.main()
