// A person's own questions about a document, from a file.
#pragma once

#include <string_view>
#include <vector>

#include "tasks/sample.h"

namespace precis {

// A question a line: as plain text, or as a JSON object with "question" and, if answers are to be
// scored, "answers" (a text or a list of texts). Empty lines are skipped. Throws Error(kFormat),
// naming the line and the field; also if there is no question.
std::vector<TaskQuestion> parse_questions(std::string_view text);

}  // namespace precis
