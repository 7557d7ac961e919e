// The part of the driver that shares a layer's budget between main and residual entries.
//
// A split is what the method's own selector keeps when it is asked for fewer entries, for the whole
// layer at once: whatever it shares between heads stays shared. A head's residual section then gets
// the bytes that its main list gave up against the pure method, so that a head that takes no
// residual entries holds what the pure method gives it, bit for bit, and no head pays for another.
//
// Heads may choose different splits. Where biases are averaged over heads (SelKV Eq. 6), the trial
// sees the average over heads that all took the same.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "compress/condenser.h"

namespace precis {
namespace {

// A split of a layer.
struct Split {
  std::vector<HeadPlan> plans;
  std::vector<HeadMerge> merges;           // empty: nothing is merged
  std::vector<std::vector<float>> biases;  // the same
  std::vector<std::size_t> n_residual;     // [heads]
};

// Residual entries that fit into the bytes of the n_base - n_main entries that were given up. One
// more list may begin one more group of quantised keys, so these are not always as many.
std::size_t residual_room(const RowTypes& rows, std::size_t head_dim, std::size_t n_base,
                          std::size_t n_main, std::size_t main_extra) {
  if (n_main >= n_base) return 0;
  const std::size_t room = row_bytes(rows, head_dim, n_base) - row_bytes(rows, head_dim, n_main) +
                           (n_base - n_main) * main_extra;
  // No more entries than were given up, though theirs may be smaller: b = m + r.
  std::size_t n = n_base - n_main;
  while (n > 0 && row_bytes(rows, head_dim, n) + n * sizeof(float) > room) --n;
  return n;
}

ResidualReport report_of(const ResidualTrial& base, const ResidualTrial& chosen) {
  ResidualReport out;
  out.n_entries = chosen.entries.size();
  if (base.energy > 0) out.error_before = base.error / base.energy;
  if (chosen.energy > 0) out.error_after = chosen.error / chosen.energy;
  if (chosen.n_rows > 0) {
    const auto n_rows = static_cast<double>(chosen.n_rows);
    out.evicted_mass = chosen.evicted_mass / n_rows;
    out.restored_mass = chosen.restored_mass / n_rows;
    out.gate_factor = chosen.gate_factor / n_rows;
  }
  out.gate = chosen.entries.gate;
  return out;
}

void check_entries(const ResidualEntries& entries, const HeadView& head, std::size_t most) {
  const std::size_t n = entries.size();
  PRECIS_CHECK(n <= most, n, " residual entries, at most ", most);
  PRECIS_CHECK(
      entries.keys.size() == n * head.head_dim && entries.values.size() == n * head.head_dim,
      entries.keys.size(), " and ", entries.values.size(), " for ", n, " * ", head.head_dim);
  for (std::size_t i = 0; i < n; ++i)
    if (!std::isfinite(entries.bias[i]))
      throw Error(
          ErrorCode::kInternal,
          concat("bias of residual entry ", i, " in layer ", head.layer, ", head ", head.head,
                 " is ", entries.bias[i], ": the model's keys or queries are not finite"));
}

}  // namespace

std::vector<std::vector<float>> Condenser::trial_biases(
    const std::vector<HeadPlan>& plans, const std::vector<HeadMerge>& merges) const {
  if (!uses_bias()) return {};
  LayerEntries entries;
  for (std::size_t h = 0; h < plans.size(); ++h)
    entries.push_back({plans[h].kept, merges[h].mass_ratio, merges[h].n_merged});
  return std::move(method_.compensator->compensate({&entries, 1}).at(0));
}

bool Condenser::can_hold_out() {
  if (method_.residual->queries_needed(n_tokens_) > 0) return true;
  report_.residual_skipped =
      concat("the prompt (", n_tokens_, " tokens) is too short to hold out queries of it");
  return false;
}

std::vector<ResidualEntries> Condenser::split_layer(const LayerTable& table, const RowTypes& rows,
                                                    std::vector<HeadView>& heads,
                                                    std::vector<HeadPlan>& plans,
                                                    std::vector<HeadMerge>& merges,
                                                    Executor& executor) {
  if (!can_hold_out()) return {};
  const Residual& stage = *method_.residual;
  const std::size_t d = heads.front().head_dim;
  const std::size_t main_extra = sizeof(std::int32_t) + (uses_bias() ? sizeof(float) : 0);
  std::vector<Split> splits;
  splits.push_back(
      {std::move(plans), std::move(merges), {}, std::vector<std::size_t>(heads.size())});
  splits[0].biases = trial_biases(splits[0].plans, splits[0].merges);
  for (const double part : stage.parts()) {
    const auto n_given = static_cast<std::size_t>(part * static_cast<double>(table.n_entries));
    LayerTable fewer = table;
    fewer.n_entries = table.n_entries - n_given;
    if (fewer.entries_per_head() < std::max<std::size_t>(table.protection.count(n_tokens_), 1))
      continue;
    Split split;
    split.plans = select(fewer);
    for (std::size_t h = 0; h < heads.size(); ++h)
      split.n_residual.push_back(residual_room(rows, d, splits[0].plans[h].kept.size(),
                                               split.plans[h].kept.size(), main_extra));
    split.merges = merge(heads, split.plans, executor);
    split.biases = trial_biases(split.plans, split.merges);
    splits.push_back(std::move(split));
  }
  std::vector<std::vector<ResidualTrial>> trials(heads.size());
  std::vector<std::vector<std::uint8_t>> usable(heads.size());
  executor.run(heads.size(), [&](std::size_t h, std::size_t) {
    throw_if_cancelled(heads[h].cancel);
    std::vector<HeadSplit> own;
    for (const Split& split : splits) {
      own.push_back({&split.plans[h], split.merges.empty() ? nullptr : &split.merges[h],
                     split.biases.empty() ? std::span<const float>() : split.biases[h],
                     split.n_residual[h]});
    }
    trials[h] = stage.try_splits(heads[h], own);
    PRECIS_CHECK(trials[h].size() == own.size(), trials[h].size(), " vs ", own.size());
    for (std::size_t s = 0; s < own.size(); ++s) {
      check_entries(trials[h][s].entries, heads[h], own[s].n_residual);
      // Fewer main entries for no residual ones, where a merge took in all that is evicted, is
      // never better than the pure method.
      usable[h].push_back(s == 0 || trials[h][s].entries.size() > 0 ? 1 : 0);
    }
  });
  const std::vector<std::size_t> chosen = stage.choose(trials, usable);
  PRECIS_CHECK(chosen.size() == heads.size(), chosen.size(), " vs ", heads.size());
  std::vector<ResidualEntries> residuals(heads.size());
  std::vector<ResidualReport> reports(heads.size());
  plans.assign(heads.size(), {});
  merges.assign(splits[0].merges.size(), {});
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const std::size_t s = chosen[h];
    PRECIS_CHECK(s < splits.size() && usable[h][s] != 0, "split ", s, " of head ", h);
    reports[h] = report_of(trials[h][0], trials[h][s]);
    plans[h] = std::move(splits[s].plans[h]);
    if (!merges.empty()) merges[h] = std::move(splits[s].merges[h]);
    residuals[h] = std::move(trials[h][s].entries);
  }
  report_.residuals.push_back(std::move(reports));
  return residuals;
}

