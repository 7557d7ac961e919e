# Sourced by the scripts that build something of llama.cpp: where builds are kept, the pinned source,
# the compiler as a part of keys, one run at a time, and a folder for unfinished work.
# Sets root, cache, logs, compiler and sdist_hash; new_work sets work.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${PRECIS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/precis}
logs=$root/build/logs
mkdir -p "$cache" "$logs"
cache=$(cd "$cache" && pwd)
say() { echo "setup: $*" >&2; }

hash_of() { sha256sum | cut -c1-16; }
if ! compiler=$("${CC:-cc}" -v 2>&1 && "${CXX:-c++}" -v 2>&1); then
  say "no working C and C++ compiler (${CC:-cc}, ${CXX:-c++})"
  exit 1
fi
sdist_hash=$(grep -o 'sha256:[0-9a-f]\{64\}' "$root/tools/requirements-llama.txt" | cut -d: -f2)

work=
cleanup() { [[ -z $work ]] || rm -rf "$work"; }
trap cleanup EXIT
trap 'exit 130' INT TERM
new_work() { work=$(mktemp -d "$cache/tmp.XXXXXXXX"); }

# One run at a time per cache; the lock ends with the process, or with unlock_cache.
lock_cache() {
  exec 9>"$cache/lock"
  if command -v flock >/dev/null; then
    if ! flock -n 9; then
      say "waiting for another setup that uses $cache"
      flock 9
    fi
    rm -rf "$cache"/tmp.*  # of runs that were killed
  fi
}
unlock_cache() { exec 9>&-; }

# Unpacks the pinned llama.cpp to $work/source.
fetch_source() {
  local sdist=$cache/llama-source-${sdist_hash:0:16}.tar.gz
  if ! echo "$sdist_hash  $sdist" | sha256sum --check --status 2>/dev/null; then
    say "fetching the pinned llama.cpp source (77 MB)"
    mkdir "$work/download"
    if ! PYTHONPATH=$root/tools/sdist_shim python3 -m pip download --quiet --no-deps --no-binary :all: \
        --no-build-isolation --require-hashes -r "$root/tools/requirements-llama.txt" \
        -d "$work/download" >"$logs/fetch_llama.log" 2>&1; then
      tail -n 20 "$logs/fetch_llama.log" >&2
      say "fetching the llama.cpp source failed; the whole log: $logs/fetch_llama.log"
      exit 1
    fi
    mv "$work"/download/*.tar.gz "$sdist"
  fi
  mkdir "$work/source"
  tar -xzf "$sdist" -C "$work/source" --strip-components 3 --wildcards '*/vendor/llama.cpp/*'
}

# run_build <log> <what> <command...>: runs a function that builds; on failure shows why and exits.
run_build() {
  local log=$1 what=$2
  shift 2
  if ! "$@" >"$log" 2>&1; then
    grep -m 20 -i -E 'error|FAILED' "$log" >&2 || tail -n 20 "$log" >&2
    say "building $what failed; the whole log: $log"
    exit 1
  fi
}
