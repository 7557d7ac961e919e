#include "tasks/question_list.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace precis {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpace = " \t\r\n\f\v";

[[noreturn]] void refuse(std::size_t line, const std::string& what) {
  throw Error(ErrorCode::kFormat, concat("line ", line, " of the questions: ", what));
}

std::string stripped(std::string_view line) {
  const std::size_t first = line.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return std::string(line.substr(first, line.find_last_not_of(kSpace) - first + 1));
}

Json read_json(const std::string& text, std::size_t line) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& e) {
    refuse(line, concat("not JSON, at byte ", e.byte));
  } catch (const Json::exception&) {
    refuse(line, "not JSON: a number is too large");
  }
}

TaskQuestion read_object(const std::string& text, std::size_t line) {
  const Json object = read_json(text, line);
  const auto question = object.find("question");
  if (question == object.end()) refuse(line, "field 'question' is missing");
  if (!question->is_string() || stripped(question->get_ref<const std::string&>()).empty())
    refuse(line, "field 'question' is not a text, or empty");
  TaskQuestion out;
  out.text = question->get<std::string>();
  const auto answers = object.find("answers");
  if (answers == object.end() || answers->is_null()) return out;
  const Json list = answers->is_string() ? Json::array({*answers}) : *answers;
  if (!list.is_array()) refuse(line, "field 'answers' is neither a text nor a list of texts");
  for (const Json& answer : list) {
    if (!answer.is_string() || stripped(answer.get_ref<const std::string&>()).empty())
      refuse(line, "an answer is not a text, or empty");
    out.references.push_back(answer.get<std::string>());
  }
  return out;
}

}  // namespace

std::vector<TaskQuestion> parse_questions(std::string_view text) {
  std::vector<TaskQuestion> out;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string line = stripped(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty()) continue;
    if (line.front() == '{') {
      out.push_back(read_object(line, number));
    } else {
      out.emplace_back();
      out.back().text = line;
    }
  }
  if (out.empty())
    throw Error(ErrorCode::kFormat, "there is no question in the list: one a line is expected");
  return out;
}

}  // namespace precis
