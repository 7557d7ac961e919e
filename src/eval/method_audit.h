// Whether methods that claim to differ leave different caches of one prompt. A name that runs
// another method's code passes every test of that method; what it keeps gives it away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/eval_method.h"

namespace precis {

// What one method left of the prompt.
struct AuditedCache {
  std::string label;
  std::string selection;                                   // selection_stages() of its method
  std::vector<std::shared_ptr<const FrozenLayer>> layers;  // the compressible ones of one session
};

// The canonical text of the stages that decide which tokens are kept: score, select and layers.
// "full" for a method without stages. Methods that agree in it and are charged alike keep the same
// tokens by design.
std::string selection_stages(const Method& method);

enum class CacheRelation {
  kOtherEntries,  // other tokens are kept
  kOtherNumbers,  // the same tokens by the same selection, stored with other numbers
  kSameEntries,   // the same tokens although the selections differ, stored with other numbers
  kSameCache,     // the same tokens with the same numbers
};

// "other_entries", "other_numbers", "same_entries", "same_cache".
const char* cache_relation_name(CacheRelation relation);

// Two caches beside each other. An entry is a layer, a KV head and a position; residual entries
// stand for no token and count among the numbers only.
struct CachePair {
  std::size_t first = 0;  // of the caches that were compared; first < second
  std::size_t second = 0;
  std::size_t n_both = 0;    // entries that both hold
  std::size_t n_either = 0;  // that one or both hold
  // Of caches with the same entries: how many have stored keys, values or biases that are not the
  // same bit for bit. No bias is a bias of 0.
  std::size_t n_keys = 0;
  std::size_t n_values = 0;
  std::size_t n_biases = 0;
  CacheRelation relation = CacheRelation::kOtherEntries;

  bool same_entries() const { return n_both == n_either; }
  // Jaccard: of the entries that one or both hold, the share that both hold.
  double overlap() const {
    return n_either == 0 ? 1 : static_cast<double>(n_both) / static_cast<double>(n_either);
  }
  // That one of the two is not what it is called.
  bool is_fault() const {
    return relation == CacheRelation::kSameEntries || relation == CacheRelation::kSameCache;
  }
};

// Every two caches: (0, 1), (0, 2) ... (1, 2) ... REQUIRES: layers of the same shapes.
std::vector<CachePair> compare_caches(std::span<const AuditedCache> caches);

struct AuditOptions {
  std::vector<EvalMethod> methods;  // at least two
  std::uint64_t seed = 0;           // of methods that draw
  const CancelFlag* cancel = nullptr;
  std::function<void(double fraction)> progress;  // may be empty
};

struct MethodAudit {
  std::size_t n_tokens = 0;
  std::size_t n_kv_heads = 0;          // with one, heads have no budget to share
  std::vector<std::size_t> n_entries;  // kept tokens of each; residual entries stand for none
  std::vector<CachePair> pairs;        // of the methods, as compare_caches() gives them

  // The pair of two methods, in either order.
  const CachePair& pair(std::size_t a, std::size_t b) const;
  // The other method whose entries overlap most with those of `method`, the earlier of equals.
  std::size_t nearest(std::size_t method) const;
};

// Reads the tokens once and condenses them by every method. Holds the caches of all methods at
// once. Throws Error(kInvalidArgument) for fewer than two methods, for a method other than `full`
// that leaves this prompt whole at its budget (it would be taken for another that does), and what
// Session throws.
MethodAudit audit_methods(const std::shared_ptr<const Engine>& engine,
                          std::span<const Token> tokens, const AuditOptions& options);

}  // namespace precis
