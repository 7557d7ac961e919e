#include "store/cache_file.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "model/model.h"
#include "report/content_hash.h"
#include "store/byte_fields.h"
#include "store/durable_file.h"
#include "store/layer_record.h"
#include "store/report_json.h"
#include "store/session_record.h"

namespace precis {
namespace {

// Writes sections one after another, then the table that says where they are.
class CacheWriter {
 public:
  CacheWriter(const std::string& path, std::size_t n_layers)
      : file_(path), sections_(section_order(n_layers)) {
    // In place of header and table, which are known last.
    const std::vector<std::uint8_t> zeros(kHeaderBytes + table_bytes());
    file_.write(zeros.data(), zeros.size());
    offset_ = zeros.size();
  }

  // The next section in order.
  void add(const void* bytes, std::size_t n) {
    begin();
    array(bytes, n);
    end(n);
  }
  void begin() {
    sections_[next_].offset = offset_;
    checksum_ = std::make_unique<Checksum>(sections_[next_].seed());
  }
  void array(const void* bytes, std::size_t n) {
    const std::uint8_t zeros[kSectionAlignment] = {};
    for (const auto& [data, size] : {std::pair{bytes, n}, {zeros, padded(n) - n}}) {
      checksum_->add(data, size);
      file_.write(data, size);
      offset_ += size;
    }
  }
  void end(std::uint64_t bytes) {
    PRECIS_CHECK(offset_ == sections_[next_].offset + padded(bytes), offset_);
    sections_[next_].bytes = bytes;
    sections_[next_++].checksum = checksum_->value();
  }

  void commit() {
    PRECIS_CHECK(next_ == sections_.size(), next_, " of ", sections_.size());
    ByteWriter table;
    for (const Section& section : sections_) {
      table.number(static_cast<std::uint32_t>(section.kind));
      table.number(section.layer);
      table.number(section.offset);
      table.number(section.bytes);
      table.number(section.checksum);
    }
    while (table.bytes().size() < table_bytes()) table.number(std::uint8_t{0});
    ByteWriter header;
    header.text({kCacheMagic, sizeof kCacheMagic});
    header.number(kCacheVersion);
    header.number(static_cast<std::uint32_t>(sections_.size()));
    header.number(offset_);
    header.number(checksum_of(table.bytes().data(), table.bytes().size()));
    while (header.bytes().size() < kHeaderChecksum) header.number(std::uint8_t{0});
    header.number(checksum_of(header.bytes().data(), kHeaderChecksum));
    file_.write_at(0, header.bytes().data(), header.bytes().size());
    file_.write_at(kHeaderBytes, table.bytes().data(), table.bytes().size());
    file_.commit();
  }

 private:
  std::size_t table_bytes() const { return padded(sections_.size() * kTableEntryBytes); }

