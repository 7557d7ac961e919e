// Products of weights and batches as nodes of a graph, for every type of weight, against a loop in
// double precision over the weights as ggml expands them.
#include "model/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/column_products.h"
#include "kernels/expand.h"
#include "model/ggml_backend.h"

namespace precis::test {
namespace {

constexpr ggml_type kTypes[] = {
    GGML_TYPE_F32,     GGML_TYPE_F16,    GGML_TYPE_BF16,  GGML_TYPE_Q4_0,    GGML_TYPE_Q4_1,
    GGML_TYPE_Q5_0,    GGML_TYPE_Q5_1,   GGML_TYPE_Q8_0,  GGML_TYPE_Q2_K,    GGML_TYPE_Q3_K,
    GGML_TYPE_Q4_K,    GGML_TYPE_Q5_K,   GGML_TYPE_Q6_K,  GGML_TYPE_IQ1_S,   GGML_TYPE_IQ1_M,
    GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_S, GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ3_S,
    GGML_TYPE_IQ4_NL,  GGML_TYPE_IQ4_XS, GGML_TYPE_MXFP4, GGML_TYPE_TQ1_0,   GGML_TYPE_TQ2_0};

// A matrix of random weights in some type, in memory of its own.
struct Weight {
  ggml_context_ptr context;
  ggml_tensor* tensor;  // rows as in a file
  std::vector<float> expanded;

  Weight(ggml_type type, std::size_t depth, std::size_t n_rows, unsigned seed = 1)
      : context(ggml_init({ggml_row_size(type, static_cast<std::int64_t>(depth)) * n_rows +
                               2 * ggml_tensor_overhead(),
                           nullptr, false})),
        tensor(ggml_new_tensor_2d(context.get(), type, static_cast<std::int64_t>(depth),
                                  static_cast<std::int64_t>(n_rows))),
        expanded(depth * n_rows) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.1f);
    std::vector<float> values(depth * n_rows), importance(depth, 1.0f);
    for (float& value : values) value = normal(random);
    ggml_quantize_chunk(type, values.data(), tensor->data, 0, static_cast<std::int64_t>(n_rows),
                        static_cast<std::int64_t>(depth), importance.data());
    if (type == GGML_TYPE_F32)
      expanded = values;
    else
      ggml_get_type_traits(type)->to_float(tensor->data, expanded.data(),
                                           static_cast<std::int64_t>(depth * n_rows));
  }
};

std::vector<float> random_rows(std::size_t n_tokens, std::size_t depth) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(n_tokens * depth);
  for (float& value : x) value = normal(random);
  return x;
}

// All products of x with the weights, through a graph on this backend.
std::vector<std::vector<float>> products(Backend& backend, const Matmul& matmul,
                                         std::span<ggml_tensor* const> weights,
                                         const std::vector<float>& x, std::size_t n_runs = 1) {
  const std::int64_t depth = weights[0]->ne[0];
  const auto n_tokens = static_cast<std::int64_t>(x.size()) / depth;
  ggml_context_ptr context(ggml_init(
      {32 * ggml_tensor_overhead() + ggml_graph_overhead_custom(32, false), nullptr, true}));
  ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, depth, n_tokens);
  ggml_set_input(input);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 32, false);
  const auto nodes = matmul.build(context.get(), weights, input);
  for (ggml_tensor* node : nodes) {
    ggml_set_output(node);
    if (node->view_src != nullptr) ggml_set_output(node->view_src);
    ggml_build_forward_expand(graph, node);
  }
  ggml_gallocr_ptr allocator(ggml_gallocr_new(backend.impl().plain_buffer_type()));
  EXPECT_TRUE(ggml_gallocr_alloc_graph(allocator.get(), graph));
  std::memcpy(input->data, x.data(), x.size() * sizeof(float));
  std::vector<std::vector<float>> results;
  for (std::size_t run = 0; run < n_runs; ++run) {
    results.clear();
    for (ggml_tensor* node : nodes) std::memset(node->data, 0xff, ggml_nbytes(node));
    backend.impl().compute(graph, nullptr);
    for (const ggml_tensor* node : nodes) {
      EXPECT_TRUE(ggml_is_contiguous(node));
      const auto* values = static_cast<const float*>(node->data);
      results.emplace_back(values, values + ggml_nelements(node));
    }
  }
  return results;
}

