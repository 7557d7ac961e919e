#include "compress/row_choice.h"

#include <algorithm>
#include <vector>

#include "cache/packed_list.h"

namespace precis {
namespace {

// Outputs of the trial's queries over a list, [n_tokens, group, head_dim].
template <class View>
std::vector<float> outputs_over(const View& entries, const QueryView& queries,
                                const LogitRule& rule, const std::vector<Visible>& visible,
                                Scratch& scratch) {
  const std::size_t n_rows = queries.n_rows();
  std::vector<float> max(n_rows), sum(n_rows), out(n_rows * queries.head_dim);
  const StateView state{max.data(), sum.data(), out.data()};
  reset_states(state, n_rows, queries.head_dim);
  attend(queries, entries, rule, visible.data(), state, scratch);
  std::vector<float> result(out.size());
  finish_states(state, queries.n_tokens, queries.group, queries.head_dim,
                queries.group * queries.head_dim, result.data(), nullptr);
  return result;
}

}  // namespace

RowType finer(RowType type) { return type == RowType::kQ4 ? RowType::kQ8_0 : RowType::kF16; }

KeyTrial try_keys(HeadView& head, RowType type) {
  const std::size_t n = std::min(kTrialQueries, head.n_tokens);
  const std::size_t d = head.head_dim;
  const std::size_t first = head.n_tokens - n;
  std::vector<float> rows(n * head.group * d);
  std::vector<Visible> visible;
  for (std::size_t t = 0; t < n; ++t) {
    visible.push_back({0, static_cast<std::uint32_t>(first + t + 1)});
    for (std::size_t j = 0; j < head.group; ++j)
      std::copy_n(head.query(j, first + t), d, rows.data() + (t * head.group + j) * d);
  }
  const QueryView queries{rows.data(), n, head.group, d, head.group * d};
  // Values stay exact, so that only the keys are judged.
  const PackedList packed = PackedList::from_rows({type, RowType::kF16}, d, head.entries);
  const std::vector<float> exact =
      outputs_over(head.entries, queries, head.rule, visible, head.scratch());
  const std::vector<float> rounded =
      outputs_over(packed.view(), queries, head.rule, visible, head.scratch());
  KeyTrial trial;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = static_cast<double>(exact[i]) - static_cast<double>(rounded[i]);
    trial.error += difference * difference;
    trial.energy += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
  }
  return trial;
}

}  // namespace precis
