// SPDX-License-Identifier: Apache-2.0
// Private: what ties the world inside this host to the one between all hosts: a failure of either ends both, with the
// same reason.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "espalier/comm/background_thread.hpp"
#include "espalier/comm/communicator.hpp"

namespace espalier::detail::hierarchical {

class Bridge {
 public:
  // `inside` is null on a rank that is alone on its host.
  Bridge(std::shared_ptr<Transport> inside, std::shared_ptr<Transport> between);
  ~Bridge();  // stops
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  // Ends both worlds, unless they have ended.
  void fail(std::string_view reason);
  // Why they have ended; empty: they have not.
  std::string failure() const;
  void check() const;  // CommError if they have
  // Looks a last time, and no more from then on.
  void stop();

 private:
  struct State;

  const std::shared_ptr<State> state_;
  BackgroundThread thread_;
};

}  // namespace espalier::detail::hierarchical
