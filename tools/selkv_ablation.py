#!/usr/bin/env python3
"""What each step of SelKV brings: eviction alone, then merging, its gate, the compensation in every mode, damped as in
the preset and not at all, and re-positioning.

usage: tools/selkv_ablation.py MODEL... [-f TEXT]... [--keep LIST] [--context N] [--continuation N] [-n PASSAGES]
                               [--dir FOLDER] [--jobs N] [--precis BINARY]

Prints a Markdown table for each model and budget: divergence from the full cache (`precis eval fidelity`), and how it
differs from that of eviction on the same passages, with 95 % intervals (`precis report`). The steps come from the
registry, so a new mode of the compensation is a new row. All steps of a table have the same bytes: a step that stores
biases keeps fewer entries. Results stay in FOLDER; a run that was stopped goes on.
"""
import argparse
import os
import sys

from method_runs import DEFAULT_BINARY, FidelityRun, Precis, estimate, fail, listed, markdown

PAPER = "arXiv 2607.16213"
UNDAMPED = "1"  # the whole log R
EVICTION = "selkv merge=none bias=none"
KINDS_OF_STEPS = ("score", "select", "merge", "bias")  # what the steps below vary or keep


def field_of(registry, kind, name, field):
    for stage in registry["stages"]:
        if (stage["kind"], stage["name"]) == (kind, name):
            for known in stage["fields"]:
                if known["name"] == field:
                    return known
    fail(f"the registry has no parameter '{field}' of {kind}={name}: the steps of the ablation are out of date")


def steps(registry):
    """(name, SPEC) of every step; the first is what the others are compared with."""
    mode, alpha = (field_of(registry, "bias", "ratio", name) for name in ("mode", "alpha"))
    if "one" not in field_of(registry, "merge", "selkv", "gate")["domain"].split("|"):
        fail("merge=selkv has no gate 'one': the steps of the ablation are out of date")
    out = [("eviction", EVICTION), ("+ merge all", "selkv(gate=one) bias=none"), ("+ gate; compensation off", "selkv bias=none")]
    for name in mode["domain"].split("|"):
        preset = " (the preset)" if name == mode["default"] else ""
        out.append((f"+ compensation, {name}, alpha {alpha['default']}{preset}", f"selkv(mode={name})"))
        out.append((f"+ compensation, {name}, alpha {UNDAMPED}", f"selkv(mode={name},alpha={UNDAMPED})"))
    # Re-positioning (Eq. 7): a stage of the same paper of a kind that the steps above do not have.
    for stage in registry["stages"]:
        if stage["citation"].startswith(PAPER) and stage["kind"] not in KINDS_OF_STEPS:
            out.append((f"+ {stage['kind']}, {stage['name']}", f"selkv {stage['kind']}={stage['name']}"))
    return out


def ablation_rows(lines, registry, keep):
    """Cells of one table from the report's lines of one text and budget; a step without a line has none."""
    found = {line["label"]: line for line in lines if line["keep"] == keep}
    for name, spec in steps(registry):
        line = found.get(spec)
        yield name, spec, None if line is None else [
            f"{100 * float(line['kept_share']):.1f} %", estimate(line, "kl_mean"),
            "" if spec == EVICTION else estimate(line, "difference", sign=True),
            estimate(line, "same_top", scale=100, digits=1)]


HEADS = ["kept", "KL, nats a token", "KL against eviction", "same top, %"]


def print_tables(precis, path, registry, keeps):
    lines = precis.fidelity([path], EVICTION)
    for text in dict.fromkeys(line["task"] for line in lines):
        of_text = [line for line in lines if line["task"] == text]
        for keep in keeps:
            first = next(line for line in of_text if line["keep"] == keep)
            print(f"**{first['model']}, keep {keep}, {first['n_samples']} passages of {text}, {first['length']} tokens "
                  f"condensed**\n")
            rows = [[name, f"`{spec}`", *cells] for name, spec, cells in ablation_rows(of_text, registry, keep)]
            print(markdown(["step", "SPEC", *HEADS], rows), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("-f", "--file", action="append", help="text (default: the GPL-3 as Debian has it)")
    parser.add_argument("--keep", default="10%,25%,50%")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a passage that are condensed")
    parser.add_argument("--continuation", type=int, default=128, help="tokens that are read after that")
    parser.add_argument("-n", "--passages", type=int, default=6, help="passages of each text, at most")
    parser.add_argument("--dir", default="build/eval/ablation", help="folder of the result files")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes, of one thread each")
    parser.add_argument("--precis", default=DEFAULT_BINARY)
    options = parser.parse_args()
    precis = Precis(options.precis)
    registry = precis.registry()
    keeps = listed(options.keep)
    for model in options.models:
        run = FidelityRun(model, options.file or ["/usr/share/common-licenses/GPL-3"],
                          [spec for _, spec in steps(registry)], keeps, options.context, options.continuation,
                          options.passages)
        name = os.path.splitext(os.path.basename(model))[0]
        path = run.execute(precis, os.path.join(options.dir, f"ablation-{name}"), options.jobs)
        print_tables(precis, path, registry, keeps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
