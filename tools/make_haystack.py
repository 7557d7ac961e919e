#!/usr/bin/env python3
"""Writes a long text of one kind for evaluations.

Usage: make_haystack.py OUT [prose|code|reference]

  prose      the paragraphs of the Debian FAQ, unwrapped (the default; what needles are hidden in)
  code       three modules of Python's standard library
  reference  the Debian Policy Manual

The texts come from Debian's packages, which are fetched with apt-get (not installed). The figures in the docs belong
to the texts of Debian 12; another version is used too, with a warning.
"""
import gzip
import hashlib
import os
import re
import subprocess
import sys
import tempfile

# kind -> package, files of it, sha256 of what Debian 12 gives
SOURCES = {
    "prose": ("debian-faq", ["./usr/share/doc/debian/FAQ/debian-faq.en.txt.gz"],
              "5da8d2939d8843f2fbbc025149600ffcc5afbebe9e2a35683d579bc11f96e176"),
    "code": ("libpython3.11-stdlib", [f"./usr/lib/python3.11/{name}.py" for name in ("difflib", "pdb", "statistics")],
             "22cb4770ca7614eca789e5f995161f68b8e32af727b28195ab9e4105ef15171e"),
    "reference": ("debian-policy", ["./usr/share/doc/debian-policy/policy.txt.gz"],
                  "89dba06600463ed858b4ccd3bdf4e72452c512589f1029548346e5284eb71374"),
}
FEWEST_WORDS = 12  # of a paragraph: headings, addresses and commands have fewer


def fetch(package, members, folder):
    """Files of a package, one after the other."""
    def download():
        return subprocess.run(["apt-get", "-q", "download", package], cwd=folder, capture_output=True, text=True)

    result = download()
    if result.returncode != 0 and os.geteuid() == 0:  # a fresh machine has no lists of packages
        subprocess.run(["apt-get", "-q", "update"], capture_output=True, check=False)
        result = download()
    packages = [name for name in os.listdir(folder) if name.endswith(".deb")]
    if not packages:
        sys.exit(f"haystack: cannot fetch Debian's package {package}: {result.stderr.strip()}\n"
                 "haystack: as root run 'apt-get update', or bring a text of your own")
    unpack = subprocess.run(["dpkg-deb", "--fsys-tarfile", packages[0]], cwd=folder, capture_output=True, check=True)
    texts = []
    for name in members:
        member = subprocess.run(["tar", "-xOf", "-", name], input=unpack.stdout, capture_output=True, check=True)
        texts.append(gzip.decompress(member.stdout) if name.endswith(".gz") else member.stdout)
    return b"\n".join(texts).decode("utf-8")


def paragraphs(text):
    for block in re.split(r"\n\s*\n", text):
        words = block.split()
        is_prose = len(words) >= FEWEST_WORDS and words[-1][-1] in ".?!:"
        # The table of contents has dots or section numbers; lists begin with a sign.
        if is_prose and not re.match(r"[\d.]+$", words[0]):
            if words[0] in ("*", "-", "o"):
                words = words[1:]
            yield " ".join(words)


def main():
    kind = sys.argv[2] if len(sys.argv) == 3 else "prose"
    if len(sys.argv) not in (2, 3) or kind not in SOURCES:
        sys.exit(__doc__)
    package, members, sha256 = SOURCES[kind]
    with tempfile.TemporaryDirectory() as folder:
        text = fetch(package, members, folder)
    if kind == "prose":
        text = "\n\n".join(paragraphs(text)) + "\n"
    found = hashlib.sha256(text.encode()).hexdigest()
    if found != sha256:
        print(f"haystack: sha256 {found} is not that of Debian 12's text, {sha256}: figures may differ from "
              "those in the docs", file=sys.stderr)
    os.makedirs(os.path.dirname(os.path.abspath(sys.argv[1])), exist_ok=True)
    with open(sys.argv[1] + ".part", "w", encoding="utf-8") as out:
        out.write(text)
    os.replace(sys.argv[1] + ".part", sys.argv[1])


if __name__ == "__main__":
    main()
