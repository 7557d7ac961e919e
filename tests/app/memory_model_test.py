"""Peak memory of condensing 8,000 tokens to a quarter: at most 0.6 of the dense cache over the loaded model.

Memory is deterministic enough to test; nothing here is timed.
"""

import json
import os
import subprocess
import sys
import tempfile

MODEL = os.path.join(os.environ["PRECIS_TEST_MODELS"], "SmolLM2-135M-Instruct.Q4_1.gguf")
LICENCES = ["/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/Apache-2.0"]


def main():
    if not os.path.exists(MODEL) or not all(map(os.path.exists, LICENCES)):
        print("skipped: needs", MODEL, *LICENCES)
        return 77
    text = "".join(open(path, encoding="utf-8").read() for path in LICENCES)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(text[:37200])
        file.flush()
        run = subprocess.run(
            [os.environ["PRECIS_BIN"], "run", "-m", MODEL, "-f", file.name, "-p", "Which licence is this?",
             "--method", "selkv", "--keep", "25%", "-n", "4", "--json"],
            check=True, capture_output=True, text=True)
    out = json.loads(run.stdout)
    growth = out["peak_bytes"] - out["loaded_bytes"]
    share = growth / out["kv_bytes_full"]
    print(f"{out['n_condensed']} tokens: dense cache {out['kv_bytes_full']} bytes, kept {out['kv_bytes']}, "
          f"growth over the loaded model {growth} bytes = {share:.3f} of the dense cache")
    assert 7800 <= out["n_prompt"] <= 8192, out["n_prompt"]
    assert out["kv_bytes"] <= 0.25 * out["kv_bytes_full"]
    assert share <= 0.6, share
    return 0


if __name__ == "__main__":
    sys.exit(main())
