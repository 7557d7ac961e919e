// Files of condensed sessions: condense a document once, ask about it in many processes. The format
// is in docs/CACHE_FORMAT.md.
//
// A file belongs to the model file that it was made with. Every function throws Error, whose
// message names the file: kIo (cannot be read or written), kFormat (not a cache file, or a damaged
// one: what disagrees, and where), kUnsupported (another version of the format, decode=step),
// kInvalidArgument (another model's file). Nothing that a file says is believed before its checksum
// is right, and no memory is taken beyond the file's size. All functions may run on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compress/report.h"
#include "engine/session.h"

namespace precis {

// Which model a cache belongs to: the file's hash, and the numbers that its shapes come from.
struct ModelFingerprint {
  std::string sha256;  // of the model file, 64 lower-case hexadecimal digits
  std::string arch;
  std::string name;  // general.name, for people
  std::size_t n_layers = 0;
  std::size_t n_embd = 0;
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t n_vocab = 0;
  std::size_t n_ctx_train = 0;
  std::size_t window = 0;
  std::vector<bool> is_sliding;  // [n_layers]
};

// Reads the whole model file, some seconds a GB: once a process is enough.
ModelFingerprint fingerprint_of(const std::string& model_path);

// What a file says of its session beside the session itself.
struct CacheMeta {
  std::string writer;        // the program and its version
  CompressionReport report;  // without mass_ratios, which are not stored
  std::uint64_t seed = 0;
  double prefill_ms = 0;
  double compress_ms = 0;
  // All tokens that the session has read, or none if they are not known.
  std::vector<Token> tokens;
  // The text that they come from, UTF-8, may be empty; and whether it went through the model's chat
  // template: with both, a question can be put as in one prompt.
  std::string document;
  bool use_template = true;
};

// Writes a condensed session, with the tokens it has read since; it is not changed. The file is
// complete or as it was before (store/durable_file.h). Throws Error(kInvalidArgument) too if
// nothing was condensed, or if meta or fingerprint do not fit the session.
void save_session(const Session& session, const ModelFingerprint& model, const CacheMeta& meta,
                  const std::string& path);
// Throws what save_session would throw because of the place, before there is something to save.
void check_can_save(const std::string& path);

struct LoadedSession {
  Session session;  // goes on with the bits of the saved one
  CacheMeta meta;
};
// model: fingerprint_of the engine's file.
LoadedSession load_session(std::shared_ptr<const Engine> engine, const ModelFingerprint& model,
                           const std::string& path);

struct CacheSummary {
  std::uint32_t version = 0;
  std::uint64_t file_bytes = 0;
  ModelFingerprint model;
  CacheMeta meta;
  std::size_t next_position = 0;
  std::size_t n_read = 0;
  RowTypes rows;
  bool has_logits = false;
  std::size_t kv_bytes = 0;                       // as Session::kv_bytes() of the loaded session
  std::size_t n_tail = 0;                         // tokens read after the prompt was condensed
  std::vector<std::vector<std::size_t>> entries;  // [compressible layer][KV head]
};
// All but the rows.
CacheSummary summarise_cache(const std::string& path);
// Reads and checks everything, as load_session does.
CacheSummary verify_cache(const std::string& path);
// Throws Error(kInvalidArgument) with both fingerprints if they differ. path: of the cache file.
void check_same_model(const ModelFingerprint& cached, const ModelFingerprint& model,
                      const std::string& path);

}  // namespace precis
