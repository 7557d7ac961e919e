// Answers to samples on tiny models: they are those of plain sessions, whatever else is asked in
// the same run; rows come in the promised order and number; maps count every entry.
#include "eval/task_run.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "engine/generate.h"
#include "engine/prompt.h"
#include "eval/kept_map.h"
#include "eval/task_suites.h"
#include "methods/registry.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

EvalMethod method(const std::string& spec, const std::string& keep = "50%", RowTypes rows = {}) {
  return {builtin_methods().parse(spec), Budget::parse(keep), spec, rows};
}

TaskQuestion question(const std::string& text, const std::string& prefix = "") {
  TaskQuestion out;
  out.text = text;
  out.answer_prefix = prefix;
  out.references = {"nothing that a random model says"};
  return out;
}

class TaskRun : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    engine_ = Engine::load(tiny_model(GetParam()), {.n_threads = 1, .matmul = MatmulMode::kSgemm});
    sample_.task = "task";
    sample_.index = 0;
    for (std::size_t i = 0; i < 24; ++i)
      sample_.context += "The word " + std::to_string(i * i % 97) + " is said. ";
    sample_.questions = {question("Which words?", "They are"), question("How many?"),
                         question("Why is that so, and for how long will it be?", "Because")};
    sample_.rule.max_new_tokens = 6;
    const bool takes_q8 = engine_->config().head_dim % 32 == 0;
    const RowType rows = takes_q8 ? RowType::kQ8_0 : RowType::kF16;
    options_.methods = {method("full"), method("snapkv"), method("selkv", "40%"),
                        method("snapkv", "60%", {rows, rows})};
    options_.queries = {QueryMode::kAgnostic, QueryMode::kAware};
  }
  EvalRows run() const { return run_sample(engine_, "suite", sample_, options_); }

  std::shared_ptr<const Engine> engine_;
  TaskSample sample_;
  EvalOptions options_;
};

INSTANTIATE_TEST_SUITE_P(Models, TaskRun, testing::Values("llama-hd64", "qwen2", "gemma3"),
                         [](const auto& info) { return std::string(info.param, 5); });

const ScoreRow& score(const EvalRows& rows, std::size_t i) {
  return std::get<ScoreRow>(rows.rows.at(i));
}

TEST_P(TaskRun, RowsComeInOrder) {
  const EvalRows rows = run();
  ASSERT_EQ(rows.rows.size(), 2u * 4 * 3);
  ASSERT_EQ(rows.rows.size(), count_rows(sample_, options_));
  ASSERT_EQ(rows.times.size(), rows.rows.size());
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const ScoreRow& row = score(rows, i);
    const bool aware = i >= 12;
    const std::size_t q = aware ? i % 12 / 4 : i % 3;
    const std::size_t m = aware ? i % 4 : i / 3;
    EXPECT_EQ(row.key.query, aware ? "aware" : "agnostic");
    EXPECT_EQ(row.key.question, q);
    EXPECT_EQ(row.key.label, options_.methods[m].label);
    EXPECT_EQ(row.key.keep, m == 0 ? "100%" : options_.methods[m].budget.print());
    EXPECT_EQ(row.key.suite, "suite");
    EXPECT_EQ(row.metric, "contain_all");
    EXPECT_EQ(row.score, 0);
    EXPECT_FALSE(row.exact);
    EXPECT_LE(row.n_answer, 6u);
    EXPECT_EQ(row.kv_bytes == row.kv_bytes_full, m == 0);
    EXPECT_EQ(rows.times[i].key, row.key);
    // One prompt, whoever answers it and wherever it is cut.
    EXPECT_EQ(row.prompt_sha256, score(rows, q).prompt_sha256);
    EXPECT_EQ(row.n_context + row.n_question, score(rows, q).n_context + score(rows, q).n_question);
    if (aware) {
      EXPECT_GT(row.n_context, score(rows, q).n_context);
    }
  }
}

// Driven by hand: the prompt in parts, condensed, the rest read, the answer drawn.
TEST_P(TaskRun, AnswersAreThoseOfPlainSessions) {
  const EvalRows rows = run();
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const ScoreRow& row = score(rows, i);
    const bool aware = row.key.query == "aware";
    const EvalMethod& m = options_.methods[aware ? i % 4 : i / 3];
    const TaskQuestion& asked = sample_.questions[row.key.question];
    const EvalPrompt p = make_eval_prompt(*engine_, sample_, asked, true);
    Session session(engine_);
    if (aware) {
      session.prefill(p.document, {SIZE_MAX});
      session.prefill(p.question, {SIZE_MAX});
      session.compress({m.method, m.budget, 0, m.rows});
    } else {
      session.condense(p.document, {m.method, m.budget, 0, m.rows});
      std::vector<Token> rest = p.question;
      rest.insert(rest.end(), p.ending.begin(), p.ending.end());
      session.extend(rest);
    }
    if (aware) session.extend(p.ending);
    EXPECT_EQ(row.n_context, p.document.size() + (aware ? p.question.size() : 0));
    Sampler sampler({});
    GenerateOptions wanted;
    wanted.max_tokens = 6;
    const Generation g = generate(session, sampler, wanted);
    EXPECT_EQ(row.answer, g.text) << i;
    EXPECT_EQ(row.ended, g.ended) << i;
  }
}

