"""The CSV of a report against NumPy, from the lines of the result files alone."""

import csv
import json
import os
import random
import tempfile
import unittest

import numpy as np

import report_page
import sample_results

N_RESAMPLES = 20000


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file][1:]


def bootstrap(rng, *strata):
    """Where the ends of the interval of the mean over strata may lie: each a pair.

    A stratum is an array of (sum, count) of its samples. Both bootstraps draw at random, and means of few samples
    are steps, so ends are compared by their place in NumPy's distribution: some five standard errors around 2.5 %
    and 97.5 %.
    """
    total = np.zeros(N_RESAMPLES)
    for units in strata:
        units = np.asarray(units, float)
        picks = rng.integers(0, len(units), (N_RESAMPLES, len(units)))
        total += units[picks, 0].sum(1) / units[picks, 1].sum(1)
    return np.percentile(total / len(strata), [[1.6, 3.4], [96.6, 98.4]])


class CsvAgainstNumPy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.files = sample_results.write_all(cls.folder.name)
        # Two questions to each sample of one task, so that units are more than rows.
        rows, times = sample_results.ruler(random.Random(9), lengths=(512,), n_samples=9)
        more = []
        for row in rows[1:]:
            row["suite"] = "two"
            more.append(row)
            second = dict(row, question=1, score=(row["score"] + row["index"] % 2) / 2, n_answer=2 * row["n_answer"],
                          prompt_sha256=row["prompt_sha256"] + "q")
            more.append(second)
        rows[0]["suite"] = "two"
        path = os.path.join(cls.folder.name, "two.jsonl")
        sample_results.write(path, [rows[0]] + more)
        cls.files.append(path)
        cls.rng = np.random.default_rng(1)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def table(self, against=""):
        path = os.path.join(self.folder.name, "report.csv")
        report_page.make("csv", against, path, self.files)
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    @staticmethod
    def units(rows):
        out = {}
        for row in rows:
            unit = out.setdefault(row["index"], [0, 0])
            unit[0] += row["score"]
            unit[1] += 1
        return [out[index] for index in sorted(out)]

    def check_interval(self, line, name, wanted):
        for end, (least, most) in zip(("_low", "_high"), wanted):
            self.assertGreaterEqual(float(line[name + end]), least - 1e-9, (name + end, line))
            self.assertLessEqual(float(line[name + end]), most + 1e-9, (name + end, line))

    def pick(self, rows, line, **changes):
        wanted = {name: line[name] for name in ("suite", "task", "query", "label", "keep")}
        wanted.update(changes)
        length = int(line["length"])
        return [r for r in rows if r["kind"] == "score" and r["length"] == length
                and all(r[name] == value for name, value in wanted.items())]

    def test_scores(self):
        rows = [row for path in self.files for row in read(path)]
        n = 0
        for line in self.table():
            if line["table"] != "task":
                continue
            n += 1
            mine = self.pick(rows, line)
            units = np.array(self.units(mine))
            scores = [r["score"] for r in mine]
            self.assertEqual(int(line["n_samples"]), len(units))
            self.assertEqual(int(line["n_answers"]), len(mine))
            self.assertAlmostEqual(float(line["score"]), np.mean(scores), places=12)
            for column, field in (("exact", "exact"), ("answer_tokens", "n_answer"), ("ended", "ended"),
                                  ("kv_bytes", "kv_bytes"), ("n_entries", "n_entries"), ("chance", "chance")):
                self.assertAlmostEqual(float(line[column]), np.mean([r[field] for r in mine]), places=6)
            self.assertAlmostEqual(float(line["kept_share"]),
                                   np.mean([r["kv_bytes"] / r["kv_bytes_full"] for r in mine]), places=9)
            if set(scores) <= {1.0} or set(scores) <= {0.0}:
                bound = 0.025 ** (1 / len(units))  # Clopper and Pearson at the ends
                wanted = [bound, 1] if scores[0] == 1 else [0, 1 - bound]
                self.assertAlmostEqual(float(line["score_low"]), wanted[0], places=9)
                self.assertAlmostEqual(float(line["score_high"]), wanted[1], places=9)
            elif n % 3 == 0:
                self.check_interval(line, "score", bootstrap(self.rng, units))
            if line["label"] == "full":
                self.assertEqual((line["baseline"], line["difference"]), ("", ""))
                continue
            base = np.array(self.units(self.pick(rows, line, label="full", keep="100%")))
            change = np.column_stack([units[:, 0] - base[:, 0], units[:, 1]])
            self.assertEqual(line["baseline"], "full")
            self.assertAlmostEqual(float(line["difference"]), change[:, 0].sum() / change[:, 1].sum(), places=12)
            self.assertEqual(int(line["wins"]), int((change[:, 0] > 1e-12).sum()))
            self.assertEqual(int(line["losses"]), int((change[:, 0] < -1e-12).sum()))
            self.assertEqual(int(line["wins"]) + int(line["losses"]) + int(line["ties"]), len(units))
            low, high = float(line["difference_low"]), float(line["difference_high"])
            if n % 3 == 0:
                self.check_interval(line, "difference", bootstrap(self.rng, change))
            clear = (low > 1e-12 or high < -1e-12) and int(line["wins"]) + int(line["losses"]) >= 6
            self.assertEqual(line["distinguishable"], str(clear).lower())
        self.assertGreater(n, 300)

    def test_averages(self):
        rows = [row for path in self.files for row in read(path)]
        n = 0
        for line in self.table():
            if line["table"] != "average":
                continue
            mine = [r for r in rows if r["kind"] == "score" and line["length"] in ("", str(r["length"]))
                    and all(r[name] == line[name] for name in ("suite", "query"))]
            tasks = sorted({(r["task"], r["length"]) for r in mine})
            strata, changes = [], []
            for task, length in tasks:
                own = [r for r in mine if (r["task"], r["length"]) == (task, length)]
                units = np.array(self.units([r for r in own if (r["label"], r["keep"]) == (line["label"], line["keep"])]))
                base = np.array(self.units([r for r in own if r["label"] == "full"]))
                strata.append(units)
                changes.append(np.column_stack([units[:, 0] - base[:, 0], units[:, 1]]))
            self.assertEqual(int(line["n_tasks"]), len(tasks))
            means = [u[:, 0].sum() / u[:, 1].sum() for u in strata]
            self.assertAlmostEqual(float(line["score"]), np.mean(means), places=12)
            n += 1
            unanimous = {s / c for units in strata for s, c in units} in ({0.0}, {1.0})
            if n % 2 and not unanimous:
                self.check_interval(line, "score", bootstrap(self.rng, *strata))
            if line["label"] != "full":
                means = [c[:, 0].sum() / c[:, 1].sum() for c in changes]
                self.assertAlmostEqual(float(line["difference"]), np.mean(means), places=12)
                if n % 2:
                    self.check_interval(line, "difference", bootstrap(self.rng, *changes))
        self.assertGreater(n, 50)

    def test_another_baseline(self):
        """A label without a budget: each is compared at its own."""
        lines = [line for line in self.table("snapkv") if line["table"] == "average" and line["suite"] == "ruler"]
        found = {(line["label"], line["keep"]): line["baseline"] for line in lines}
        self.assertEqual(found["selkv", "25%"], "snapkv @ 25%")
        self.assertEqual(found["streaming", "10%"], "snapkv @ 10%")
        self.assertEqual(found["snapkv", "10%"], "")
        self.assertEqual(found["full", "100%"], "")  # which of three is not said
        one = {(line["label"], line["keep"]): line["baseline"]
               for line in self.table("selkv@50%") if line["table"] == "task" and line["suite"] == "ruler"}
        self.assertEqual({one[key] for key in one if key != ("selkv", "50%")}, {"selkv @ 50%"})
        with self.assertRaisesRegex(RuntimeError, "no row is of the baseline 'selkv@5%'; there are: .*selkv@25%"):
            self.table("selkv@5%")

    def test_fidelity(self):
        rows = read(self.files[2])
        lines = [line for line in self.table("snapkv") if line["table"] == "fidelity"]
        self.assertEqual(len(lines), 2 * 9)
        for line in lines:
            def of(label, field):
                mine = [r for r in rows if (r["task"], r["label"], r["keep"]) == (line["task"], label, line["keep"])]
                return np.array([r[field] for r in sorted(mine, key=lambda r: r["index"])])
            kl = of(line["label"], "mean_kl")
            self.assertAlmostEqual(float(line["kl_mean"]), kl.mean(), places=12)
            self.check_interval(line, "kl_mean", bootstrap(self.rng, np.column_stack([kl, np.ones(6)])))
            self.assertAlmostEqual(float(line["kl_median"]), of(line["label"], "median_kl").mean(), places=12)
            self.assertAlmostEqual(float(line["kl_p99"]), of(line["label"], "p99_kl").mean(), places=12)
            self.assertAlmostEqual(float(line["same_top"]), of(line["label"], "same_top").mean(), places=12)
            change = of(line["label"], "log_likelihood") - of(line["label"], "log_likelihood_full")
            self.assertAlmostEqual(float(line["log_likelihood_change"]), change.mean(), places=12)
            self.assertAlmostEqual(float(line["output_error"]), of(line["label"], "output_error").mean(), places=12)
            if line["label"] != "snapkv":
                difference = kl - of("snapkv", "mean_kl")
                self.assertAlmostEqual(float(line["difference"]), difference.mean(), places=12)
                self.assertEqual(int(line["wins"]), int((difference > 0).sum()))

    def test_speed(self):
        times = [row for path in self.files[:3] for row in read(path[:-6] + ".timing.jsonl")]
        for line in self.table():
            if line["table"] != "speed" or line["suite"] == "two":
                continue
            mine = [r for r in times if r["length"] == int(line["length"])
                    and all(r[name] == line[name] for name in ("suite", "query", "label", "keep"))]
            self.assertEqual(int(line["n_timed"]), len(mine))
            self.assertAlmostEqual(float(line["prefill_ms"]), np.median([r["prefill_ms"] for r in mine]), places=9)
            self.assertAlmostEqual(float(line["question_ms"]), np.median([r["question_ms"] for r in mine]), places=9)
            speed = np.median([1e3 * r["n_decoded"] / r["decode_ms"] for r in mine])
            self.assertAlmostEqual(float(line["decode_tokens_per_s"]), speed, places=9)
            self.assertEqual(float(line["peak_bytes"]), max(r["peak_bytes"] for r in mine))

    def test_merging_from_outside(self):
        rows = read(self.files[0])
        with open(self.files[0], encoding="utf-8") as file:
            run = json.loads(file.readline())
        shards, last, sample = [[], [], []], None, -1
        for row in rows:
            key = (row["task"], row["length"], row["index"])
            sample += key != last
            last = key
            shards[sample % 3].append(row)
        paths = []
        for i, part in enumerate(shards):
            paths.append(os.path.join(self.folder.name, "shard%d.jsonl" % i))
            sample_results.write(paths[-1], [dict(run, shard=i + 1, n_shards=3)] + part)
        merged = os.path.join(self.folder.name, "merged.jsonl")
        report_page.make("merge", "", merged, paths)
        with open(merged, encoding="utf-8") as file:
            self.assertEqual([json.loads(line) for line in file], [run] + rows)


if __name__ == "__main__":
    unittest.main()
