#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "app/commands.h"
#include "base/error.h"

namespace {

// One line, whatever is in the message.
void print_error(const char* message) {
  constexpr std::size_t kMaxBytes = 1000;
  std::string line(message);
  if (line.size() > kMaxBytes) line = line.substr(0, kMaxBytes) + " ...";
  // Names from files and arguments may hold line breaks and terminal sequences.
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = c == '\n' || c == '\r' ? ' ' : '?';
  std::fprintf(stderr, "precis: %s\n", line.c_str());
}

// Output that could not be written must not look like success.
void check_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    throw precis::Error(precis::ErrorCode::kIo,
                        precis::concat("cannot write the output: ", std::strerror(errno)));
}

// The first word that is not an option: the command. Only its options listen to the environment, so
// that a bad variable cannot break another command.
std::string active_command(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (argv[i][0] != '-') return argv[i];
  return {};
}

void ignore_environment(CLI::App& parser) {
  for (CLI::Option* option : parser.get_options()) option->envname("");
  for (CLI::App* command : parser.get_subcommands({})) ignore_environment(*command);
}

// What the parser reads, last word first as it wants them. llama.cpp's short names of several
// letters become the long ones: to the parser "-ctk" would be -c with the value "tk".
std::vector<std::string> parser_words(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = argc - 1; i > 0; --i) {
    words.emplace_back(argv[i]);
    if (words.back() == "-ctk") words.back() = "--cache-type-k";
    if (words.back() == "-ctv") words.back() = "--cache-type-v";
  }
  return words;
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
  for (const auto add : {precis::app::add_run, precis::app::add_cache, precis::app::add_methods,
                         precis::app::add_inspect, precis::app::add_bench, precis::app::add_eval,
                         precis::app::add_report}) {
    precis::app::Command command = add(app);
    CLI::App* parser = app.get_subcommands({}).back();
    if (parser->get_name() != active_command(argc, argv)) ignore_environment(*parser);
    commands.emplace_back(parser, std::move(command));
  }
  try {
    app.parse(parser_words(argc, argv));
    if (app.get_subcommands().empty())
      throw precis::Error(precis::ErrorCode::kInvalidArgument,
                          "a command is needed: run, cache, methods, inspect, bench, eval or "
                          "report; 'precis --help' "
                          "tells more");
    for (const auto& [parser, command] : commands)
      if (parser->parsed()) command();
    check_output();
    return 0;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // --help, --version
      app.exit(e);
      if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
      print_error("cannot write the output");
      return 1;
    }
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
