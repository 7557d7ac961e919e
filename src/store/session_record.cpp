#include "store/session_record.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"
#include "store/byte_fields.h"
#include "store/report_json.h"

namespace precis {
namespace {

using Fault = std::optional<std::string>;

constexpr std::size_t kHashBytes = 32;
// Of section info without the list of sliding layers and the texts.
constexpr std::size_t kInfoBytes = 136;
constexpr std::uint32_t kFlagTemplate = 1;
// No model comes near these; with them all products of sizes stay far below 2^64.
constexpr std::size_t kMostLayers = 1 << 16;
constexpr std::size_t kMostHeads = 1 << 16;
constexpr std::size_t kMostChannels = 1 << 16;
constexpr std::size_t kMostTokens = std::size_t{1} << 31;
// Of a name or a SPEC: a list of shares for each layer is the longest.
constexpr std::size_t kMostNameBytes = std::size_t{1} << 20;

bool is_utf8(std::string_view text) {
  // By pieces, since what is assembled is copied.
  constexpr std::size_t kPiece = 1 << 16;
  Utf8Assembler characters;
  for (std::size_t i = 0; i < text.size(); i += kPiece) characters.push(text.substr(i, kPiece));
  characters.finish();
  return characters.n_replaced() == 0;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

std::string hash_bytes(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(digit_of(hex[i]) * 16 + digit_of(hex[i + 1]));
  return out;
}

std::string hash_text(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

Fault model_fault(const ModelFingerprint& m) {
  if (m.sha256.size() != 2 * kHashBytes ||
      std::any_of(m.sha256.begin(), m.sha256.end(), [](char c) { return digit_of(c) < 0; }))
    return concat("the model's sha256 has ", m.sha256.size(), " characters, not ", 2 * kHashBytes,
                  " hexadecimal digits");
  const struct {
    const char* what;
    std::size_t value;
    std::size_t most;
  } counts[] = {{"layers", m.n_layers, kMostLayers},
                {"embedding channels", m.n_embd, kMostTokens},
                {"heads", m.n_heads, kMostHeads},
                {"KV heads", m.n_kv_heads, kMostHeads},
                {"channels", m.head_dim, kMostChannels},
                {"vocabulary tokens", m.n_vocab, kMostTokens},
                {"context tokens", m.n_ctx_train, kMostTokens}};
  for (const auto& count : counts)
    if (count.value == 0 || count.value > count.most)
      return concat("the model has ", count.value, " ", count.what, ", which is not within 1 and ",
                    count.most);
  if (m.n_heads % m.n_kv_heads != 0)
    return concat(m.n_heads, " heads are no multiple of ", m.n_kv_heads, " KV heads");
  if (m.is_sliding.size() != m.n_layers)
    return concat(m.is_sliding.size(), " layers are said to slide or not, of ", m.n_layers);
  const bool slides =
      std::find(m.is_sliding.begin(), m.is_sliding.end(), true) != m.is_sliding.end();
  if (m.window >= kMostTokens || (slides && m.window == 0))
    return concat("a sliding window has ", m.window, " tokens");
  return {};
}

RowType row_type_of(const CacheReader& reader, std::uint32_t code) {
  if (code > static_cast<std::uint32_t>(RowType::kQ4))
    reader.reject(concat("row type ", code, ", known are 0 to ",
                         static_cast<std::uint32_t>(RowType::kQ4), " (", row_type_names(), ")"));
  return static_cast<RowType>(code);
}

void decode_info(const CacheReader& reader, SessionRecord& r) {
  const Section& section = reader.section(SectionKind::kInfo);
  const std::size_t n_layers = reader.n_layers();
  if (section.bytes < kInfoBytes + n_layers)
    reader.reject(concat(section.name(), " has ", section.bytes, " bytes, at least ",
                         kInfoBytes + n_layers, " are needed for ", n_layers, " layers"));
  const std::vector<std::uint8_t> bytes = reader.read(section);
  ByteReader in(bytes);
  ModelFingerprint& m = r.model;
  m.sha256 = hash_text(in.text(kHashBytes));
  for (std::size_t* number : {&m.n_layers, &m.n_embd, &m.n_heads, &m.n_kv_heads, &m.head_dim,
                              &m.n_vocab, &m.n_ctx_train, &m.window})
    *number = in.number<std::uint32_t>();
  r.next_position = in.number<std::uint64_t>();
  r.n_read = in.number<std::uint64_t>();
  r.meta.seed = in.number<std::uint64_t>();
  r.meta.prefill_ms = in.number<double>();
  r.meta.compress_ms = in.number<double>();
  r.rows.keys = row_type_of(reader, in.number<std::uint32_t>());
  r.rows.values = row_type_of(reader, in.number<std::uint32_t>());
  const auto flags = in.number<std::uint32_t>();
  if (flags > kFlagTemplate)
    reader.reject(
        concat(section.name(), " has flags ", flags, ", known are up to ", kFlagTemplate));
  r.meta.use_template = flags == kFlagTemplate;
  std::uint32_t lengths[5];
  std::uint64_t total = kInfoBytes + n_layers;
  for (std::uint32_t& length : lengths) total += length = in.number<std::uint32_t>();
  if (m.n_layers != n_layers)
    reader.reject(concat("the model has ", m.n_layers, " layers but the table ", n_layers));
  if (total != section.bytes)
    reader.reject(concat(section.name(), " has ", section.bytes, " bytes, its texts need ", total));
  for (const char sliding : in.text(n_layers)) {
    if (sliding != 0 && sliding != 1)
      reader.reject(concat("a layer slides by ", static_cast<int>(sliding), ", not 0 or 1"));
    m.is_sliding.push_back(sliding == 1);
  }
  std::string* const texts[] = {&m.arch, &m.name, &r.meta.report.method, &r.meta.report.keep,
                                &r.meta.writer};
  for (std::size_t i = 0; i < std::size(texts); ++i) *texts[i] = in.text(lengths[i]);
}

}  // namespace

std::vector<std::uint8_t> encode_info(const SessionRecord& r) {
  ByteWriter out;
  const ModelFingerprint& m = r.model;
  const std::string* const texts[] = {&m.arch, &m.name, &r.meta.report.method, &r.meta.report.keep,
                                      &r.meta.writer};
  out.text(hash_bytes(m.sha256));
  for (const std::size_t number : {m.n_layers, m.n_embd, m.n_heads, m.n_kv_heads, m.head_dim,
                                   m.n_vocab, m.n_ctx_train, m.window})
    out.number(static_cast<std::uint32_t>(number));
  out.number(std::uint64_t{r.next_position});
  out.number(std::uint64_t{r.n_read});
  out.number(r.meta.seed);
  out.number(r.meta.prefill_ms);
  out.number(r.meta.compress_ms);
  out.number(static_cast<std::uint32_t>(r.rows.keys));
  out.number(static_cast<std::uint32_t>(r.rows.values));
  out.number(r.meta.use_template ? kFlagTemplate : std::uint32_t{0});
  for (const std::string* text : texts) out.number(static_cast<std::uint32_t>(text->size()));
  PRECIS_CHECK(out.bytes().size() == kInfoBytes, out.bytes().size());
  for (const bool sliding : m.is_sliding) out.number(std::uint8_t{sliding});
  for (const std::string* text : texts) out.text(*text);
  return out.bytes();
}

SessionRecord read_record(const CacheReader& reader) {
  SessionRecord r;
  decode_info(reader, r);
  const Section& tokens = reader.section(SectionKind::kTokens);
  if (tokens.bytes % sizeof(Token) != 0 || tokens.bytes / sizeof(Token) > kMostTokens)
    reader.reject(concat(tokens.name(), " has ", tokens.bytes, " bytes, a token has ",
                         sizeof(Token), ", and ", kMostTokens, " are the most"));
  const std::vector<std::uint8_t> ids = reader.read(tokens);
  r.meta.tokens.resize(ids.size() / sizeof(Token));
  if (!ids.empty()) std::memcpy(r.meta.tokens.data(), ids.data(), ids.size());
  const std::vector<std::uint8_t> text = reader.read(reader.section(SectionKind::kText));
  r.meta.document.assign(text.begin(), text.end());
  const Section& report = reader.section(SectionKind::kReport);
  if (report.bytes > kMostReportBytes)
    reader.reject(concat(report.name(), " has ", report.bytes, " bytes, at most ", kMostReportBytes,
                         " are read"));
  const std::vector<std::uint8_t> json = reader.read(report);
  const std::string_view json_text(reinterpret_cast<const char*>(json.data()), json.size());
  if (const Fault fault = parse_report(json_text, r.meta.report))
    reader.reject(concat(report.name(), ": ", *fault));
  if (const Fault fault = fault_of(r)) reader.reject(*fault);
  return r;
}

std::optional<std::string> fault_of(const SessionRecord& r) {
  if (Fault fault = model_fault(r.model)) return fault;
  const std::vector<Token>& tokens = r.meta.tokens;
  if (!tokens.empty() && tokens.size() != r.n_read)
    return concat("there are ", tokens.size(), " tokens but ", r.n_read, " were read");
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || static_cast<std::size_t>(tokens[i]) >= r.model.n_vocab)
      return concat("token ", i, " is ", tokens[i], " but the model has ", r.model.n_vocab);
  if (!is_utf8(r.meta.document)) return "the document's text is not valid UTF-8";
  for (const std::string* text :
       {&r.model.arch, &r.meta.report.method, &r.meta.report.keep, &r.meta.writer})
    if (text->size() > kMostNameBytes || !is_utf8(*text))
      return concat("a name or SPEC of ", text->size(), " bytes is longer than ", kMostNameBytes,
                    " or not valid UTF-8");
  for (const double ms : {r.meta.prefill_ms, r.meta.compress_ms})
    if (!std::isfinite(ms)) return concat("a time is ", ms, " ms");
  return {};
}

ModelConfig shape_of(const ModelFingerprint& m) {
  ModelConfig c;
  c.arch = m.arch;
  c.n_layers = m.n_layers;
  c.n_embd = m.n_embd;
  c.n_heads = m.n_heads;
  c.n_kv_heads = m.n_kv_heads;
  c.head_dim = m.head_dim;
  c.n_vocab = m.n_vocab;
  c.n_ctx_train = m.n_ctx_train;
  c.window = m.window;
  c.is_sliding = m.is_sliding;
  return c;
}

}  // namespace precis