void expect_product(const std::vector<float>& y, const std::vector<float>& x,
                    const std::vector<float>& w, std::size_t depth, const std::string& what) {
  const std::size_t n_rows = w.size() / depth;
  ASSERT_EQ(y.size(), x.size() / depth * n_rows) << what;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const float* a = x.data() + i / n_rows * depth;
    const float* b = w.data() + i % n_rows * depth;
    double sum = 0, size = 0;
    for (std::size_t k = 0; k < depth; ++k) {
      sum += static_cast<double>(a[k]) * b[k];
      size += std::abs(static_cast<double>(a[k]) * b[k]);
    }
    ASSERT_NEAR(y[i], sum, 2e-6 * size + 1e-30) << what << ", element " << i;
  }
}

class MatmulTypes : public testing::TestWithParam<ggml_type> {};

TEST_P(MatmulTypes, AgreeWithDoublesOnAnyNumberOfThreads) {
  // Rows of 512 are two steps of the kernel, of 288 one and a bit.
  const auto block = static_cast<std::size_t>(ggml_blck_size(GetParam()));
  const std::size_t depth = 288 % block == 0 ? 288 : 512;
  Weight weight(GetParam(), depth, 83);
  for (const std::size_t n_tokens : {2, 7, 129}) {
    const std::vector<float> x = random_rows(n_tokens, depth);
    std::vector<float> first;
    for (const std::size_t n_threads : {1, 2, 3, 4}) {
      Backend backend(n_threads);
      Matmul matmul;
      matmul.choose(MatmulMode::kSgemm, {&weight.tensor, 1}, backend.impl());
      const auto y = products(backend, matmul, {&weight.tensor, 1}, x)[0];
      if (first.empty()) {
        first = y;
        expect_product(y, x, weight.expanded, depth, std::to_string(n_tokens) + " tokens");
      }
      ASSERT_EQ(std::memcmp(y.data(), first.data(), y.size() * sizeof(float)), 0)
          << n_threads << " threads, " << n_tokens << " tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MatmulTypes, testing::ValuesIn(kTypes),
                         [](const auto& info) { return std::string(ggml_type_name(info.param)); });

TEST(ExpandBlocks, GivesGgmlsBits) {
  constexpr std::pair<BlockFormat, ggml_type> kFormats[] = {
      {BlockFormat::kQ4_0, GGML_TYPE_Q4_0}, {BlockFormat::kQ4_1, GGML_TYPE_Q4_1},
      {BlockFormat::kQ5_0, GGML_TYPE_Q5_0}, {BlockFormat::kQ5_1, GGML_TYPE_Q5_1},
      {BlockFormat::kQ8_0, GGML_TYPE_Q8_0}, {BlockFormat::kQ6_K, GGML_TYPE_Q6_K}};
  for (const auto& [format, type] : kFormats) {
    // All bits random: every combination of fields, scales with infinities and NaN left out.
    constexpr std::size_t kBlocks = 300;
    const auto block = static_cast<std::size_t>(ggml_blck_size(type));
    const std::size_t bytes = ggml_type_size(type);
    std::vector<std::uint8_t> data(kBlocks * bytes);
    std::mt19937 random(7);
    for (std::uint8_t& byte : data) byte = static_cast<std::uint8_t>(random());
    const std::size_t scale_at = type == GGML_TYPE_Q6_K ? bytes - 2 : 0;
    for (std::size_t b = 0; b < kBlocks; ++b) {
      data[b * bytes + scale_at + 1] &= 0xbb;
      if (type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_1) data[b * bytes + 3] &= 0xbb;
    }
    std::vector<float> expected(kBlocks * block), found(kBlocks * block + 1, 7.0f);
    ggml_get_type_traits(type)->to_float(data.data(), expected.data(),
                                         static_cast<std::int64_t>(expected.size()));
    expand_blocks(format, data.data(), expected.size(), found.data());
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0)
        << ggml_type_name(type);
    EXPECT_EQ(found.back(), 7.0f) << ggml_type_name(type);
  }
}

TEST(MatmulNode, SeveralMatricesAndRepeatedRuns) {
  Weight a(GGML_TYPE_Q4_1, 576, 576, 1), b(GGML_TYPE_F16, 576, 192, 2), c(GGML_TYPE_Q8_0, 576, 40);
  ggml_tensor* const weights[] = {a.tensor, b.tensor, c.tensor};
  const std::vector<float> x = random_rows(150, 576);
  Backend backend(3);
  Matmul matmul;
  matmul.choose(MatmulMode::kSgemm, weights, backend.impl());
  const auto y = products(backend, matmul, weights, x, 3);
  expect_product(y[0], x, a.expanded, 576, "first");
  expect_product(y[1], x, b.expanded, 576, "second");
  expect_product(y[2], x, c.expanded, 576, "third");
}

TEST(MatmulNode, RepackedWeightsAreReadFromTheirSource) {
  Backend backend(2);
  const auto types = backend.impl().weight_buffer_types();
  if (types.size() < 2) {
    ASSERT_FALSE(column_products_available()) << "with AVX2, ggml repacks";
    GTEST_SKIP() << "this backend repacks nothing";
  }
  Weight rows(GGML_TYPE_Q4_0, 512, 64);
  ggml_context_ptr context(ggml_init({2 * ggml_tensor_overhead(), nullptr, true}));
  ggml_tensor* repacked = ggml_dup_tensor(context.get(), rows.tensor);
  ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), types[0]));
  ASSERT_NE(buffer, nullptr);
  ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  ggml_backend_tensor_set(repacked, rows.tensor->data, 0, ggml_nbytes(rows.tensor));
  const std::vector<float> x = random_rows(33, 512);
  Matmul matmul;
  matmul.add_source(repacked, rows.tensor);
  matmul.choose(MatmulMode::kSgemm, {&repacked, 1}, backend.impl());
  expect_product(products(backend, matmul, {&repacked, 1}, x)[0], x, rows.expanded, 512, "f32");
  // And it can be measured: ggml then multiplies the repacked rows, the f32 product the others.
  matmul.choose(MatmulMode::kAuto, {&repacked, 1}, backend.impl());
  EXPECT_EQ(matmul.report().kinds.size(), 1u);
}

