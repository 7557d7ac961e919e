#include "oracle/parity.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>

namespace precis::test {
namespace {

// Pieces bound the memory for logits: a large vocabulary takes 1 MB per token.
constexpr std::size_t kPiece = 128;

double log_sum_exp(std::span<const float> row) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(x - top);
  return top + std::log(sum);
}

// Mean |difference| after each row's own mean is taken away, which no probability depends on.
double centred_difference(std::span<const float> a, std::span<const float> b) {
  double shift = 0;
  for (std::size_t i = 0; i < a.size(); ++i) shift += a[i] - b[i];
  shift /= static_cast<double>(a.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i] - shift);
  return sum / static_cast<double>(a.size());
}

void compare_rows(std::span<const float> reference, std::span<const float> ours, std::size_t width,
                  Parity& parity) {
  for (std::size_t row = 0; row < reference.size() / width; ++row) {
    const auto p = reference.subspan(row * width, width);
    const auto q = ours.subspan(row * width, width);
    const double kl = kl_divergence(p, q);
    parity.mean_kl += kl;
    parity.max_kl = std::max(parity.max_kl, kl);
    parity.top1 += argmax(p) == argmax(q) ? 1 : 0;
    parity.mean_logit_difference += centred_difference(p, q);
    ++parity.n_compared;
  }
}

void divide_by_count(Parity& parity) {
  const auto n = static_cast<double>(parity.n_compared);
  parity.mean_kl /= n;
  parity.top1 /= n;
  parity.mean_logit_difference /= n;
}

void compare_greedy(const std::shared_ptr<const Engine>& engine, Oracle& oracle,
                    std::span<const Token> prompt, Parity& parity, std::size_t n_greedy) {
  const std::size_t width = oracle.n_vocab();
  Session session(engine);
  oracle.reset();
  std::vector<float> reference = oracle.extend(prompt);
  std::span<const float> ours = session.extend(prompt);
  parity.n_greedy = n_greedy;
  for (; parity.n_agreed < n_greedy; ++parity.n_agreed) {
    const auto last = std::span<const float>(reference).last(width);
    const std::size_t theirs = argmax(last), mine = argmax(ours);
    if (theirs != mine) {
      parity.gap = last[theirs] - last[mine];
      return;
    }
    const Token token = static_cast<Token>(theirs);
    reference = oracle.extend({&token, 1});
    ours = session.extend({&token, 1});
  }
}

}  // namespace

double nmse(std::span<const float> a, std::span<const float> b) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    error += difference * difference;
    power += static_cast<double>(b[i]) * b[i];
  }
  const bool usable = a.size() == b.size() && std::isfinite(error) && power > 0;
  return usable ? error / power : std::numeric_limits<double>::infinity();
}

double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  const double p_total = log_sum_exp(p_logits), q_total = log_sum_exp(q_logits);
  double kl = 0;
  for (std::size_t i = 0; i < p_logits.size(); ++i) {
    const double log_p = p_logits[i] - p_total;
    kl += std::exp(log_p) * (log_p - (q_logits[i] - q_total));
  }
  return kl;
}

std::size_t argmax(std::span<const float> row) {
  return static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

Parity measure_parity(const std::shared_ptr<const Engine>& engine, Oracle& oracle,
                      std::span<const Token> tokens, std::size_t n_prefill, std::size_t n_greedy) {
  const std::size_t width = oracle.n_vocab();
  Parity parity;
  Session session(engine);
  oracle.reset();
  if (n_prefill > 0) {
    std::vector<float> reference;
    for (std::size_t at = 0; at < n_prefill; at += kPiece) {
      reference = oracle.extend(tokens.subspan(at, std::min(kPiece, n_prefill - at)));
    }
    session.prefill(tokens.first(n_prefill));
    compare_rows(std::span<const float>(reference).last(width), session.last_logits(), width,
                 parity);
  }
  for (std::size_t at = n_prefill; at < tokens.size(); at += kPiece) {
    const auto piece = tokens.subspan(at, std::min(kPiece, tokens.size() - at));
    compare_rows(oracle.extend(piece), session.extend(piece, piece.size()), width, parity);
  }
  divide_by_count(parity);
  if (n_greedy > 0) {
    compare_greedy(engine, oracle, tokens.first(tokens.size() / 2), parity, n_greedy);
  }
  return parity;
}

Parity measure_noise(Oracle& oracle, Oracle& other, std::span<const Token> tokens,
                     std::size_t other_piece) {
  Parity parity;
  oracle.reset();
  other.reset();
  for (std::size_t at = 0; at < tokens.size(); at += kPiece) {
    const auto piece = tokens.subspan(at, std::min(kPiece, tokens.size() - at));
    std::vector<float> logits;
    for (std::size_t i = 0; i < piece.size(); i += other_piece) {
      const auto rows = other.extend(piece.subspan(i, std::min(other_piece, piece.size() - i)));
      logits.insert(logits.end(), rows.begin(), rows.end());
    }
    compare_rows(oracle.extend(piece), logits, oracle.n_vocab(), parity);
  }
  divide_by_count(parity);
  return parity;
}

std::vector<DistanceRow> measure_distances(const std::string& path, const std::string& scratch,
                                           bool half, std::span<const Token> tokens,
                                           std::size_t n_threads) {
  const std::string copy = scratch + "/" + std::filesystem::path(path).filename().string() + ".f32";
  write_unquantized(path, copy, half);
  std::vector<DistanceRow> rows;
  {
    const OracleOptions options{.n_threads = static_cast<int>(n_threads)};
    Oracle reference(copy, {.n_threads = static_cast<int>(n_threads), .exact_attention = true});
    for (const MatmulMode mode : {MatmulMode::kSgemm, MatmulMode::kGgml}) {
      const auto engine = Engine::load(path, {.n_threads = n_threads, .matmul = mode});
      rows.push_back({std::string("  Precis, ") + matmul_mode_name(mode) + ", to f32 weights",
                      measure_parity(engine, reference, tokens, 0, 0)});
    }
    Oracle libllama(path, options);
    rows.push_back(
        {"  libllama to f32 weights", measure_noise(reference, libllama, tokens, kPiece)});
  }
  std::filesystem::remove(copy);
  return rows;
}

std::string parity_header() {
  return "| model | tokens | mean KL | max KL | top-1 | mean logit diff | greedy agreed | gap "
         "there |\n"
         "|---|---|---|---|---|---|---|---|";
}

std::string parity_row(const std::string& model, const Parity& p) {
  char line[512];
  char gap[32] = "-";
  if (p.gap) std::snprintf(gap, sizeof gap, "%.4f", *p.gap);
  std::snprintf(line, sizeof line, "| %s | %zu | %.2e | %.2e | %.2f %% | %.4f | %zu of %zu | %s |",
                model.c_str(), p.n_compared, p.mean_kl, p.max_kl, 100 * p.top1,
                p.mean_logit_difference, p.n_agreed, p.n_greedy, gap);
  return line;
}

}  // namespace precis::test
