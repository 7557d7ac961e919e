// What the tests of methods share: layers worked out by hand, attention as a plain loop in double
// straight from its formula, and single stages run by their SPEC.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "compress/layer_case.h"
#include "methods/registry.h"

namespace precis::test {

using Row = std::vector<double>;

inline Row plain_row(const Half* row, std::size_t width) {
  Row out;
  for (std::size_t c = 0; c < width; ++c) out.push_back(static_cast<double>(to_float(row[c])));
  return out;
}
inline Row key_of(const LayerCase& layer, std::size_t head, std::size_t token) {
  const std::size_t width = layer.shape.kv.head_dim;
  return plain_row(layer.dense.head(head).keys + token * width, width);
}
inline Row value_of(const LayerCase& layer, std::size_t head, std::size_t token) {
  const std::size_t width = layer.shape.kv.head_dim;
  return plain_row(layer.dense.head(head).values + token * width, width);
}

inline double plain_dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}
inline double plain_norm(const Row& a) { return std::sqrt(plain_dot(a, a)); }
inline double plain_l1(const Row& a) {
  double sum = 0;
  for (const double x : a) sum += std::abs(x);
  return sum;
}

inline Rope make_rope(bool interleaved, std::size_t n_rot) {
  Rope rope;
  rope.n_rot = n_rot;
  rope.interleaved = interleaved;
  for (std::size_t i = 0; i < n_rot / 2; ++i)
    rope.frequencies.push_back(
        std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(n_rot)));
  return rope;
}

// RoPE of a plain row.
inline Row turned(const Rope& rope, Row row, double positions) {
  for (std::size_t i = 0; i < rope.n_pairs(); ++i) {
    const std::size_t a = rope.interleaved ? 2 * i : i;
    const std::size_t b = rope.interleaved ? 2 * i + 1 : i + rope.n_rot / 2;
    const double angle = positions * rope.frequencies[i];
    const double x = row[a], y = row[b];
    row[a] = x * std::cos(angle) - y * std::sin(angle);
    row[b] = x * std::sin(angle) + y * std::cos(angle);
  }
  return row;
}

// Logits and softmax of one query head at a token, over the tokens up to it. No soft-cap.
struct PlainAttention {
  Row logits;
  Row weights;
  Row output;
};
inline PlainAttention plain_attention(const LayerCase& layer, std::size_t head, std::size_t member,
                                      std::size_t token) {
  const std::size_t width = layer.shape.kv.head_dim;
  const float* query = layer.observed.queries.data() +
                       ((head * layer.shape.group + member) * layer.n_tokens + token) * width;
  PlainAttention out;
  double sum = 0;
  for (std::size_t j = 0; j <= token; ++j) {
    const Row key = key_of(layer, head, j);
    double logit = 0;
    for (std::size_t c = 0; c < width; ++c) logit += static_cast<double>(query[c]) * key[c];
    out.logits.push_back(logit * static_cast<double>(layer.shape.rule.scale));
    out.weights.push_back(std::exp(out.logits.back()));
    sum += out.weights.back();
  }
  out.output.assign(width, 0.0);
  for (std::size_t j = 0; j <= token; ++j) {
    out.weights[j] /= sum;
    const Row value = value_of(layer, head, j);
    for (std::size_t c = 0; c < width; ++c) out.output[c] += out.weights[j] * value[c];
  }
  return out;
}

// One KV head of width 8 with a group of one, scale 1: rows are given by their first channels.
inline LayerCase hand_layer(const std::vector<Row>& keys, const std::vector<Row>& values,
                            const std::vector<Row>& queries) {
  LayerCase layer = make_layer({{1, 8}, 1, {1.0f, 0.0f}}, keys.size(), Pattern::kZeros, 1);
  for (std::size_t t = 0; t < keys.size(); ++t) {
    for (std::size_t c = 0; c < keys[t].size(); ++c)
      layer.dense.key_row(0, t)[c] = to_half(static_cast<float>(keys[t][c]));
    for (std::size_t c = 0; t < values.size() && c < values[t].size(); ++c)
      layer.dense.value_row(0, t)[c] = to_half(static_cast<float>(values[t][c]));
    for (std::size_t c = 0; t < queries.size() && c < queries[t].size(); ++c)
      layer.observed.queries[t * 8 + c] = static_cast<float>(queries[t][c]);
  }
  observe(layer);
  return layer;
}

// Scores of one KV head; `stage` is NAME or NAME(ARGS).
inline std::vector<float> scores_of(const std::string& stage, const LayerCase& layer,
                                    std::size_t head) {
  const Method method = builtin_methods().parse("score=" + stage + " select=head");
  HeadView view = view_head(layer, head);
  std::vector<float> scores(layer.n_tokens, -12345.0f);
  method.scorer->score(view, scores);
  return scores;
}

inline std::vector<float> flatten(const std::vector<std::vector<float>>& table) {
  std::vector<float> flat;
  for (const std::vector<float>& head : table) flat.insert(flat.end(), head.begin(), head.end());
  return flat;
}

// What a selector keeps of given scores and norms of W_O v, [head][token], at m entries per head.
inline std::vector<HeadPlan> plans_of(const std::string& stage,
                                      const std::vector<std::vector<float>>& scores, std::size_t m,
                                      const std::vector<std::vector<float>>& output_norms = {}) {
  const Method method = builtin_methods().parse("score=random select=" + stage);
  const std::vector<float> flat = flatten(scores);
  const std::vector<float> norms = flatten(output_norms);
  LayerTable table;
  table.n_layers = 1;
  table.n_kv_heads = scores.size();
  table.n_tokens = scores.front().size();
  table.scores = flat.data();
  if (!norms.empty()) table.output_norms = norms.data();
  table.protection = method.selector->protection();
  table.n_entries = m * table.n_kv_heads;
  return method.selector->select(table);
}

// Scores that are small whole numbers, with many ties, or arbitrary ones.
inline std::vector<std::vector<float>> draw_scores(std::size_t n_heads, std::size_t n_tokens,
                                                   bool ties, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<std::vector<float>> scores(n_heads);
  for (std::vector<float>& head : scores)
    for (std::size_t t = 0; t < n_tokens; ++t)
      head.push_back(static_cast<float>(ties ? engine() % 8 : engine() % 1000000));
  return scores;
}

// merge=NAME(ARGS) of one KV head with a given plan.
inline HeadMerge merged_by(const std::string& stage, const LayerCase& layer, std::size_t head,
                           const HeadPlan& plan, std::uint64_t seed = 0) {
  const Method method = builtin_methods().parse("score=random select=head merge=" + stage);
  HeadView view = view_head(layer, head);
  view.seed = seed;
  return method.merger->merge(view, plan);
}

inline HeadPlan plan_of(std::vector<std::uint32_t> kept) { return {kept, kept}; }

}  // namespace precis::test
