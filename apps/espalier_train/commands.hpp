// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>

namespace espalier::command {

// Each adds one subcommand and what it does.
void add_train(CLI::App& app);
void add_verify(CLI::App& app);
void add_verify_groups(CLI::App& app);
void add_bench(CLI::App& app);

}  // namespace espalier::command
