// The product of a weight matrix and a batch of tokens as nodes of a graph: ggml's mul_mat or, for
// batches where it was found to win, a custom node around the f32 product of kernels/matmul.h. Not
// for other folders.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "model/ggml_backend.h"
#include "model/matmul_choice.h"

namespace precis {

class Matmul {
 public:
  Matmul();
  ~Matmul();

  // A weight that the backend has repacked: its rows in the file's own format. Others are read
  // where they are.
  void add_source(const ggml_tensor* weight, ggml_tensor* rows) { sources_[weight] = rows; }
  // Those rows, or the weight itself.
  ggml_tensor* rows_of(ggml_tensor* weight) const;

  // Decides for every kind among `weights`; kAuto measures on the backend.
  void choose(MatmulMode mode, std::span<ggml_tensor* const> weights, Backend::Impl& backend);

  // Products of several matrices [n_in, n_out] with the same x [n_in, n_tokens]: [n_out, n_tokens]
  // each, contiguous. One node does all those that take the f32 product. The nodes hold a pointer
  // to this object. One graph that has such nodes may run at a time.
  std::vector<ggml_tensor*> build(ggml_context* context, std::span<ggml_tensor* const> weights,
                                  ggml_tensor* x) const;

  const MatmulReport& report() const { return report_; }

 private:
  struct Progress;
  using KindKey = std::tuple<ggml_type, std::int64_t, std::int64_t>;

  std::size_t min_tokens(const ggml_tensor* weight) const;
  std::size_t measure(ggml_tensor* weight, Backend::Impl& backend) const;
  ggml_tensor* build_f32(ggml_context* context, std::span<ggml_tensor* const> sources,
                         ggml_tensor* x) const;

  std::unordered_map<const ggml_tensor*, ggml_tensor*> sources_;
  std::map<KindKey, std::size_t> min_tokens_;
  MatmulReport report_;
  std::unique_ptr<Progress> progress_;  // of the node that runs now
};

}  // namespace precis
