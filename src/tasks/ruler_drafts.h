// The drafts of RULER's tasks, for the registry in ruler.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/ruler.h"
#include "tasks/sample_fit.h"
#include "tasks/text_corpus.h"

namespace precis {

struct RulerRequest {
  std::string_view task;
  std::size_t length = 0;
  std::size_t index = 0;
  std::uint64_t seed = 0;
  const TokenCodec& codec;
  const RulerMaterials& materials;
};

// Each gives the draft of the attempt-th try, from 0: the first that fits the length is taken.
// Nothing if there are no more tries.
std::optional<SampleDraft> draft_needles(const RulerRequest& request, std::size_t attempt);
std::optional<SampleDraft> draft_chain(const RulerRequest& request, std::size_t attempt);
std::optional<SampleDraft> draft_common_words(const RulerRequest& request, std::size_t attempt);
std::optional<SampleDraft> draft_frequent_words(const RulerRequest& request, std::size_t attempt);
// Of materials.squad (qa_1) or materials.hotpot (qa_2).
std::optional<SampleDraft> draft_documents(const RulerRequest& request, std::size_t attempt);

// depth: share of the haystack in units of 2^-32, at most 2^32.
SampleDraft draft_needle_at(std::uint64_t depth, const RulerRequest& request);

// Sentences that say nothing, without end.
const TextCorpus& noise_text();
// What of the essay can be needed for this length, so that huge files cost no time.
TextCorpus essay_text(const std::string& essay, std::size_t length);

// A sentence that goes into a haystack.
struct HaystackInsert {
  std::string text;
  std::uint64_t depth;  // share of the haystack in units of 2^-32
};
inline constexpr std::uint64_t kFullDepth = std::uint64_t{1} << 32;

// The first `size` bytes of the text, cut between words, with each insert before the sentence whose
// beginning is nearest to its depth. Inserts of the same place keep their order.
std::string haystack(const TextCorpus& text, std::size_t size,
                     const std::vector<HaystackInsert>& inserts);

// "a, b and c".
std::string listed(const std::vector<std::string>& words);

}  // namespace precis