std::size_t Condenser::Waiting::bytes() const {
  return dense.allocated_bytes() + (observed.queries.size() + observed.log_sum_exp.size() +
                                    observed.block_attention.size() + observed.log_peaks.size()) *
                                       sizeof(float);
}

void Condenser::add_residuals(Executor& executor, const CancelFlag* cancel) {
  for (std::size_t l = 0; l < waiting_.size(); ++l) {
    throw_if_cancelled(cancel);
    const Waiting layer = std::move(waiting_[l]);
    Layer& own = drafts_[l];
    const RowTypes rows = own.draft.rows();
    std::vector<HeadView> heads = make_heads(l, layer.dense, layer.observed, cancel);
    for (std::size_t h = 0; h < heads.size(); ++h)
      heads[h].scores = own.ranking.scores.data() + h * n_tokens_;
    const LayerTable table = table_of(l, own.ranking, own.draft.n_entries());
    std::vector<HeadPlan> plans = select(table);
    std::vector<HeadMerge> merges = merge(heads, plans, executor);
    const std::vector<ResidualEntries> residuals =
        split_layer(table, rows, heads, plans, merges, executor);
    // Without residual entries the layer stays as the pure method left it, bit for bit.
    if (std::all_of(residuals.begin(), residuals.end(),
                    [](const ResidualEntries& entries) { return entries.size() == 0; }))
      continue;
    own.draft = LayerDraft(layer.dense, plans, merges, rows, false, {}, executor, cancel);
    own.draft.set_residuals(residuals, executor);
    if (uses_bias() && !method_.compensator->needs_all_layers()) add_biases(l, 1);
  }
  waiting_.clear();
}

}  // namespace precis
