// The subcommands of `precis`, one file each. Each adds its options to the parser and returns what
// runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace precis::app {

using Command = std::function<void()>;

Command add_run(CLI::App& parent);
Command add_cache(CLI::App& parent);
Command add_methods(CLI::App& parent);
Command add_inspect(CLI::App& parent);
Command add_bench(CLI::App& parent);
Command add_eval(CLI::App& parent);
Command add_report(CLI::App& parent);

// Of `precis eval`.
Command add_evolve(CLI::App& parent);

}  // namespace precis::app
