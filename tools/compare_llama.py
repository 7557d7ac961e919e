#!/usr/bin/env python3
"""Runs llama-bench and `precis bench` in turns and prints the ratios of their speeds.

Usually started by tools/compare_llama.sh, which provides llama-bench. A round runs llama.cpp with an
f16 cache, Precis (full cache and condensed, in one process) and llama.cpp with a q8_0 cache, one after
the other; a ratio is taken within a round, so that whatever else the machine does hits both sides.
Before the rounds each of llama.cpp's settings of flash attention runs once; the faster one is used.
docs/BENCHMARKS.md says what is compared and why it is fair.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def numbers(text):
    """"512,8192" as a list; "" or "none" as an empty one."""
    return [] if text in ("", "none") else [int(part) for part in text.split(",")]


def parse_arguments(words):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama-bench", required=True, help="llama.cpp's llama-bench")
    p.add_argument("--precis", default=os.path.join(ROOT, "build", "release", "precis"))
    p.add_argument("-m", "--model", default=os.path.join(ROOT, "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    p.add_argument("-p", "--prompts", type=numbers, default=[512, 8192], help="prompt tests (none: no such tests)")
    p.add_argument("-d", "--depths", type=numbers, default=[0, 8192], help="depths of the decode tests")
    p.add_argument("-n", "--n-gen", type=int, default=32, help="tokens of a decode test")
    p.add_argument("--keep", default="25%", help="budget of the condensed cache")
    p.add_argument("--method", default="selkv", help="SPEC of the condensed cache")
    p.add_argument("--kv", default="f16,q8_0", help="llama.cpp's cache types")
    p.add_argument("--pairs", type=int, default=5, help="rounds")
    p.add_argument("-r", "--repetitions", type=int, default=1, help="repetitions within a visit; their median counts")
    p.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("-o", "--output", choices=["md", "json"], default="md")
    a = p.parse_args(words)
    if a.pairs < 1 or a.repetitions < 1 or a.n_gen < 1 or a.threads < 1:
        p.error("--pairs, --repetitions, --n-gen and --threads must be at least 1")
    a.kv = [kind for kind in a.kv.split(",") if kind]
    if not a.kv:
        p.error("--kv names no cache type")
    return a


def run(command):
    """Standard output of a program; its last words when it fails."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        sys.exit(f"compare: '{' '.join(command)}' failed ({result.returncode}): {last}")
    return result.stdout


def say(text):
    print(f"compare: {text}", file=sys.stderr, flush=True)


class Test:
    """One row of tests: a prompt of n tokens, or n decoded tokens after a depth."""

    def __init__(self, n_prompt, n_gen, depth):
        self.n_prompt, self.n_gen, self.depth = n_prompt, n_gen, depth
        self.name = f"pp{n_prompt}" if n_prompt else f"tg{n_gen}"
        if depth:
            self.name += f" @ d{depth}"

    def options(self):
        return ["-p", str(self.n_prompt), "-n", str(self.n_gen), "-d", str(self.depth)]


def list_tests(arguments, context):
    """Precis refuses positions beyond the model's context, so both sides stay inside it."""
    tests = [Test(min(n, context), 0, 0) for n in arguments.prompts]
    room = context - arguments.n_gen - 1  # Precis decodes one more token, which is not timed
    if room < 0:
        sys.exit(f"compare: {arguments.n_gen} tokens do not fit the model's context of {context}")
    return tests + [Test(0, arguments.n_gen, min(depth, room)) for depth in arguments.depths]


def median_speed(row):
    return statistics.median(row["samples_ts"])


