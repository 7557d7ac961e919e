// Graph nodes for src/kernels/column_products.h: the columns of x are quantised once, and every
// matrix that multiplies x with formats of the same block shares them. Not for other folders.
#pragma once

#include <atomic>
#include <deque>
#include <utility>
#include <vector>

#include "kernels/column_products.h"
#include "model/ggml_backend.h"

namespace precis {

// The nodes of one graph; must outlive it.
class ColumnNodes {
 public:
  // Which formats may be used: those whose kernels give this backend's own bits for one column
  // (tried out on random numbers, as other variants of ggml may sum in another order), for rows as
  // in the file or for rows that the backend has repacked.
  struct Format {
    ColumnFormat format;
    bool is_repacked;
  };
  using Formats = std::vector<Format>;
  static Formats find_formats(Backend::Impl& backend);

  explicit ColumnNodes(Formats formats) : formats_(std::move(formats)) {}

  // weight * x, or nullptr if these kernels are not for the weight. `rows` are the weight's in the
  // file's format: itself, unless it was repacked. x is [width, n], contiguous.
  ggml_tensor* multiply(ggml_context* context, const ggml_tensor* weight, const ggml_tensor* rows,
                        ggml_tensor* x);
  // Before every run of the graph.
  void start();

 private:
  struct Product {
    const ggml_tensor* rows = nullptr;
    ColumnFormat format = ColumnFormat::kQ8_0;
    std::atomic<std::size_t> next_row{0};
  };
  // What was quantised last in blocks of a size, and into what.
  struct Quantised {
    std::size_t block = 0;
    ggml_tensor* source = nullptr;
    ggml_tensor* columns = nullptr;
  };
  static void quantise_node(ggml_tensor* dst, int ith, int nth, void* block) noexcept;
  static void multiply_node(ggml_tensor* dst, int ith, int nth, void* data) noexcept;

  Formats formats_;
  std::deque<Product> products_;  // addresses must not change
  Quantised quantised_[2] = {{32, nullptr, nullptr}, {256, nullptr, nullptr}};
};

}  // namespace precis
