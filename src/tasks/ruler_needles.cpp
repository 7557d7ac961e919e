#include <memory>
#include <unordered_set>

#include "base/error.h"
#include "tasks/random_source.h"
#include "tasks/ruler_drafts.h"
#include "tasks/word_list.h"

namespace precis {
namespace {

enum class Hay { kNoise, kEssay, kNeedles };

struct NeedlePlan {
  const char* task;
  Hay hay;
  bool uuid_keys;
  bool uuid_values;
  std::size_t n_keys;    // in the haystack; with a haystack of needles: that are asked for
  std::size_t n_values;  // of each key
  std::size_t n_asked;   // keys
};

constexpr NeedlePlan kPlans[] = {
    {"niah_single_1", Hay::kNoise, false, false, 1, 1, 1},
    {"niah_single_2", Hay::kEssay, false, false, 1, 1, 1},
    {"niah_single_3", Hay::kEssay, false, true, 1, 1, 1},
    {"niah_multikey_1", Hay::kEssay, false, false, 4, 1, 1},
    {"niah_multikey_2", Hay::kNeedles, false, false, 1, 1, 1},
    {"niah_multikey_3", Hay::kNeedles, true, true, 1, 1, 1},
    {"niah_multivalue", Hay::kEssay, false, false, 1, 4, 1},
    {"niah_multiquery", Hay::kEssay, false, false, 4, 1, 4},
};

struct Needle {
  std::string key;
  std::string value;
};

// Keys and values that are all different, and not in the haystack's text either.
class NeedleSource {
 public:
  NeedleSource(RandomSource random, const TextCorpus* text, bool uuid_keys, bool uuid_values)
      : random_(std::move(random)), text_(text), uuid_keys_(uuid_keys), uuid_values_(uuid_values) {}

  // A quarter of the pairs of words stays unused, so that a draw soon finds a new one.
  std::size_t most_keys() const {
    return uuid_keys_ ? kLongestSample : plain_nouns().size() * plain_adjectives().size() / 4 * 3;
  }
  std::string key() {
    return unused([this] { return uuid_keys_ ? uuid() : word_pair(); });
  }
  std::string value() {
    return unused([this] {
      return uuid_values_ ? uuid() : std::to_string(1'000'000 + random_.below(9'000'000));
    });
  }
  std::uint64_t depth() { return random_.below(kFullDepth); }

 private:
  template <class Draw>
  std::string unused(const Draw& draw) {
    // More than enough, unless a text was made to contain whatever could be drawn.
    for (int tries = 0; tries < 1000; ++tries) {
      std::string drawn = draw();
      if (text_ != nullptr && text_->contains(drawn)) continue;
      if (used_.insert(drawn).second) return drawn;
    }
    throw Error(ErrorCode::kInvalidArgument,
                "the essay contains nearly all numbers or keys that could be hidden in it; take "
                "another text");
  }
  std::string word_pair() {
    const std::string& adjective = random_.pick(plain_adjectives());
    return adjective + "-" + random_.pick(plain_nouns());
  }
  // Version 4, variant 1: the thirteenth digit is 4, the seventeenth 8, 9, a or b.
  std::string uuid() {
    std::string out;
    for (std::size_t i = 0; i < 32; ++i) {
      if (i == 8 || i == 12 || i == 16 || i == 20) out.push_back('-');
      const std::uint64_t digit = i == 12 ? 4 : i == 16 ? 8 + random_.below(4) : random_.below(16);
      out.push_back("0123456789abcdef"[digit]);
    }
    return out;
  }

