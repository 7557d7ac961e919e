// A copy of a GGUF file with its matrices in another type.
#pragma once

#include <ggml-cpp.h>
#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace precis::test {

// May change the quantised rows of a tensor.
using ChangeRows = std::function<void(const std::string& name, std::byte* rows, std::size_t bytes)>;

// f32 matrices whose rows are whole blocks are quantised; all else is copied. Removed at the end.
class RequantisedModel {
 public:
  RequantisedModel(const std::string& source, ggml_type type, const ChangeRows& change = {}) {
    ggml_context* data = nullptr;
    gguf_context_ptr in(gguf_init_from_file(source.c_str(), {false, &data}));
    if (!in) throw std::runtime_error("cannot read " + source);
    const ggml_context_ptr tensors(data);
    gguf_context_ptr out(gguf_init_empty());
    gguf_set_kv(out.get(), in.get());
    const ggml_context_ptr made(ggml_init({std::size_t{64} << 20, nullptr, false}));
    for (ggml_tensor* t = ggml_get_first_tensor(data); t != nullptr;
         t = ggml_get_next_tensor(data, t)) {
      ggml_tensor* put = t;
      if (t->type == GGML_TYPE_F32 && ggml_n_dims(t) == 2 && t->ne[0] % ggml_blck_size(type) == 0) {
        put = ggml_new_tensor_2d(made.get(), type, t->ne[0], t->ne[1]);
        ggml_set_name(put, t->name);
        ggml_quantize_chunk(type, static_cast<const float*>(t->data), put->data, 0, t->ne[1],
                            t->ne[0], nullptr);
        if (change) change(t->name, static_cast<std::byte*>(put->data), ggml_nbytes(put));
      }
      gguf_add_tensor(out.get(), put);
    }
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(test->test_suite_name()) + "." + test->name();
    for (char& c : name)
      if (c == '/') c = '_';
    path_ = (std::filesystem::temp_directory_path() / ("precis-" + name + ".gguf")).string();
    if (!gguf_write_to_file(out.get(), path_.c_str(), false))
      throw std::runtime_error("cannot write " + path_);
  }
  ~RequantisedModel() { std::filesystem::remove(path_); }
  RequantisedModel(const RequantisedModel&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace precis::test
