"""Runs of the binary for tables of methods, and what they found as numbers: for selkv_ablation.py,
measure_methods.py and make_methods_doc.py."""
import csv
import glob
import hashlib
import io
import json
import os
import signal
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DEFAULT_BINARY = os.path.join(ROOT, "build", "release", "precis")


def fail(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


def listed(text):
    """Parts of a list on the command line; commas inside of parentheses belong to a SPEC."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_whole(path, text):
    """Complete or not there."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


class Precis:
    def __init__(self, binary):
        self.binary = binary

    def output(self, *words):
        result = subprocess.run([self.binary, *words], capture_output=True, text=True)
        if result.returncode != 0:
            fail(f"{' '.join([self.binary, *words])}\n{result.stderr.strip()}")
        return result.stdout

    def registry(self):
        return json.loads(self.output("methods", "--json"))

    def fidelity(self, files, against=""):
        """Lines of the report's CSV that are about fidelity, one for each text, method and budget."""
        words = ["report", *files, "--format", "csv"] + (["--against", against] if against else [])
        return [row for row in csv.DictReader(io.StringIO(self.output(*words))) if row["table"] == "fidelity"]


def run_line(path):
    """The first line of a result file, which says what was run; nothing if it is not whole."""
    with open(path, encoding="utf-8") as file:
        line = file.readline()
    return json.loads(line) if line.endswith("\n") else None


class FidelityRun:
    """One `precis eval fidelity`: its settings are what its results depend on."""

    def __init__(self, model, texts, specs, keeps, context, continuation, passages):
        self.model, self.texts = model, texts
        self.passages = passages
        self.settings = {"method": specs, "keep": keeps, "context": [str(context)],
                         "continuation": [str(continuation)], "passages": [str(passages)]}

    def difference(self, path):
        """How a result file's run differs from this one; empty if it does not."""
        run = run_line(path)
        if run["model_sha256"] != sha256_of(self.model):
            return f"it is of the model {run['model']}"
        if sorted(run["input_sha256"].values()) != sorted(sha256_of(text) for text in self.texts):
            return f"it is of other texts: {', '.join(run['input_sha256'])}"
        for name, wanted in self.settings.items():
            if run["settings"][name] != wanted:
                return f"its --{name} is {','.join(run['settings'][name])}, not {','.join(wanted)}"
        return ""

    def words(self):
        out = ["eval", "fidelity", "-m", self.model, "-t", "1"]
        for text in self.texts:
            out += ["-f", text]
        for name, values in self.settings.items():
            out += [f"--{name}", ",".join(values)]
        return out

    def execute(self, precis, stem, jobs):
        """Makes stem.jsonl, or finds it made: one process with one thread a core, which is faster than one with
        all. Stopped anywhere, the same call goes on."""
        output = f"{stem}.jsonl"
        if os.path.exists(output):
            if difference := self.difference(output):
                fail(f"'{output}' holds another run: {difference}; move it away, or name another folder")
            return output
        os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
        # A run that was stopped goes on in as many parts as it began with.
        begun = glob.glob(f"{glob.escape(stem)}.1of*.part.jsonl")
        jobs = int(begun[0].rsplit(".1of", 1)[1].split(".")[0]) if begun else \
            max(1, min(jobs, self.passages * len(self.texts)))
        parts = [f"{stem}.{i + 1}of{jobs}.part.jsonl" for i in range(jobs)]
        log = f"{stem}.log"
        print(f"{os.path.basename(stem)}: {len(self.settings['method'])} methods, log: {log}", file=sys.stderr,
              flush=True)
        with open(log, "a", encoding="utf-8") as file:
            run_all([[precis.binary, *self.words(), "-o", part, "--shard", f"{i + 1}/{jobs}"]
                     for i, part in enumerate(parts)], file)
        # Under another name first: what has the final name is complete.
        merged = f"{stem}.merged.part.jsonl"
        precis.output("report", "merge", *parts, "-o", merged)
        os.replace(merged, output)
        for path in parts + [merged]:
            for kept in (path, path[:-len(".jsonl")] + ".timing.jsonl"):
                if os.path.exists(kept):
                    os.remove(kept)
        return output


def run_all(commands, log):
    """Runs commands side by side; the first that fails ends this process with its last words."""
    def stop(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    running = []
    try:
        for command in commands:
            running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        codes = [process.wait() for process in running]
    except KeyboardInterrupt:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        print("stopped; the same command goes on", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)
    if any(codes):
        with open(log.name, encoding="utf-8", errors="replace") as file:
            fail("a run failed:\n" + "".join(file.readlines()[-5:]).strip())


def estimate(row, name, scale=1, digits=4, sign=False):
    """'0.0604 [0.0486, 0.0669]' of a line of the report's CSV; without an interval the value alone."""
    def text(value):
        number = f"{scale * float(value):+.{digits}f}" if sign else f"{scale * float(value):.{digits}f}"
        return number if number.strip("+-0.") else number.lstrip("+-")

    if row[name] == "":
        return ""
    if row[f"{name}_low"] == "":
        return text(row[name])
    return f"{text(row[name])} [{text(row[f'{name}_low'])}, {text(row[f'{name}_high'])}]"


def markdown(heads, rows, numbers=True):
    """A table; the first column is a name, the others are numbers."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + ("---:|" if numbers else "---|") * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"
