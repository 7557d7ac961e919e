#!/usr/bin/env python3
"""Writes a plain English text to hide needles in: the paragraphs of the Debian FAQ, unwrapped.

Usage: make_haystack.py OUT

The text comes from Debian's package debian-faq, which is fetched with apt-get (not installed). The figures in
docs/RESULTS.md belong to the text of Debian 12; another version is used too, with a warning.
"""
import gzip
import hashlib
import os
import re
import subprocess
import sys
import tempfile

PACKAGE = "debian-faq"
MEMBER = "./usr/share/doc/debian/FAQ/debian-faq.en.txt.gz"
SHA256 = "5da8d2939d8843f2fbbc025149600ffcc5afbebe9e2a35683d579bc11f96e176"  # of what Debian 12 gives
FEWEST_WORDS = 12  # of a paragraph: headings, addresses and commands have fewer


def fetch(folder):
    """The FAQ's text."""
    def download():
        return subprocess.run(["apt-get", "-q", "download", PACKAGE], cwd=folder, capture_output=True, text=True)

    result = download()
    if result.returncode != 0 and os.geteuid() == 0:  # a fresh machine has no lists of packages
        subprocess.run(["apt-get", "-q", "update"], capture_output=True, check=False)
        result = download()
    packages = [name for name in os.listdir(folder) if name.endswith(".deb")]
    if not packages:
        sys.exit(f"haystack: cannot fetch Debian's package {PACKAGE}: {result.stderr.strip()}\n"
                 "haystack: as root run 'apt-get update', or bring a text of your own")
    unpack = subprocess.run(["dpkg-deb", "--fsys-tarfile", packages[0]], cwd=folder, capture_output=True, check=True)
    member = subprocess.run(["tar", "-xOf", "-", MEMBER], input=unpack.stdout, capture_output=True, check=True)
    return gzip.decompress(member.stdout).decode("utf-8")


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
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        text = "\n\n".join(paragraphs(fetch(folder))) + "\n"
    found = hashlib.sha256(text.encode()).hexdigest()
    if found != SHA256:
        print(f"haystack: sha256 {found} is not that of Debian 12's text, {SHA256}: figures may differ from "
              "docs/RESULTS.md", file=sys.stderr)
    os.makedirs(os.path.dirname(os.path.abspath(sys.argv[1])), exist_ok=True)
    with open(sys.argv[1] + ".part", "w", encoding="utf-8") as out:
        out.write(text)
    os.replace(sys.argv[1] + ".part", sys.argv[1])


if __name__ == "__main__":
    main()