// What else is asked in a run changes nothing.
TEST_P(TaskRun, EveryRowIsThatOfARunByItself) {
  const EvalRows rows = run();
  const EvalOptions all = options_;
  const TaskSample whole = sample_;
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    ScoreRow row = score(rows, i);
    const bool aware = row.key.query == "aware";
    options_.methods = {all.methods[aware ? i % 4 : i / 3]};
    options_.queries = {aware ? QueryMode::kAware : QueryMode::kAgnostic};
    sample_.questions = {whole.questions[row.key.question]};
    const EvalRows alone = run();
    ASSERT_EQ(alone.rows.size(), 1u);
    row.key.question = 0;
    EXPECT_EQ(print_row(alone.rows[0]), print_row(row)) << i;
  }
}

TEST_P(TaskRun, MapsCountEveryEntry) {
  options_.kept_maps = true;
  const EvalRows rows = run();
  ASSERT_EQ(rows.rows.size(), count_rows(sample_, options_));
  EXPECT_EQ(rows.times.size(), 24u);
  std::size_t n_maps = 0;
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const auto* map = std::get_if<KeptRow>(&rows.rows[i]);
    if (map == nullptr) continue;
    ++n_maps;
    const auto& answer = std::get<ScoreRow>(rows.rows[i - 1]);
    EXPECT_EQ(map->key.label, answer.key.label);
    EXPECT_EQ(map->key.query, "agnostic");
    EXPECT_EQ(map->n_tokens, answer.n_context);
    EXPECT_EQ(map->n_layers, engine_->compressible_indices().size());
    double n_entries = 0;
    for (std::size_t c = 0; c < map->kept.size(); ++c) {
      const std::size_t bin = c % map->n_bins;
      const auto begin = static_cast<double>(bin * map->n_tokens / map->n_bins);
      const auto end = static_cast<double>((bin + 1) * map->n_tokens / map->n_bins);
      n_entries += std::round(map->kept[c] * (end - begin));
    }
    EXPECT_EQ(n_entries, static_cast<double>(answer.n_entries));
    const bool merges = map->key.label == "selkv";
    EXPECT_EQ(map->merged.empty(), !merges);
    EXPECT_EQ(map->bias.empty(), !merges);
    EXPECT_NO_THROW(parse_row(print_row(rows.rows[i])));
  }
  EXPECT_EQ(n_maps, 3u);
  sample_.index = 1;
  EXPECT_EQ(run().rows.size(), 24u);
  EXPECT_EQ(count_rows(sample_, options_), 24u);
  // A budget for everything: nothing is merged, all is kept.
  sample_.index = 0;
  options_.methods = {method("selkv", "100%")};
  const EvalRows whole = run();
  const auto& map = std::get<KeptRow>(whole.rows.at(3));
  EXPECT_TRUE(map.merged.empty());
  for (const double share : map.kept) EXPECT_EQ(share, 1);
}

TEST_P(TaskRun, PromptsAreCutAndNotChanged) {
  for (const bool use_template : {true, false}) {
    for (const TaskQuestion& asked : sample_.questions) {
      const EvalPrompt p = make_eval_prompt(*engine_, sample_, asked, use_template);
      const PreparedPrompt whole =
          prepare_prompt(*engine_, sample_.context, asked.text, use_template);
      std::vector<Token> parts = p.document;
      parts.insert(parts.end(), p.question.begin(), p.question.end());
      std::vector<Token> wanted = whole.context;
      EXPECT_EQ(p.document, whole.context);
      wanted.insert(wanted.end(), whole.question.begin(), whole.question.end());
      parts.insert(parts.end(), p.ending.begin(), p.ending.end());
      const std::vector<Token> prefix =
          engine_->tokenizer().tokenize(asked.answer_prefix, false, false);
      wanted.insert(wanted.end(), prefix.begin(), prefix.end());
      EXPECT_EQ(parts, wanted);
      EXPECT_FALSE(p.ending.empty());
      EXPECT_FALSE(p.question.empty());
    }
  }
  // Nothing is asked: the last token is still read through the condensed cache.
  sample_.questions = {question("")};
  const EvalPrompt p = make_eval_prompt(*engine_, sample_, sample_.questions[0], false);
  EXPECT_TRUE(p.question.empty());
  EXPECT_EQ(p.ending.size(), 1u);
  const EvalRows rows = run();
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(score(rows, i).answer, score(rows, i + 4).answer) << "both modes are the same";
}

// A document shorter than what methods watch as one block.
TEST_P(TaskRun, ShortDocumentsWork) {
  sample_.context = "Short.";
  options_.methods = {method("full"), method("selkv", "99%"), method("snapkv", "99%"),
                      method("selkv(block=64)", "99%")};
  const EvalRows rows = run();
  EXPECT_EQ(rows.rows.size(), 24u);
}

TEST_P(TaskRun, PromptsThatDoNotFitAreRefused) {
  sample_.rule.max_new_tokens = engine_->config().n_ctx_train;
  try {
    run();
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find(std::to_string(engine_->config().n_ctx_train)),
              std::string::npos);
  }
}

TEST(QueryModes, NamesReadBack) {
  for (const QueryMode mode : {QueryMode::kAgnostic, QueryMode::kAware})
    EXPECT_EQ(find_query_mode(query_mode_name(mode)), mode);
  EXPECT_FALSE(find_query_mode("both").has_value());
}

}  // namespace
}  // namespace precis::test
