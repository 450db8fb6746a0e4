// SPDX-License-Identifier: Apache-2.0
// The compiled part of the Python package espalier_torch.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>

#include "espalier/comm/c10d.hpp"

namespace {

// What torch.distributed calls for the ranks of each process group.
c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t rank,
                                               std::int64_t size, std::chrono::milliseconds timeout) {
  espalier::WorldOptions options;
  options.backend = espalier::Backend::host;
  options.timeout = timeout;
  return espalier::as_c10d_backend(espalier::world_at(store, rank, size, options).group());
}

}  // namespace

PYBIND11_MODULE(_host, module) {
  module.def("make_backend", make_backend, pybind11::call_guard<pybind11::gil_scoped_release>(), pybind11::arg("store"),
             pybind11::arg("rank"), pybind11::arg("size"), pybind11::arg("timeout"));
}
