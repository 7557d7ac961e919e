// Damaged files: each is refused with a reason that names the file, and nothing else happens. Half
// of them have all their checksums made right again, as a file would that was made to do harm.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <functional>
#include <random>

#include "store/cache_checks.h"

namespace precis::test {
namespace {

constexpr std::size_t kPrompt = 150;  // long enough for residual entries
constexpr std::size_t kFileSections = 5;

// One saved session, with biases, residual entries and a tail.
class CacheDamage : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    engine_ = tiny_engine(GetParam());
    model_ = fingerprint_of(tiny_model(GetParam()));
    const auto tokens = random_tokens(kPrompt + 9, engine_->config().n_vocab, 5);
    Session session(engine_);
    const auto report =
        session.condense(std::span(tokens).first(kPrompt),
                         request("selkv residual=reskv(validate=off,parts=0.5)", "60%"));
    session.extend(std::span(tokens).subspan(kPrompt));
    path_ = folder_.file("cache");
    save_session(session, model_, meta_of(report, tokens), path_);
    whole_ = read_bytes(path_);
    layer_ = engine_->compressible_indices()[0];
  }

  void TearDown() override { RecordProperty("files", static_cast<int>(n_files_)); }

  // Refused by every way to read it that looks at what is damaged.
  void refused(const Bytes& bytes, const std::string& what, const std::string& words = "") {
    ++n_files_;
    ASSERT_NE(bytes, whole_) << what;
    write_bytes(path_, bytes);
    std::string message;
    try {
      load_session(engine_, model_, path_);
      ADD_FAILURE() << what << ": was loaded";
    } catch (const Error& error) {
      message = error.what();
      EXPECT_NE(error.code(), ErrorCode::kIo) << what;
    }
    EXPECT_NE(message.find(path_), std::string::npos) << what << ": " << message;
    EXPECT_NE(message.find(words), std::string::npos) << what << ": " << message;
    try {
      summarise_cache(path_);
    } catch (const Error&) {  // it does not look at rows
    }
  }
  // With right checksums.
  void refused_signed(const std::string& what, const std::string& words,
                      const std::function<void(CacheBytes&)>& change) {
    CacheBytes file(whole_);
    change(file);
    file.sign();
    refused(file.bytes(), what, words);
  }
  template <class T>
  void refused_values(const std::string& what, std::size_t at, const std::vector<T>& values) {
    const T own = CacheBytes(whole_).number<T>(at);
    for (const T value : values) {
      if (std::memcmp(&value, &own, sizeof own) == 0) continue;
      refused_signed(what + " " + std::to_string(value), "",
                     [&](CacheBytes& f) { f.set(at, value); });
    }
  }
  // Of a count or a size: everything that could overflow, and its neighbours.
  void refused_counts(const std::string& what, std::size_t at) {
    const auto own = CacheBytes(whole_).number<std::uint64_t>(at);
    refused_values<std::uint64_t>(
        what, at,
        {own + 1, own + 64, own + (std::uint64_t{1} << 32), std::uint64_t{1} << 31,
         std::uint64_t{1} << 48, std::uint64_t{1} << 63, UINT64_MAX - 62, UINT64_MAX});
    if (own > 0) refused_values<std::uint64_t>(what, at, {0});
  }
  std::size_t section(SectionKind kind, std::size_t layer = 0) const {
    return section_index(kind, layer);
  }
  std::size_t start(SectionKind kind, std::size_t layer = 0) const {
    return CacheBytes(whole_).offset(section(kind, layer));
  }
  // Where the arrays of head 0 of the first condensed layer begin: keys, values, biases, positions,
  // and the same of residual entries, without positions. All f16.
  std::vector<std::size_t> arrays() const {
    const CacheBytes file(whole_);
    const std::size_t shape = start(SectionKind::kShape, layer_);
    const std::size_t n = file.number<std::uint64_t>(shape + 32);
    const std::size_t n_residual = file.number<std::uint64_t>(shape + 40);
    EXPECT_GT(n_residual, 0u);
    const std::size_t width = 2 * engine_->config().head_dim;
    std::vector<std::size_t> out{start(SectionKind::kRows, layer_)};
    for (const std::size_t bytes :
         {n * width, n * width, n * 4, n * 4, n_residual * width, n_residual * width})
      out.push_back(out.back() + (bytes + 63) / 64 * 64);
    return out;
  }

