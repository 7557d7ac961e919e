#include "app/row_type_options.h"

#include <string>

namespace precis::app {
namespace {

void add_one(CLI::App& command, const char* name, const char* variable, const std::string& what,
             RowType& type) {
  const auto set = [&type](const std::string& text) {
    const auto found = find_row_type(text);
    if (!found)
      throw CLI::ValidationError("'" + text + "' is not a row type; known: " + row_type_names());
    type = *found;
  };
  command
      .add_option_function<std::string>(name, set,
                                        "How cached " + what + " are stored: " + row_type_names() +
                                            " (default f16); also -ct" + what.substr(0, 1))
      ->envname(variable);
}

}  // namespace

void add_row_types(CLI::App& command, RowTypes& rows) {
  add_one(command, "--cache-type-k", "PRECIS_ARG_CACHE_TYPE_K", "keys", rows.keys);
  add_one(command, "--cache-type-v", "PRECIS_ARG_CACHE_TYPE_V", "values", rows.values);
}

}  // namespace precis::app