TEST(MatmulNode, SingleTokensAndFixedChoiceStayOnGgml) {
  Weight weight(GGML_TYPE_Q4_1, 576, 64), other(GGML_TYPE_Q4_1, 576, 64, 5);
  Backend backend(1);
  ggml_tensor* const weights[] = {weight.tensor, other.tensor};
  const auto op_of = [&](MatmulMode mode, std::int64_t n_tokens) {
    Matmul matmul;
    matmul.choose(mode, weights, backend.impl());
    EXPECT_EQ(matmul.report().kinds.size(), 1u) << "one kind";
    ggml_context_ptr context(ggml_init({16 * ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 576, n_tokens);
    return matmul.build(context.get(), {weights, 1}, x)[0]->op;
  };
  EXPECT_EQ(op_of(MatmulMode::kGgml, 1), GGML_OP_MUL_MAT);
  EXPECT_EQ(op_of(MatmulMode::kGgml, 512), GGML_OP_MUL_MAT);
  EXPECT_EQ(op_of(MatmulMode::kSgemm, 1), GGML_OP_MUL_MAT);
  EXPECT_EQ(op_of(MatmulMode::kSgemm, 2), GGML_OP_CUSTOM);
  EXPECT_EQ(op_of(MatmulMode::kAuto, 1), GGML_OP_MUL_MAT);
}

}  // namespace
}  // namespace precis::test
