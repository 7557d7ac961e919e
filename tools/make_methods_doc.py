#!/usr/bin/env python3
"""Writes docs/METHODS.md: every preset with what it needs, costs and is worth, and every stage.

usage: tools/make_methods_doc.py [--precis BINARY] [--results FOLDER] [-o FILE] [--check]

Presets and stages come from the binary (`precis methods --json`), figures from the result files of
tools/measure_methods.py in FOLDER. A figure that FOLDER has no results for is taken over from FILE as it is, as long
as the preset's SPEC and the settings of the measurement are the same; else the cell says that it is not measured yet,
and a line on stderr names the preset. --check writes nothing and fails if FILE is not what would be written without
results: so that presets and stages are the binary's.
"""
import argparse
import difflib
import glob
import os
import re
import sys

import measure_methods
import selkv_ablation
from measure_methods import KEEPS, MODELS, model_name
from method_runs import DEFAULT_BINARY, ROOT, Precis, estimate, fail, listed, markdown, run_line

MISSING = "not measured yet"
KIND_NAMES = {"score": "importance of a token", "select": "which tokens a layer keeps",
              "layers": "budgets of layers", "merge": "what becomes of evicted values", "bias": "logit biases",
              "positions": "where kept entries stand", "residual": "summaries of what is not kept"}


class Measured:
    """A table of figures by row, with the settings under which all of them were made."""

    def __init__(self, title, heads):
        self.title, self.heads = title, heads
        self.settings = MISSING
        self.rows = {}  # first cell -> the other cells

    def take_over(self, older, keeps_row):
        """Rows of the committed page that there are no results for."""
        if self.settings == MISSING:
            self.settings = older.settings
        if self.settings != older.settings:
            return
        for name, cells in older.rows.items():
            if name not in self.rows and len(cells) == len(self.heads) - 1 and keeps_row(name):
                self.rows[name] = cells

    def text(self, names):
        rows = [[name, *self.rows.get(name, [MISSING] * (len(self.heads) - 1))] for name in names]
        return f"### {self.title}\n\nMeasured: {self.settings}.\n\n{markdown(self.heads, rows)}"