class Sides:
    def __init__(self, arguments):
        self.a = arguments
        self.flash = {}  # (test name, cache type) -> the faster setting of -fa
        self.llama_info = self.precis_info = None

    def llama(self, test, kind, flash):
        rows = json.loads(run([self.a.llama_bench, "-m", self.a.model, *test.options(), "-ctk", kind, "-ctv", kind,
                               "-fa", str(flash), "-t", str(self.a.threads), "-r", str(self.a.repetitions),
                               "-o", "json"]))
        if len(rows) != 1:
            sys.exit(f"compare: llama-bench printed {len(rows)} rows for {test.name}, not 1")
        self.llama_info = rows[0]
        return median_speed(rows[0])

    def choose_flash(self, test, kind):
        """llama.cpp needs flash attention for a quantised cache of values."""
        settings = [1, 0] if kind in ("f16", "f32", "bf16") else [1]
        speeds = {flash: self.llama(test, kind, flash) for flash in settings}
        best = max(speeds, key=speeds.get)
        self.flash[test.name, kind] = best
        say(f"{test.name}, llama.cpp {kind}: " +
            ", ".join(f"-fa {flash} {speed:.2f} t/s" for flash, speed in speeds.items()))

    def precis(self, test):
        """Speed by method: "full", and the condensed cache's name."""
        methods = ["full"] if test.depth == 0 else ["full", self.a.method]
        rows = json.loads(run([self.a.precis, "bench", "-m", self.a.model, *test.options(),
                               "--method", ",".join(methods), "--keep", self.a.keep, "-t", str(self.a.threads),
                               "-r", str(self.a.repetitions), "-o", "json"]))
        if len(rows) != len(methods):
            sys.exit(f"compare: precis bench printed {len(rows)} rows for {test.name}, not {len(methods)}")
        self.precis_info = rows[0]
        names = ["full", f"{self.a.method} {self.a.keep}"]
        return {name: median_speed(row) for name, row in zip(names, rows)}


def measure(sides, tests, arguments):
    """For every test: speeds by side, one list per side with an element for each round."""
    kinds = {test.name: arguments.kv if test.depth else arguments.kv[:1] for test in tests}
    for test in tests:
        for kind in kinds[test.name]:
            sides.choose_flash(test, kind)
    llama, precis = {}, {}
    for turn in range(arguments.pairs):
        for test in tests:
            first, *others = kinds[test.name]
            visits = [(first, True), *((kind, False) for kind in others)]
            for kind, then_precis in visits:
                speed = sides.llama(test, kind, sides.flash[test.name, kind])
                llama.setdefault((test.name, kind), []).append(speed)
                if then_precis:
                    for name, own in sides.precis(test).items():
                        precis.setdefault((test.name, name), []).append(own)
        say(f"round {turn + 1} of {arguments.pairs} done")
    return llama, precis


def compare(llama, precis, flash):
    """Rows of the result, from speeds of rounds."""
    rows = []
    for (test, name), own in precis.items():
        for (other_test, kind), theirs in llama.items():
            if other_test != test:
                continue
            ratios = [a / b for a, b in zip(own, theirs, strict=True)]
            rows.append({"test": test, "precis": name, "llama": f"{kind}, fa {flash[test, kind]}",
                         "precis_ts": statistics.median(own), "llama_ts": statistics.median(theirs),
                         "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
                         "precis_samples_ts": own, "llama_samples_ts": theirs})
    return rows


def markdown(rows, about):
    lines = ["| test | precis | llama.cpp | precis t/s | llama.cpp t/s | ratio | min | max |",
             "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    lines += [f"| {r['test']} | {r['precis']} | {r['llama']} | {r['precis_ts']:.2f} | {r['llama_ts']:.2f} "
              f"| {r['ratio']:.2f} | {r['ratio_min']:.2f} | {r['ratio_max']:.2f} |" for r in rows]
    note = (f"{about['model']}; {about['cpu_info']}, {about['threads']} threads; {about['pairs']} rounds; "
            f"precis {about['precis_commit']}, llama.cpp from the same pinned source")
    return "\n".join(lines + ["", note]) + "\n"


def main(words):
    arguments = parse_arguments(words)
    for path in (arguments.llama_bench, arguments.precis, arguments.model):
        if not os.path.exists(path):
            sys.exit(f"compare: '{path}' is not there; `make build models` makes precis and the model")
    if os.getloadavg()[0] > 0.5:
        say(f"the machine is busy (load {os.getloadavg()[0]:.1f}): expect a wide spread")
    context = json.loads(run([arguments.precis, "inspect", "--json", arguments.model]))["context"]
    tests = list_tests(arguments, context)
    if not tests:
        sys.exit("compare: no test is given: neither prompts (-p) nor depths (-d)")
    sides = Sides(arguments)
    llama, precis = measure(sides, tests, arguments)
    rows = compare(llama, precis, sides.flash)
    about = {"model": os.path.basename(arguments.model), "cpu_info": sides.precis_info["cpu_info"],
             "threads": arguments.threads, "pairs": arguments.pairs,
             "precis_commit": sides.precis_info["build_commit"],
             "llama_commit": sides.llama_info["build_commit"]}
    if arguments.output == "json":
        print(json.dumps({**about, "rows": rows}, indent=1))
    else:
        print(markdown(rows, about), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
