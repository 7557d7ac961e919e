#include "kernels/attention_ref.h"

#include <cmath>
#include <limits>
#include <vector>

namespace precis::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

const float* query_row(const QueryView& queries, std::size_t token, std::size_t head) {
  return queries.data + token * queries.token_stride + head * queries.head_dim;
}

double logit(const float* query, const EntryView& entries, std::size_t entry, std::size_t head_dim,
             const LogitRule& rule) {
  double sum = 0;
  for (std::size_t c = 0; c < head_dim; ++c)
    sum += static_cast<double>(query[c]) *
           static_cast<double>(to_float(entries.keys[entry * head_dim + c]));
  double z = sum * static_cast<double>(rule.scale);
  if (rule.softcap != 0.0f) {
    const double cap = static_cast<double>(rule.softcap);
    z = cap * std::tanh(z / cap);
  }
  return z + (entries.bias == nullptr ? 0.0 : static_cast<double>(entries.bias[entry]));
}

// Logits of one row over what it sees of one segment; -inf elsewhere.
std::vector<double> row_logits(const QueryView& queries, std::size_t token, std::size_t head,
                               const EntryView& entries, const LogitRule& rule,
                               const Visible& visible) {
  std::vector<double> z(entries.n, kMinusInfinity);
  for (std::size_t j = visible.first; j < visible.last; ++j)
    z[j] = logit(query_row(queries, token, head), entries, j, queries.head_dim, rule);
  return z;
}

}  // namespace

void attention(const QueryView& queries, const EntryView* segments, std::size_t n_segments,
               const LogitRule& rule, const Visible* const* visible, double* output,
               double* log_sum_exp) {
  const std::size_t d = queries.head_dim;
  for (std::size_t r = 0; r < queries.n_rows(); ++r) {
    const std::size_t token = r / queries.group;
    std::vector<std::vector<double>> z;
    double max = kMinusInfinity;
    for (std::size_t s = 0; s < n_segments; ++s) {
      z.push_back(
          row_logits(queries, token, r % queries.group, segments[s], rule, visible[s][token]));
      for (double value : z.back()) max = std::fmax(max, value);
    }
    double* out = output + r * d;
    for (std::size_t c = 0; c < d; ++c) out[c] = 0;
    double sum = 0;
    for (std::size_t s = 0; s < n_segments && max > kMinusInfinity; ++s) {
      for (std::size_t j = 0; j < segments[s].n; ++j) {
        if (z[s][j] == kMinusInfinity) continue;
        const double p = std::exp(z[s][j] - max);
        sum += p;
        for (std::size_t c = 0; c < d; ++c)
          out[c] += p * static_cast<double>(to_float(segments[s].values[j * d + c]));
      }
    }
    for (std::size_t c = 0; c < d && sum > 0; ++c) out[c] /= sum;
    if (log_sum_exp != nullptr) log_sum_exp[r] = sum > 0 ? max + std::log(sum) : kMinusInfinity;
  }
}

void attention_mass(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
                    const Visible* visible, double* mass) {
  for (std::size_t j = 0; j < entries.n; ++j) mass[j] = 0;
  for (std::size_t r = 0; r < queries.n_rows(); ++r) {
    const std::size_t token = r / queries.group;
    const std::vector<double> z =
        row_logits(queries, token, r % queries.group, entries, rule, visible[token]);
    double max = kMinusInfinity;
    for (double value : z) max = std::fmax(max, value);
    if (max == kMinusInfinity) continue;
    double sum = 0;
    for (double value : z) sum += std::exp(value - max);
    for (std::size_t j = 0; j < entries.n; ++j) mass[j] += std::exp(z[j] - max) / sum;
  }
}

}  // namespace precis::reference
