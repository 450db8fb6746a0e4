// SPDX-License-Identifier: Apache-2.0
// Makes and breaks the connections of Gloo; what runs over them is the communicator of all backends of c10d.
#include "espalier/comm/backends/c10d/gloo.hpp"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <limits>
#include <utility>

#include "espalier/comm/backends/c10d/communicator.hpp"

namespace espalier::detail {

namespace {

using c10d::ProcessGroupGloo;
using std::chrono::milliseconds;

constexpr int kBreakingTag = std::numeric_limits<int>::max();  // nobody sends on it

class GlooLink final : public C10dLink {
 public:
  using C10dLink::C10dLink;

  // Waits in vain for a message that nobody sends: that time-out makes Gloo fail all that is
  // pending.
  void break_connections() override {
    try {
      std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
      backend->recv(nothing, backend->getRank() == 0 ? 1 : 0, kBreakingTag)->wait(milliseconds(1));
    } catch (const std::exception&) {  // which is the purpose
    }
  }
};

// Gloo's own time-outs would break all connections of the group, so ours begin once it is connected.
std::shared_ptr<C10dLink> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, const RankSet& members,
                                       std::int64_t me, std::string_view name,
                                       const c10::intrusive_ptr<ProcessGroupGloo::Options>& options) {
  options->group_name = std::string(name);
  for (const std::int64_t member : members.to_vector())
    options->global_ranks_in_group.push_back(static_cast<std::uint64_t>(member));
  auto backend =
      c10::make_intrusive<ProcessGroupGloo>(store, static_cast<int>(me), static_cast<int>(members.size()), options);
  backend->setTimeout(kC10dForever);
  return std::make_shared<GlooLink>(std::move(backend), false);
}

c10::intrusive_ptr<ProcessGroupGloo::Options> options_for(const GlooOptions& options) {
  auto result = ProcessGroupGloo::Options::create(options.timeout);
  result->devices.push_back(ProcessGroupGloo::createDeviceForHostname(options.address));
  return result;
}

class GlooConnector final : public C10dConnector {
 public:
  explicit GlooConnector(const GlooOptions& options) : options_(options) {}

  std::shared_ptr<C10dLink> connect(c10::intrusive_ptr<c10d::Store> store, const RankSet& members, std::int64_t me,
                                    std::string_view name) override {
    return connect_gloo(store, members, me, name, options_for(options_));
  }
  std::string over() const override { return options_.address; }

 private:
  const GlooOptions options_;
};

}  // namespace

std::shared_ptr<Transport> make_gloo_transport(std::shared_ptr<C10dStore> store, std::int64_t rank, std::int64_t size,
                                               const GlooOptions& options) {
  return make_c10d_transport(std::move(store), rank, size, options.timeout, std::make_shared<GlooConnector>(options));
}

std::vector<std::shared_ptr<Transport>> make_gloo_transports_for_threads(std::int64_t size,
                                                                         const GlooOptions& options) {
  const auto store = make_thread_store();
  std::vector<std::shared_ptr<Transport>> transports;
  for (std::int64_t rank = 0; rank < size; ++rank)
    transports.push_back(make_gloo_transport(store, rank, size, options));
  return transports;
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t rank,
                                                    std::int64_t size, const GlooOptions& options) {
  return c10::make_intrusive<ProcessGroupGloo>(store, static_cast<int>(rank), static_cast<int>(size),
                                               options_for(options));
}

std::shared_ptr<C10dLink> link_to_gloo(const c10::intrusive_ptr<c10d::Backend>& backend) {
  if (dynamic_cast<ProcessGroupGloo*>(backend.get()) == nullptr) return nullptr;
  return std::make_shared<GlooLink>(backend, true);
}

std::shared_ptr<C10dLink> gloo_like(const c10::intrusive_ptr<c10d::Backend>& backend,
                                    const c10::intrusive_ptr<c10d::Store>& store, const RankSet& members,
                                    std::int64_t me, std::string_view name, milliseconds timeout) {
  const auto gloo = c10::dynamic_intrusive_pointer_cast<ProcessGroupGloo>(backend);
  if (gloo == nullptr) return nullptr;
  const auto model = gloo->getOptions();
  auto options = ProcessGroupGloo::Options::create(timeout);
  options->devices = model->devices;
  options->threads = model->threads;
  return connect_gloo(store, members, me, name, options);
}

}  // namespace espalier::detail
