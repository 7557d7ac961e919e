#include "model/sampler.h"

#include <llama.h>

#include <cmath>
#include <vector>

#include "base/error.h"

namespace precis {

struct Sampler::Impl {
  std::unique_ptr<llama_sampler, void (*)(llama_sampler*)> chain{nullptr, llama_sampler_free};
  std::vector<llama_token_data> candidates;
};

Sampler::Sampler(const SamplerOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->chain.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  llama_sampler* chain = impl_->chain.get();
  if (options.temperature <= 0.0f) {
    llama_sampler_chain_add(chain, llama_sampler_init_greedy());
    return;
  }
  // llama.cpp's order: top-k, top-p, min-p, temperature, draw.
  llama_sampler_chain_add(chain, llama_sampler_init_top_k(options.top_k));
  llama_sampler_chain_add(chain, llama_sampler_init_top_p(options.top_p, 1));
  llama_sampler_chain_add(chain, llama_sampler_init_min_p(options.min_p, 1));
  llama_sampler_chain_add(chain, llama_sampler_init_temp(options.temperature));
  llama_sampler_chain_add(chain, llama_sampler_init_dist(options.seed));
}

Sampler::~Sampler() = default;

Token Sampler::sample(std::span<const float> logits) {
  std::vector<llama_token_data>& candidates = impl_->candidates;
  candidates.resize(logits.size());
  bool any_finite = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    // NaN must end the answer, not become a stream of one token.
    if (std::isnan(logits[i]))
      throw Error(ErrorCode::kInternal, concat("logit of token ", i, " is not a number"));
    any_finite = any_finite || std::isfinite(logits[i]);
    candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
  }
  if (!any_finite) throw Error(ErrorCode::kInternal, "no logit is finite");
  llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
  llama_sampler_apply(impl_->chain.get(), &array);
  PRECIS_CHECK(array.selected >= 0 && static_cast<std::size_t>(array.selected) < array.size,
               array.selected);
  const Token token = array.data[array.selected].id;
  llama_sampler_accept(impl_->chain.get(), token);
  return token;
}

}  // namespace precis
