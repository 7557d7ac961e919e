// The attention of the prompt's last queries one row at a time, for scores that are not a sum of
// it.
//
// Costs what HeadView::window_mass() does, plus a conversion of the keys for every row: window *
// group * n_tokens * head_dim multiply-adds, twice.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "compress/stage.h"

namespace precis {

struct AttentionRow {
  std::size_t number = 0;  // rows count from 0, the group's members inside of the tokens
  std::size_t token = 0;
  std::size_t member = 0;  // query head of the group
  float log_sum_exp = 0;
  std::span<const float> attention;  // softmax over the tokens up to its own, [token + 1]
};

// Visits the rows of the last min(window, n_tokens) tokens in order of their number. REQUIRES:
// these queries are observed.
void visit_attention_rows(HeadView& head, std::size_t window,
                          const std::function<void(const AttentionRow&)>& visit);

// The attention outputs of the same rows, sum_j A_j v_j, [rows, head_dim] by number.
std::vector<float> attention_outputs(HeadView& head, std::size_t window);

// Tokens whose queries a scorer reads: the last `window`, or all of them if it is 0.
std::size_t observed_window(int window, std::size_t n_tokens);

// The parameter of methods that sum attention over the whole prompt.
struct AccumulationParams {
  int window = 0;

  template <class V>
  void fields(V&& v) {
    v("window", window, 0, 1 << 20, "last queries whose attention is summed; 0: all");
  }

  std::size_t n_queries(std::size_t n_tokens) const { return observed_window(window, n_tokens); }
};

}  // namespace precis
