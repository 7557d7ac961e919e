// How well an answer fits the references: scores in [0, 1] for each Metric of sample.h, as RULER
// and LongBench define them (times 100 they are the figures that those print).
//
// Answers and references may be any bytes; what is not UTF-8 counts as U+FFFD. Lower case is that
// of answer_text.h. No references: the score is 0. A rule with first_line_only judges the first
// line after leading line breaks; everything below is of what is judged.
//
//   kContainAll      mean over the references of 1 where the reference occurs in the answer, in
//                    lower case. Control characters (below U+0020) of the answer count as line
//                    breaks, and white space at its ends is cut off. An empty reference occurs in
//                    any answer.
//   kContainAny      1 if any reference occurs, in the same sense
// The others are the largest over the references of:
//   kF1              2PR / (P + R) over the multisets of normal_words(); 0 if none is shared
//   kRougeL          the F of ROUGE-L of whole summaries as in the Python package rouge 1.0.1:
//                    sentences end at each "."; case and punctuation count; words are split at
//                    white space, and a sentence of white space alone holds one empty word. U =
//                    the different words in the longest common subsequences of each sentence of the
//                    reference with each of the answer. P = |U| / different words of the answer,
//                    R = |U| / those of the reference, F = 2PR / (P + R + 1e-8). 0 where either has
//                    no sentence.
//   kClassification  1 / n if the reference is among the n classes that occur in the answer (case
//                    counts); classes that are a part of the reference do not count. Else 0.
//   kCount           share of the answer's numbers (runs of 0-9) that are the reference, as text
//   kRetrieval       the same for the number N of the first "Paragraph N" in the reference; 0 if it
//                    has none
//   kEditSimilarity  of the first line of the answer, after leading line breaks, that has none of
//                    "`", "#" and "//" (nothing if there is none) and the whole reference:
//                    1 - (n - 2L) / n in whole percents (halves to even), n = both lengths, L =
//                    that of the longest common subsequence of characters; as fuzzywuzzy with
//                    python-Levenshtein 0.27.5. Both empty: 1.
//
// Limits, so that no answer takes longer than a second or so for a reference: kRougeL compares the
// first kMostRougeWords words of either side, kEditSimilarity the first kMostEditCharacters
// characters. Memory grows with the answer's length, plus at most 8 MiB for kRougeL.
#pragma once

#include <cstddef>
#include <string_view>

#include "tasks/sample.h"

namespace precis {

inline constexpr std::size_t kMostRougeWords = 8192;
inline constexpr std::size_t kMostEditCharacters = 8192;

double score_answer(const TaskRule& rule, const TaskQuestion& question, std::string_view answer);

// Whether the answer is the reference and does not just contain it or resemble it. Judged is the
// first line of the answer that is not white space; nothing is exact if there is none, or without
// references.
//   kContainAll      the line, split at white space, ",", ";" and "|" and brought into the form of
//                    normal_words() without the word "and", consists of all references in the same
//                    form, each once, in any order, with nothing else. (Read from the left; where
//                    several references fit, the longest is taken.)
//   kEditSimilarity  the line that the score compares equals a reference, apart from white space
//                    at both ends
//   all others       the line's normal_words() are those of a reference
// A reference that has no normal words ("+") must be met by the text itself, apart from white space
// at both ends; for kContainAll there is then nothing exact.
bool is_exact(const TaskRule& rule, const TaskQuestion& question, std::string_view answer);

}  // namespace precis
