#!/usr/bin/env python3
"""Writes metric_pairs.jsonl: answers, references and the scores that other implementations give.

  tests/tasks/make_metric_pairs.py OUTPUT

Needs rouge 1.0.1, fuzzywuzzy and python-Levenshtein (without the latter fuzzywuzzy takes difflib,
whose ratio is another one). ROUGE-L and edit similarity are those packages' own; the others are
formulated here from the definitions, with regular expressions and multisets. All texts are ours.
"""
import importlib.metadata
import json
import random
import re
import string
import sys
from collections import Counter

import Levenshtein  # noqa: F401  (fuzzywuzzy takes it where it can be imported)
from fuzzywuzzy import fuzz
from rouge import Rouge

sys.setrecursionlimit(20000)  # the package walks back recursively; see subsequence.h

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normal(text):
    return re.sub(r"\b(?:a|an|the)\b", " ", text.lower().translate(NO_PUNCTUATION)).split()


def f1(answer, reference, _):
    got, wanted = normal(answer), normal(reference)
    shared = sum(min(n, wanted.count(word)) for word, n in Counter(got).items())
    if not shared:
        return 0.0
    precision, recall = shared / len(got), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def rouge_l(answer, reference, _):
    try:
        return Rouge().get_scores(answer, reference)[0]["rouge-l"]["f"]
    except ValueError:  # "Hypothesis is empty."
        return 0.0


def edit_similarity(answer, reference, _):
    lines = re.sub(r"\A\n+", "", answer).split("\n")
    code = [line for line in lines if not re.search(r"`|#|//", line)]
    return fuzz.ratio(code[0] if code else "", reference) / 100


def classification(answer, reference, classes):
    found = {name for name in classes if name in answer}
    found -= {name for name in found if name in reference and name != reference}
    return 1 / len(found) if reference in found else 0.0


def share(answer, wanted):
    numbers = re.findall("[0-9]+", answer)
    return numbers.count(wanted) / len(numbers) if numbers else 0.0


def count(answer, reference, _):
    return share(answer, reference)


def retrieval(answer, reference, _):
    return share(answer, re.search("Paragraph ([0-9]+)", reference).group(1))


def contained(answer, references):
    plain = re.sub(r"[\x00-\x1f]", "\n", answer).strip().lower()
    return [reference.lower() in plain for reference in references]


def score(metric, answer, references, classes, first_line):
    if first_line:
        answer = answer.lstrip("\n").split("\n")[0]
    if not references:
        return 0.0
    if metric == "contain_all":
        return sum(contained(answer, references)) / len(references)
    if metric == "contain_any":
        return float(any(contained(answer, references)))
    one = {"f1": f1, "rouge_l": rouge_l, "edit_similarity": edit_similarity, "count": count,
           "classification": classification, "retrieval": retrieval}[metric]
    return max(float(one(answer, reference, classes)) for reference in references)


SENTENCES = [
    "",
    ".",
    " . ",
    "...",
    "The harbour froze in January",
    "the harbour froze in january.",
    "The harbour froze. The ferry, an old one, stayed in the dock.",
    "An old ferry stayed in the dock. The harbour froze. ",
    "Ferry ferry ferry dock dock. Dock ferry.",
    "dock ferry dock ferry harbour",
    "a an the",
    "A theatre and another anthem",
    "It cost 3.50 crowns, i.e. half of what the captain asked.",
    "It cost 3.50 crowns.\nThe captain had asked for seven.\n",
    "First line\n\n  second   line\twith tabs\n- a list. Of two",
    "Zo\u00eb's caf\u00e9 \u2014 the best in town \u2014 re-opened.",
    "zo\u00ebs caf\u00e9 the best in town reopened",
    "\u00c9MILE \u017dI\u017dEK \u0416\u0423\u041a",
    "\u00e9mile \u017ei\u017eek \u0436\u0443\u043a",
    "\u2018a\u2019 \u201cthe\u201d word\u2026 a\u00a0space\u3000wide",
    "\U0001f6a2 the ship\U0001f6a2a\U0001f6a2",
    "snow_drift snow-drift snowdrift (snow) drift!",
    "In the morning the miller counted sacks, and the sacks the miller counted were nine. "
    "Nobody else counted. The miller's daughter wrote nine in the book of the mill.",
    "The miller's daughter wrote in the book. In the morning nine sacks were counted by the miller. "
    "Nobody wrote anything else.",
    "1. Nine\n2. Ten\n3. Eleven",
    "Answer: yes\nQuestion: no",
    "\n\nyes\nno",
]

