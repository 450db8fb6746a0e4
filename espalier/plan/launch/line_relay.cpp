// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/launch/line_relay.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace espalier::detail {

namespace {

constexpr std::size_t kReadBytes = 65536;
constexpr std::size_t kMostWaiting = 1 << 20;  // stop reading beyond this, and cut longer lines
constexpr std::size_t kWriteBytes = PIPE_BUF;  // a pipe that polls as writable takes this much at once

}  // namespace

LineRelay::LineRelay() : outputs_{{{STDOUT_FILENO}, {STDERR_FILENO}}} {}

LineRelay::~LineRelay() {
  for (const Input& input : inputs_) close(input.descriptor);
}

void LineRelay::add(int descriptor, std::size_t output) {
  fcntl(descriptor, F_SETFL, O_NONBLOCK);
  inputs_.push_back({descriptor, output});
}

void LineRelay::say(std::string_view line) {
  outputs_[1].waiting.append(line);
  outputs_[1].waiting.push_back('\n');
}

void LineRelay::append_to(std::vector<pollfd>& waits) const {
  for (const Input& input : inputs_) {
    const bool room = outputs_[input.output].waiting.size() < kMostWaiting;
    waits.push_back({room ? input.descriptor : -1, POLLIN, 0});
  }
  for (const Output& output : outputs_) waits.push_back({output.waiting.empty() ? -1 : output.descriptor, POLLOUT, 0});
}

void LineRelay::advance(const pollfd* answers) {
  for (Input& input : inputs_)
    if ((answers++)->revents != 0) read_some(input);
  for (Output& output : outputs_)
    if ((answers++)->revents != 0) write_some(output);
  std::erase_if(inputs_, [](const Input& input) { return input.descriptor < 0; });
}

bool LineRelay::has_unwritten() const { return !outputs_[0].waiting.empty() || !outputs_[1].waiting.empty(); }

bool LineRelay::reader_is_gone() const { return outputs_[0].closed; }

void LineRelay::read_some(Input& input) {
  Output& output = outputs_[input.output];
  const std::size_t before = input.partial.size();
  input.partial.resize(before + kReadBytes);
  const ssize_t got = read(input.descriptor, input.partial.data() + before, kReadBytes);
  input.partial.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;

  std::size_t whole = input.partial.find_last_of("\n\r") + 1;  // npos + 1 is 0
  if (got <= 0) {
    if (!input.partial.empty() && whole != input.partial.size()) input.partial.push_back('\n');
    close(input.descriptor);
    input.descriptor = -1;
  }
  if (got <= 0 || input.partial.size() > kMostWaiting) whole = input.partial.size();
  if (!output.closed) output.waiting.append(input.partial, 0, whole);
  input.partial.erase(0, whole);
}

void LineRelay::write_some(Output& output) {
  std::size_t count = std::min(output.waiting.size(), kWriteBytes);
  if (const auto end = output.waiting.rfind('\n', count - 1); end != std::string::npos) count = end + 1;
  const ssize_t written = write(output.descriptor, output.waiting.data(), count);
  if (written >= 0) {
    output.waiting.erase(0, static_cast<std::size_t>(written));
  } else if (errno != EAGAIN && errno != EINTR) {
    output.closed = true;  // as if it were written: the ranks must not stop for want of a reader
    output.waiting.clear();
  }
}

}  // namespace espalier::detail
