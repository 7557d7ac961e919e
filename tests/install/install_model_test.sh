#!/usr/bin/env bash
# An installed tree works after it was moved: the binary, the C library, and the CPU backends, which
# must come from the tree itself. Exit code 77: skipped.
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LD_LIBRARY_PATH PRECIS_BACKEND_DIR
fail() { echo "FAILED: $*"; exit 1; }

cmake --install "$PRECIS_BUILD_DIR" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"
tree=$work/moved

[[ $("$tree/bin/precis" --version) == *"$PRECIS_VERSION"* ]] || fail "precis --version"
methods=$("$tree/bin/precis" methods)
grep -q selkv <<<"$methods" || fail "precis methods does not list selkv"

"${CC:-cc}" -DEXPECTED_VERSION="\"$PRECIS_VERSION\"" -I "$tree/include" \
  "$source_dir/tests/capi/capi_test.c" -o "$work/capi_test" \
  -L "$tree/lib" -lprecis -Wl,-rpath,"$tree/lib" -Wl,-rpath-link,"$tree/lib/precis" ||
  fail "a C program does not link"
"$work/capi_test" || fail "a C program does not run"

model=$PRECIS_TEST_MODELS/SmolLM2-135M-Instruct.Q4_1.gguf
if [[ ! -f $model ]]; then
  echo "skipped: $model is absent (make models)"
  exit 77
fi
echo "The quick brown fox jumps over the lazy dog. It was a fine day in spring." >"$work/text"
LD_DEBUG=libs "$tree/bin/precis" run -m "$model" -f "$work/text" -p "Who jumps?" -n 4 \
  --method full >"$work/answer" 2>"$work/log" || fail "precis run: $(grep -v 'calling\|find' "$work/log" | tail -n 3)"
[[ -s $work/answer ]] || fail "precis run printed nothing"
loaded=$(grep -o 'calling init: .*/lib\(ggml\|llama\|hwy\)[^/]*$' "$work/log" | sed 's/calling init: //')
grep -q 'libggml-cpu' <<<"$loaded" || fail "no CPU backend was loaded: $loaded"
while read -r library; do
  [[ $(realpath "$library") == "$tree"/* ]] || fail "loaded from outside of the installed tree: $library"
done <<<"$loaded"
