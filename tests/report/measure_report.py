"""How long a report on 10,000 rows takes: the command, and the page in Chromium.

  measure_report.py [PRECIS]      (build/release/precis)

Prints both, as medians of five. The rows are 10,000 answers with their times beside them and pictures of what was
kept, as `precis eval ruler` writes them.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import browser
import sample_results

N_RUNS = 5


def write_results(folder):
    rng = random.Random(3)
    rows, times = sample_results.ruler(rng, lengths=(4096, 8192), n_samples=42)
    run, rows = rows[0], rows[1:10001]
    for row in rows:
        row["answer"] = ("The special magic number for long-context mentioned in the text is 8231947. " * 3)[:200]
        row["prompt_sha256"] = "%064x" % rng.getrandbits(256)
    prompts = {}
    for row in rows:  # one hash for all methods
        place = tuple(row[name] for name in ("task", "length", "index", "question", "query"))
        row["prompt_sha256"] = prompts.setdefault(place, row["prompt_sha256"])
    kept = [sample_results.kept(sample_results.key("ruler", task, 4096, 0, label, keep), 4056, rng)
            for task in ("vt", "fwe") for label, keep in sample_results.METHODS[1:]]
    path = os.path.join(folder, "results.jsonl")
    sample_results.write(path, [run] + rows + kept)
    sample_results.write(os.path.join(folder, "results.timing.jsonl"), [run] + times[1:10001])
    return path, len(rows), len(kept)


def median_of(action):
    seconds = []
    for _ in range(N_RUNS):
        start = time.monotonic()
        action()
        seconds.append(time.monotonic() - start)
    return statistics.median(seconds)


def main():
    precis = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/release/precis")
    with tempfile.TemporaryDirectory() as folder:
        results, n_rows, n_kept = write_results(folder)
        page = os.path.join(folder, "report.html")
        command = median_of(lambda: subprocess.run([precis, "report", results, "-o", page], check=True))
        print("%d answers, %d pictures, %.1f MB of results, page of %.1f MB"
              % (n_rows, n_kept, os.path.getsize(results) / 1e6, os.path.getsize(page) / 1e6))
        print("command: %.2f s" % command)
        program = browser.find_chromium()
        if not program:
            print("page: no chromium here")
            return
        shown = browser.Browser(program)

        def load():
            shown.open(page)
            # Drawn, not just read: the second frame after loading.
            shown.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

        shown.resize(1280, 900)
        print("page: %.2f s to load and draw (chromium %s)"
              % (median_of(load), shown.call("Browser.getVersion")["product"].split("/")[-1]))
        faults = shown.faults()
        shown.close()
        if faults:
            sys.exit(json.dumps(faults))


if __name__ == "__main__":
    main()
