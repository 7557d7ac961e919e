#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "tasks/random_source.h"
#include "tasks/ruler_drafts.h"

namespace precis {
namespace {

constexpr std::size_t kHops = 4;
constexpr std::size_t kExampleBytes = 400;  // of noise text around the example's statements

struct Chain {
  std::string value;
  std::vector<std::string> names;  // kHops + 1
  std::vector<HaystackInsert> statements;
};

std::string draw_name(RandomSource& random, std::unordered_set<std::string>& used) {
  while (true) {
    std::string name;
    for (int i = 0; i < 5; ++i) name.push_back(static_cast<char>('A' + random.below(26)));
    if (used.insert(name).second) return name;
  }
}

Chain draw_chain(RandomSource& random, std::unordered_set<std::string>& used) {
  Chain out;
  do {
    out.value = std::to_string(10'000 + random.below(90'000));
  } while (!used.insert(out.value).second);
  std::vector<std::uint64_t> depths;
  for (std::size_t i = 0; i <= kHops; ++i) {
    out.names.push_back(draw_name(random, used));
    depths.push_back(random.below(kFullDepth));
  }
  // A variable gets its value before it is passed on.
  std::sort(depths.begin(), depths.end());
  for (std::size_t i = 0; i <= kHops; ++i) {
    const std::string from = i == 0 ? out.value : "VAR " + out.names[i - 1];
    out.statements.push_back({concat("VAR ", out.names[i], " = ", from, "."), depths[i]});
  }
  return out;
}

TaskQuestion question_for(const Chain& chain) {
  TaskQuestion out;
  out.text = concat("Which variables hold the value ", chain.value,
                    " in the text above, directly or through other variables?\n");
  out.answer_prefix =
      concat("The ", chain.names.size(), " variables that hold the value ", chain.value, " are:");
  out.references = chain.names;
  return out;
}

std::string example_of(const Chain& chain) {
  const TaskQuestion question = question_for(chain);
  return concat("First an example with a short text.\n\n",
                haystack(noise_text(), kExampleBytes, chain.statements), "\n\n", question.text,
                question.answer_prefix, " ", listed(chain.names),
                ".\n\nNow the text that you will be asked about.\n\n");
}

}  // namespace

std::optional<SampleDraft> draft_chain(const RulerRequest& request, std::size_t attempt) {
  if (attempt > 0) return {};
  RandomSource random(request.seed, request.task, request.index);
  std::unordered_set<std::string> used;
  const Chain chain = draw_chain(random, used);
  std::string begin =
      "The text below sets variables, here and there between other sentences. A variable gets a "
      "number or what another variable holds. You will be asked which variables hold a number.\n\n";
  const std::string example = example_of(draw_chain(random, used));
  if (request.codec.count(example) * 5 < request.length) begin += example;
  SampleDraft out;
  out.probe = 2048;
  out.question = question_for(chain);
  out.context = [begin, statements = chain.statements](std::size_t size, std::size_t filler) {
    return begin + haystack(noise_text(), size, statements) + filler_line(filler) + "\n\n";
  };
  return out;
}

}  // namespace precis
