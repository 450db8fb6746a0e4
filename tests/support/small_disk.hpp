// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <stdexcept>

#include <sys/resource.h>

namespace espalier::testing_support {

// While it lives, no file of this process can grow beyond `num_bytes`: writes fail in the middle as
// on a full disk, with EFBIG. Needs no privilege, unlike a small file system.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t num_bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    if (getrlimit(RLIMIT_FSIZE, &old_limit_) != 0) throw std::runtime_error("getrlimit");
    const rlimit limit{.rlim_cur = num_bytes, .rlim_max = old_limit_.rlim_max};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error("setrlimit");
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  void (*old_handler_)(int);
  rlimit old_limit_{};
};

}  // namespace espalier::testing_support
