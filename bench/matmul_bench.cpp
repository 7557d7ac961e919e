// Products of weights and batches of tokens: ggml's mul_mat against the f32 product, on one thread,
// for the shapes and types of the test models, placed as a model places them. Counters: GFLOPS, and
// for single tokens, which are always ggml's, the bytes of weights read.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "model/ggml_backend.h"
#include "model/matmul.h"

namespace {

using precis::MatmulMode;

struct ShapeCase {
  const char* model;
  ggml_type type;
  std::int64_t n_in;
  std::int64_t n_out;
};

constexpr ShapeCase kShapes[] = {
    {"smollm2", GGML_TYPE_Q4_1, 576, 576},       {"smollm2", GGML_TYPE_Q4_1, 576, 1536},
    {"smollm2", GGML_TYPE_Q4_1, 1536, 576},      {"qwen2.5-0.5b", GGML_TYPE_Q5_0, 896, 896},
    {"qwen2.5-0.5b", GGML_TYPE_Q5_0, 896, 4864}, {"qwen2.5-0.5b", GGML_TYPE_Q4_K, 4864, 896},
    {"qwen2.5-0.5b", GGML_TYPE_Q6_K, 4864, 896}, {"gemma3-270m", GGML_TYPE_Q5_0, 640, 2048},
    {"gemma3-270m", GGML_TYPE_Q4_K, 2048, 640},  {"q4_0", GGML_TYPE_Q4_0, 896, 4864},
    {"q8_0", GGML_TYPE_Q8_0, 896, 4864},         {"f16", GGML_TYPE_F16, 896, 4864},
    {"f32", GGML_TYPE_F32, 896, 4864},
};

constexpr std::int64_t kTokens[] = {1, 8, 16, 32, 64, 128, 512};

// One product as a graph that is ready to run.
class Product {
 public:
  Product(const ShapeCase& shape, std::int64_t n_tokens, MatmulMode mode, bool repack)
      : backend_(1),
        data_(ggml_init(
            {ggml_row_size(shape.type, shape.n_in) * static_cast<std::size_t>(shape.n_out) +
                 4 * ggml_tensor_overhead(),
             nullptr, false})),
        context_(ggml_init(
            {16 * ggml_tensor_overhead() + ggml_graph_overhead_custom(16, false), nullptr, true})),
        allocator_(ggml_gallocr_new(backend_.impl().plain_buffer_type())) {
    ggml_tensor* rows = ggml_new_tensor_2d(data_.get(), shape.type, shape.n_in, shape.n_out);
    fill(rows);
    ggml_tensor* weight = rows;
    if (repack) {
      weight = ggml_dup_tensor(context_.get(), rows);
      buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(
          context_.get(), backend_.impl().weight_buffer_types().front()));
      ggml_backend_tensor_set(weight, rows->data, 0, ggml_nbytes(rows));
      matmul_.add_source(weight, rows);
    }
    matmul_.choose(mode, {&weight, 1}, backend_.impl());
    ggml_tensor* x = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, shape.n_in, n_tokens);
    ggml_set_input(x);
    graph_ = ggml_new_graph_custom(context_.get(), 16, false);
    ggml_build_forward_expand(graph_, matmul_.build(context_.get(), {&weight, 1}, x)[0]);
    ggml_gallocr_alloc_graph(allocator_.get(), graph_);
    for (std::int64_t i = 0; i < ggml_nelements(x); ++i)
      static_cast<float*>(x->data)[i] = static_cast<float>(i % 17) / 8.0f - 1.0f;
  }
  void run() { backend_.impl().compute(graph_, nullptr); }

 private:
  static void fill(ggml_tensor* rows) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.1f);
    std::vector<float> values(static_cast<std::size_t>(ggml_nelements(rows)));
    for (float& value : values) value = normal(random);
    ggml_quantize_chunk(rows->type, values.data(), rows->data, 0, rows->ne[1], rows->ne[0],
                        nullptr);
  }

  precis::Backend backend_;
  precis::Matmul matmul_;
  ggml_context_ptr data_;
  ggml_context_ptr context_;
  ggml_gallocr_ptr allocator_;
  ggml_backend_buffer_ptr buffer_;
  ggml_cgraph* graph_ = nullptr;
};

void run_product(benchmark::State& state, const ShapeCase& shape, std::int64_t n_tokens,
                 MatmulMode mode, bool repack) {
  Product product(shape, n_tokens, mode, repack);
  for (auto _ : state) product.run();
  const auto weights = static_cast<double>(shape.n_in * shape.n_out);
  const auto runs = static_cast<double>(state.iterations());
  state.counters["GFLOPS"] = benchmark::Counter(
      2e-9 * weights * static_cast<double>(n_tokens) * runs, benchmark::Counter::kIsRate);
  // What decoding is bound by.
  if (n_tokens == 1)
    state.counters["GB/s"] =
        benchmark::Counter(1e-9 * static_cast<double>(ggml_row_size(shape.type, shape.n_in)) *
                               static_cast<double>(shape.n_out) * runs,
                           benchmark::Counter::kIsRate);
}

// As the weights of a model are placed: repacked where ggml has a faster layout.
bool repacks(ggml_type type) {
  return type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_K || type == GGML_TYPE_IQ4_NL;
}

void register_all() {
  for (const ShapeCase& shape : kShapes) {
    for (const std::int64_t n_tokens : kTokens) {
      for (const MatmulMode mode : {MatmulMode::kGgml, MatmulMode::kSgemm}) {
        if (n_tokens == 1 && mode == MatmulMode::kSgemm) continue;  // always ggml's
        const std::string name = std::string(shape.model) + "/" + ggml_type_name(shape.type) + "/" +
                                 std::to_string(shape.n_in) + "x" + std::to_string(shape.n_out) +
                                 "/" + std::to_string(n_tokens) + "/" +
                                 precis::matmul_mode_name(mode);
        benchmark::RegisterBenchmark(name.c_str(), run_product, shape, n_tokens, mode,
                                     repacks(shape.type))
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  register_all();
  benchmark::RunSpecifiedBenchmarks();
}
