// The generators in the tokens of real models: lengths are met, every answer is there, none is in
// the question.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "eval/task_suites.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

class Generators : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Models, Generators, testing::Values(kSmolLm2, kGemma3, kQwen2),
                         [](const auto& info) { return std::string(info.param, 5); });

std::size_t n_occurrences(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string essay() {
  std::string out;
  for (int i = 0; i < 400; ++i)
    out += "Chapter " + std::to_string(i) +
           " tells of a ship that sails at dawn; nobody in the "
           "harbour of Saint-Malo knows where it goes, and few would say so if they did.\n\n";
  return out;
}

TEST_P(Generators, MeetTheLengthAndHoldTheAnswers) {
  const std::string path = real_model(GetParam());
  PRECIS_SKIP_IF_ABSENT(path);
  const auto engine = Engine::load(path, {.n_threads = 1});
  const TokenCodec codec = codec_of(*engine);
  RulerMaterials materials;
  materials.essay = essay();
  for (const std::string& task : ruler_task_names()) {
    if (ruler_missing(task, materials)) continue;
    for (const std::size_t length : {1024u, 4096u, 8192u}) {
      for (std::size_t index = 0; index < 2; ++index) {
        SCOPED_TRACE(testing::Message() << task << " " << length << " " << index);
        const TaskSample s = make_ruler_sample(task, length, index, 1, codec, materials);
        const TaskQuestion& q = s.questions.at(0);
        const std::size_t n = codec.count(s.context) + codec.count(q.text) +
                              codec.count(q.answer_prefix) + s.rule.max_new_tokens;
        EXPECT_LE(n, length);
        EXPECT_GE(static_cast<double>(n), 0.99 * static_cast<double>(length));
        EXPECT_FALSE(q.references.empty());
        for (const std::string& answer : q.references) {
          if (task.starts_with("niah")) {
            EXPECT_EQ(n_occurrences(s.context, answer), 1u) << answer;
          } else {
            EXPECT_GE(n_occurrences(s.context, answer), 1u) << answer;
          }
          EXPECT_EQ(n_occurrences(q.text + q.answer_prefix, answer), 0u) << answer;
        }
      }
    }
  }
  for (const double depth : {0.0, 50.0, 100.0}) {
    const TaskSample s = make_needle_sample(depth, 2048, 0, 1, codec, materials.essay);
    const std::size_t at = s.context.find(s.questions.at(0).references.at(0));
    ASSERT_NE(at, std::string::npos);
    EXPECT_NEAR(100.0 * static_cast<double>(at) / static_cast<double>(s.context.size()), depth, 4);
  }
}

}  // namespace
}  // namespace precis::test
