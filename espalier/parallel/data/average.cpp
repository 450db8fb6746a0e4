// SPDX-License-Identifier: Apache-2.0
#include "espalier/parallel/data/average.hpp"

#include <algorithm>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/comm/collectives.hpp"

namespace espalier {

void average_in_buckets(at::Tensor& flat, const Group& group, std::int64_t bucket_bytes) {
  ESPALIER_CHECK_CONFIG(bucket_bytes > 0, "gradient average: buckets of {} bytes; expected more than 0", bucket_bytes);
  if (group.size() == 1) return;
  const std::int64_t bucket_elems =
      std::max<std::int64_t>(1, bucket_bytes / static_cast<std::int64_t>(flat.element_size()));
  std::vector<Work> works;
  for (std::int64_t begin = 0; begin < flat.numel(); begin += bucket_elems) {
    at::Tensor bucket = flat.narrow(0, begin, std::min(bucket_elems, flat.numel() - begin));
    works.push_back(all_reduce_(bucket, group, ReduceOp::mean));
  }
  wait_all(works);
}

std::int64_t ring_all_reduce_bytes(std::int64_t bytes, std::int64_t size) { return 2 * bytes * (size - 1) / size; }

}  // namespace espalier
