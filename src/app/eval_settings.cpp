#include "app/eval_settings.h"

#include "app/method_list.h"

namespace precis::app {

void EvalSettings::remember(const CLI::Option& option, std::function<Texts()> values) {
  settings_.push_back({option.get_lnames().front(), std::move(values)});
}

CLI::Option* EvalSettings::text(const std::string& names, std::string& into,
                                const std::string& help) {
  CLI::Option* option = parser_.add_option(names, into, help)->capture_default_str();
  remember(*option, [&into] { return into.empty() ? Texts{} : Texts{into}; });
  return option;
}

CLI::Option* EvalSettings::number(const std::string& names, std::size_t& into, std::size_t minimum,
                                  std::size_t maximum, const std::string& help) {
  CLI::Option* option = parser_.add_option(names, into, help)
                            ->capture_default_str()
                            ->check(CLI::Range(minimum, maximum));
  remember(*option, [&into] { return Texts{std::to_string(into)}; });
  return option;
}

CLI::Option* EvalSettings::flag(const std::string& names, bool& into, const std::string& help) {
  CLI::Option* option = parser_.add_flag(names, into, help);
  remember(*option, [&into] { return Texts{into ? "true" : "false"}; });
  return option;
}

CLI::Option* EvalSettings::texts(const std::string& names, Texts& into, const std::string& help) {
  CLI::Option* option = parser_.add_option(names, into, help)->allow_extra_args(false);
  remember(*option, [&into] { return into; });
  return option;
}

CLI::Option* EvalSettings::list(const std::string& names, Texts& into, const std::string& standard,
                                const std::string& help) {
  const std::string shown = standard.empty() ? help : help + " (default: " + standard + ")";
  splits_.emplace_back([&into, standard] { into = split_all(into, standard); });
  return texts(names, into, shown);
}

void EvalSettings::finish() {
  for (const auto& split : splits_) split();
  splits_.clear();
}

RunRow::Lists EvalSettings::values() const {
  RunRow::Lists out;
  for (const Setting& setting : settings_) out.emplace_back(setting.name, setting.values());
  return out;
}

std::vector<std::string> words_of(const RunRow::Lists& settings) {
  std::vector<std::string> out;
  for (const auto& [name, values] : settings)
    for (const std::string& value : values) {
      std::string word = "--";
      word.append(name).append("=").append(value);
      out.push_back(std::move(word));
    }
  return out;
}

}  // namespace precis::app
