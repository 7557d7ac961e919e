#include "store/layer_record.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "store/byte_fields.h"

namespace precis {
namespace {

constexpr std::size_t kShapeBytes = 32;  // of section shape before the heads
constexpr std::size_t kHeadBytes = 32;
constexpr std::uint32_t kFrozen = 1;
constexpr std::uint32_t kBiases = 2;
constexpr std::uint32_t kPositions = 4;
// Positions are stored in 32 bits.
constexpr std::uint64_t kMostEntries = std::uint64_t{1} << 31;

std::size_t count(const CacheReader& reader, const Section& section, std::uint64_t n,
                  const char* what) {
  if (n >= kMostEntries)
    reader.reject(concat(section.name(), " says ", n, " ", what, ", fewer than ", kMostEntries,
                         " are possible"));
  return n;
}

RowType row_type(const CacheReader& reader, const Section& section, std::uint8_t code,
                 std::size_t head_dim) {
  if (code > static_cast<std::uint8_t>(RowType::kQ4))
    reader.reject(concat(section.name(), " has row type ", static_cast<int>(code),
                         ", known are 0 to ", static_cast<int>(RowType::kQ4), " (",
                         row_type_names(), ")"));
  const auto type = static_cast<RowType>(code);
  if (!fits(type, head_dim))
    reader.reject(concat(section.name(), " has rows in ", row_type_name(type), ", which ", head_dim,
                         " channels do not fit: a multiple of ", kBlockChannels, " is needed"));
  return type;
}

HeadRecord read_head(const CacheReader& reader, const Section& section, ByteReader& in,
                     std::size_t head_dim) {
  HeadRecord head;
  head.n_main = count(reader, section, in.number<std::uint64_t>(), "entries of a head");
  head.n_residual =
      count(reader, section, in.number<std::uint64_t>(), "residual entries of a head");
  for (RowType* type : {&head.types.keys, &head.types.values, &head.residual_types.keys,
                        &head.residual_types.values})
    *type = row_type(reader, section, in.number<std::uint8_t>(), head_dim);
  for (float* number : {&head.gate.low, &head.gate.high, &head.gate.least})
    *number = in.number<float>();
  return head;
}

PackedList read_list(SectionStream& stream, const RowTypes& types, std::size_t head_dim,
                     std::size_t n) {
  RowMemory keys(key_bytes(types.keys, head_dim, n));
  RowMemory values(value_bytes(types.values, head_dim, n));
  stream.read(keys.data(), keys.size());
  stream.read(values.data(), values.size());
  return PackedList::from_packed(types, head_dim, n, std::move(keys), std::move(values));
}

template <class T>
std::vector<T> read_numbers(SectionStream& stream, std::size_t n) {
  std::vector<T> out(n);
  stream.read(out.data(), n * sizeof(T));
  return out;
}

}  // namespace

std::size_t LayerRecord::kv_bytes(const KvShape& shape, const RowTypes& tail_types) const {
  std::size_t bytes = 0;
  for (const std::uint64_t array : array_bytes(*this, shape, tail_types)) bytes += array;
  return bytes;
}

LayerRecord record_of(const LayerState& layer) {
  LayerRecord out;
  out.n_packed = layer.packed_tail.empty() ? 0 : layer.packed_tail[0].size();
  out.n_tail = layer.tail.size();
  out.tail_position = layer.tail.first_position();
  if (!layer.frozen) return out;
  const FrozenLayer& frozen = *layer.frozen;
  out.is_frozen = true;
  out.first_position = frozen.first_position();
  for (std::size_t h = 0; h < frozen.shape().n_kv_heads; ++h) {
    out.heads.push_back({frozen.n_main(h), frozen.n_residual(h), frozen.rows(h).types(),
                         frozen.residual_rows(h).types(), frozen.gate(h)});
    out.has_biases |= frozen.head(h).bias != nullptr;
    out.has_positions |= !frozen.positions(h).empty();
  }
  return out;
}

std::vector<std::uint8_t> encode_shape(const LayerRecord& r) {
  ByteWriter out;
  out.number(std::uint64_t{r.n_packed});
  out.number(std::uint64_t{r.n_tail});
  out.number(r.tail_position);
  out.number(r.first_position);
  out.number((r.is_frozen ? kFrozen : 0) | (r.has_biases ? kBiases : 0) |
             (r.has_positions ? kPositions : 0));
  out.number(std::uint32_t{0});
  PRECIS_CHECK(out.bytes().size() == kShapeBytes, out.bytes().size());
  for (const HeadRecord& head : r.heads) {
    out.number(std::uint64_t{head.n_main});
    out.number(std::uint64_t{head.n_residual});
    for (const RowType type :
         {head.types.keys, head.types.values, head.residual_types.keys, head.residual_types.values})
      out.number(static_cast<std::uint8_t>(type));
    for (const float number : {head.gate.low, head.gate.high, head.gate.least}) out.number(number);
  }
  PRECIS_CHECK(out.bytes().size() == kShapeBytes + r.heads.size() * kHeadBytes);
  return out.bytes();
}

std::vector<std::uint64_t> array_bytes(const LayerRecord& r, const KvShape& shape,
                                       const RowTypes& tail_types) {
  std::vector<std::uint64_t> out;
  const std::size_t d = shape.head_dim;
  const auto add_rows = [&](const RowTypes& types, std::size_t n) {
    out.push_back(key_bytes(types.keys, d, n));
    out.push_back(value_bytes(types.values, d, n));
  };
  for (const HeadRecord& head : r.heads) {
    add_rows(head.types, head.n_main);
    out.push_back(r.has_biases ? head.n_main * sizeof(float) : 0);
    out.push_back(r.has_positions ? head.n_main * sizeof(std::int32_t) : 0);
    add_rows(head.residual_types, head.n_residual);
    out.push_back(head.n_residual * sizeof(float));
  }
  for (std::size_t h = 0; h < shape.n_kv_heads; ++h) add_rows(tail_types, r.n_packed);
  for (std::size_t h = 0; h < shape.n_kv_heads; ++h) add_rows({}, r.n_tail);
  return out;
}

std::vector<const void*> arrays_of(const LayerState& layer, const LayerRecord& r) {
  std::vector<const void*> out;
  const auto add_rows = [&](const PackedView& view) {
    out.push_back(view.keys);
    out.push_back(view.values);
  };
  for (std::size_t h = 0; h < r.heads.size(); ++h) {
    const PackedView main = layer.frozen->head(h);
    add_rows(main);
    out.push_back(main.bias);
    out.push_back(layer.frozen->positions(h).data());
    const PackedView residual = layer.frozen->residual(h);
    add_rows(residual);
    out.push_back(residual.bias);
  }
  const std::size_t n_heads = layer.tail.shape().n_kv_heads;
  for (std::size_t h = 0; h < n_heads; ++h)
    add_rows(r.n_packed > 0 ? layer.packed_tail[h].view() : PackedView{});
  for (std::size_t h = 0; h < n_heads; ++h) {
    const EntryView rows = layer.tail.head(h);
    out.push_back(rows.keys);
    out.push_back(rows.values);
  }
  return out;
}

LayerRecord read_shape(const CacheReader& reader, std::size_t layer, const KvShape& shape,
                       const RowTypes& tail_types) {
  const Section& section = reader.section(SectionKind::kShape, layer);
  // Before anything is read: a layer's heads may not be more than the section has room for.
  if (section.bytes != kShapeBytes && section.bytes != kShapeBytes + shape.n_kv_heads * kHeadBytes)
    reader.reject(concat(section.name(), " has ", section.bytes, " bytes, ",
                         kShapeBytes + shape.n_kv_heads * kHeadBytes, " are needed for ",
                         shape.n_kv_heads, " KV heads and ", kShapeBytes, " for a sliding layer"));
  const std::vector<std::uint8_t> bytes = reader.read(section);
  ByteReader in(bytes);
  LayerRecord r;
  r.n_packed = count(reader, section, in.number<std::uint64_t>(), "packed rows of the tail");
  r.n_tail = count(reader, section, in.number<std::uint64_t>(), "rows of the tail");
  r.tail_position = in.number<std::int32_t>();
  r.first_position = in.number<std::int32_t>();
  const auto flags = in.number<std::uint32_t>();
  r.is_frozen = (flags & kFrozen) != 0;
  r.has_biases = (flags & kBiases) != 0;
  r.has_positions = (flags & kPositions) != 0;
  in.number<std::uint32_t>();
  if (flags > (kFrozen | kBiases | kPositions))
    reader.reject(concat(section.name(), " has flags ", flags, ", known are up to ",
                         kFrozen | kBiases | kPositions));
  if (r.is_frozen != (section.bytes != kShapeBytes))
    reader.reject(
        concat(section.name(), " has ", section.bytes, " bytes, but its flags are ", flags));
  for (const RowType type : {tail_types.keys, tail_types.values})
    row_type(reader, section, static_cast<std::uint8_t>(type), shape.head_dim);
  for (std::size_t h = 0; h < shape.n_kv_heads && r.is_frozen; ++h)
    r.heads.push_back(read_head(reader, section, in, shape.head_dim));
  const Section& rows = reader.section(SectionKind::kRows, layer);
  // Each term is below 2^52, and the sum stops once it is beyond the section.
  std::uint64_t total = 0;
  for (const std::uint64_t array : array_bytes(r, shape, tail_types)) {
    total += padded(array);
    if (total > rows.bytes) break;
  }
  if (total != rows.bytes)
    reader.reject(concat(rows.name(), " has ", rows.bytes, " bytes, but the layer's entries need ",
                         total > rows.bytes ? "at least " : "", total));
  return r;
}

LayerState read_rows(const CacheReader& reader, std::size_t layer, const LayerRecord& r,
                     const KvShape& shape, const RowTypes& tail_types) {
  SectionStream stream(reader, reader.section(SectionKind::kRows, layer));
  std::vector<FrozenLayer::Head> heads(r.heads.size());
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const HeadRecord& record = r.heads[h];
    FrozenLayer::Head& head = heads[h];
    head.rows = read_list(stream, record.types, shape.head_dim, record.n_main);
    head.bias = read_numbers<float>(stream, r.has_biases ? record.n_main : 0);
    head.positions = read_numbers<std::int32_t>(stream, r.has_positions ? record.n_main : 0);
    head.residual_rows =
        read_list(stream, record.residual_types, shape.head_dim, record.n_residual);
    head.residual_bias = read_numbers<float>(stream, record.n_residual);
    head.gate = record.gate;
  }
  LayerState out;
  for (std::size_t h = 0; h < shape.n_kv_heads; ++h) {
    PackedList list = read_list(stream, tail_types, shape.head_dim, r.n_packed);
    if (r.n_packed > 0) out.packed_tail.push_back(std::move(list));
  }
  out.tail = TailRows(shape, r.tail_position);
  out.tail.reserve(r.n_tail);
  out.tail.grow(r.n_tail);
  for (std::size_t h = 0; h < shape.n_kv_heads; ++h) {
    // Without rows there is no memory to point to.
    const std::size_t bytes = r.n_tail * shape.head_dim * sizeof(Half);
    stream.read(bytes > 0 ? out.tail.key_row(h, 0) : nullptr, bytes);
    stream.read(bytes > 0 ? out.tail.value_row(h, 0) : nullptr, bytes);
  }
  stream.finish();
  if (r.is_frozen)
    out.frozen = std::make_shared<const FrozenLayer>(shape, std::move(heads), r.first_position);
  return out;
}

}  // namespace precis
