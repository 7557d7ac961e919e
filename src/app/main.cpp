#include <csignal>
#include <cstdio>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "app/commands.h"
#include "base/error.h"

namespace {

// One line, whatever is in the message.
void print_error(const char* message) {
  std::string line(message);
  for (char& c : line)
    if (c == '\n' || c == '\r') c = ' ';
  std::fprintf(stderr, "precis: %s\n", line.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Reads a long prompt once, keeps a small faithful KV cache of it, and answers from that.",
      "precis"};
  app.set_version_flag("--version", "precis " PRECIS_VERSION);
  app.require_subcommand(0, 1);
  app.footer(
      "'precis COMMAND --help' tells a command's options. Results go to stdout, everything else to "
      "stderr.");
  std::vector<std::pair<CLI::App*, precis::app::Command>> commands;
  for (const auto add :
       {precis::app::add_run, precis::app::add_methods, precis::app::add_inspect}) {
    precis::app::Command command = add(app);
    commands.emplace_back(app.get_subcommands({}).back(), std::move(command));
  }
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty())
      throw precis::Error(
          precis::ErrorCode::kInvalidArgument,
          "a command is needed: run, methods or inspect; 'precis --help' tells more");
    for (const auto& [parser, command] : commands)
      if (parser->parsed()) command();
    return 0;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    print_error(e.what());
  } catch (const precis::Error& e) {
    print_error(e.what());
  } catch (const std::bad_alloc&) {
    print_error("out of memory; a smaller --keep or a shorter prompt needs less");
  } catch (const std::exception& e) {
    print_error(e.what());
  }
  return 1;
}
