"""`precis report` and `precis report merge` from outside, on rows of every kind and on files that mean harm."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "report"))
import sample_results  # noqa: E402

PRECIS = os.environ["PRECIS_BIN"]


def score(index, label="full", value=1.0, **changes):
    keep = "100%" if label == "full" else "25%"
    return sample_results.score(sample_results.key("ruler", "vt", 1000, index, label, keep), value, 1000, **changes)


class Report(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, content):
        """Bytes, or rows and lines, each a line."""
        path = self.path(name)
        if not isinstance(content, bytes):
            content = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n"
                               for line in content)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def read(self, path):
        with open(path, "rb") as file:
            return file.read()

    def report(self, *arguments):
        return subprocess.run([PRECIS, "report", *arguments], capture_output=True, timeout=300)

    def accepted(self, *arguments):
        result = self.report(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.decode()

    def refused(self, *arguments):
        result = self.report(*arguments)
        self.assertEqual(result.returncode, 1, (arguments, result.stderr))
        lines = result.stderr.decode().splitlines()
        self.assertEqual(len(lines), 1, lines)
        return lines[0]

    def rows(self):
        return [sample_results.run("ruler")] + [score(i, label, value) for i in range(8)
                                                for label, value in (("full", 1.0), ("selkv", float(i > 5)))]

    def test_every_format(self):
        files = sample_results.write_all(self.folder.name)
        page = self.accepted(*files, "--title", "A <title>")
        self.assertTrue(page.startswith("<!DOCTYPE html>"))
        self.assertIn("A &lt;title&gt;", page)
        output = self.path("report.html")
        self.assertEqual(self.accepted(*files, "--title", "A <title>", "-o", output), "")
        self.assertEqual(self.read(output).decode(), page)
        self.assertTrue(self.accepted(*files, "--format", "md").startswith("# Precis evaluation\n"))
        self.assertTrue(self.accepted(*files, "--format", "csv").startswith("table,model,"))
        cells = self.accepted(*files, "--format", "cells").splitlines()
        self.assertEqual(len([c for c in cells if c.startswith("kept,")]), 6 * 30 * 3 * 64)
        self.assertEqual(len([c for c in cells if c.startswith("output_error,")]), 2 * 6 * 9 * 30 * 3)
        # Times come from the file beside the results.
        self.assertIn("\nspeed,", self.accepted(files[0], "--format", "csv"))
        self.assertIn("better than snapkv @ ", self.accepted(*files, "--format", "md", "--against", "snapkv"))
        self.assertIn("no row is of the baseline 'nosuch'", self.refused(files[0], "--against", "nosuch"))

    def test_words_for_what_cannot_be_told_apart(self):
        text = self.accepted(self.write("r.jsonl", self.rows()), "--format", "md")
        self.assertIn("worse than full", text)
        self.assertIn("0 / 2 / 6", text)
        few = [row for row in self.rows() if row["kind"] == "run" or row["index"] < 5]
        text = self.accepted(self.write("few.jsonl", few), "--format", "md")
        self.assertIn("not distinguishable from full (only 5 samples differ)", text)

    def test_malformed_lines_are_named_and_skipped_or_refused(self):
        rows = self.rows()
        for fault, message in (
                (b"{\"kind\": \"score\"", "not JSON, at byte 17"), (b"[1]", "not a JSON object"),
                (json.dumps({k: v for k, v in rows[2].items() if k != "prompt_sha256"}).encode(),
                 "field 'prompt_sha256' is missing"),
                (json.dumps(dict(rows[2], n_answer="7")).encode(), "field 'n_answer' is not"),
                (json.dumps(dict(rows[2], score=1.5)).encode(), "field 'score' is 1.5"),
                (json.dumps(dict(rows[2], score=float("nan"))).encode(), "not JSON"),
                (b"\x00" * 40, "not JSON, at byte 1"), (b"\xff\xfe{", "not JSON, at byte 1"),
                (b"[" * 100000, "nested deeper than 32"),
                (json.dumps(rows[2]).encode()[:-1] + b", \"n_entries\": 1e999}", "too large"),
                (b"{\"kind\": \"nosuch\"}", "unknown kind 'nosuch'")):
            path = self.write("bad.jsonl", rows[:2] + [fault] + rows[2:])
            result = self.report(path, "--format", "csv")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("1 malformed lines skipped, the first: " + path + ":3: ", result.stderr.decode())
            self.assertIn(message, result.stderr.decode())
            self.assertEqual(result.stdout.decode(), self.accepted(self.write("good.jsonl", rows), "--format", "csv"))
            self.assertIn(":3: ", self.refused(path, "--strict"))
            page = self.accepted(path)
            self.assertIn("bad.jsonl:3: ", page)

    def test_bytes_that_do_not_matter(self):
        rows = self.rows()
        plain = self.accepted(self.write("r.jsonl", rows), "--format", "csv")
        text = self.read(self.path("r.jsonl"))
        for name, changed in (("crlf", text.replace(b"\n", b"\r\n")), ("bom", b"\xef\xbb\xbf" + text),
                              ("blank", text.replace(b"\n", b"\n \t\n\n")), ("no_end", text[:-1])):
            self.assertEqual(self.accepted(self.write(name + ".jsonl", changed), "--strict", "--format", "csv"), plain)
        # Of a field that is there twice the last one counts.
        twice = text.replace(b"{\"kind\": \"score\",", b"{\"kind\": \"score\", \"score\": 0.5,")
        self.assertNotEqual(twice, text)
        self.assertEqual(self.accepted(self.write("twice.jsonl", twice), "--strict", "--format", "csv"), plain)

    def test_what_is_no_result_file_is_refused(self):
        run = sample_results.run("ruler")
        good = self.write("good.jsonl", self.rows())
        for name, content, message in (("empty", b"", "no 'run' row"), ("nul", b"\0" * 1000, "no 'run' row"),
                                       ("text", b"Hello.\n", "no 'run' row"),
                                       ("headless", self.rows()[1:], "before the 'run' row"),
                                       ("double", [run, run], "a second 'run' row"),
                                       ("future", [dict(run, format=2)], "this version reads 1"),
                                       ("random", bytes(range(256)) * 50, "no 'run' row")):
            self.assertIn(message, self.refused(self.write(name + ".jsonl", content)), name)
        self.assertIn("directory", self.refused(self.folder.name))
        self.assertIn("nosuch.jsonl", self.refused(self.path("nosuch.jsonl")))
        self.assertIn("RESULTS is required", self.refused())
        self.assertIn("different rows", self.refused(good, self.write("other.jsonl", [run, score(0, value=0.25)])))
        self.assertIn("is a directory", self.refused(good, "-o", self.folder.name))
        self.assertIn("cannot write", self.refused(good, "-o", self.path("no/such/folder.html")))
        self.assertEqual(sorted(n for n in os.listdir(self.folder.name) if "tmp" in n), [])

    def test_long_lines(self):
        """A hundred megabytes on one line neither count nor stay in memory."""
        rows = self.rows()
        path = self.path("long.jsonl")
        with open(path, "wb") as file:
            file.write(json.dumps(rows[0]).encode() + b"\n" + b"{\"answer\": \"")
            for _ in range(100):
                file.write(b"x" * 1000000)
            file.write(b"\"}\n")
            for row in rows[1:]:
                file.write(json.dumps(row).encode() + b"\n")
        result = self.report(path, "--format", "csv")
        self.assertEqual(result.returncode, 0)
        self.assertIn("long.jsonl:2: the line has more than 67108864 bytes", result.stderr.decode())
        self.assertEqual(result.stdout.decode(), self.accepted(self.write("good.jsonl", rows), "--format", "csv"))

    def test_results_are_never_overwritten(self):
        results = self.write("r.jsonl", self.rows())
        times = self.write("r.timing.jsonl", [sample_results.run("ruler")])
        link = self.path("link.jsonl")
        os.symlink(results, link)
        before = self.read(results), self.read(times)
        for output in (results, link, times, os.path.join(self.folder.name, ".", "r.jsonl")):
            self.assertIn("is one of the result files", self.refused(results, "-o", output))
            self.assertIn("is one of the result files", self.refused("merge", results, "-o", output))
        self.assertEqual((self.read(results), self.read(times)), before)
        # The merged file's times would lie where those of the shard lie.
        shard = self.write("x.timing.jsonl", self.rows())
        self.assertIn("is one of the result files", self.refused("merge", shard, "-o", self.path("x.jsonl")))

    def test_times_of_another_run_are_refused(self):
        results = self.write("r.jsonl", self.rows())
        self.write("r.timing.jsonl", [sample_results.run("ruler", seed=2)])
        self.assertIn("field 'seed' is 1 and 2", self.refused(results))

    def test_answers_without_references_are_not_scored(self):
        rows = [sample_results.run("ask", left_out=[])]
        for label, keep in (("full", "100%"), ("selkv", "25%")):
            for question, references in ((0, []), (1, ["sky"])):
                key = sample_results.key("ask", "doc.txt", 0, 0, label, keep, question=question)
                rows.append(sample_results.score(key, float(question), 100, references=references,
                                                 answer="Answer %d of %s." % (question, label), chance=None))
        path = self.write("ask.jsonl", rows)
        page = self.accepted(path)
        section = page[page.index("Answers without a score</h2>"):]
        self.assertIn("Answer 0 of full.", section)
        self.assertIn("Answer 0 of selkv.", section)
        self.assertEqual(page.count("Answer 0 of selkv."), 1)
        self.assertIn("2 answers are to questions without a known answer", page)
        lines = [line.split(",") for line in self.accepted(path, "--format", "csv").splitlines()]
        column = lines[0].index("score")
        self.assertEqual({line[column] for line in lines[1:] if line[0] in ("task", "average")}, {"1"})

    def test_merging(self):
        whole = self.write("whole.jsonl", self.rows())
        run, rows = self.rows()[0], self.rows()[1:]
        names = []
        for s in range(3):
            own = [row for row in rows if row["index"] % 3 == s]
            for suffix in (".jsonl", ".timing.jsonl"):
                names.append(self.write("part%d%s" % (s + 1, suffix), [dict(run, shard=s + 1, n_shards=3)] + own))
        merged = self.path("merged.jsonl")
        # As `part*.jsonl` gives them: with the files of times.
        self.accepted("merge", *reversed(names), "-o", merged)
        expected = self.accepted("merge", whole, "-o", "-")
        self.assertEqual(self.read(merged).decode(), expected)
        self.assertEqual([json.loads(line) for line in expected.splitlines()], self.rows())
        self.assertTrue(os.path.exists(self.path("merged.timing.jsonl")))
        self.assertIn("1 of 3 shards are missing: 2", self.refused("merge", names[0], names[4], "-o", merged))
        with open(names[2], "ab") as file:
            file.write(b"{\"kind\":")
        self.assertIn("part2.jsonl:8: not JSON", self.refused("merge", *names[::2], "-o", merged))
        self.accepted("merge", *names[::2], "-o", merged, "--allow-partial")
        self.assertEqual(self.read(merged).decode(), expected)


if __name__ == "__main__":
    unittest.main()
