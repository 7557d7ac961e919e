#include "engine/session_state.h"

#include "base/error.h"
#include "engine/session_impl.h"
#include "kernels/row_check.h"

namespace precis {
namespace {

using Fault = std::optional<std::string>;

// One layer of a state beside what a session of the model could hold there.
class LayerCheck {
 public:
  LayerCheck(const SessionState& state, const ModelConfig& config, std::size_t layer)
      : state_(state),
        config_(config),
        layer_(state.layers[layer]),
        sliding_(config.is_sliding[layer]),
        shape_{config.n_kv_heads, config.head_dim},
        name_(concat("layer ", layer)) {}

  Fault run() const {
    if (sliding_ != (layer_.frozen == nullptr))
      return concat(name_, " of the model ", sliding_ ? "has" : "does not have",
                    " a sliding window, but the cache has ",
                    layer_.frozen ? "condensed entries" : "no condensed entries", " for it");
    if (Fault fault = tail()) return fault;
    if (Fault fault = packed_tail()) return fault;
    for (std::size_t h = 0; h < shape_.n_kv_heads && layer_.frozen; ++h)
      if (Fault fault = head(h)) return fault;
    return {};
  }

 private:
  std::size_t n_packed() const {
    return layer_.packed_tail.empty() ? 0 : layer_.packed_tail[0].size();
  }

  Fault tail() const {
    const TailRows& rows = layer_.tail;
    if (!(rows.shape() == shape_)) return wrong_shape("the tail", rows.shape());
    if (rows.first_position() < 0)
      return concat(name_, ": the tail begins at position ", rows.first_position(),
                    ", but the first is 0");
    const std::size_t first = static_cast<std::size_t>(rows.first_position());
    if (first + rows.size() != state_.next_position)
      return concat(name_, ": the tail ends at position ", first + rows.size(),
                    ", but the next token stands at ", state_.next_position);
    // Of a sliding layer half of the tail may be out of sight before it is trimmed.
    if (sliding_ && rows.size() >= 2 * config_.window)
      return concat(name_, ": a sliding window of ", config_.window, " tokens has ", rows.size(),
                    " rows, at most ", 2 * config_.window - 1, " are kept");
    for (std::size_t h = 0; h < shape_.n_kv_heads; ++h) {
      const EntryView view = rows.head(h);
      const std::size_t n = view.n * shape_.head_dim;
      if (!all_finite(view.keys, n) || !all_finite(view.values, n))
        return concat(name_, ", head ", h, ": a row of the tail is not finite");
    }
    return {};
  }

  Fault packed_tail() const {
    const std::vector<PackedList>& lists = layer_.packed_tail;
    if (lists.empty()) return {};
    if (sliding_ || state_.rows == RowTypes{})
      return concat(name_, ": ", n_packed(), " rows of the tail are packed, but ",
                    sliding_ ? "sliding layers" : "f16 caches", " have none");
    if (lists.size() != shape_.n_kv_heads)
      return concat(name_, ": ", lists.size(), " packed tails for ", shape_.n_kv_heads,
                    " KV heads");
    for (std::size_t h = 0; h < lists.size(); ++h) {
      const std::string where = concat(name_, ", head ", h);
      if (lists[h].size() != n_packed() || n_packed() % kGroupEntries != 0)
        return concat(where, ": ", lists[h].size(), " packed rows of the tail, but head 0 has ",
                      n_packed(), ", and groups are of ", kGroupEntries);
      if (!(lists[h].types() == state_.rows))
        return concat(where, ": the packed tail has keys in ", row_type_name(lists[h].types().keys),
                      ", the session in ", row_type_name(state_.rows.keys));
      if (Fault fault = rows(where + ", packed tail", lists[h])) return fault;
    }
    return {};
  }

  // Tokens that were condensed, as far as positions tell.
  std::size_t n_condensed() const { return state_.n_read - layer_.tail.size() - n_packed(); }

  Fault head(std::size_t h) const {
    const FrozenLayer& frozen = *layer_.frozen;
    const std::string where = concat(name_, ", head ", h);
    if (!(frozen.shape() == shape_)) return wrong_shape("the cache", frozen.shape());
    if (layer_.tail.size() + n_packed() > state_.n_read)
      return concat(where, ": ", layer_.tail.size() + n_packed(), " tokens after the prompt, but ",
                    state_.n_read, " were read in all");
    if (Fault fault = rows(where, frozen.rows(h))) return fault;
    if (Fault fault = positions(where, h)) return fault;
    if (Fault fault = biases(where, frozen.head(h))) return fault;
    const std::string residual = where + ", residual entries";
    if (Fault fault = rows(residual, frozen.residual_rows(h))) return fault;
    if (Fault fault = biases(residual, frozen.residual(h))) return fault;
    const SharpnessGate& gate = frozen.gate(h);
    if (!(0 < gate.low && gate.low <= gate.high && gate.high <= kMostSharpness && gate.least >= 0 &&
          gate.least <= 1))
      return concat(residual, ": the gate goes from ", gate.low, " to ", gate.high, " and down to ",
                    gate.least, ", but sharpness and factor are within 0 and 1");
    return {};
  }

  Fault positions(const std::string& where, std::size_t h) const {
    const FrozenLayer& frozen = *layer_.frozen;
    const std::span<const std::int32_t> stored = frozen.positions(h);
    std::int64_t before = -1;
    for (std::size_t i = 0; i < frozen.n_main(h); ++i) {
      // In 64 bits: frozen.position() may leave the range of 32 here.
      const std::int64_t position =
          stored.empty() ? std::int64_t{frozen.first_position()} + static_cast<std::int64_t>(i)
                         : stored[i];
      if (position <= before)
        return concat(where, ": entry ", i, " stands at position ", position, ", after ", before);
      if (position >= static_cast<std::int64_t>(n_condensed()))
        return concat(where, ": entry ", i, " stands at position ", position, ", but only ",
                      n_condensed(), " tokens were condensed");
      before = position;
    }
    return {};
  }

