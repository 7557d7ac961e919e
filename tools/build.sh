#!/usr/bin/env bash
# Configures and builds one preset: tools/build.sh <preset> [target...] [-- cmake options...]
# Quiet unless something is compiled: configuring is logged, and shown when it fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
targets=()
while (($#)) && [[ $1 != -- ]]; do
  targets+=(--target "$1")
  shift
done
(($#)) && shift
mkdir -p build/logs
log=build/logs/configure_$preset.log
if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
  cat "$log" >&2
  echo "build: configuring '$preset' failed" >&2
  exit 1
fi
start=$SECONDS
cmake --build --preset "$preset" "${targets[@]}"
echo "build: '$preset' is up to date in build/$preset ($((SECONDS - start)) s)" >&2
