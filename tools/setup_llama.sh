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
source "$(dirname "${BASH_SOURCE[0]}")/llama_source.sh"

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

# The pinned source without the skipped variants, in $work/source.
fetch_trimmed_source() {
  fetch_source
  sed -i -E "/ggml_add_cpu_backend_variant\(($skipped_variants) /d" "$work/source/ggml/src/CMakeLists.txt"
}

# copy_common <source> <prefix>: the sources of llama-common that Precis compiles itself.
copy_common() {
  local to=$2/share/llama-common
  mkdir -p "$to/common" "$to/vendor"
  cp -r "$1"/common/{jinja,json.h,json.cpp,unicode.h,unicode.cpp} "$to/common/"
  cp -r "$1"/vendor/{nlohmann,cpp-httplib,hash} "$to/vendor/"
}

compile() {
  cmake -G Ninja -S "$1" -B "$work/build" -DCMAKE_INSTALL_PREFIX="$2" "${flags[@]}" &&
    cmake --build "$work/build" &&
    cmake --install "$work/build" --prefix "$work/prefix"
}

# build <source> <final prefix>: builds into $work/prefix and renames.
build() {
  local start=$SECONDS log=$logs/build_llama.log
  say "building llama.cpp, once: about ten minutes on two cores; log: $log"
  run_build "$log" llama.cpp compile "$1" "$2"
  copy_common "$1" "$work/prefix"
  mv -T "$work/prefix" "$2"
  say "llama.cpp built in $(((SECONDS - start) / 60)) min $(((SECONDS - start) % 60)) s: $2"
}

lock_cache
dir=${PRECIS_LLAMA_DIR:-}
if [[ -z $dir ]]; then
  key=$(printf '%s\n' "$recipe" "$sdist_hash" "${flags[@]}" "$skipped_variants" "$compiler" | hash_of)
  prefix=$cache/llama-$key
  if [[ ! -d $prefix ]]; then
    new_work
    fetch_trimmed_source
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
