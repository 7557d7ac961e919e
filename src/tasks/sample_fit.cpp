#include "tasks/sample_fit.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"

namespace precis {
namespace {

struct Window {
  std::size_t least;
  std::size_t most;
  bool holds(std::size_t total) const { return total >= least && total <= most; }
  // What the search aims at, a little above the middle: one more try costs the same on both sides.
  std::size_t aim() const { return most - (most - least) / 3; }
};

struct Point {
  std::size_t size;
  std::size_t total;
};

// Along the line through two points that both are too short. Counts are whole numbers, so that the
// sizes, and with them the sample, do not depend on how a machine rounds.
std::size_t beyond(const Point& before, const Point& low, std::size_t aim, std::size_t step) {
  const std::size_t grown = low.size - before.size;
  if (step > 8 || low.total <= before.total) return low.size + 2 * grown;
  const std::size_t missing = aim > low.total ? aim - low.total : 1;
  return low.size + std::max<std::size_t>(1, missing * grown / (low.total - before.total));
}

// Between a size that is too short and one that is too long: mostly along the line, and halfway at
// every third step, because a line can creep.
std::size_t between(const Point& low, const Point& high, std::size_t aim, std::size_t step) {
  const std::size_t gap = high.size - low.size;
  std::size_t next = low.size + gap / 2;
  if (step % 3 != 2 && aim > low.total)
    next = low.size + (aim - low.total) * gap / (high.total - low.total);
  return std::clamp(next, low.size + 1, high.size - 1);
}

// From a point that is not too long: a size whose total is in the window, else the largest found
// that is not too long. Sizes and totals stay below 2^32, so products do below 2^64.
template <class Total>
Point search(const Point& start, std::size_t most, std::size_t probe, const Window& window,
             const Total& total) {
  Point low = start;
  if (window.holds(low.total) || low.size >= most) return low;
  Point before = low;
  std::optional<Point> high;
  std::size_t next = low.size + probe;
  std::size_t after_bracket = 0;
  for (std::size_t step = 0;; ++step) {
    next = std::min(next, most);
    const Point tried{next, total(next)};
    if (window.holds(tried.total)) return tried;
    if (tried.total > window.most) {
      high = tried;
    } else {
      before = low;
      low = tried;
    }
    if (low.size >= most || (high && high->size - low.size <= 1)) return low;
    next = high ? between(low, *high, window.aim(), after_bracket++)
                : beyond(before, low, window.aim(), step);
  }
}

}  // namespace

FittedSample fit_sample(const SampleDraft& draft, const TaskRule& rule, std::size_t length,
                        const TokenCodec& codec) {
  PRECIS_CHECK(length <= kLongestSample, length);
  const std::size_t fixed = codec.count(draft.question.text) +
                            codec.count(draft.question.answer_prefix) + rule.max_new_tokens;
  const auto total = [&](std::size_t size, std::size_t filler) {
    return fixed + codec.count(draft.context(size, filler));
  };
  FittedSample out;
  out.least_length = total(draft.least, 0);
  if (out.least_length > length) return out;

  const Window window{length - length / 100, length};
  // Bounds the search where a codec hardly counts: some bytes a token more than any text has.
  const std::size_t bound = (length + 1) * 64;
  const std::size_t most = std::max(draft.least, std::min(draft.most, bound));
  const Point body = search({draft.least, out.least_length}, most, draft.probe, window,
                            [&](std::size_t size) { return total(size, 0); });
  Point filler{0, body.total};
  if (!window.holds(body.total))
    filler =
        search(filler, length, 4, window, [&](std::size_t size) { return total(body.size, size); });
  out.fits = true;
  out.sample.length = length;
  out.sample.context = draft.context(body.size, filler.size);
  out.sample.questions = {draft.question};
  out.sample.rule = rule;
  return out;
}

std::string filler_line(std::size_t n_words) {
  // Short words, so that even a vocabulary of single letters meets a length within six tokens.
  constexpr std::array<const char*, 24> kWords = {
      "So",  "it",   "went", "on",   "and",  "on,", "day",  "by", "day,", "as",   "it", "had",
      "for", "many", "a",    "long", "year", "and", "will", "do", "in",   "time", "to", "come."};
  std::string out;
  for (std::size_t i = 0; i < n_words; ++i) {
    out.append(i == 0 ? "\n\n" : " ");
    out.append(kWords[i % kWords.size()]);
  }
  return out;
}

}  // namespace precis
