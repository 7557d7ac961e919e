#include "eval/method_audit.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "eval/synthetic_cache.h"

namespace precis {
namespace {

// Reading and condensing take about as long as each other when there are two dozen methods.
constexpr double kShareOfReading = 0.5;

// Adds one head's entries to the counts; both lists ascend.
void count_entries(const FrozenLayer& a, const FrozenLayer& b, std::size_t head, CachePair& pair) {
  const std::size_t n_a = a.n_main(head);
  const std::size_t n_b = b.n_main(head);
  std::size_t n_both = 0;
  for (std::size_t i = 0, k = 0; i < n_a && k < n_b;) {
    const std::int32_t at_a = a.position(head, i);
    const std::int32_t at_b = b.position(head, k);
    n_both += at_a == at_b ? 1 : 0;
    i += at_a <= at_b ? 1 : 0;
    k += at_b <= at_a ? 1 : 0;
  }
  pair.n_both += n_both;
  pair.n_either += n_a + n_b - n_both;
}

// Stored numbers of one section of a head.
struct HeadNumbers {
  HeadNumbers(const PackedList& rows, const float* row_bias, std::size_t head_dim)
      : n(rows.size()), width(head_dim), keys(n * width), values(n * width), bias(row_bias) {
    rows.unpack(0, n, keys.data(), values.data());
  }
  float bias_of(std::size_t entry) const { return bias == nullptr ? 0.0f : bias[entry]; }

  std::size_t n;
  std::size_t width;
  std::vector<float> keys;    // [n, width]
  std::vector<float> values;  // [n, width]
  const float* bias;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b, std::size_t row,
               std::size_t width) {
  return std::memcmp(a.data() + row * width, b.data() + row * width, width * sizeof(float)) == 0;
}

// Adds the entries of one section whose numbers differ. One may have more residual entries, and
// those differ from nothing at all.
void count_numbers(const HeadNumbers& a, const HeadNumbers& b, CachePair& pair) {
  const std::size_t n = std::min(a.n, b.n);
  for (std::size_t i = 0; i < n; ++i) {
    pair.n_keys += same_bits(a.keys, b.keys, i, a.width) ? 0 : 1;
    pair.n_values += same_bits(a.values, b.values, i, a.width) ? 0 : 1;
    // Numbers, not bits: -0 hides as little as 0.
    pair.n_biases += a.bias_of(i) == b.bias_of(i) ? 0 : 1;
  }
  const std::size_t n_more = std::max(a.n, b.n) - n;
  pair.n_keys += n_more;
  pair.n_values += n_more;
}

// Calls visit(layer of a, layer of b, head) for every head.
template <class Visit>
void for_each_head(const AuditedCache& a, const AuditedCache& b, const Visit& visit) {
  PRECIS_CHECK(a.layers.size() == b.layers.size(), a.layers.size(), " vs ", b.layers.size());
  for (std::size_t l = 0; l < a.layers.size(); ++l) {
    const FrozenLayer& x = *a.layers[l];
    const FrozenLayer& y = *b.layers[l];
    PRECIS_CHECK(x.shape() == y.shape(), "layer ", l, " of '", a.label, "' and '", b.label, "'");
    for (std::size_t h = 0; h < x.shape().n_kv_heads; ++h) visit(x, y, h);
  }
}

CachePair compare_pair(std::span<const AuditedCache> caches, std::size_t first,
                       std::size_t second) {
  const AuditedCache& a = caches[first];
  const AuditedCache& b = caches[second];
  CachePair pair;
  pair.first = first;
  pair.second = second;
  for_each_head(a, b, [&](const FrozenLayer& x, const FrozenLayer& y, std::size_t head) {
    count_entries(x, y, head, pair);
  });
  if (!pair.same_entries()) return pair;
  for_each_head(a, b, [&](const FrozenLayer& x, const FrozenLayer& y, std::size_t head) {
    const std::size_t d = x.shape().head_dim;
    count_numbers({x.rows(head), x.head(head).bias, d}, {y.rows(head), y.head(head).bias, d}, pair);
    count_numbers({x.residual_rows(head), x.residual(head).bias, d},
                  {y.residual_rows(head), y.residual(head).bias, d}, pair);
  });
  if (pair.n_keys + pair.n_values + pair.n_biases == 0)
    pair.relation = CacheRelation::kSameCache;
  else
    pair.relation =
        a.selection == b.selection ? CacheRelation::kOtherNumbers : CacheRelation::kSameEntries;
  return pair;
}

std::vector<std::shared_ptr<const FrozenLayer>> frozen_layers(const Session& session) {
  std::vector<std::shared_ptr<const FrozenLayer>> out;
  for (const std::size_t layer : session.engine()->compressible_indices()) {
    out.push_back(session.condensed_layer(layer));
    PRECIS_CHECK(out.back() != nullptr, "layer ", layer);
  }
  return out;
}

std::size_t count_all(const std::vector<std::shared_ptr<const FrozenLayer>>& layers) {
  std::size_t n = 0;
  for (const std::shared_ptr<const FrozenLayer>& layer : layers)
    for (std::size_t h = 0; h < layer->shape().n_kv_heads; ++h) n += layer->n_main(h);
  return n;
}

// What is asked of every method; refuses what would be found out only after the prompt was read.
std::vector<CondenseRequest> make_requests(const Engine& engine, std::size_t n_tokens,
                                           const AuditOptions& options) {
  if (options.methods.size() < 2)
    throw Error(ErrorCode::kInvalidArgument,
                concat("an audit compares at least 2 methods, not ", options.methods.size()));
  std::vector<CondenseRequest> out;
  for (const EvalMethod& method : options.methods) {
    out.push_back({method.method, method.budget, options.seed, method.rows});
    const CompressionReport plan = condenser_for(engine, out.back(), n_tokens).report();
    if (plan.skipped)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("'", method.label, "' leaves a prompt of ", n_tokens, " tokens whole at ",
                         "keep ", plan.keep, " (", *plan.skipped, "), so it cannot be told from ",
                         "others that do: give a longer text or a smaller --keep"));
  }
  return out;
}

}  // namespace