def parse_measured(text):
    """title -> table of a page that was written before."""
    out = {}
    for part in re.split(r"^### ", text, flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        settings = re.search(r"^Measured: (.*)\.$", body, flags=re.M)
        lines = [line for line in body.split("\n") if line.startswith("| ")]
        if settings is None or not lines:
            continue
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
        table = Measured(title, cells[0])
        table.settings = settings[1]
        table.rows = {name: others for name, *others in cells[1:] if set(others) != {MISSING}}
        out[title] = table
    return out


def parse_specs(text):
    """preset -> SPEC of a page that was written before."""
    return dict(re.findall(r"^- `([^`]+)` = `([^`]+)`$", text, flags=re.M))


def needs_text(preset):
    needs = dict(preset["needs"])
    n_tokens, queries, block = needs.pop("of_tokens"), needs.pop("queries"), needs.pop("block")
    out = []
    if queries == n_tokens:
        out.append("queries of all tokens")
    elif queries > 0:
        out.append("the last query" if queries == 1 else f"the last {queries} queries")
    if block > 0:
        out.append(f"attention in blocks of {block}")
    chunk = needs.pop("repeat_chunk")
    if chunk > 0:
        out.append(f"the prompt a second time, in chunks of {chunk}")
    if needs.pop("hidden_cosine"):
        out.append("how much attention turns hidden states")
    if needs.pop("all_layers"):
        out.append("the scores of all layers")
    out += [f"{name} {value}" for name, value in needs.items() if value]
    return ", ".join(out) or "keys and values only"


def run_settings(runs, keys):
    """One text for settings that all runs of a table share."""
    texts = set()
    for path, run in runs:
        inputs = ", ".join(f"{name} (sha256 {digest[:12]})" for name, digest in run["input_sha256"].items())
        texts.add(keys(run["settings"]) + f" of {inputs}; {run['model']} (sha256 {run['model_sha256'][:12]}), seed "
                  f"{run['seed']}")
    if len(texts) > 1:
        fail("the results are of different settings and cannot stand in one table:\n" + "\n".join(sorted(texts)))
    return texts.pop()


def fidelity_settings(settings):
    return (f"{settings['passages'][0]} passages of {settings['context'][0]} tokens condensed and "
            f"{settings['continuation'][0]} read after that")


class Results:
    """Fidelity of one model: lines of the report by SPEC or label, and where they come from."""

    def __init__(self, precis, folder, model):
        files = measure_methods.finished_files(folder, model) if folder else []
        self.runs = [(path, run_line(path)) for path in files]
        self.lines = precis.fidelity(files, selkv_ablation.EVICTION) if self.has(selkv_ablation.EVICTION) \
            else precis.fidelity(files) if files else []
        self.settings = run_settings(self.runs, fidelity_settings) if files else MISSING

    def has(self, label):
        return any(label in run["settings"]["method"] for _, run in self.runs)

    def commit_of(self, label):
        return [run["commit"] for _, run in self.runs if label in run["settings"]["method"]][-1]

    def of_preset(self, preset, keep):
        found = [line for line in self.lines if line["label"] == preset["name"] and
                 line["method"] == preset["method"] and line["keep"] == keep]
        return found[-1] if found else None


def quality_table(results, presets, model):
    heads = ["preset"] + [f"{what}, {keep}" for keep in listed(KEEPS) for what in ("KL", "top-1 %")] + ["commit"]
    table = Measured(f"Fidelity: {model_name(model)}", heads)
    table.settings = results.settings
    for preset in presets:
        lines = [results.of_preset(preset, keep) for keep in listed(KEEPS)]
        if not any(lines):
            continue
        cells = []
        for line in lines:
            cells += [estimate(line, "kl_mean"), estimate(line, "same_top", scale=100, digits=1)] if line \
                else [MISSING] * 2
        table.rows[f"`{preset['name']}`"] = cells + [results.commit_of(preset["name"])]
    return table


def ablation_table(results, registry, model, selkv):
    heads = ["step"] + selkv_ablation.HEADS + ["commit"]
    table = Measured(f"SelKV step by step: {model_name(model)}", heads)
    table.settings = results.settings if results.has(selkv_ablation.EVICTION) else MISSING
    # Steps of another SelKV than the binary's are not its ablation.
    begin = " ".join(word for word in selkv["method"].split() if word.startswith(("score=", "select=")))
    lines = [line for line in results.lines if line["method"].startswith(begin)]
    for keep in listed(KEEPS):
        for name, spec, cells in selkv_ablation.ablation_rows(lines, registry, keep):
            if cells:
                table.rows[f"{name} @ {keep}"] = [*cells, results.commit_of(spec)]
    return table


def cost_table(folder, presets, model):
    table = Measured(f"Cost: {model_name(model)}", ["preset", "condensing, ms", "prefill, s", "of the prefill",
                                                   "commit"])
    settings = set()
    for preset in presets:
        row = measure_methods.read_cost(folder, model, preset) if folder else None
        if row is None:
            continue
        prefill = row["ttft_ms"] - row["compress_ms"]
        settings.add(f"`precis bench` on a prompt of {row['n_prompt']} tokens, keep {row['keep']}, medians of "
                     f"{len(row['samples_ns'])}, {row['n_threads']} threads of {row['cpu_info']}")
        table.rows[f"`{preset['name']}`"] = [f"{row['compress_ms']:.0f}", f"{prefill / 1e3:.1f}",
                                             f"{100 * row['compress_ms'] / prefill:.2f} %", row["build_commit"]]
    if len(settings) > 1:
        fail("the costs are of different settings and cannot stand in one table:\n" + "\n".join(sorted(settings)))
    table.settings = settings.pop() if settings else MISSING
    return table


def stages_text(registry):
    out = ["Written `KIND=NAME(PARAMETER=VALUE,...)`, alone or after a preset to change it. Values are the defaults; "
           "what is possible stands in parentheses.\n"]
    for kind in dict.fromkeys(stage["kind"] for stage in registry["stages"]):
        out.append(f"### {kind}: {KIND_NAMES.get(kind, kind)}\n")
        for stage in registry["stages"]:
            if stage["kind"] != kind:
                continue
            out.append(f"- `{kind}={stage['name']}` {stage['summary']} ({stage['citation']})")
            out += [f"  - `{field['name']}={field['default']}` (`{field['domain']}`) {field['help']}"
                    for field in stage["fields"]]
        out += [f"- `{kind}={stage['name']}(path=\"FILE\")` {stage['summary']} ({stage['citation']})"
                for stage in registry["file_stages"] if stage["kind"] == kind]
        out.append("")
    return "\n".join(out)


INTRODUCTION = """# Methods

Made by `tools/make_methods_doc.py`: presets and stages are what `precis methods --json` says, figures are from
`make methods-doc`. [EVALUATION.md](EVALUATION.md) says what the figures mean. `precis methods --audit -m MODEL -f TEXT`
shows whether two presets keep the same of a prompt.

## Presets

What a preset reads beside keys and values is kept in passing during the prefill.

"""


DECODE_STEP = """
## While text is generated

With `decode=once`, the default, a method condenses the prompt, and what comes after it is kept. `decode=step` is for
methods whose papers evict at every token: the cache keeps the size it has after the prompt, and each token that enters
displaces (or merges) one entry of each KV head. What is remembered of the entries counts as bytes of the cache. It is
written after the preset, as in `h2o decode=step`, and the stages need a rule for it:

"""


def decode_step_text(registry):
    """Which presets and stages have decode=step."""
    def names(kind):
        return ", ".join(f"`{kind}={stage['name']}`" for stage in registry["stages"]
                         if stage["kind"] == kind and stage["decode_step"])
    presets = ", ".join(f"`{preset['name']}`" for preset in registry["presets"] if preset["decode_step"])
    return DECODE_STEP + (f"- presets: {presets}\n- importance: {names('score')}\n- selection: {names('select')}\n"
                          f"- merging: none, or {names('merge')}\n")


def page(registry, tables, presets):
    text = INTRODUCTION
    text += markdown(["preset", "what it does", "source", "reads"],
                     [[f"`{preset['name']}`", preset["summary"], preset["citation"], needs_text(preset)]
                      for preset in registry["presets"]], numbers=False)
    text += decode_step_text(registry)
    text += "\n## Figures\n\n`full` keeps everything: KL 0, top-1 100 %. Intervals hold 95 %, passages resampled. KL is " \
            "in nats a token, to\nthe full cache; differences are paired.\n\n"
    names = [f"`{preset['name']}`" for preset in presets]
    steps = [f"{name} @ {keep}" for keep in listed(KEEPS) for name, _ in selkv_ablation.steps(registry)]
    for table in tables:
        text += table.text(steps if table.heads[0] == "step" else names) + "\n"
    text += "## Stages\n\n" + stages_text(registry)
    text += "\n## SPECs of the presets\n\n"
    text += "\n".join(f"- `{preset['name']}` = `{preset['method']}`" for preset in registry["presets"]) + "\n"
    return text


def say_what_is_missing(tables, presets):
    for preset in presets:
        where = [table.title for table in tables if table.heads[0] == "preset" and
                 (f"`{preset['name']}`" not in table.rows or MISSING in table.rows[f"`{preset['name']}`"])]
        if where:
            print(f"{preset['name']}: {MISSING}: {'; '.join(where)}", file=sys.stderr)


def make(precis, folder, older_text):
    registry = precis.registry()
    presets = [preset for preset in registry["presets"] if preset["method"] != "full"]
    selkv = next(preset for preset in presets if preset["name"] == "selkv")
    tables = [cost_table(folder, presets, MODELS[0])]
    for model in MODELS:
        results = Results(precis, folder, model)
        tables += [quality_table(results, presets, model), ablation_table(results, registry, model, selkv)]
    older_tables, older_specs = parse_measured(older_text), parse_specs(older_text)
    same = {f"`{preset['name']}`" for preset in presets if older_specs.get(preset["name"]) == preset["method"]}
    for table in tables:
        if table.title in older_tables:
            table.take_over(older_tables[table.title],
                            lambda name: name in same or (" @ " in name and "`selkv`" in same))
    return page(registry, tables, presets), tables, presets


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precis", default=DEFAULT_BINARY)
    parser.add_argument("--results", default="build/eval/methods", help="folder of measure_methods.py")
    parser.add_argument("-o", "--output", default=os.path.join(ROOT, "docs", "METHODS.md"))
    parser.add_argument("--check", action="store_true", help="fail if the page's presets and stages are not the binary's")
    options = parser.parse_args()
    older = ""
    if os.path.exists(options.output):
        with open(options.output, encoding="utf-8") as file:
            older = file.read()
    folder = None if options.check else options.results
    text, tables, presets = make(Precis(options.precis), folder, older)
    if options.check:
        if text == older:
            return 0
        sys.stdout.writelines(difflib.unified_diff(older.splitlines(True), text.splitlines(True), options.output,
                                                   "what the binary says"))
        fail(f"'{options.output}' is out of date: run tools/make_methods_doc.py")
    say_what_is_missing(tables, presets)
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
