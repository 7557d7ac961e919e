#!/usr/bin/env python3
"""Checks the structure of the sources: who includes whom, sizes, names, text, dead test data.

  tools/check_layers.py [--self-test] [ROOT]

Prints one line per fault as path:line: message; exits 1 if there is any. --self-test breaks every
rule in a scratch tree and fails unless each fault is found.
"""
import re
import sys
import tempfile
from pathlib import Path

# Folder of src -> the folders it may include, beside itself. "methods" stands for methods/registry.h.
BELOW_COMPRESS = {"cache", "kernels", "base"}
ALLOWED = {
    "base": set(),
    "kernels": {"base"},
    "cache": {"kernels", "base"},
    "compress": BELOW_COMPRESS,
    "methods": BELOW_COMPRESS | {"compress"},
    "model": {"kernels", "base"},
    "engine": BELOW_COMPRESS | {"compress", "model"},
    "tasks": {"base"},
    "report": {"base"},
    "store": BELOW_COMPRESS | {"compress", "model", "engine", "report"},
    "eval": BELOW_COMPRESS | {"compress", "engine", "methods", "tasks", "report"},
    "server": BELOW_COMPRESS | {"compress", "engine", "methods"},
    "app": BELOW_COMPRESS | {"compress", "model", "engine", "methods", "tasks", "report", "store",
                             "eval", "server"},
    "capi": BELOW_COMPRESS | {"compress", "engine", "methods"},
}
GGML_FOLDER = "model"  # the only folder of src that includes the headers below
GGML_HEADER = re.compile(r"^(ggml|gguf|llama)[\w-]*\.h$|^jinja/")

CODE = {".cpp", ".h", ".c", ".inl", ".def"}
TEXT = CODE | {".py", ".sh", ".md", ".txt", ".cmake", ".json", ".map"}
TOP = ["src", "include", "tests", "bench", "fuzz", "docs", "tools", "cmake", ".ci"]
TOP_FILES = ["README.md", "CONTRIBUTING.md", "Makefile", "CMakeLists.txt", "CMakePresets.json"]
VAGUE_NAME = re.compile(r"(^|_)(utils?|common|helpers?|manager|misc)(_|$)")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
OPEN_END = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
MACHINE_PATH = re.compile(r"(?<![\w.])/(root|home|work|Users|opt)/\w")
# Written in pieces, so that this file does not name a host either.
REGISTRY_HOST = re.compile(r"\b(py" r"pi\.org|python" r"hosted\.org|deb" r"ian\.org|ubun" r"tu\.com|crates\.io|npm" r"js\.)")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def files(root, top, suffixes):
    for name in top:
        for path in sorted((root / name).rglob("*")):
            if path.is_file() and path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path


def all_text(root):
    yield from files(root, TOP, TEXT)
    yield from (root / name for name in TOP_FILES if (root / name).is_file())


