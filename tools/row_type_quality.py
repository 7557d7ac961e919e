#!/usr/bin/env python3
"""What quantised cache rows cost in quality: KL to the full f16 cache, on real text.

usage: tools/row_type_quality.py MODEL [-f TEXT] [-n TOKENS] [--keep BUDGET] [-t THREADS] [--precis BINARY]

Runs `precis run --compare` for every row type, with and without condensing: both caches read the text
and a question, then the full cache's own answer token by token (teacher-forced, through the real
decode path). Prints a markdown table.
"""
import argparse
import json
import os
import subprocess
import sys

TYPES = [("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q4"), ("q4", "q8_0"), ("q4", "q4")]


def measure(options, method, keep, types):
    command = [options.precis, "run", "-m", options.model, "-f", options.file, "-p", options.prompt, "-n",
               str(options.tokens), "-t", str(options.threads), "--method", method, "--keep", keep, "-ctk", types[0],
               "-ctv", types[1], "--matmul", options.matmul, "--temp", "0", "--ignore-eos", "--compare", "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{result.stderr}")
    return json.loads(result.stdout)


def row(options, method, keep, types):
    run = measure(options, method, keep, types)
    full = run["full"]
    finer = sum(name != types[0] for name in run["key_types"])
    return [method if keep == "100%" else f"{method} {keep}", "/".join(types),
            f"{100 * run['kv_bytes'] / run['kv_bytes_full']:.1f} %", f"{full['mean_kl']:.2e}", f"{full['max_kl']:.2e}",
            f"{100 * full['same_top']:.1f} %", f"{finer} of {len(run['key_types'])}",
            f"{max(run['key_errors'], default=0):.1e}"]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-f", "--file", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("-p", "--prompt", default="What must you do if you convey a modified version of the work?")
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("-t", "--threads", type=int, default=0)
    parser.add_argument("--keep", default="25%")
    parser.add_argument("--method", default="selkv")
    # Fixed, so that both sides and all rows multiply alike.
    parser.add_argument("--matmul", default="sgemm")
    parser.add_argument("--precis", default=os.path.join(here, "..", "build", "release", "precis"))
    options = parser.parse_args()
    heads = ["cache", "keys/values", "bytes of full f16", "KL mean", "KL max", "same top token", "layers with finer keys",
             "largest key error"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for method, keep in (("full", "100%"), (options.method, options.keep)):
        for types in TYPES:
            print("| " + " | ".join(row(options, method, keep, types)) + " |", flush=True)


if __name__ == "__main__":
    main()
