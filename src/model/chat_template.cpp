#include "model/chat_template.h"

#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <json.h>

#include "base/error.h"

namespace precis {

struct ChatTemplate::Impl {
  std::string source;
  std::string bos_text;
  std::string eos_text;
  jinja::program program;
};

ChatTemplate::ChatTemplate(const std::string& source, std::string bos_text, std::string eos_text)
    : impl_(std::make_unique<Impl>()) {
  impl_->source = source;
  impl_->bos_text = std::move(bos_text);
  impl_->eos_text = std::move(eos_text);
  try {
    jinja::lexer lexer;
    auto tokens = lexer.tokenize(source);
    impl_->program = jinja::parse_from_tokens(tokens);
  } catch (const std::exception& e) {
    throw Error(ErrorCode::kFormat, concat("the model's chat template does not parse: ", e.what()));
  }
}

ChatTemplate::~ChatTemplate() = default;

std::vector<PromptPart> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                             bool add_generation_prompt) const {
  try {
    common_json list = common_json::array();
    for (const ChatMessage& m : messages) {
      common_json item = common_json::object();
      item["role"] = m.role;
      item["content"] = m.content;
      list.push_back(item);
    }
    common_json input = common_json::object();
    input["messages"] = list;
    input["bos_token"] = impl_->bos_text;
    input["eos_token"] = impl_->eos_text;
    input["add_generation_prompt"] = add_generation_prompt;
    jinja::context context(impl_->source);
    jinja::global_from_json(context, input, /*mark_input=*/true);
    jinja::runtime runtime(context);
    const jinja::value result = runtime.execute(impl_->program);
    const auto strings = jinja::runtime::gather_string_parts(result);
    std::vector<PromptPart> parts;
    for (const auto& part : strings->as_string().parts)
      if (!part.val.empty()) parts.push_back({part.val, part.is_input});
    return parts;
  } catch (const std::exception& e) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("the model's chat template refuses these messages: ", e.what()));
  }
}

}  // namespace precis
