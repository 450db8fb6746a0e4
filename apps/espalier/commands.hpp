// SPDX-License-Identifier: Apache-2.0
// The subcommands of `espalier`: one source file each, registered in main.cpp. None of them may
// need LibTorch.
//
// A subcommand reports trouble by throwing: ConfigError and CLI::ParseError end with exit code 2,
// CommError with 3, anything else with 4. It ends with another exit code by throwing
// CLI::RuntimeError(code), which prints nothing.
#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace espalier::command {

void add_doctor(CLI::App& app);      // what was built in and found, and which rank this is
void add_explain(CLI::App& app);     // what one rank is, whom it talks to, for what
void add_layout(CLI::App& app);      // process groups and each rank's place in them
void add_partition(CLI::App& app);   // layers cut into stages
void add_postmortem(CLI::App& app);  // what the ranks of a world were doing when it failed
void add_run(CLI::App& app);         // any program as the ranks of one world
void add_schedule(CLI::App& app);    // what each pipeline stage does
void add_train(CLI::App& app);       // train, verify, verify-groups, bench: this process becomes espalier-train

// These words as exec's functions take them: valid for as long as the words are.
std::vector<char*> argument_vector(std::vector<std::string>& words);

// Replaces this process by `program` with these arguments. It is looked for beside the running
// program, then in PATH. Returns only by throwing ConfigError, if it was not found or could not be
// started.
[[noreturn]] void execute_sibling(const std::string& program, const std::vector<std::string>& arguments);

}  // namespace espalier::command
