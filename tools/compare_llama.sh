#!/usr/bin/env bash
# Measures Precis against llama.cpp on this machine, in turns: A B A B ..., and prints the ratios.
#   tools/compare_llama.sh [options of tools/compare_llama.py]      --help lists them
#   tools/compare_llama.sh --build-only                             only makes llama-bench, prints its path
# The first run builds llama.cpp's own llama-bench from the same pinned source as everything else
# (tools/llama_source.sh), with the settings that llama.cpp chooses for this machine: native
# instructions, llamafile's kernels, OpenMP where the compiler has it. It is kept in PRECIS_CACHE.
# LLAMA_BENCH=<binary> (environment) takes another llama-bench; nothing is built then.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/llama_source.sh"

recipe=1  # raise when this script changes what it produces
flags=(
  -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON
  -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF
)

compile() {
  cmake -G Ninja -S "$work/source" -B "$work/build" "${flags[@]}" &&
    cmake --build "$work/build" --target llama-bench
}

# What -march=native sees. A cache folder may be shared between machines.
processor() { LC_ALL=C lscpu 2>/dev/null | grep -E '^(Architecture|Model name|Flags):' || uname -m; }

bench=${LLAMA_BENCH:-}
if [[ -z $bench ]]; then
  key=$(printf '%s\n' "$recipe" "$sdist_hash" "${flags[@]}" "$compiler" "$(processor)" | hash_of)
  bench=$cache/llama-bench-$key/llama-bench
  if [[ ! -x $bench ]]; then
    lock_cache
  fi
  if [[ ! -x $bench ]]; then  # not made by the run that this one waited for
    start=$SECONDS
    new_work
    fetch_source
    log=$logs/build_llama_bench.log
    say "building llama.cpp's llama-bench, once: about ten minutes on two cores; log: $log"
    run_build "$log" llama-bench compile
    mkdir "$work/prefix"
    cp "$work/build/bin/llama-bench" "$work/prefix/"
    rm -rf "${bench%/*}"
    mv -T "$work/prefix" "${bench%/*}"
    rm -rf "$work"
    say "llama-bench built in $(((SECONDS - start) / 60)) min $(((SECONDS - start) % 60)) s: $bench"
  fi
  unlock_cache
fi
if [[ ${1:-} == --build-only ]]; then
  echo "$bench"
  exit 0
fi
exec python3 "$root/tools/compare_llama.py" --llama-bench "$bench" "$@"
