// A GGUF file: checked metadata, tensor table and mapped data. ggml's reader aborts on a wrong
// type; the getters here check first and throw, naming the key. Immutable after open.
#pragma once

#include <gguf.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace precis {

class GgufFile {
 public:
  struct Tensor {
    std::string name;
    ggml_type type = GGML_TYPE_F32;
    std::int64_t ne[4] = {1, 1, 1, 1};  // ggml order: fastest first
    std::size_t bytes = 0;
    const void* data = nullptr;  // inside the mapping
  };

  // Opens, checks and maps. Throws Error kIo (missing, a directory, unreadable), kFormat (wrong
  // magic, a git-lfs pointer, cut short: names the tensor and the missing bytes), kUnsupported
  // (split files).
  explicit GgufFile(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  std::size_t file_bytes() const { return file_bytes_; }

  bool has(const std::string& key) const;
  // Missing keys: the optional forms return nothing, the others throw kFormat. Any integer type is
  // taken for an integer if the value fits; f32 and f64 for a float, which must be finite.
  std::optional<std::string> find_string(const std::string& key) const;
  std::optional<std::uint64_t> find_uint(const std::string& key) const;
  std::optional<double> find_float(const std::string& key) const;
  std::optional<bool> find_bool(const std::string& key) const;
  std::string string(const std::string& key) const;
  std::uint64_t uint(const std::string& key) const;
  // A number, or an array whose elements are all equal; throws kUnsupported if they differ.
  std::optional<std::uint64_t> find_uniform_uint(const std::string& key) const;
  // An array of booleans (or integers); nothing if the key is missing or not an array.
  std::optional<std::vector<bool>> find_bools(const std::string& key) const;
  // Length of an array whose elements have the given type; throws kFormat otherwise; 0 if missing.
  std::size_t array_length(const std::string& key, gguf_type element) const;

  // REQUIRES: array_length(key, GGUF_TYPE_STRING) > i.
  std::string_view array_string(const std::string& key, std::size_t i) const;

  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Tensor* find_tensor(const std::string& name) const;

  // Asks the kernel to read the whole mapping now: pages then count as loaded before any work
  // starts.
  void prefault() const;
  // Drops the pages of one tensor after it was copied elsewhere.
  void release_pages(const Tensor& tensor) const;

 private:
  std::int64_t key_id(const std::string& key) const;
  [[noreturn]] void wrong_type(const std::string& key, const char* wanted) const;
  void map();
  void list_tensors();

  std::string path_;
  std::size_t file_bytes_ = 0;
  void* mapping_ = nullptr;
  std::unique_ptr<gguf_context, void (*)(gguf_context*)> gguf_;
  std::vector<Tensor> tensors_;
};

}  // namespace precis