  ScratchFolder folder_;
  std::shared_ptr<const Engine> engine_;
  ModelFingerprint model_;
  std::string path_;
  Bytes whole_;
  std::size_t layer_ = 0;
  std::size_t n_files_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Tiny, CacheDamage, testing::Values("llama", "gemma3"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(CacheDamage, BitsThatFlip) {
  std::mt19937 draw(1);
  for (int i = 0; i < 250; ++i) {
    Bytes bytes = whole_;
    const std::size_t at = draw() % bytes.size();
    const int bit = static_cast<int>(draw() % 8);
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
    refused(bytes, "bit " + std::to_string(bit) + " of byte " + std::to_string(at));
  }
  for (std::size_t at = 0; at < kHeaderBytes; ++at) {
    Bytes bytes = whole_;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    refused(bytes, "byte " + std::to_string(at) + " of the header");
  }
}

TEST_P(CacheDamage, CutsAndWhatIsBehindTheEnd) {
  const CacheBytes file(whole_);
  std::vector<std::size_t> ends{0, 1, 8, 12, 63, 64, 65, 96, whole_.size() / 2};
  for (std::size_t i = 0; i < file.n_sections(); ++i)
    for (const std::size_t end : {file.offset(i), file.offset(i) + file.size(i)})
      for (const std::size_t at : {end - 1, end, end + 1}) ends.push_back(at);
  for (const std::size_t end : ends) {
    if (end >= whole_.size()) continue;
    Bytes bytes(whole_.begin(), whole_.begin() + static_cast<std::ptrdiff_t>(end));
    refused(bytes, "cut at " + std::to_string(end));
    if (end < kHeaderBytes) continue;
    // The same with a header that knows.
    CacheBytes cut(bytes);
    cut.set(16, std::uint64_t{end});
    cut.sign();
    refused(cut.bytes(), "cut and signed at " + std::to_string(end));
  }
  Bytes longer = whole_;
  longer.push_back(0);
  refused(longer, "a byte more", "grown");
  longer.resize(whole_.size() + 64);
  CacheBytes grown(longer);
  grown.set(16, std::uint64_t{longer.size()});
  grown.sign();
  refused(grown.bytes(), "64 bytes more, signed", "last section");
}

TEST_P(CacheDamage, SectionsThatChangedPlaces) {
  const CacheBytes file(whole_);
  for (std::size_t i = 0; i + 1 < file.n_sections(); ++i) {
    // In the table.
    refused_signed("entries " + std::to_string(i), "", [&](CacheBytes& f) {
      std::swap_ranges(f.bytes().begin() + static_cast<std::ptrdiff_t>(f.entry(i)),
                       f.bytes().begin() + static_cast<std::ptrdiff_t>(f.entry(i + 1)),
                       f.bytes().begin() + static_cast<std::ptrdiff_t>(f.entry(i + 1)));
    });
    // Contents of two layers, with their checksums.
    const std::size_t next = i + kLayerSections;
    if (i < kFileSections || next >= file.n_sections() || file.size(i) != file.size(next)) continue;
    CacheBytes f(whole_);
    const auto at = [&](std::size_t byte) {
      return f.bytes().begin() + static_cast<std::ptrdiff_t>(byte);
    };
    std::swap_ranges(at(f.offset(i)), at(f.offset(i) + f.size(i)), at(f.offset(next)));
    std::swap_ranges(at(f.entry(i) + 24), at(f.entry(i) + 32), at(f.entry(next) + 24));
    f.set(24, checksum_of(f.bytes().data() + 64, (f.n_sections() * 32 + 63) / 64 * 64));
    f.set(56, checksum_of(f.bytes().data(), 56));
    if (f.bytes() != whole_) refused(f.bytes(), "contents " + std::to_string(i), "checksum");
  }
}

TEST_P(CacheDamage, HeaderAndTableWithRightChecksums) {
  refused_signed("magic", "PRECISKV", [](CacheBytes& f) { f.set(0, 'p'); });
  refused_signed("version", "version 2", [](CacheBytes& f) { f.set(8, std::uint32_t{2}); });
  refused_values<std::uint32_t>("sections", 12, {0, 1, 5, 6, 7, 9, 1u << 20, 1u << 31, UINT32_MAX});
  refused_counts("file's bytes", 16);
  const CacheBytes file(whole_);
  for (std::size_t i = 0; i < file.n_sections(); ++i) {
    const std::string name = "section " + std::to_string(i);
    refused_values<std::uint32_t>(name + ", kind", file.entry(i), {0, 8, UINT32_MAX});
    refused_values<std::uint32_t>(name + ", layer", file.entry(i) + 4, {999, UINT32_MAX - 1});
    refused_counts(name + ", offset", file.entry(i) + 8);
    // A text may end where it likes.
    if (i != section(SectionKind::kText)) refused_counts(name + ", bytes", file.entry(i) + 16);
  }
}

TEST_P(CacheDamage, InfoWithRightChecksums) {
  const std::size_t info = start(SectionKind::kInfo);
  refused_signed("hash", "sha256", [&](CacheBytes& f) { f.set(info, std::uint64_t{1}); });
  for (std::size_t at = 32; at < 60; at += 4)
    refused_values<std::uint32_t>("number at " + std::to_string(at), info + at,
                                  {0, 1, 3, 65537, 1u << 31, UINT32_MAX});
  refused_values<std::uint32_t>("window", info + 60, {1, 1u << 31, UINT32_MAX});
  refused_counts("next position", info + 64);
  refused_counts("tokens read", info + 72);
  for (const std::size_t at : {88, 96})
    refused_values<double>("time", info + at, {NAN, INFINITY, -INFINITY});
  for (const std::size_t at : {104, 108})
    refused_values<std::uint32_t>("row type", info + at, {3, 1u << 31, UINT32_MAX});
  refused_values<std::uint32_t>("flags", info + 112, {2, 3, UINT32_MAX});
  for (std::size_t at = 116; at < 136; at += 4)
    refused_values<std::uint32_t>("length at " + std::to_string(at), info + at,
                                  {1000, 1u << 31, UINT32_MAX});
  refused_signed("sliding", "", [&](CacheBytes& f) { f.set(info + 136, char{2}); });
  refused_signed("sliding", "", [&](CacheBytes& f) {
    f.set(info + 136 + layer_, char{1});
    f.set(info + 60, std::uint32_t{4});
  });
  refused_signed("arch", "",
                 [&](CacheBytes& f) { f.set(info + 136 + engine_->config().n_layers, char{'x'}); });
  refused_signed("token", "token 1 is",
                 [&](CacheBytes& f) { f.set(start(SectionKind::kTokens) + 4, std::int32_t{-1}); });
  refused_signed("token", "token 0 is", [&](CacheBytes& f) {
    f.set(start(SectionKind::kTokens), static_cast<std::int32_t>(engine_->config().n_vocab));
  });
  refused_signed("text", "UTF-8", [&](CacheBytes& f) { f.set(start(SectionKind::kText), '\xc0'); });
  for (const float wrong : {NAN, INFINITY})
    refused_signed("logit", "logit",
                   [&](CacheBytes& f) { f.set(start(SectionKind::kLogits) + 8, wrong); });
}

TEST_P(CacheDamage, ReportsWithRightChecksums) {
  const std::size_t at = start(SectionKind::kReport);
  const std::size_t n = CacheBytes(whole_).size(section(SectionKind::kReport));
  const auto begins = [&](const std::string& text, const char* words) {
    refused_signed("report " + text.substr(0, 20), words, [&](CacheBytes& f) {
      for (std::size_t i = 0; i < n; ++i) f.set(at + i, i < text.size() ? text[i] : ' ');
    });
  };
  begins("", "not JSON");
  begins("[1]", "not a JSON object");
  begins("{}", "missing");
  begins(std::string(n, '['), "deep");
  begins("{\"a\":\"\xff\"}", "not JSON");
  const std::string report(whole_.begin() + static_cast<std::ptrdiff_t>(at),
                           whole_.begin() + static_cast<std::ptrdiff_t>(at + n));
  const auto without = [&](const std::string& from, const std::string& to, const char* words) {
    std::string text = report;
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    ASSERT_LE(text.size(), n);
    begins(text, words);
  };
  without("\"n_routed\":", "\"n_ruoted\":", "n_routed");
  std::string other = report;
  const std::string entries = "\"entries\":[[";
  char& digit = other[other.find(entries) + entries.size()];
  digit = digit == '9' ? '8' : '9';
  begins(other, "but the report says");
  without("\"entries\":[[", "\"entries\":{ ", "not JSON");
  without("\"f16\"", "\"f18\"", "row type");
}

TEST_P(CacheDamage, ShapesWithRightChecksums) {
  for (std::size_t il = 0; il < engine_->config().n_layers; ++il) {
    const std::size_t shape = start(SectionKind::kShape, il);
    const std::string name = "layer " + std::to_string(il);
    refused_counts(name + ", packed rows", shape);
    refused_counts(name + ", tail", shape + 8);
    refused_values<std::int32_t>(name + ", tail's position", shape + 16,
                                 {-1, 0, 5, INT32_MIN, INT32_MAX});
    const auto flags = CacheBytes(whole_).number<std::uint32_t>(shape + 24);
    refused_values<std::uint32_t>(name + ", flags", shape + 24,
                                  {flags ^ 1, flags | 8, flags | 1u << 31});
    if (flags == 0) continue;
    refused_values<std::uint32_t>(name + ", flags", shape + 24, {flags ^ 2, flags ^ 4});
    for (std::size_t h = 0; h < engine_->config().n_kv_heads; ++h) {
      const std::size_t head = shape + 32 + h * 32;
      const std::string which = name + ", head " + std::to_string(h);
      refused_counts(which + ", entries", head);
      refused_counts(which + ", residual entries", head + 8);
      for (std::size_t i = 16; i < 20; ++i)
        refused_values<std::uint8_t>(which + ", row type", head + i, {3, 255});
      refused_values<std::uint8_t>(which + ", row type", head + 16, {1, 2});
      refused_values<float>(which + ", gate", head + 20, {0, -1, 2, NAN, INFINITY});
      refused_values<float>(which + ", gate", head + 24, {0, -1, 2, NAN, INFINITY});
      refused_values<float>(which + ", gate", head + 28, {-1, 2, NAN, INFINITY});
    }
  }
}

TEST_P(CacheDamage, RowsWithRightChecksums) {
  const std::vector<std::size_t> at = arrays();
  const CacheBytes file(whole_);
  const auto changed = [&](const char* what, const char* words, std::size_t where, auto value) {
    refused_signed(what, words, [&](CacheBytes& f) { f.set(where, value); });
  };
  for (const auto bits : std::vector<std::uint16_t>{0x7c00, 0xfc00, 0x7e01}) {
    changed("key", "finite", at[0] + 6, bits);
    changed("value", "finite", at[1], bits);
    changed("residual key", "finite", at[4], bits);
    changed("residual value", "finite", at[5], bits);
    // The last array of the layer, a head's values of the tail.
    const std::size_t rows = section(SectionKind::kRows, layer_);
    const std::size_t tail = 9 * engine_->config().head_dim * 2;
    changed("tail", "tail", file.offset(rows) + file.size(rows) - (tail + 63) / 64 * 64, bits);
  }
  for (const float bias : {NAN, INFINITY, -INFINITY}) {
    changed("bias", "bias of entry 0", at[2], bias);
    changed("residual bias", "bias of entry 0", at[6], bias);
  }
  changed("position", "stands at", at[3] + 4, file.number<std::int32_t>(at[3]));
  changed("position", "stands at", at[3], std::int32_t{-1});
  changed("position", "stands at", at[3], INT32_MIN);
  changed("position", "stands at", at[3], INT32_MAX);
  changed("position", "stands at", at[3], static_cast<std::int32_t>(kPrompt));
  changed("gap", "not 0", start(SectionKind::kText) + 63, char{1});
}

TEST(CacheDamageOfQuantisedRows, WhatNoPackingMakesIsRefused) {
  const auto engine = tiny_engine("qwen2-hd32");
  const auto model = fingerprint_of(tiny_model("qwen2-hd32"));
  const auto tokens = random_tokens(kPrompt, engine->config().n_vocab, 5);
  const ScratchFolder folder;
  const std::string path = folder.file("cache");
  for (const RowType type : {RowType::kQ8_0, RowType::kQ4}) {
    CondenseRequest req = request("full", "100%");
    req.rows = {type, type};
    Session session(engine);
    const auto report = session.condense(tokens, req);
    save_session(session, model, meta_of(report), path);
    const Bytes whole = read_bytes(path);
    // Some layers keep finer keys: the values are as asked for.
    const CacheBytes file(whole);
    const std::size_t shape = file.offset(section_index(SectionKind::kShape, 0));
    const auto key_type = static_cast<RowType>(file.number<std::uint8_t>(shape + 48));
    const std::size_t values = file.offset(section_index(SectionKind::kRows, 0)) +
                               (key_bytes(key_type, 32, kPrompt) + 63) / 64 * 64;
    const std::size_t scale = values + 32 * 32 / (type == RowType::kQ4 ? 2 : 1);
    const auto refused = [&](std::size_t at, auto value) {
      SCOPED_TRACE(row_type_name(type));
      CacheBytes changed(whole);
      changed.set(at, value);
      changed.sign();
      write_bytes(path, changed.bytes());
      const auto message = error_of(ErrorCode::kFormat, [&] { load_session(engine, model, path); });
      EXPECT_NE(message.find("not a finite number"), std::string::npos) << message;
    };
    refused(scale, std::uint16_t{0x7c00});
    refused(scale, std::uint16_t{0x7e00});
    refused(scale, std::uint16_t{0xbc00});  // -1
    if (type == RowType::kQ8_0) refused(values, std::uint8_t{0x80});
    // Positions that are not stored count from the first.
    for (const std::int32_t first : {-1, 1, INT32_MAX}) {
      CacheBytes moved(whole);
      moved.set(shape + 20, first);
      moved.sign();
      write_bytes(path, moved.bytes());
      const auto message = error_of(ErrorCode::kFormat, [&] { load_session(engine, model, path); });
      EXPECT_NE(message.find("stands at position"), std::string::npos) << message;
    }
  }
}

TEST(CacheOfAnotherModel, IsRefusedWithBothFingerprints) {
  const ScratchFolder folder;
  const std::string path = folder.file("cache");
  const auto engine = tiny_engine("llama");
  const auto model = fingerprint_of(tiny_model("llama"));
  Session session(engine);
  const auto tokens = random_tokens(kPrompt, engine->config().n_vocab, 5);
  save_session(
      session, model, [&] { return meta_of(session.condense(tokens, request("full", "100%"))); }(),
      path);
  const auto refused = [&](const std::string& name) {
    const auto other = fingerprint_of(name);
    const auto message = error_of(ErrorCode::kInvalidArgument, [&] {
      load_session(Engine::load(name, {.n_threads = 1}), other, path);
    });
    EXPECT_NE(message.find(model.sha256), std::string::npos) << message;
    EXPECT_NE(message.find(other.sha256), std::string::npos) << message;
    EXPECT_NE(message.find(path), std::string::npos) << message;
  };
  refused(tiny_model("qwen2"));
  refused(tiny_model("llama-hd64"));
  // The same shapes, other weights.
  const std::string twin = folder.file("twin.gguf");
  Bytes bytes = read_bytes(tiny_model("llama"));
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  write_bytes(twin, bytes);
  refused(twin);
  // A fingerprint that is not the engine's.
  error_of(ErrorCode::kInvalidArgument,
           [&] { load_session(tiny_engine("llama-hd64"), model, path); });
}

TEST(CacheDamagePlaces, WhatIsNoFile) {
  const auto engine = tiny_engine("llama");
  const ScratchFolder folder;
  for (const std::string& path : {folder.file("none"), folder.file(""), std::string("/dev/null")}) {
    const auto message = error_of(ErrorCode::kIo, [&] { load_session(engine, {}, path); });
    EXPECT_NE(message.find(path), std::string::npos) << message;
  }
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  error_of(ErrorCode::kIo, [&] { summarise_cache(pipe); });
}

}  // namespace
}  // namespace precis::test
