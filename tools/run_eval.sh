#!/usr/bin/env bash
# Runs the evaluation behind docs/RESULTS.md and makes its report: tools/run_eval.sh [smoke|whole]
#   whole   every table, many hours on two cores. Can be stopped at any time: the next call goes on.
#   smoke   the same in small, in less than five minutes.
# PRECIS (environment) is the binary, EVAL_DIR the folder of the results (build/eval).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
plan=${1:-whole}
precis=${PRECIS:-build/release/precis}
dir=${EVAL_DIR:-build/eval}/$plan
qwen=models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
gemma=models/gemma-3-270m-q4_k_m.gguf
license=/usr/share/common-licenses/GPL-3
haystack=$dir/haystack.txt
mkdir -p "$dir"
[[ -e $haystack ]] || tools/make_haystack.py "$haystack"

files=()
# evaluate <name> <suite> <model> [options]: results in $dir/<name>.jsonl
evaluate() {
  local output=$dir/$1.jsonl
  echo "eval: $1" >&2
  "$precis" eval "$2" -m "$3" -o "$output" "${@:4}" >&2
  files+=("$output")
}

both=(--query agnostic,aware)
case $plan in
  smoke)
    small=(--keep 25% "${both[@]}")
    for model in qwen gemma; do
      evaluate ruler-$model ruler "${!model}" --length 512 -n 1 --essay "$haystack" "${small[@]}" \
        --task niah_single_2,niah_multikey_1,vt,fwe
      evaluate fidelity-$model fidelity "${!model}" -f "$haystack" -n 1 --context 512 \
        --continuation 64 --keep 25%
      evaluate needle-$model needle "${!model}" --length 256,512 --depth 0,50,100 -n 1 \
        --essay "$haystack" --keep 25%
    done
    ;;
  whole)
    for model in qwen gemma; do
      evaluate fidelity-$model fidelity "${!model}" -f "$haystack" -f "$license" -n 8 \
        --context 2048
      evaluate needle-$model needle "${!model}" --length 1024,2048,4096,8192 -n 5 \
        --essay "$haystack" --keep 25%
      evaluate ruler-$model ruler "${!model}" --length 4096 -n 50 --essay "$haystack" "${both[@]}"
    done
    ;;
  *)
    echo "eval: unknown plan '$plan': smoke or whole" >&2
    exit 2
    ;;
esac
"$precis" report "${files[@]}" -o "$dir/report.html" --title "Precis evaluation ($plan)"
"$precis" report "${files[@]}" --format md -o "$dir/report.md" --title "Precis evaluation ($plan)"
"$precis" report "${files[@]}" --format csv -o "$dir/report.csv"
echo "eval: $dir/report.html, report.md and report.csv" >&2
