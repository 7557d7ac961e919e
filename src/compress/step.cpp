#include "compress/step.h"

#include "base/error.h"

namespace precis {

void add_attention(const StepHead& head, float* sums) {
  for (std::size_t g = 0; g < head.group; ++g) {
    const float* row = head.attention + g * head.attention_stride;
    for (std::size_t i = 0; i < head.n; ++i) sums[i] += row[i];
  }
}

std::size_t next_slot(const StepHead& head, std::int32_t position) {
  std::size_t next = head.n;
  for (std::size_t i = 0; i < head.n; ++i)
    if (head.positions[i] > position &&
        (next == head.n || head.positions[i] < head.positions[next]))
      next = i;
  return next;
}

StepCarry carry_step(const StepRules& rules, HeadView& head, const HeadPlan& plan) {
  StepCarry out;
  out.tokens = plan.kept;
  out.seed = head.seed;
  out.fields.assign(rules.n_fields() * plan.kept.size(), 0.0f);
  const StepFields fields{out.fields.data(), plan.kept.size()};
  rules.scorer->carry(head, plan.kept, fields);
  if (rules.merger != nullptr)
    rules.merger->carry(head, plan.kept, fields.from(rules.scorer->n_fields()));
  return out;
}

void keep_tokens(StepCarry& carry, std::span<const std::uint32_t> tokens) {
  const std::size_t n_before = carry.tokens.size();
  if (tokens.size() == n_before) return;
  const std::size_t n_fields = n_before == 0 ? 0 : carry.fields.size() / n_before;
  std::vector<float> fields;
  for (std::size_t f = 0; f < n_fields; ++f)
    for (std::size_t i = 0, k = 0; i < tokens.size(); ++i, ++k) {
      while (k < n_before && carry.tokens[k] < tokens[i]) ++k;
      PRECIS_CHECK(k < n_before && carry.tokens[k] == tokens[i], "token ", tokens[i]);
      fields.push_back(carry.fields[f * n_before + k]);
    }
  carry.fields = std::move(fields);
  carry.tokens.assign(tokens.begin(), tokens.end());
}

}  // namespace precis