  Fault biases(const std::string& where, const PackedView& entries) const {
    if (entries.bias == nullptr || all_finite(entries.bias, entries.n)) return {};
    std::size_t i = 0;
    while (all_finite(entries.bias + i, 1)) ++i;
    return concat(where, ": the bias of entry ", i, " is ", entries.bias[i], ", not finite");
  }

  Fault rows(const std::string& where, const PackedList& list) const {
    const std::size_t d = shape_.head_dim;
    if (list.size() == 0) return {};
    if (list.head_dim() != d)
      return concat(where, ": rows of ", list.head_dim(), " channels, the model has ", d);
    const PackedView view = list.view();
    if (!are_sound_keys(view.types.keys, view.keys, d, view.n) ||
        !are_sound_values(view.types.values, view.values, d, view.n))
      return concat(where, ": a row of ", row_type_name(view.types.keys), " and ",
                    row_type_name(view.types.values), " holds what is not a finite number");
    return {};
  }

  Fault wrong_shape(const char* what, const KvShape& shape) const {
    return concat(name_, " of ", what, " has ", shape.n_kv_heads, " KV heads of ", shape.head_dim,
                  " channels but the model has ", shape_.n_kv_heads, " of ", shape_.head_dim);
  }

  static constexpr float kMostSharpness = 1;

  const SessionState& state_;
  const ModelConfig& config_;
  const LayerState& layer_;
  bool sliding_;
  KvShape shape_;
  std::string name_;
};

}  // namespace

std::optional<std::string> fault_of(const SessionState& state, const ModelConfig& config) {
  if (state.layers.size() != config.n_layers)
    return concat("the cache has ", state.layers.size(), " layers but the model has ",
                  config.n_layers);
  if (state.next_position == 0 || state.next_position > config.n_ctx_train)
    return concat("the cache goes on at position ", state.next_position,
                  " but the model's context is ", config.n_ctx_train);
  // Positions are stored in 32 bits.
  constexpr std::size_t kMostTokens = std::size_t{1} << 31;
  if (state.n_read < state.next_position || state.n_read >= kMostTokens)
    return concat("the cache goes on at position ", state.next_position, " after ", state.n_read,
                  " tokens");
  for (const RowType type : {state.rows.keys, state.rows.values})
    if (!fits(type, config.head_dim))
      return concat("rows are in ", row_type_name(type), ", which ", config.head_dim,
                    " channels do not fit: a multiple of ", kBlockChannels, " is needed");
  if (!state.logits.empty() && state.logits.size() != config.n_vocab)
    return concat("there are ", state.logits.size(), " logits but the model has ", config.n_vocab,
                  " tokens");
  if (!all_finite(state.logits.data(), state.logits.size())) return "a logit is not finite";
  for (std::size_t il = 0; il < config.n_layers; ++il)
    if (Fault fault = LayerCheck(state, config, il).run()) return fault;
  return {};
}

SessionState Session::state() const {
  const Impl& impl = *impl_;
  if (impl.steps())
    throw Error(ErrorCode::kUnsupported,
                "a session with decode=step cannot be taken apart: what its method remembers of "
                "every entry has no form outside of it; condense with decode=once");
  if (impl.layers.empty() || impl.is_dense_prompt || impl.n_positions == 0)
    throw Error(ErrorCode::kInvalidArgument,
                concat("the session holds ", impl.n_read,
                       " tokens and none is condensed: call condense or compress first"));
  SessionState out;
  out.next_position = impl.n_positions;
  out.n_read = impl.n_read;
  out.rows = impl.rows;
  const auto logits = impl.last_row();
  out.logits.assign(logits.begin(), logits.end());
  for (std::size_t il = 0; il < impl.layers.size(); ++il) {
    const LayerCache& layer = impl.layers[il];
    if (layer.frozen == nullptr && !impl.config().is_sliding[il])
      throw Error(ErrorCode::kInvalidArgument,
                  concat("layer ", il, " of the session holds ", layer.tail.size(),
                         " rows and no condensed entries: call condense or compress first"));
    out.layers.push_back({layer.frozen, layer.packed_tail, layer.tail});
  }
  return out;
}

void Session::resume(SessionState state) {
  Impl& impl = *impl_;
  if (impl.n_positions != 0)
    throw Error(ErrorCode::kInvalidArgument,
                concat("the session already holds ", impl.n_read,
                       " tokens; reset it before it goes on from another cache"));
  if (const auto fault = fault_of(state, impl.config()))
    throw Error(ErrorCode::kInvalidArgument, *fault);
  // Made before anything is replaced, so that a lack of memory changes nothing.
  std::vector<LayerCache> layers(state.layers.size());
  for (std::size_t il = 0; il < layers.size(); ++il) {
    layers[il].frozen = std::move(state.layers[il].frozen);
    layers[il].packed_tail = std::move(state.layers[il].packed_tail);
    layers[il].tail = std::move(state.layers[il].tail);
  }
  impl.clear();
  impl.layers.swap(layers);
  impl.logits = std::move(state.logits);
  impl.n_positions = state.next_position;
  impl.n_read = state.n_read;
  impl.rows = state.rows;
  impl.prefill_ms = 0;
  impl.repeat_ms = 0;
  impl.compress_ms = 0;
}

}  // namespace precis