  DurableFile file_;
  std::vector<Section> sections_;
  std::size_t next_ = 0;
  std::uint64_t offset_ = 0;
  std::unique_ptr<Checksum> checksum_;
};

void write_layer(CacheWriter& out, const SessionState& state, const LayerRecord& record,
                 std::size_t il) {
  const LayerState& layer = state.layers[il];
  const std::vector<std::uint8_t> shape = encode_shape(record);
  out.add(shape.data(), shape.size());
  const auto sizes = array_bytes(record, layer.tail.shape(), state.rows);
  const auto arrays = arrays_of(layer, record);
  PRECIS_CHECK(sizes.size() == arrays.size(), sizes.size(), " vs ", arrays.size());
  std::uint64_t total = 0;
  out.begin();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    out.array(arrays[i], sizes[i]);
    total += padded(sizes[i]);
  }
  out.end(total);
}

// Whether two models' caches have the same shapes.
bool same_shape(const ModelFingerprint& a, const ModelFingerprint& b) {
  return a.arch == b.arch && a.n_layers == b.n_layers && a.n_embd == b.n_embd &&
         a.n_heads == b.n_heads && a.n_kv_heads == b.n_kv_heads && a.head_dim == b.head_dim &&
         a.n_vocab == b.n_vocab && a.n_ctx_train == b.n_ctx_train && a.window == b.window &&
         a.is_sliding == b.is_sliding;
}

std::string described(const ModelFingerprint& m) {
  return concat("sha256 ", m.sha256, " (", m.arch, ", ", m.n_layers, " layers, ", m.n_kv_heads,
                " KV heads of ", m.head_dim, " channels, vocabulary ", m.n_vocab, ", context ",
                m.n_ctx_train, ")");
}

ModelFingerprint shape_fingerprint(const ModelConfig& c) {
  ModelFingerprint out;
  out.arch = c.arch;
  out.name = c.name;
  out.n_layers = c.n_layers;
  out.n_embd = c.n_embd;
  out.n_heads = c.n_heads;
  out.n_kv_heads = c.n_kv_heads;
  out.head_dim = c.head_dim;
  out.n_vocab = c.n_vocab;
  out.n_ctx_train = c.n_ctx_train;
  out.window = c.window;
  out.is_sliding = c.is_sliding;
  return out;
}

// Where the report, if there is one, counts other entries than the layers have.
std::optional<std::string> entries_fault(const CompressionReport& report,
                                         const std::vector<LayerRecord>& layers) {
  if (report.entries.empty()) return {};
  std::size_t i = 0;
  for (const LayerRecord& layer : layers) {
    if (!layer.is_frozen) continue;
    if (i >= report.entries.size() || report.entries[i].size() != layer.heads.size())
      return concat("the report tells entries of ", report.entries.size(),
                    " layers, but not of every head of condensed layer ", i);
    for (std::size_t h = 0; h < layer.heads.size(); ++h) {
      const std::size_t n = layer.heads[h].n_main + layer.heads[h].n_residual;
      if (report.entries[i][h] != n)
        return concat("head ", h, " of condensed layer ", i, " has ", n,
                      " entries, but the report says ", report.entries[i][h]);
    }
    ++i;
  }
  if (i != report.entries.size())
    return concat("the report tells entries of ", report.entries.size(), " layers, but ", i,
                  " are condensed");
  return {};
}

// Everything but the rows.
struct Outline {
  SessionRecord record;
  std::vector<LayerRecord> layers;

  KvShape shape() const { return {record.model.n_kv_heads, record.model.head_dim}; }
};

Outline read_outline(const CacheReader& reader) {
  Outline out;
  out.record = read_record(reader);
  const Section& logits = reader.section(SectionKind::kLogits);
  const std::uint64_t whole = out.record.model.n_vocab * sizeof(float);
  if (logits.bytes != 0 && logits.bytes != whole)
    reader.reject(concat(logits.name(), " has ", logits.bytes, " bytes, a model of ",
                         out.record.model.n_vocab, " tokens has ", whole));
  for (std::size_t il = 0; il < reader.n_layers(); ++il)
    out.layers.push_back(read_shape(reader, il, out.shape(), out.record.rows));
  if (const auto fault = entries_fault(out.record.meta.report, out.layers)) reader.reject(*fault);
  return out;
}

SessionState read_state(const CacheReader& reader, const Outline& outline) {
  SessionState out;
  out.next_position = outline.record.next_position;
  out.n_read = outline.record.n_read;
  out.rows = outline.record.rows;
  const std::vector<std::uint8_t> logits = reader.read(reader.section(SectionKind::kLogits));
  out.logits.resize(logits.size() / sizeof(float));
  if (!logits.empty()) std::memcpy(out.logits.data(), logits.data(), logits.size());
  for (std::size_t il = 0; il < outline.layers.size(); ++il)
    out.layers.push_back(
        read_rows(reader, il, outline.layers[il], outline.shape(), outline.record.rows));
  return out;
}

CacheSummary summary_of(const CacheReader& reader, Outline outline) {
  CacheSummary out;
  out.version = kCacheVersion;
  out.file_bytes = reader.file_bytes();
  out.next_position = outline.record.next_position;
  out.n_read = outline.record.n_read;
  out.rows = outline.record.rows;
  out.has_logits = reader.section(SectionKind::kLogits).bytes > 0;
  for (const LayerRecord& layer : outline.layers) {
    out.kv_bytes += layer.kv_bytes(outline.shape(), outline.record.rows);
    if (!layer.is_frozen) continue;
    out.n_tail = layer.n_packed + layer.n_tail;
    out.entries.emplace_back();
    for (const HeadRecord& head : layer.heads)
      out.entries.back().push_back(head.n_main + head.n_residual);
  }
  out.model = std::move(outline.record.model);
  out.meta = std::move(outline.record.meta);
  return out;
}

}  // namespace

