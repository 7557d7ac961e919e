"""No two presets keep the same of a real prompt, and one that is there twice is found."""

import json
import os
import subprocess
import sys

MODEL = os.path.join(os.environ["PRECIS_TEST_MODELS"], "SmolLM2-135M-Instruct.Q4_1.gguf")
TEXT = "/usr/share/common-licenses/GPL-3"


def audit(*arguments):
    return subprocess.run([os.environ["PRECIS_BIN"], "methods", "--audit", "-m", MODEL, "-f", TEXT, "--tokens", "1024",
                           "--keep", "50%", *arguments], capture_output=True, text=True)


def main():
    if not os.path.exists(MODEL) or not os.path.exists(TEXT):
        print("skipped: needs", MODEL, TEXT)
        return 77
    presets = json.loads(subprocess.run([os.environ["PRECIS_BIN"], "methods", "--json"], check=True,
                                        capture_output=True).stdout)["presets"]
    result = audit("--json")
    assert result.returncode == 0, result.stderr
    out = json.loads(result.stdout)
    assert [method["label"] for method in out["methods"]] == [preset["name"] for preset in presets]
    n = len(presets)
    assert len(out["pairs"]) == n * (n - 1) // 2
    entries = {method["label"]: method["n_entries"] for method in out["methods"]}
    overlaps = {}
    for pair in out["pairs"]:
        overlaps[pair["first"], pair["second"]] = overlaps[pair["second"], pair["first"]] = pair["overlap"]
        # Whatever the sets are, inclusion and exclusion hold.
        assert pair["n_both"] + pair["n_either"] == entries[pair["first"]] + entries[pair["second"]], pair
        if pair["relation"] == "other_numbers":
            print(f"{pair['first']} and {pair['second']}: the same entries by design, other values of "
                  f"{pair['n_values_differ']}, other biases of {pair['n_biases_differ']}")
    for name in entries:
        if name == "full":
            continue
        # `full` holds everything.
        assert abs(overlaps["full", name] - entries[name] / entries["full"]) < 1e-12, name
        assert entries[name] <= 0.5 * entries["full"], name
    planted = audit("--method", "selkv,snapkv,score=selkv select=shared merge=selkv bias=ratio(alpha=0.5,mode=layer)")
    assert planted.returncode == 1, planted.stdout
    assert "'selkv' and 'score=selkv" in planted.stderr and "same cache" in planted.stderr, planted.stderr
    assert "snapkv" not in planted.stderr.splitlines()[-1], planted.stderr
    return 0


if __name__ == "__main__":
    sys.exit(main())
