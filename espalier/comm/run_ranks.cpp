// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/run_ranks.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/base/host_name.hpp"
#include "espalier/comm/backends/c10d/gloo.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"
#include "espalier/comm/threads.hpp"
#include "espalier/comm/world_state.hpp"

namespace espalier {
namespace detail {
namespace {

// The first error of any rank, and whose it was.
class FirstError {
 public:
  void keep(std::int64_t rank) {
    const std::lock_guard lock(mutex_);
    if (error_ != nullptr) return;
    error_ = std::current_exception();
    rank_ = rank;
  }

  void rethrow() const {
    if (error_ == nullptr) return;
    const auto text = [this](const std::exception& error) { return fmt::format("rank {}: {}", rank_, error.what()); };
    try {
      std::rethrow_exception(error_);
    } catch (const ConfigError& error) {
      throw ConfigError(text(error));
    } catch (const CommError& error) {
      throw CommError(text(error));
    } catch (const InternalError& error) {
      throw InternalError(text(error));
    } catch (const std::exception& error) {
      throw Error(text(error));
    }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  std::int64_t rank_ = 0;
};

std::string current_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

void run_threads(std::vector<std::shared_ptr<Transport>> transports, Backend backend,
                 const std::function<void(World&)>& body, const WorldOptions& options,
                 const std::vector<std::int64_t>& host_of_rank) {
  const auto size = static_cast<std::int64_t>(transports.size());
  FirstError first_error;
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank, transport = std::move(transports[static_cast<std::size_t>(rank)])]() mutable {
      at::set_num_threads(1);
      try {
        Place place{.rank = rank,
                    .size = size,
                    .local_rank = rank,
                    .local_size = size,
                    .host = host_name(),
                    .launcher = "threads",
                    .backend = backend,
                    .host_of_rank = host_of_rank};
        if (!host_of_rank.empty()) {
          const auto me = host_of_rank.begin() + rank;
          place.local_rank = std::count(host_of_rank.begin(), me, *me);
          place.local_size = std::ranges::count(host_of_rank, *me);
        }
        World world = make_world(std::move(place), transport, options);
        body(world);
        world.state().core->close();
      } catch (...) {
        first_error.keep(rank);
        if (transport != nullptr) transport->abort(current_text());
      }
      transport.reset();
    });
  }
  threads.clear();  // joins
  first_error.rethrow();
}

}  // namespace detail

void run_ranks(std::int64_t num_ranks, const std::function<void(World&)>& body, const WorldOptions& options) {
  ESPALIER_CHECK_CONFIG(num_ranks >= 1, "run_ranks: {} ranks; at least 1 is needed", num_ranks);
  const Backend backend = options.backend.value_or(Backend::host);
  std::vector<std::shared_ptr<detail::Transport>> transports(1);  // a world of one needs none
  if (num_ranks > 1) {
    switch (backend) {
      case Backend::host:
        transports = detail::make_host_transports_for_threads(num_ranks, detail::host_options_of(options));
        break;
      case Backend::gloo:
        transports = detail::make_gloo_transports_for_threads(num_ranks, {.timeout = options.timeout});
        break;
      case Backend::hierarchical:
        throw ConfigError(
            "run_ranks: the ranks of backend hierarchical are on several hosts, but these are threads of one process; "
            "choose host or gloo");
      case Backend::c10d:
        throw ConfigError(
            "run_ranks: a world of backend c10d is made of the program's process group (World::from_c10d); choose "
            "host or gloo");
      case Backend::mpi:
        throw ConfigError(
            "run_ranks: the ranks of backend mpi are processes, not threads; start them with espalier run "
            "--backend mpi or mpirun, or choose host or gloo");
    }
  }
  detail::run_threads(std::move(transports), backend, body, options);
}

}  // namespace espalier
