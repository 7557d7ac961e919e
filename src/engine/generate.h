// Draws an answer from a session, token by token.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/session.h"
#include "model/sampler.h"

namespace precis {

struct GenerateOptions {
  std::size_t max_tokens = 128;
  bool ignore_end = false;  // go on after end-of-generation tokens
  // End with the first line that is not empty; the text then holds nothing after it.
  bool stop_at_newline = false;
};

struct Generation {
  std::string text;           // whole UTF-8 characters only
  std::vector<Token> tokens;  // without the end token
  bool ended = false;         // the model ended the answer itself, or its first line
  double decode_ms = 0;       // time of all extends
  std::size_t n_decoded = 0;  // tokens that went through the model

  double tokens_per_second() const {
    return decode_ms > 0 ? 1000.0 * static_cast<double>(n_decoded) / decode_ms : 0.0;
  }
};

// Starts from session.last_logits(). on_text gets each new stretch of whole characters. Stops at
// max_tokens, at the end token, or when the model's context is full.
Generation generate(Session& session, Sampler& sampler, const GenerateOptions& options,
                    const std::function<void(const std::string&)>& on_text = {},
                    const CallControl& control = {});

}  // namespace precis