CODE = [
    "",
    "    return total / len(values)",
    "    return sum(values) / len(values)",
    "\n\n    return total / len(values)\n}",
    "# a comment\n    return total",
    "// the mean\n\nreturn total;",
    "```cpp\nint total = 0;\n```",
    "```\n# x\n// y",
    "for (int i = 0; i < n; ++i) {",
    "for (size_t j = 0; j != n; j++)",
    "s = 'na\u00efve \u2192 \U0001f6a2'",
    "s = 'naive -> ship'",
    "}",
    "x" * 300,
    "xy" * 120,
]

CLASSES = ["Colour", "Name of a river", "River", "Weight", "Weight of a ship", "Date", "a"]
CLASS_ANSWERS = ["River", "Name of a river", "Type: Weight of a ship", "weight", "", "Date\nColour",
                 "\nDate\nColour", "Colour, Weight, Date, River", "The River Weight", "Datea"]
CLASS_REFERENCES = ["Name of a river", "Weight of a ship", "River", "Date", "Colour", "Other", ""]

NUMBER_ANSWERS = ["", "7", "Paragraph 7", "There are 7, not 17 or 7.", "007", "7th and 7\n8", "seven",
                  "3.7", "paragraph 12, 12; 13", "12"]

NEEDLE_ANSWERS = ["", "4711, 4712 and 4713.", "\x01\x024711\x1f", "the codes are 4711\n4713", "471\x001",
                  "ALPHA beta", "x = Gamma; alpha", "47114712"]
NEEDLE_REFERENCES = [["4711"], ["4711", "4712", "4713"], ["Alpha", "BETA", "gamma"], ["", "4711"], []]


def mixed(draw, words, n):
    return "".join(draw.choice(words) + draw.choice([" ", " ", " ", ". ", ".", "\n"]) for _ in range(n))


def cases():
    for metric in ("f1", "rouge_l"):
        for answer in SENTENCES:
            for shift in (0, 1, 2, 5, 11):
                at = (SENTENCES.index(answer) + shift) % len(SENTENCES)
                yield metric, answer, [SENTENCES[at]], [], False
        for answer in SENTENCES[12:]:
            yield metric, answer, SENTENCES[4:9], [], True
        yield metric, "anything", [], [], False
        draw = random.Random(metric)
        for n in (3, 8, 20, 60, 200):
            for _ in range(8):
                words = ["an", "oar", "Oar", "rope", "sail", "tar", "keel,", "mast"][: 2 + n // 3]
                yield metric, mixed(draw, words, n), [mixed(draw, words, n // 2 + 1)], [], False
    for answer in CODE:
        for reference in CODE:
            yield "edit_similarity", answer, [reference], [], False
        yield "edit_similarity", answer, CODE[:4], [], False
    draw = random.Random(5)
    for n in range(1, 61, 2):  # many lengths, for ratios halfway between two percents
        yield ("edit_similarity", "".join(draw.choice("abc") for _ in range(n)),
               ["".join(draw.choice("abc") for _ in range(draw.randint(1, 80)))], [], False)
    for half, step in ((8, 2), (40, 2), (200, 14)):  # ratios of k + 1/2 percents
        for n in range(1, half, step):
            yield ("edit_similarity", "a" * n + "b" * (half - n), ["a" * n + "c" * (half - n)], [],
                   False)
    for answer in CLASS_ANSWERS:
        for reference in CLASS_REFERENCES:
            for first_line in (False, True):
                yield "classification", answer, [reference], CLASSES, first_line
    for answer in NUMBER_ANSWERS:
        yield "count", answer, ["7"], [], False
        yield "count", answer, ["12", "13", "zero"], [], False
        yield "retrieval", answer, ["Paragraph 7"], [], False
        yield "retrieval", answer, ["See Paragraph x, Paragraph 12 or Paragraph 7"], [], False
    for answer in NEEDLE_ANSWERS:
        for references in NEEDLE_REFERENCES:
            yield "contain_all", answer, references, [], False
            yield "contain_any", answer, references, [], False


def main(output):
    versions = {name: importlib.metadata.version(name)
                for name in ("rouge", "fuzzywuzzy", "python-Levenshtein")}
    with open(output, "w", encoding="ascii", newline="\n") as out:
        out.write(json.dumps({"python": sys.version.split()[0], **versions}) + "\n")
        for metric, answer, references, classes, first_line in cases():
            out.write(json.dumps({
                "metric": metric, "answer": answer, "references": references, "classes": classes,
                "first_line_only": first_line,
                "score": score(metric, answer, references, classes, first_line)}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
