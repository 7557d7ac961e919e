"""SelKV on captured keys, values and queries of real models against the independent numpy implementation."""

import os
import subprocess
import sys
import tempfile

BUILD = os.environ["PRECIS_BUILD_DIR"]
MODELS = os.environ["PRECIS_TEST_MODELS"]
COMPARE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "compare_selkv.py")
SPECS = ["selkv", "selkv select=head bias=ratio(mode=head)"]
# Layers of the beginning, the middle and the end; gemma3 has three that can be compressed.
CASES = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": ["0", "14", "29"],
    "gemma-3-270m-q4_k_m.gguf": ["0", "2"],
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf": ["0", "12", "23"],
}


def main():
    present = [name for name in CASES if os.path.exists(os.path.join(MODELS, name))]
    if not present:
        print("skipped: no model in", MODELS)
        return 77
    failures = 0
    for name in present:
        with tempfile.TemporaryDirectory() as folder:
            capture = [os.path.join(BUILD, "tests", "capture_layers"), os.path.join(MODELS, name), "700", folder]
            files = subprocess.run(capture + CASES[name], check=True, capture_output=True, text=True).stdout.split()
            for path in files:
                for spec in SPECS:
                    result = subprocess.run(
                        [sys.executable, COMPARE, os.path.join(BUILD, "tests", "selkv_dump"), path, spec, "25%"],
                        capture_output=True, text=True)
                    print(name, os.path.basename(path), spec, "->", result.stdout.strip() or result.stderr.strip())
                    failures += result.returncode != 0
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
