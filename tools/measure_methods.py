#!/usr/bin/env python3
"""Measures every preset for docs/METHODS.md: fidelity on both small models, and what condensing costs.

usage: tools/measure_methods.py [--dir FOLDER] [--model MODEL]... [--cost-model MODEL] [-f TEXT] [--methods LIST]
                                [--keep LIST] [--context N] [--continuation N] [-n PASSAGES] [--prompt N]
                                [--repetitions N] [--jobs N] [--precis BINARY]

What FOLDER has already is not measured again: a run that was stopped goes on, and a new preset, or one whose SPEC has
changed, is measured by itself. tools/make_methods_doc.py makes the page of what is there.
"""
import argparse
import glob
import json
import os
import subprocess
import sys

import selkv_ablation
from method_runs import DEFAULT_BINARY, ROOT, FidelityRun, Precis, fail, listed, run_line, write_whole

MODELS = ["models/SmolLM2-135M-Instruct.Q4_1.gguf", "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"]
KEEPS = "10%,25%,50%"


def model_name(path):
    return os.path.splitext(os.path.basename(path))[0]


def finished_files(folder, model):
    """Complete result files of a model, in the order in which they were made."""
    found = glob.glob(os.path.join(glob.escape(folder), f"fidelity-{glob.escape(model_name(model))}-*.jsonl"))
    number = lambda path: int(path.rsplit("-", 1)[1].split(".")[0])
    return sorted((path for path in found if not path.endswith((".part.jsonl", ".timing.jsonl"))), key=number)


def measured_specs(path):
    """Canonical SPEC of every label that a result file has rows of."""
    with open(path, encoding="utf-8") as file:
        return {row["label"]: row["method"] for row in map(json.loads, file) if row["kind"] == "fidelity"}


def wanted_specs(registry, methods):
    """SPEC to measure -> canonical SPEC, or for a step of the ablation the stages that it must begin with."""
    presets = {preset["name"]: preset["method"] for preset in registry["presets"]}
    unknown = [name for name in methods if name not in presets]
    if unknown:
        fail(f"unknown preset '{unknown[0]}'; known: {', '.join(presets)}")
    out = {name: presets[name] for name in methods or presets if presets[name] != "full"}
    if "selkv" in out:
        eviction = " ".join(word for word in presets["selkv"].split() if word.startswith(("score=", "select=")))
        out.update((spec, eviction) for _, spec in selkv_ablation.steps(registry))
    return out


def is_measured(spec, canonical, measured):
    return measured.get(spec, "").startswith(canonical)


def measure_fidelity(precis, registry, options, model):
    wanted = wanted_specs(registry, listed(options.methods))
    tried = None
    while True:
        files = finished_files(options.dir, model)
        measured = {}
        for path in files:
            measured.update(measured_specs(path))
        missing = [spec for spec, canonical in wanted.items() if not is_measured(spec, canonical, measured)]
        number = int(files[-1].rsplit("-", 1)[1].split(".")[0]) + 1 if files else 1
        stem = os.path.join(options.dir, f"fidelity-{model_name(model)}-{number}")
        # A run that was stopped is finished first, whatever is missing since then.
        begun = glob.glob(f"{glob.escape(stem)}.1of*.part.jsonl")
        begun_run = run_line(begun[0]) if begun else None
        if begun_run is None and not missing:
            return
        if begun_run is None and missing == tried:
            fail(f"the results of '{missing[0]}' are not of its SPEC: {wanted[missing[0]]}")
        tried = None if begun_run else missing
        specs = begun_run["settings"]["method"] if begun_run else missing
        FidelityRun(model, options.file, specs, listed(options.keep), options.context, options.continuation,
                    options.passages).execute(precis, stem, options.jobs)


def cost_path(folder, model, preset):
    return os.path.join(folder, f"cost-{model_name(model)}-{preset}.json")


def read_cost(folder, model, preset):
    """The line of `precis bench` for a preset; nothing if there is none of its SPEC."""
    path = cost_path(folder, model, preset["name"])
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        row = json.load(file)[0]
    return row if row["method"] == preset["method"] else None


def measure_costs(precis, registry, options):
    model = options.cost_model
    names = listed(options.methods)
    os.makedirs(options.dir, exist_ok=True)
    for preset in registry["presets"]:
        if preset["method"] == "full" or (names and preset["name"] not in names):
            continue
        row = read_cost(options.dir, model, preset)
        if row and (row["n_prompt"], len(row["samples_ns"])) == (options.prompt, options.repetitions):
            continue
        print(f"cost of {preset['name']}", file=sys.stderr, flush=True)
        text = precis.output("bench", "-m", model, "-f", options.file[0], "-p", str(options.prompt), "-n", "0",
                             "--method", preset["name"], "--keep", "25%", "-r", str(options.repetitions), "--warmup",
                             "0", "-o", "json")
        write_whole(cost_path(options.dir, model, preset["name"]), text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default="build/eval/methods", help="folder of the result files")
    parser.add_argument("--model", action="append", help="for fidelity (default: SmolLM2 and Qwen2.5-Coder)")
    parser.add_argument("--cost-model", help="for costs (default: the first of the others)")
    parser.add_argument("-f", "--file", help="text (default: FOLDER/haystack.txt, made when it is missing)")
    parser.add_argument("--methods", default="", help="presets (default: all)")
    parser.add_argument("--keep", default=KEEPS)
    parser.add_argument("--context", type=int, default=2048, help="tokens of a passage that are condensed")
    parser.add_argument("--continuation", type=int, default=128, help="tokens that are read after that")
    parser.add_argument("-n", "--passages", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=8192, help="tokens of the prompts that costs are measured on")
    parser.add_argument("--repetitions", type=int, default=3, help="of each cost; the median counts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes of fidelity, of one thread each")
    parser.add_argument("--precis", default=DEFAULT_BINARY)
    options = parser.parse_args()
    if not options.file:
        options.file = os.path.join(options.dir, "haystack.txt")
        if not os.path.exists(options.file):
            os.makedirs(options.dir, exist_ok=True)
            make_haystack = os.path.join(ROOT, "tools", "make_haystack.py")
            if subprocess.run([sys.executable, make_haystack, options.file]).returncode != 0:
                fail("no text to measure on; name one with -f")
    options.file = [options.file]
    options.model = options.model or MODELS
    options.cost_model = options.cost_model or options.model[0]
    precis = Precis(options.precis)
    registry = precis.registry()
    for model in options.model:
        measure_fidelity(precis, registry, options, model)
    measure_costs(precis, registry, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