ModelFingerprint fingerprint_of(const std::string& model_path) {
  // First what fails quickly.
  ModelFingerprint out = shape_fingerprint(read_model_config(model_path));
  out.sha256 = sha256_of_file(model_path);
  return out;
}

void check_same_model(const ModelFingerprint& cached, const ModelFingerprint& model,
                      const std::string& path) {
  if (cached.sha256 == model.sha256 && same_shape(cached, model)) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat("cache file '", path, "' was made with a model of ", described(cached),
                     ", but this model has ", described(model),
                     "; give the model it was made with (-m), or make it again with 'precis cache "
                     "build'"));
}

void save_session(const Session& session, const ModelFingerprint& model, const CacheMeta& meta,
                  const std::string& path) {
  const ModelConfig& config = session.engine()->config();
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("the session cannot be saved to '", path, "': ", why));
  };
  if (!same_shape(model, shape_fingerprint(config)))
    refuse(concat("the fingerprint is of a model of ", described(model), ", the session's has ",
                  config.n_layers, " layers"));
  const SessionState state = session.state();
  const SessionRecord record{model, meta, state.next_position, state.n_read, state.rows};
  if (const auto fault = fault_of(record)) refuse(*fault);
  if (const auto fault = fault_of(state, config)) refuse(*fault);
  const std::string report = report_json(meta.report);
  if (report.size() > kMostReportBytes)
    refuse(concat("its report has ", report.size(), " bytes, at most ", kMostReportBytes,
                  " are read again"));
  std::vector<LayerRecord> layers;
  for (const LayerState& layer : state.layers) layers.push_back(record_of(layer));
  if (const auto fault = entries_fault(meta.report, layers)) refuse(*fault);
  CacheWriter out(path, config.n_layers);
  const std::vector<std::uint8_t> info = encode_info(record);
  out.add(info.data(), info.size());
  out.add(meta.tokens.data(), meta.tokens.size() * sizeof(Token));
  out.add(meta.document.data(), meta.document.size());
  out.add(report.data(), report.size());
  out.add(state.logits.data(), state.logits.size() * sizeof(float));
  for (std::size_t il = 0; il < layers.size(); ++il) write_layer(out, state, layers[il], il);
  out.commit();
}

void check_can_save(const std::string& path) { const DurableFile attempt(path); }

LoadedSession load_session(std::shared_ptr<const Engine> engine, const ModelFingerprint& model,
                           const std::string& path) {
  const CacheReader reader(path);
  Outline outline = read_outline(reader);
  check_same_model(outline.record.model, model, path);
  // A fingerprint of another file than the engine's would let shapes differ.
  check_same_model(
      shape_fingerprint(engine->config()),
      [&] {
        ModelFingerprint shape = model;
        shape.sha256.clear();
        return shape;
      }(),
      path);
  LoadedSession out{Session(std::move(engine)), {}};
  try {
    out.session.resume(read_state(reader, outline));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    reader.reject(error.what());
  }
  out.meta = std::move(outline.record.meta);
  return out;
}

CacheSummary summarise_cache(const std::string& path) {
  const CacheReader reader(path);
  return summary_of(reader, read_outline(reader));
}

CacheSummary verify_cache(const std::string& path) {
  const CacheReader reader(path);
  Outline outline = read_outline(reader);
  const SessionState state = read_state(reader, outline);
  if (const auto fault = fault_of(state, shape_of(outline.record.model))) reader.reject(*fault);
  return summary_of(reader, std::move(outline));
}

}  // namespace precis
