// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace espalier::command {

// While it lives, SIGINT and SIGTERM are noted instead of ending the process. One at a time.
class StopSignal {
 public:
  // `second_ends`: a second signal ends the process, as if it were not caught; otherwise whoever started the process
  // decides how long to wait.
  explicit StopSignal(bool second_ends);
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  // The signal that came first; 0: none did.
  int number() const;
};

}  // namespace espalier::command
