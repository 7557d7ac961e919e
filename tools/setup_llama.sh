#!/usr/bin/env bash
# Makes llama.cpp ready to link against. Prints two lines on stdout: the installed prefix, and the
# folder with the sources of llama-common's Jinja engine, which Precis compiles itself.
#   default                        the pinned source (tools/requirements-llama.txt), fetched by pip
#   PRECIS_LLAMA_DIR=<checkout>    a person's own checkout, built with the same flags
#   PRECIS_LLAMA_DIR=<prefix>      an installed llama.cpp (shared libraries), used as it is
# A build is kept in PRECIS_CACHE (default: ~/.cache/precis) under a key made of everything that goes
# into it. It is made in a temporary folder and renamed at the end, so an interrupted run leaves no
# half of one, and deleting the cache is always safe.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${PRECIS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/precis}
logs=$root/build/logs
mkdir -p "$cache" "$logs"
cache=$(cd "$cache" && pwd)
say() { echo "setup: $*" >&2; }

recipe=1  # raise when this script changes what it produces
flags=(
  -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON "-DCMAKE_INSTALL_RPATH=\$ORIGIN;\$ORIGIN/../lib"
  -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=ON
  -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF
  -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF
)
[[ $(uname -m) == x86_64 ]] && flags+=(-DGGML_CPU_ALL_VARIANTS=ON)
# Variants that are not built from the pinned source: each is within a few instructions of one that
# is, on machines that are rare, and costs a twentieth of the whole build.
skipped_variants="ivybridge|piledriver|cannonlake|cooperlake"

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
  sed -i -E "/ggml_add_cpu_backend_variant\(($skipped_variants) /d" "$work/source/ggml/src/CMakeLists.txt"
}

# copy_common <source> <prefix>: the sources of llama-common that Precis compiles itself.
copy_common() {
  local to=$2/share/llama-common
  mkdir -p "$to/common" "$to/vendor"
  cp -r "$1"/common/{jinja,json.h,json.cpp,unicode.h,unicode.cpp} "$to/common/"
  cp -r "$1"/vendor/{nlohmann,cpp-httplib,hash} "$to/vendor/"
}

# build <source> <final prefix>: builds into $work/prefix and renames.
build() {
  local start=$SECONDS log=$logs/build_llama.log
  say "building llama.cpp, once: about ten minutes on two cores; log: $log"
  if ! { cmake -G Ninja -S "$1" -B "$work/build" -DCMAKE_INSTALL_PREFIX="$2" "${flags[@]}" &&
         cmake --build "$work/build" &&
         cmake --install "$work/build" --prefix "$work/prefix"; } >"$log" 2>&1; then
    grep -m 20 -i -E 'error|FAILED' "$log" >&2 || tail -n 20 "$log" >&2
    say "building llama.cpp failed; the whole log: $log"
    exit 1
  fi
  copy_common "$1" "$work/prefix"
  mv -T "$work/prefix" "$2"
  say "llama.cpp built in $(((SECONDS - start) / 60)) min $(((SECONDS - start) % 60)) s: $2"
}

# One run at a time per cache; the lock ends with the process.
exec 9>"$cache/lock"
if command -v flock >/dev/null; then
  if ! flock -n 9; then
    say "waiting for another setup that uses $cache"
    flock 9
  fi
  rm -rf "$cache"/tmp.*  # of runs that were killed
fi

dir=${PRECIS_LLAMA_DIR:-}
if [[ -z $dir ]]; then
  key=$(printf '%s\n' "$recipe" "$sdist_hash" "${flags[@]}" "$skipped_variants" "$compiler" | hash_of)
  prefix=$cache/llama-$key
  if [[ ! -d $prefix ]]; then
    new_work
    fetch_source
    build "$work/source" "$prefix"
  fi
  common=$prefix/share/llama-common
elif [[ -f $dir/CMakeLists.txt && -f $dir/src/llama.cpp ]]; then
  dir=$(cd "$dir" && pwd)
  # The key sees every edit: names, sizes and times of the files that the build reads.
  state=$(cd "$dir" && find CMakeLists.txt cmake common ggml include src vendor -type f -printf '%p %s %T@\n' | sort)
  key=$(printf '%s\n' "$recipe" "$dir" "$state" "${flags[@]}" "$compiler" | hash_of)
  prefix=$cache/llama-own-$key
  if [[ ! -d $prefix ]]; then
    new_work
    build "$dir" "$prefix"
  fi
  common=$prefix/share/llama-common
elif [[ -f $dir/include/llama.h ]]; then
  prefix=$(cd "$dir" && pwd)
  common=$prefix/share/llama-common
  if [[ ! -d $common ]]; then  # not made by this script: take the Jinja sources from the pinned source
    base=$cache/llama-common-${sdist_hash:0:16}
    if [[ ! -d $base ]]; then
      new_work
      fetch_source
      copy_common "$work/source" "$work/prefix"
      mv -T "$work/prefix" "$base"
    fi
    common=$base/share/llama-common
  fi
else
  say "PRECIS_LLAMA_DIR='$dir' is neither a llama.cpp checkout (CMakeLists.txt, src/llama.cpp)" \
      "nor an installed one (include/llama.h)"
  exit 1
fi
printf '%s\n' "$prefix" "$common"
