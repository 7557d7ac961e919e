#!/usr/bin/env bash
# Checks what our libraries link to and export:
#   tools/check_symbols.sh BUILD_DIR      a build of all libraries
#   tools/check_symbols.sh --self-test    breaks each rule and fails unless it is found
# Rules: the folders below src/model know nothing of ggml; nothing but src/app prints or ends the
# process (src/base/error may, for bugs); libprecis exports exactly what include/precis.h declares.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
below_model="base kernels cache compress methods"
libraries="$below_model model engine store eval server"
process_symbols='printf|vprintf|puts|putchar|__printf_chk|__vprintf_chk|stdout|stderr|_ZSt4cout|_ZSt4cerr|_ZSt4clog|exit|_exit|quick_exit|abort'

faults=0
fault() { echo "$*"; faults=1; }

# undefined <archive> <pattern>: "object symbol" for every undefined symbol that matches as a whole.
undefined() {
  nm -A -u "$1" | sed -E 's/^[^:]*:([^:]*): +[A-Za-z] ([^@]*).*$/\1 \2/' | grep -E " ($2)\$" || true
}

check_archives() {
  local name archive line
  for name in $libraries; do
    archive=$1/libprecis_$name.a
    [[ -f $archive ]] || continue
    if [[ " $below_model " == *" $name "* ]]; then
      while read -r line; do fault "src/$name uses ggml: $line"; done < <(undefined "$archive" '(ggml|gguf|llama)_.*' )
    fi
    while read -r line; do
      [[ $name == base && $line == error.cpp.o* ]] || fault "src/$name prints or ends the process: $line"
    done < <(undefined "$archive" "$process_symbols")
  done
}

# check_exports <shared library> <header>
check_exports() {
  local exported declared
  exported=$(nm -D --defined-only "$1" | awk '{print $3}' | sort)
  declared=$(grep -v '^ *#' "$2" | grep -o 'PRECIS_API [^(]*(' | grep -o '[a-z_0-9]*($' | tr -d '(' | sort)
  [[ $exported == "$declared" ]] || fault "libprecis exports: $(echo $exported); precis.h declares: $(echo $declared)"
}

self_test() {
  local dir found expected
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' RETURN
  make_library() {  # <name> <object> <code>
    echo "$3" >"$dir/$2.cpp"
    "${CXX:-c++}" -fPIC -c "$dir/$2.cpp" -o "$dir/$2.cpp.o"
    ar rc "$dir/libprecis_$1.a" "$dir/$2.cpp.o"
  }
  make_library base error '#include <cstdlib>
    void f() { std::abort(); }'
  make_library base half '#include <cstdlib>
    void g() { std::exit(1); }'
  make_library cache rows 'extern "C" void ggml_free(void*); void h() { ggml_free(nullptr); }'
  make_library model graph 'extern "C" void ggml_free(void*); void i() { ggml_free(nullptr); }'
  make_library engine session '#include <iostream>
    void j() { std::cout << 1; }'
  echo 'extern "C" int precis_version() { return 1; } int stray() { return 2; }' >"$dir/capi.cpp"
  "${CXX:-c++}" -fPIC -shared "$dir/capi.cpp" -o "$dir/libprecis.so"
  printf '%s\n' '#define PRECIS_API __attribute__((visibility("default")))' \
    'PRECIS_API const char* precis_version(void);' >"$dir/precis.h"
  found=$(check_archives "$dir"; check_exports "$dir/libprecis.so" "$dir/precis.h")
  expected='src/base prints or ends the process: half.cpp.o exit
src/cache uses ggml: rows.cpp.o ggml_free
src/engine prints or ends the process: session.cpp.o _ZSt4cout
libprecis exports: _Z5strayv precis_version; precis.h declares: precis_version'
  if [[ $found != "$expected" ]]; then
    diff <(echo "$expected") <(echo "$found") || true
    return 1
  fi
}

case ${1:-} in
  --self-test) self_test ;;
  "") echo "usage: tools/check_symbols.sh BUILD_DIR | --self-test" >&2; exit 2 ;;
  *)
    check_archives "$1"
    check_exports "$1/libprecis.so" "$root/include/precis.h"
    exit $faults
    ;;
esac
