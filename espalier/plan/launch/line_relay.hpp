// SPDX-License-Identifier: Apache-2.0
// Private: passes on what several processes write, in whole lines.
#pragma once

#include <poll.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::detail {

// Reads pipes and writes lines to standard output (index 0) or standard error (1). Never blocks: it
// stops reading while nobody takes what it writes.
class LineRelay {
 public:
  LineRelay();
  LineRelay(const LineRelay&) = delete;
  LineRelay& operator=(const LineRelay&) = delete;
  ~LineRelay();

  // Takes over the read end of a pipe.
  void add(int descriptor, std::size_t output);
  // A line of this process's own.
  void say(std::string_view line);

  // What to wait for, and what to do with the answers (the same entries in the same order).
  void append_to(std::vector<pollfd>& waits) const;
  void advance(const pollfd* answers);

  bool has_unwritten() const;
  bool reader_is_gone() const;  // standard output was closed by whoever read it

 private:
  struct Input {
    int descriptor;
    std::size_t output;
    std::string partial = {};
  };
  struct Output {
    int descriptor;
    std::string waiting = {};
    bool closed = false;
  };

  void read_some(Input& input);
  void write_some(Output& output);

  std::vector<Input> inputs_;
  std::array<Output, 2> outputs_;
};

}  // namespace espalier::detail
