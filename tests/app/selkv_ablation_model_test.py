"""tools/selkv_ablation.py in small on a real model: its rows are the registry's steps, its figures those of the result
file, and a second call measures nothing."""

import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = os.path.join(os.environ["PRECIS_TEST_MODELS"], "SmolLM2-135M-Instruct.Q4_1.gguf")
TEXT = "/usr/share/common-licenses/GPL-3"
PRECIS = os.environ["PRECIS_BIN"]


def command(folder, *arguments):
    return [sys.executable, os.path.join(ROOT, "tools", "selkv_ablation.py"), MODEL, "-f", TEXT, "--keep", "25%,50%",
            "--context", "256", "--continuation", "8", "-n", "2", "--dir", folder, "--jobs", "2", "--precis", PRECIS,
            *arguments]


def ablation(folder, *arguments):
    return subprocess.run(command(folder, *arguments), capture_output=True, text=True)


def stopped_ablation(folder):
    """Stopped once both processes have begun their files; they end with it."""
    process = subprocess.Popen(command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    parts = [os.path.join(folder, f"ablation-SmolLM2-135M-Instruct.Q4_1.{i}of2.part.jsonl") for i in (1, 2)]
    while process.poll() is None and not all(os.path.exists(part) and os.path.getsize(part) > 0 for part in parts):
        time.sleep(0.02)
    process.terminate()
    _, stderr = process.communicate()
    assert process.returncode == 130 and "the same command goes on" in stderr, (process.returncode, stderr)


def tables(text):
    """Budget -> step -> cells."""
    out = {}
    for line in text.splitlines():
        if line.startswith("**"):
            rows = out.setdefault(line.split("keep ")[1].split(",")[0], {})
        elif line.startswith("| ") and not line.startswith("| step"):
            name, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            rows[name] = cells
    return out


def main():
    if not os.path.exists(MODEL) or not os.path.exists(TEXT):
        print("skipped: needs", MODEL, TEXT)
        return 77
    with tempfile.TemporaryDirectory() as folder:
        result = ablation(folder)
        assert result.returncode == 0, result.stderr
        shown = tables(result.stdout)
        assert list(shown) == ["25%", "50%"], result.stdout
        registry = json.loads(subprocess.run([PRECIS, "methods", "--json"], check=True, capture_output=True).stdout)
        modes = next(field["domain"].split("|") for stage in registry["stages"] for field in stage["fields"]
                     if (stage["kind"], stage["name"], field["name"]) == ("bias", "ratio", "mode"))
        assert set(modes) >= {"head", "layer", "global", "count"}, modes
        specs = ["selkv merge=none bias=none", "selkv(gate=one) bias=none", "selkv bias=none",
                 "selkv positions=compact"] + [
                     f"selkv(mode={mode}{alpha})" for mode in modes for alpha in ("", ",alpha=1")]
        path = os.path.join(folder, "ablation-SmolLM2-135M-Instruct.Q4_1.jsonl")
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file][1:]
        for keep, steps in shown.items():
            by_spec = {cells[0].strip("`"): cells for cells in steps.values()}
            assert set(specs) <= set(by_spec), by_spec
            divergence = {spec: [row["mean_kl"] for row in rows if (row["label"], row["keep"]) == (spec, keep)]
                          for spec in specs}
            for spec in specs:
                assert len(divergence[spec]) == 2, spec
                mean = sum(divergence[spec]) / 2
                assert abs(float(by_spec[spec][2].split()[0]) - mean) < 5.1e-5, (by_spec[spec], divergence[spec])
                if spec == specs[0]:
                    assert by_spec[spec][3] == "", by_spec[spec]
                    continue
                pairs = [own - base for own, base in zip(divergence[spec], divergence[specs[0]])]
                shown_difference, low, high = (float(number.strip("[],")) for number in by_spec[spec][3].split())
                assert abs(shown_difference - sum(pairs) / 2) < 5.1e-5, (by_spec[spec], pairs)
                # Two passages: the paired bootstrap draws either one twice, or both.
                assert abs(low - min(pairs)) < 5.1e-5 and abs(high - max(pairs)) < 5.1e-5, (by_spec[spec], pairs)
        written = os.stat(path).st_mtime_ns
        again = ablation(folder)
        assert again.stdout == result.stdout and os.stat(path).st_mtime_ns == written
        other = ablation(folder, "--context", "300")
        assert other.returncode == 1 and "--context is 256, not 300" in other.stderr, other.stderr
        # Stopped, then gone on with: the same file, and nothing of the parts is left.
        stopped = os.path.join(folder, "stopped")
        stopped_ablation(stopped)
        assert ablation(stopped, "--jobs", "1").stdout == result.stdout
        with open(path, "rb") as one, open(os.path.join(stopped, os.path.basename(path)), "rb") as two:
            assert one.read() == two.read()
        assert not [name for name in os.listdir(stopped) if ".part." in name], os.listdir(stopped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
