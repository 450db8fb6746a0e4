// SPDX-License-Identifier: Apache-2.0
// Collectives in torch.distributed's words. All members of the group must call, in the same order, with the same
// operation, dtype and (unless said otherwise) number of elements. Nothing here waits for a peer: the returned Work
// does. Tensors are dense CPU tensors of any dtype that makes sense (float64/32/16, bfloat16, int64/32/16/8, uint8,
// bool), contiguous or not, empty ones included; a tensor that is written must not be touched until its Work is done,
// and one that is read must not change until then (but for send, which copies it). Reductions of float16 and bfloat16
// accumulate in float32; the order of sums is that of group ranks (between hosts: host by host), so all members get the
// same bits. Roots and peers are group ranks. ConfigError before anything is sent when arguments cannot be right.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/comm/group.hpp"
#include "espalier/comm/work.hpp"

namespace espalier {

// mean divides in the tensor's dtype and needs a floating one; the bit_ operations need integers or bool.
enum class ReduceOp { sum, mean, product, min, max, bit_and, bit_or, bit_xor };

// tensor <- reduction over all members. Bytes a rank moves: about 2 * (size-1)/size * numel.
Work all_reduce_(at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::sum);

// The root's tensor <- reduction over all members; the others' tensors are read and stay as they are.
Work reduce_(at::Tensor& tensor, const Group& group, std::int64_t root, ReduceOp op = ReduceOp::sum);

// tensor <- the root's tensor.
Work broadcast_(at::Tensor& tensor, const Group& group, std::int64_t root);

// output [size * numel(input)] in group order <- every member's input. Same number of elements everywhere.
Work all_gather_into(at::Tensor& output, const at::Tensor& input, const Group& group);

// outputs[i] <- member i's input; sizes may differ (also zero), each outputs[i] has member i's number of elements.
Work all_gather_v(std::span<at::Tensor> outputs, const at::Tensor& input, const Group& group);

// The root's output [size * numel(input)] in group order <- every member's input. Same number of elements everywhere.
// Only the root's output is looked at; the others may pass any tensor, also an undefined one.
Work gather_into(at::Tensor& output, const at::Tensor& input, const Group& group, std::int64_t root);

// output <- my 1/size, in group order, of the root's input [size * numel(output)]. Only the root's input is looked at.
Work scatter_into(at::Tensor& output, const at::Tensor& input, const Group& group, std::int64_t root);

// output <- my 1/size of the reduction of input [size * numel(output)].
Work reduce_scatter_into(at::Tensor& output, const at::Tensor& input, const Group& group, ReduceOp op = ReduceOp::sum);

// Chunk i of my input goes to member i, which puts it where my rank says. Without splits: `size` equal chunks; with
// splits: elements along dimension 0 for each member (zero allowed).
Work all_to_all_into(at::Tensor& output, const at::Tensor& input, const Group& group,
                     std::span<const std::int64_t> output_splits = {}, std::span<const std::int64_t> input_splits = {});

// Point to point; matched by (sender, tag) in the order sent. `to` and `from` are group ranks. Sending copies the
// tensor when posted, so it may be changed at once, and its arrival does not depend on what the sender does
// next. recv writes a tensor of the sender's dtype and number of elements. Sending to oneself
// is a ConfigError.
Work send(const at::Tensor& tensor, const Group& group, std::int64_t to, std::int64_t tag = 0);
Work recv(at::Tensor& tensor, const Group& group, std::int64_t from, std::int64_t tag = 0);

// Nobody passes before all have come.
Work barrier(const Group& group);

}  // namespace espalier
