#!/usr/bin/env bash
# Runs the evaluation behind docs/RESULTS.md and makes its report: tools/run_eval.sh [smoke|whole|residual]
#   whole     every table, many hours on two cores. Can be stopped at any time: the next call goes on.
#   smoke     the same in small, in less than five minutes.
#   residual  residual sections and fitted caches, with what each part of ResKV is worth, on passages of four
#             texts of three kinds: hours.
# One process with one thread works on every core, which is faster than one process with all; each takes every
# n-th sample, and their files are put together at the end. How many makes no difference to the results.
# Environment: PRECIS is the binary, EVAL_DIR the folder of the results (build/eval), EVAL_JOBS the number of
# processes (one per core; each needs 1.5 GB).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
plan=${1:-whole}
precis=${PRECIS:-build/release/precis}
dir=${EVAL_DIR:-build/eval}/$plan
qwen=models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
gemma=models/gemma-3-270m-q4_k_m.gguf
smollm=models/SmolLM2-135M-Instruct.Q4_1.gguf
license=/usr/share/common-licenses/GPL-3
haystack=$dir/haystack.txt
mkdir -p "$dir"
[[ -e $haystack ]] || tools/make_haystack.py "$haystack"

jobs=${EVAL_JOBS:-$(nproc)}

stop() {
  trap - INT TERM
  kill "${running[@]}" 2>/dev/null || true
  wait
  echo "eval: stopped; the same command goes on" >&2
  exit 130
}
trap stop INT TERM

files=()
# evaluate <name> <suite> <model> [options]: results in $dir/<name>.jsonl
evaluate() {
  local name=$dir/$1
  files+=("$name.jsonl")
  # What is finished is checked and left as it is; results of other settings are refused.
  echo "eval: $1, log: $name.log" >&2
  local parts=() i failed=0
  running=()
  for ((i = 1; i <= jobs; ++i)); do
    parts+=("$name.${i}of$jobs.jsonl")
    "$precis" eval "$2" -m "$3" -o "${parts[-1]}" -t 1 --shard "$i/$jobs" "${@:4}" \
      >>"$name.log" 2>&1 &
    running+=($!)
  done
  for i in "${running[@]}"; do
    wait "$i" || failed=1
  done
  running=()
  if ((failed)); then
    tail -n 5 "$name.log" >&2
    exit 1
  fi
  "$precis" report merge "${parts[@]}" -o "$name.jsonl"
}
running=()

both=(--query agnostic,aware)
case $plan in
  smoke)
    small=(--keep 25% "${both[@]}")
    for model in qwen gemma; do
      evaluate ruler-$model ruler "${!model}" --length 512 -n 1 --essay "$haystack" "${small[@]}" \
        --task niah_single_2,vt,fwe
      evaluate fidelity-$model fidelity "${!model}" -f "$haystack" -n 1 --context 512 \
        --continuation 64 --keep 25%
      evaluate needle-$model needle "${!model}" --length 384,512 --depth 0,100 -n 1 \
        --essay "$haystack" --keep 50%
    done
    ;;
  whole)
    for model in qwen gemma; do
      evaluate fidelity-$model fidelity "${!model}" -f "$haystack" -f "$license" -n 8 \
        --context 2048
      evaluate needle-$model needle "${!model}" --length 1024,2048,4096,8192 -n 5 \
        --essay "$haystack" --keep 25%
      evaluate ruler-$model ruler "${!model}" --length 4096 -n 50 --essay "$haystack" "${both[@]}" \
        --method full,snapkv,selkv,reskv,kvzip
    done
    ;;
  residual)
    for kind in code reference; do
      [[ -e $dir/$kind.txt ]] || tools/make_haystack.py "$dir/$kind.txt" $kind
    done
    methods="snapkv,selkv,reskv,reskv(gate=off),reskv(validate=off,parts=0.25),"
    methods+="reskv(validate=off,parts=0.25,gate=off),reskv(metric=random),reskv-mass,reskv-mass(gate=off),"
    methods+="reskv-mass(validate=off,parts=0.25),match,kvzip,kvzip residual=reskv,"
    methods+="kvzip merge=match bias=ratio(alpha=1)"
    for model in smollm qwen gemma; do
      evaluate fidelity-$model fidelity "${!model}" -f "$haystack" -f "$dir/code.txt" \
        -f "$dir/reference.txt" -f "$license" -n 14 --context 2048 --continuation 64 --method "$methods"
    done
    ;;
  *)
    echo "eval: unknown plan '$plan': smoke, whole or residual" >&2
    exit 2
    ;;
esac
"$precis" report "${files[@]}" -o "$dir/report.html" --title "Precis evaluation ($plan)"
"$precis" report "${files[@]}" --format md -o "$dir/report.md" --title "Precis evaluation ($plan)"
"$precis" report "${files[@]}" --format csv -o "$dir/report.csv"
echo "eval: $dir/report.html, report.md and report.csv" >&2
