"""Makes reports with the library, through tests/report/make_report.cpp; and result files that mean harm."""

import os
import subprocess

import sample_results

MAKE_REPORT = os.environ.get("PRECIS_MAKE_REPORT", "build/release/tests/make_report")


def make(format, against, path, files):
    result = subprocess.run([MAKE_REPORT, format, against, path, *files], capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)


HOSTILE = ["<script>window.bad=1</script>", "\"><img src=x onerror=window.bad=1>", "</title><b>x</b>",
           "<!--", "]]></svg><i>", "' onclick='window.bad=1", "=1+1", "javascript:window.bad=1", "&lt;b&gt; &amp;",
           "\u202eevil", "a\u0000b", "x" * 5000, "|a|`b`_c_*d*"]


def hostile_files(folder):
    """Every text of every row is one of HOSTILE."""
    rows = [sample_results.run("ruler")]
    run = rows[0]
    for i, name in enumerate(("suite", "version", "commit", "model", "model_sha256", "model_type")):
        run[name] = HOSTILE[i]
    run["left_out"] = HOSTILE
    run["settings"] = {text: HOSTILE for text in HOSTILE}
    run["input_sha256"] = {text: text for text in HOSTILE}
    for i, text in enumerate(HOSTILE):
        for label in ("full", text):
            key = sample_results.key(HOSTILE[i % 3], text, 1000, 1, label, "100%" if label == "full" else "25%",
                                     query=text)
            key.update(method=label, type_k="f16" if label == "full" else text, type_v="f16")
            rows.append(sample_results.score(key, 1.0 if label == "full" else 0.0, 1000, answer=text, metric=text,
                                             references=[text], prompt_sha256="",
                                             kv_bytes=250, kv_bytes_full=1000))
        rows.append({"kind": "kept", **key, "n_tokens": 4, "n_layers": 1, "n_heads": 2, "n_bins": 2,
                     "kept": [0, 1, 0.5, 1], "merged": [0, 1, 2, 3], "bias": [0, 1, 2, -3], "residual": [0, 1],
                     "words": [text, text]})
        rows.append({"kind": "fidelity", **key, **sample_results.ORIGIN, "n_context": 9, "n_continuation": 1, "kv_bytes": 1,
                     "kv_bytes_full": 0, "n_entries": 1, "mean_kl": 1e100, "median_kl": -1e100, "p99_kl": 0,
                     "same_top": 1, "log_likelihood": -1e100, "log_likelihood_full": 1e100,
                     "output_error": [[1e100], [0, 1]]})
    path = os.path.join(folder, "hostile.jsonl")
    sample_results.write(path, rows)
    return [path]