def read(path):
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def check_includes(root):
    for path in files(root, ["src"], CODE):
        folder = path.relative_to(root / "src").parts[0]
        if folder not in ALLOWED:
            yield path, 1, f"folder '{folder}' is not in the include table of tools/check_layers.py"
            continue
        for number, line in enumerate(read(path).splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            header = match.group(1)
            if GGML_HEADER.match(header) and folder != GGML_FOLDER:
                yield path, number, f"only src/{GGML_FOLDER} may include <{header}>"
            if header == "precis.h" and folder != "capi":
                yield path, number, "only src/capi may include precis.h"
            target = header.split("/")[0]
            if target not in ALLOWED or "/" not in header or target == folder:
                continue
            if target not in ALLOWED[folder]:
                yield path, number, f"'{folder}' may not include '{target}' ({header})"
            elif target == "methods" and header != "methods/registry.h":
                yield path, number, f"'{folder}' may include only methods/registry.h ({header})"


def check_names(root):
    for path in files(root, ["src", "include", "tests", "bench", "fuzz"], CODE):
        for part in path.relative_to(root).parts:
            if VAGUE_NAME.search(part.split(".")[0]):
                yield path, 1, f"'{part}' says nothing about what is in it"


def blank_out(code):
    """The code with comments, strings and character literals blanked, line breaks kept."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
        r"|^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.S | re.M)
    return pattern.sub(lambda m: " " + "\n" * m.group(0).count("\n"), code)


def functions(code):
    """(first line, last line) of every outermost function body in blanked-out code; a heuristic."""
    depth_of_function = None
    depth, line, head, head_line, first = 0, 1, "", 1, 0
    for char in code:
        if char == "\n":
            line += 1
        if char == "{":
            words = head.strip()
            container = re.search(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$", words)
            if depth_of_function is None and "(" in words and not container and not words.endswith("="):
                depth_of_function, first = depth, head_line
            depth += 1
            head = ""
        elif char == "}":
            depth -= 1
            if depth == depth_of_function:
                depth_of_function = None
                yield first, line
            head = ""
        elif char == ";":
            head = ""
        else:
            if not head.strip() and not char.isspace():
                head, head_line = "", line
            head += char


def check_sizes(root):
    for path in files(root, ["src", "include", "tests", "bench", "fuzz"], CODE):
        code = read(path)
        n = len(code.splitlines())
        if n > MAX_FILE_LINES:
            yield path, n, f"{n} lines, at most {MAX_FILE_LINES} are allowed"
        for first, last in functions(blank_out(code)):
            if last - first + 1 > MAX_FUNCTION_LINES:
                yield path, first, f"function of {last - first + 1} lines, at most {MAX_FUNCTION_LINES} are allowed"


def check_text(root):
    this = Path(__file__).name
    for path in all_text(root):
        for number, line in enumerate(read(path).splitlines(), 1):
            if not line.isascii():
                yield path, number, "only ASCII, please"
            if path.name == this:
                continue
            if OPEN_END.search(line):
                yield path, number, "an open end needs an issue number, as in TODO" + "(#12)"
            if MACHINE_PATH.search(line):
                yield path, number, "a path of one machine"
            if REGISTRY_HOST.search(line):
                yield path, number, "names a package registry's host: that is the machine's own setting"


def check_test_data(root):
    data = root / "tests" / "data"
    text = "".join(read(p) for p in files(root, ["tests", "tools", "fuzz"], TEXT) if data not in p.parents)
    for path in sorted(data.rglob("*")):
        if path.is_file():
            names = [path.name] + [d.name for d in path.parents if data in d.parents]
            if not any(name in text for name in names):
                yield path, 1, "no test reads this file"


def check_methods(root):
    folder = root / "src" / "methods"
    if not (folder / "methods.def").is_file():
        return
    listed = set(re.findall(r"^PRECIS_METHOD\((\w+)\)", read(folder / "methods.def"), re.M))
    defined = {}
    for path in files(root, ["src/methods"], {".cpp"}):
        for name in re.findall(r"^void register_(\w+)\(", read(path), re.M):
            defined[name] = path
    for name in sorted(listed - defined.keys()):
        yield folder / "methods.def", 1, f"'{name}' is listed, but no file defines register_{name}"
    for name, path in sorted(defined.items()):
        if name not in listed:
            yield path, 1, f"register_{name} is not listed in methods.def"
        elif path.stem != name:
            yield path, 1, f"register_{name} belongs into {name}.cpp"


CHECKS = [check_includes, check_names, check_sizes, check_text, check_test_data, check_methods]


def run(root):
    faults = [f"{path.relative_to(root)}:{line}: {message}"
              for check in CHECKS for path, line, message in check(root)]
    return faults


# For the self-test: file -> (content, the fault expected in it, or None).
LONG_FUNCTION = "int f(int x) {\n" + "  ++x;\n" * 80 + "  return x;\n}\n"
FINE_CODE = "namespace a {\n" + "int f(int x) {\n  return x;\n}\n" * 40 + "}\n"
EXAMPLES = {
    "src/base/half.h": ("#include <vector>\n", None),
    "src/base/many.cpp": (FINE_CODE, None),
    "src/base/noise.cpp": ("// { \" TODO" + "(#3)\nconst char* f(int) { return \"{ // \"; }\n", None),
    "src/base/up.h": ('#include "cache/rows.h"\n', "may not include 'cache'"),
    "src/cache/rows.h": ('#include "base/half.h"\n', None),
    "src/compress/g.cpp": ("#include <ggml-cpu.h>\n", "only src/model"),
    "src/compress/up.cpp": ('#include "model/arch.h"\n', "may not include 'model'"),
    "src/model/arch.h": ("#include <llama.h>\n", None),
    "src/app/m.cpp": ('#include "methods/selkv.h"\n', "only methods/registry.h"),
    "src/app/r.cpp": ('#include "methods/registry.h"\n', None),
    "src/app/p.cpp": ('#include "precis.h"\n', "only src/capi"),
    "src/stray/x.cpp": ("\n", "not in the include table"),
    "src/base/string_utils.h": ("\n", "says nothing"),
    "src/base/long.cpp": ("\n" * 601, "601 lines"),
    "src/base/big.cpp": (LONG_FUNCTION, "function of 83 lines"),
    "src/base/open.cpp": ("// TO" + "DO later\n", "issue number"),
    "docs/dash.md": ("a \u2013 b\n", "ASCII"),
    "docs/path.md": ("see /ro" + "ot/x\n", "path of one machine"),
    "docs/host.md": ("py" + "pi.org\n", "registry"),
    "tests/data/used.txt": ("1\n", None),
    "tests/data/dead.txt": ("1\n", "no test reads"),
    "tests/base/half_test.cpp": ('open("used.txt")\n', None),
    "src/methods/methods.def": ("PRECIS_METHOD(good)\nPRECIS_METHOD(gone)\n", "register_gone"),
    "src/methods/good.cpp": ("void register_good(R&) {}\n", None),
    "src/methods/extra.cpp": ("void register_extra(R&) {}\n", "not listed"),
}


def self_test():
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for name, (content, _) in EXAMPLES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content, encoding="utf-8")
        faults = run(root)
    wrong = []
    for name, (_, expected) in EXAMPLES.items():
        found = [f for f in faults if f.startswith(name + ":")]
        if expected is None and found:
            wrong.append(f"false alarm: {found}")
        if expected is not None and (len(found) != 1 or expected not in found[0]):
            wrong.append(f"{name}: expected one fault '{expected}', found {found}")
    for line in wrong:
        print("self-test:", line)
    return 1 if wrong else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    root = Path(arguments[0] if arguments else Path(__file__).parent.parent).resolve()
    faults = run(root)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
