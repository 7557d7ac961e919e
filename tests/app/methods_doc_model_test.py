"""The measured part of docs/METHODS.md, in small on a real model: figures are those of the result files, a preset that
came later is measured by itself, and what was measured stays when the results are gone."""

import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = os.path.join(os.environ["PRECIS_TEST_MODELS"], "SmolLM2-135M-Instruct.Q4_1.gguf")
TEXT = "/usr/share/common-licenses/GPL-3"
PRECIS = os.environ["PRECIS_BIN"]


def tool(name, *arguments):
    result = subprocess.run([sys.executable, os.path.join(ROOT, "tools", name), "--precis", PRECIS, *arguments],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result


def measure(folder, methods):
    tool("measure_methods.py", "--dir", folder, "--model", MODEL, "-f", TEXT, "--methods", methods, "--keep", "25%,50%",
         "--context", "256", "--continuation", "8", "-n", "1", "--prompt", "256", "--repetitions", "1")


def rows(page, title):
    part = page.split(f"### {title}\n")[1].split("\n### ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines() if line[:2] == "| "]
    return {name: dict(zip(lines[0][1:], cells)) for name, *cells in lines[1:]}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def main():
    if not os.path.exists(MODEL) or not os.path.exists(TEXT):
        print("skipped: needs", MODEL, TEXT)
        return 77
    with tempfile.TemporaryDirectory() as folder:
        name = "SmolLM2-135M-Instruct.Q4_1"
        page_path = os.path.join(folder, "METHODS.md")
        measure(folder, "snapkv,selkv")
        first = os.path.join(folder, f"fidelity-{name}-1.jsonl")
        before = read(first)
        measure(folder, "snapkv,selkv,knorm")
        assert read(first) == before
        second = os.path.join(folder, f"fidelity-{name}-2.jsonl")
        found = [json.loads(line) for line in (before + read(second)).splitlines() if '"fidelity"' in line[:20]]
        assert {row["label"] for row in found if row not in map(json.loads, before.splitlines())} == {"knorm"}
        assert not os.path.exists(os.path.join(folder, f"fidelity-{name}-3.jsonl"))
        result = tool("make_methods_doc.py", "--results", folder, "-o", page_path)
        assert "h2o: not measured yet" in result.stderr, result.stderr
        page = read(page_path)
        quality = rows(page, f"Fidelity: {name}")
        for row in found:
            if f"`{row['label']}`" not in quality:
                continue  # a step of the ablation
            cells = quality[f"`{row['label']}`"]
            assert abs(float(cells[f"KL, {row['keep']}"]) - row["mean_kl"]) < 5.1e-5, (row, cells)
            assert abs(float(cells[f"top-1 %, {row['keep']}"]) - 100 * row["same_top"]) < 0.051, (row, cells)
        assert quality["`snapkv`"]["KL, 10%"] == quality["`h2o`"]["KL, 25%"] == "not measured yet"
        steps = rows(page, f"SelKV step by step: {name}")
        preset = next(cells for step, cells in steps.items() if "the preset" in step and step.endswith("@ 25%"))
        assert preset["KL, nats a token"] == quality["`selkv`"]["KL, 25%"]
        costs = rows(page, f"Cost: {name}")
        for method in ["snapkv", "selkv", "knorm"]:
            bench = json.loads(read(os.path.join(folder, f"cost-{name}-{method}.json")))[0]
            share = 100 * bench["compress_ms"] / (bench["ttft_ms"] - bench["compress_ms"])
            assert abs(float(costs[f"`{method}`"]["of the prefill"].split()[0]) - share) < 0.0051, costs
        # The page is its own memory.
        tool("make_methods_doc.py", "--results", os.path.join(folder, "gone"), "-o", page_path)
        assert read(page_path) == page
        tool("make_methods_doc.py", "--check", "-o", page_path)
        # Figures of another SPEC are not those of the preset.
        changed = page.replace("- `knorm` = `", "- `knorm` = `another ", 1)
        with open(page_path, "w", encoding="utf-8") as file:
            file.write(changed)
        tool("make_methods_doc.py", "--results", os.path.join(folder, "gone"), "-o", page_path)
        quality = rows(read(page_path), f"Fidelity: {name}")
        assert quality["`knorm`"]["KL, 25%"] == "not measured yet"
        assert quality["`snapkv`"]["KL, 25%"] != "not measured yet"
    return 0


if __name__ == "__main__":
    sys.exit(main())