std::string selection_stages(const Method& method) {
  std::string out;
  // A canonical SPEC has blanks between stages only.
  for (std::size_t begin = 0; begin < method.spec.size();) {
    const std::size_t end = std::min(method.spec.find(' ', begin), method.spec.size());
    const std::string stage = method.spec.substr(begin, end - begin);
    for (const StageKind kind : {StageKind::kScore, StageKind::kSelect, StageKind::kLayers})
      if (stage.starts_with(concat(stage_kind_name(kind), "=")))
        out += (out.empty() ? "" : " ") + stage;
    begin = end + 1;
  }
  return out.empty() ? method.spec : out;
}

const char* cache_relation_name(CacheRelation relation) {
  switch (relation) {
    case CacheRelation::kOtherEntries:
      return "other_entries";
    case CacheRelation::kOtherNumbers:
      return "other_numbers";
    case CacheRelation::kSameEntries:
      return "same_entries";
    case CacheRelation::kSameCache:
      return "same_cache";
  }
  return "";
}

std::vector<CachePair> compare_caches(std::span<const AuditedCache> caches) {
  std::vector<CachePair> out;
  for (std::size_t a = 0; a < caches.size(); ++a)
    for (std::size_t b = a + 1; b < caches.size(); ++b) out.push_back(compare_pair(caches, a, b));
  return out;
}

const CachePair& MethodAudit::pair(std::size_t a, std::size_t b) const {
  const std::size_t first = std::min(a, b);
  const std::size_t second = std::max(a, b);
  PRECIS_CHECK(first < second && second < n_entries.size(), a, " and ", b, " of ",
               n_entries.size());
  // Pairs of all earlier firsts come before: n - 1, n - 2 ... of them.
  const std::size_t before = first * (2 * n_entries.size() - first - 1) / 2;
  return pairs[before + second - first - 1];
}

std::size_t MethodAudit::nearest(std::size_t method) const {
  std::size_t best = method == 0 ? 1 : 0;
  for (std::size_t other = 0; other < n_entries.size(); ++other)
    if (other != method && pair(method, other).overlap() > pair(method, best).overlap())
      best = other;
  return best;
}

MethodAudit audit_methods(const std::shared_ptr<const Engine>& engine,
                          std::span<const Token> tokens, const AuditOptions& options) {
  const std::vector<CondenseRequest> requests = make_requests(*engine, tokens.size(), options);
  const auto report = [&](double fraction) {
    if (options.progress) options.progress(fraction);
  };
  Session dense(engine);
  dense.prefill(tokens, joint_observation(options.methods, tokens.size()),
                {[&](const Progress& p) { report(kShareOfReading * p.fraction); }, options.cancel});
  MethodAudit out;
  out.n_tokens = tokens.size();
  out.n_kv_heads = engine->config().n_kv_heads;
  std::vector<Session> sessions;
  std::vector<AuditedCache> caches;
  for (std::size_t m = 0; m < requests.size(); ++m) {
    Session& session = sessions.emplace_back(dense.fork());
    session.compress(requests[m], {{}, options.cancel});
    caches.push_back(
        {options.methods[m].label, selection_stages(requests[m].method), frozen_layers(session)});
    out.n_entries.push_back(count_all(caches.back().layers));
    const double done = static_cast<double>(m + 1) / static_cast<double>(requests.size());
    report(kShareOfReading + (1 - kShareOfReading) * done);
  }
  out.pairs = compare_caches(caches);
  return out;
}

}  // namespace precis
