#include "eval/suite.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "eval/fidelity.h"

namespace precis {

Suite shard_of(const Suite& suite, std::size_t shard, std::size_t n_shards) {
  if (shard == 0 || shard > n_shards)
    throw Error(ErrorCode::kInvalidArgument,
                concat("shard ", shard, " of ", n_shards, " does not exist: count from 1"));
  if (n_shards == 1) return suite;
  std::vector<std::size_t> own;
  for (std::size_t i = shard - 1; i < suite.units.size(); i += n_shards) own.push_back(i);
  Suite out;
  out.name = suite.name;
  out.left_out = suite.left_out;
  for (const std::size_t i : own) out.units.push_back(suite.units[i]);
  out.run = [run = suite.run, own](std::size_t i, const EvalOptions& options) {
    return run(own[i], options);
  };
  out.count = [count = suite.count, own](std::size_t i, const EvalOptions& options) {
    return count(own[i], options);
  };
  return out;
}

void run_suite(const Suite& suite, const EvalOptions& options, RunLog& log,
               const std::function<void(std::size_t done, std::size_t total)>& progress) {
  const auto report = [&] {
    if (progress) progress(log.n_done(), suite.units.size());
  };
  report();
  while (log.n_done() < suite.units.size()) {
    throw_if_cancelled(options.cancel);
    EvalRows rows = suite.run(log.n_done(), options);
    log.append(std::move(rows.rows), rows.times);
    report();
  }
}

std::vector<Passage> cut_passages(const Engine& engine, const FidelityOptions& options,
                                  std::vector<std::string>& left_out) {
  const std::size_t width = options.n_prefix + options.n_continuation;
  if (options.n_prefix == 0 || options.n_continuation < 2)
    throw Error(ErrorCode::kInvalidArgument,
                concat("passages of ", options.n_prefix, " tokens to condense and ",
                       options.n_continuation, " to read: at least 1 and 2 are needed"));
  if (width > engine.config().n_ctx_train)
    throw Error(ErrorCode::kInvalidArgument,
                concat("passages of ", width, " tokens do not fit the model's context of ",
                       engine.config().n_ctx_train, "; choose a smaller --context"));
  std::vector<Passage> passages;
  std::size_t longest = 0;
  std::set<std::string> names;
  for (const auto& [name, text] : options.texts) {
    // Rows tell texts apart by their names.
    if (!names.insert(name).second)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("two texts have the name '", name, "'; rename one, or give it once"));
    // The model's beginning token belongs to every passage.
    const bool bos = engine.tokenizer().adds_bos();
    const std::vector<Token> first = engine.tokenizer().tokenize("", bos, false);
    const std::vector<Token> tokens = engine.tokenizer().tokenize(text, false, false);
    const std::size_t step = width - first.size();
    longest = std::max(longest, tokens.size());
    std::size_t n = 0;
    for (std::size_t t = 0; t + step <= tokens.size() && n < options.n_passages; t += step, ++n) {
      std::vector<Token> passage = first;
      passage.insert(passage.end(), tokens.begin() + static_cast<std::ptrdiff_t>(t),
                     tokens.begin() + static_cast<std::ptrdiff_t>(t + step));
      const auto cut = passage.begin() + static_cast<std::ptrdiff_t>(options.n_prefix);
      passages.push_back({name, n, {passage.begin(), cut}, {cut, passage.end()}});
    }
    if (n == 0)
      left_out.push_back(concat(name, ": has ", tokens.size(), " tokens, a passage needs ", step));
  }
  if (passages.empty())
    throw Error(ErrorCode::kInvalidArgument, concat("no text is long enough: a passage needs ",
                                                    width, " tokens, the longest has ", longest));
  // The texts in turn, so that a run that is stopped early has some of each.
  std::stable_sort(passages.begin(), passages.end(),
                   [](const Passage& a, const Passage& b) { return a.index < b.index; });
  return passages;
}

Suite fidelity_suite(const std::shared_ptr<const Engine>& engine, const FidelityOptions& options) {
  Suite suite;
  suite.name = "fidelity";
  const auto passages =
      std::make_shared<std::vector<Passage>>(cut_passages(*engine, options, suite.left_out));
  for (const Passage& passage : *passages)
    suite.units.push_back({"fidelity", passage.name, options.n_prefix, passage.index});
  suite.run = [engine, passages](std::size_t i, const EvalOptions& o) {
    return run_fidelity(engine, (*passages)[i], o);
  };
  suite.count = [](std::size_t, const EvalOptions& o) { return o.methods.size(); };
  return suite;
}

}  // namespace precis