  RandomSource random_;
  const TextCorpus* text_;
  bool uuid_keys_;
  bool uuid_values_;
  std::unordered_set<std::string> used_;
};

const char* kind_of(const NeedlePlan& plan) { return plan.uuid_values ? "code" : "number"; }

std::string sentence(const Needle& needle, const NeedlePlan& plan) {
  return concat("A secret ", kind_of(plan), " for ", needle.key, " is: ", needle.value, ".");
}

std::string introduction(const NeedlePlan& plan) {
  return concat("Somewhere in the text below, secret ", kind_of(plan),
                "s are given. Take note of them: you will be asked for them afterwards.\n\n");
}

TaskQuestion question_for(const NeedlePlan& plan, const std::vector<std::string>& keys,
                          std::vector<std::string> values) {
  const bool several = values.size() > 1;
  const std::string what = concat("secret ", kind_of(plan), several ? "s" : "");
  TaskQuestion out;
  out.text = concat("Which ", what, " does the text above give for ", listed(keys), "?",
                    several ? " Name all of them." : "", "\n");
  out.answer_prefix =
      concat("The ", what, " that the text gives for ", listed(keys), several ? " are:" : " is:");
  out.references = std::move(values);
  return out;
}

// Needles in a text.
SampleDraft draft_in_text(const NeedlePlan& plan, TextCorpus text, RandomSource random,
                          std::optional<std::uint64_t> depth) {
  const auto corpus = std::make_shared<const TextCorpus>(std::move(text));
  NeedleSource source(std::move(random), corpus.get(), plan.uuid_keys, plan.uuid_values);
  std::vector<HaystackInsert> inserts;
  std::vector<std::string> asked;
  std::vector<std::string> values;
  for (std::size_t k = 0; k < plan.n_keys; ++k) {
    const std::string key = source.key();
    if (k < plan.n_asked) asked.push_back(key);
    for (std::size_t v = 0; v < plan.n_values; ++v) {
      const Needle needle{key, source.value()};
      if (k < plan.n_asked) values.push_back(needle.value);
      inserts.push_back({sentence(needle, plan), depth ? *depth : source.depth()});
    }
  }
  SampleDraft out;
  out.probe = 2048;
  out.question = question_for(plan, asked, std::move(values));
  out.context = [corpus, inserts, begin = introduction(plan)](std::size_t size,
                                                              std::size_t filler) {
    return begin + haystack(*corpus, size, inserts) + filler_line(filler) + "\n\n";
  };
  return out;
}

// Lines of needles, one of which is asked for. The source goes on as a longer text needs more.
struct NeedleLines {
  NeedleSource source;
  std::vector<std::string> lines;
};

SampleDraft draft_in_needles(const NeedlePlan& plan, RandomSource random) {
  const auto hay = std::make_shared<NeedleLines>(
      NeedleLines{NeedleSource(std::move(random), nullptr, plan.uuid_keys, plan.uuid_values), {}});
  const std::string key = hay->source.key();
  const Needle asked{key, hay->source.value()};
  const std::uint64_t depth = hay->source.depth();
  SampleDraft out;
  out.least = 3;  // others to choose from, as there are in multikey_1
  out.most = hay->source.most_keys() - 1;
  out.probe = 16;
  out.question = question_for(plan, {asked.key}, {asked.value});
  out.context = [hay, plan, depth, line = sentence(asked, plan)](std::size_t n_others,
                                                                 std::size_t filler) {
    while (hay->lines.size() < n_others) {
      const std::string other = hay->source.key();
      hay->lines.push_back(sentence({other, hay->source.value()}, plan));
    }
    const std::size_t place = ((n_others + 1) * depth) >> 32;
    std::string text = introduction(plan);
    for (std::size_t i = 0; i <= n_others; ++i) {
      if (i > 0) text.append("\n");
      text.append(i == place ? line : hay->lines[i < place ? i : i - 1]);
    }
    return text + filler_line(filler) + "\n\n";
  };
  return out;
}

}  // namespace

std::optional<SampleDraft> draft_needles(const RulerRequest& request, std::size_t attempt) {
  if (attempt > 0) return {};
  RandomSource random(request.seed, request.task, request.index);
  for (const NeedlePlan& plan : kPlans) {
    if (plan.task != request.task) continue;
    if (plan.hay == Hay::kNeedles) return draft_in_needles(plan, std::move(random));
    return draft_in_text(plan,
                         plan.hay == Hay::kNoise
                             ? noise_text()
                             : essay_text(request.materials.essay, request.length),
                         std::move(random), {});
  }
  PRECIS_CHECK(false, request.task);
}

SampleDraft draft_needle_at(std::uint64_t depth, const RulerRequest& request) {
  const bool has_essay = has_words(request.materials.essay);
  return draft_in_text(
      kPlans[1], has_essay ? essay_text(request.materials.essay, request.length) : noise_text(),
      RandomSource(request.seed, request.task, request.index), depth);
}

}  // namespace precis
