// SPDX-License-Identifier: Apache-2.0
// How a Communicator is made of MPI:
//
//   sends       are copied and kept by the session until they have arrived, so posting one is all there is to it
//   reductions  in the order that MPI chooses; float16 and bfloat16 travel and are summed in float32, a bool as a byte
//   counts      beyond 2^30 go in pieces
//   deadlines   are ours; see session
#include <ATen/ops/empty.h>
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/mpi/lifetime.hpp"
#include "espalier/comm/backends/mpi/mpi.hpp"
#include "espalier/comm/backends/mpi/session.hpp"
#include "espalier/comm/names.hpp"

namespace espalier::detail {
namespace mpi {
namespace {

constexpr std::int64_t kLargestCount = std::int64_t{1} << 30;  // of one call of MPI
constexpr int kOwnTag = 0;  // of messages that are a part of a collective; no program can use it
constexpr int kFirstUserTag = 1;

class MpiOperation final : public Operation {
 public:
  MpiOperation(std::shared_ptr<Session> session, std::shared_ptr<Pending> pending)
      : session_(std::move(session)), pending_(std::move(pending)) {}

  bool done() override { return session_->test(*pending_); }
  void wait(Clock::time_point deadline) override { session_->wait(*pending_, deadline); }
  std::chrono::milliseconds timeout() const override { return session_->timeout(); }
  void park(std::shared_ptr<Operation>) override {}  // the session keeps it

 private:
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<Pending> pending_;
};

MPI_Datatype reduced_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kFloat:
      return MPI_FLOAT;
    case at::kLong:
      return MPI_INT64_T;
    case at::kInt:
      return MPI_INT32_T;
    case at::kShort:
      return MPI_INT16_T;
    case at::kChar:
      return MPI_INT8_T;
    case at::kByte:
    case at::kBool:
      return MPI_UINT8_T;
    default:
      return MPI_DATATYPE_NULL;  // travels in another dtype
  }
}

MPI_Op operation_of(ReduceOp op, at::ScalarType dtype) {
  const bool truth = dtype == at::kBool;  // a byte of 0 or 1
  switch (op) {
    case ReduceOp::sum:
      return truth ? MPI_BOR : MPI_SUM;
    case ReduceOp::product:
      return truth ? MPI_BAND : MPI_PROD;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::bit_and:
      return MPI_BAND;
    case ReduceOp::bit_or:
      return MPI_BOR;
    case ReduceOp::bit_xor:
      return MPI_BXOR;
    case ReduceOp::mean:
      return MPI_OP_NULL;  // is emulated
  }
  return MPI_OP_NULL;
}

char* at_byte(const at::Tensor& tensor, std::int64_t offset) {
  return static_cast<char*>(tensor.mutable_data_ptr()) + offset;
}

// Calls piece(offset, count) for what one call of MPI can take.
template <class Piece>
void in_pieces(std::int64_t count, const Piece& piece) {
  for (std::int64_t begin = 0; begin < count; begin += kLargestCount) {
    piece(begin, static_cast<int>(std::min(kLargestCount, count - begin)));
  }
}

at::Tensor reducible(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf ? tensor.to(at::kFloat) : tensor;
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<Session> session, MPI_Comm comm, const RankSet& members, std::string_view name)
      : session_(std::move(session)),
        comm_(comm),
        size_(members.size()),
        me_(*members.index_of(session_->rank())),
        suffix_(fmt::format(" of group '{}' {}", name, members.to_string())) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  std::shared_ptr<Operation> all_reduce(at::Tensor tensor, ReduceOp op) override {
    const at::Tensor travels = reducible(tensor);
    return post(
        reduction("all_reduce", op, tensor), tensor, {travels},
        [&](Pending& pending) {
          in_pieces(travels.numel(), [&](std::int64_t begin, int count) {
            checked(MPI_Iallreduce(MPI_IN_PLACE, at_byte(travels, begin * travels.element_size()), count,
                                   reduced_type(travels.scalar_type()), operation_of(op, tensor.scalar_type()), comm_,
                                   &next(pending)),
                    "MPI_Iallreduce");
          });
        },
        travels.is_same(tensor) ? std::function<void()>() : [tensor, travels] { tensor.copy_(travels); });
  }

  std::shared_ptr<Operation> broadcast(at::Tensor tensor, std::int64_t root) override {
    return post(moving("broadcast", tensor, fmt::format(", root {})", root)), tensor, {tensor},
                [&](Pending& pending) { broadcast_bytes(tensor, 0, bytes_of(tensor), root, pending); }, {});
  }

  std::shared_ptr<Operation> reduce(at::Tensor output, at::Tensor input, ReduceOp op, std::int64_t root) override {
    const at::Tensor travels = reducible(input);
    return post(
        reduction("reduce", op, input, fmt::format(", root {})", root)), input, {travels},
        [&](Pending& pending) {
          in_pieces(travels.numel(), [&](std::int64_t begin, int count) {
            char* const piece = at_byte(travels, begin * travels.element_size());
            checked(MPI_Ireduce(root == me_ ? MPI_IN_PLACE : piece, root == me_ ? piece : nullptr, count,
                                reduced_type(travels.scalar_type()), operation_of(op, input.scalar_type()),
                                static_cast<int>(root), comm_, &next(pending)),
                    "MPI_Ireduce");
          });
        },
        !output.defined() || travels.is_same(output) ? std::function<void()>()
                                                     : [output, travels] { output.copy_(travels); });
  }

  std::shared_ptr<Operation> gather(at::Tensor output, at::Tensor input, std::int64_t root) override {
    return post(moving("gather", input, fmt::format(", root {})", root)), input, {output, input},
                [&](Pending& pending) {
                  const std::int64_t bytes = bytes_of(input);
                  if (bytes * size_ <= std::numeric_limits<int>::max()) {
                    const int count = static_cast<int>(bytes);
                    const bool in_place = root == me_ && at_byte(input, 0) == at_byte(output, me_ * bytes);
                    checked(MPI_Igather(in_place ? MPI_IN_PLACE : at_byte(input, 0), count, MPI_BYTE,
                                        root == me_ ? at_byte(output, 0) : nullptr, count, MPI_BYTE,
                                        static_cast<int>(root), comm_, &next(pending)),
                            "MPI_Igather");
                  } else if (root != me_) {
                    send_bytes(input, 0, bytes, root, pending);
                  } else {
                    for (std::int64_t member = 0; member < size_; ++member) {
                      if (member != me_) receive_bytes(output, member * bytes, bytes, member, pending);
                    }
                    std::memmove(at_byte(output, me_ * bytes), at_byte(input, 0), static_cast<std::size_t>(bytes));
                  }
                },
                {});
  }

  std::shared_ptr<Operation> scatter(at::Tensor output, at::Tensor input, std::int64_t root) override {
    return post(moving("scatter", output, fmt::format(", root {})", root)), input, {output, input},
                [&](Pending& pending) {
                  const std::int64_t bytes = bytes_of(output);
                  if (bytes * size_ <= std::numeric_limits<int>::max()) {
                    const int count = static_cast<int>(bytes);
                    const bool in_place = root == me_ && at_byte(output, 0) == at_byte(input, me_ * bytes);
                    checked(MPI_Iscatter(root == me_ ? at_byte(input, 0) : nullptr, count, MPI_BYTE,
                                         in_place ? MPI_IN_PLACE : at_byte(output, 0), count, MPI_BYTE,
                                         static_cast<int>(root), comm_, &next(pending)),
                            "MPI_Iscatter");
                  } else if (root != me_) {
                    receive_bytes(output, 0, bytes, root, pending);
                  } else {
                    for (std::int64_t member = 0; member < size_; ++member) {
                      if (member != me_) send_bytes(input, member * bytes, bytes, member, pending);
                    }
                    std::memmove(at_byte(output, 0), at_byte(input, me_ * bytes), static_cast<std::size_t>(bytes));
                  }
                },
                {});
  }

  std::shared_ptr<Operation> all_gather(at::Tensor output, at::Tensor input) override {
    return post(moving("all_gather", input), input, {output, input},
                [&](Pending& pending) {
                  const std::int64_t bytes = bytes_of(input);
                  if (bytes * size_ <= std::numeric_limits<int>::max()) {
                    const int count = static_cast<int>(bytes);
                    char* const mine = at_byte(output, me_ * bytes);
                    checked(MPI_Iallgather(at_byte(input, 0) == mine ? MPI_IN_PLACE : at_byte(input, 0), count,
                                           MPI_BYTE, at_byte(output, 0), count, MPI_BYTE, comm_, &next(pending)),
                            "MPI_Iallgather");
                    return;
                  }
                  std::memmove(at_byte(output, me_ * bytes), at_byte(input, 0), static_cast<std::size_t>(bytes));
                  for (std::int64_t member = 0; member < size_; ++member) {
                    broadcast_bytes(output, member * bytes, bytes, member, pending);
                  }
                },
                {});
  }

  // Everybody broadcasts its part.
  std::shared_ptr<Operation> all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input) override {
    const at::Tensor& mine = outputs[static_cast<std::size_t>(me_)];
    if (input.numel() > 0) std::memmove(at_byte(mine, 0), at_byte(input, 0), input.nbytes());
    return post(moving("all_gather_v", input), input, outputs,
                [&](Pending& pending) {
                  for (std::int64_t member = 0; member < size_; ++member) {
                    const at::Tensor& output = outputs[static_cast<std::size_t>(member)];
                    broadcast_bytes(output, 0, bytes_of(output), member, pending);
                  }
                },
                {});
  }

  std::shared_ptr<Operation> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    const at::Tensor from = reducible(input);
    // MPI writes where it does not read.
    const bool apart = from.is_same(input) && !output.is_alias_of(input);
    const at::Tensor to = apart ? output : at::empty(output.sizes(), from.options());
    return post(
        reduction("reduce_scatter", op, output), input, {to, from},
        [&](Pending& pending) {
          const MPI_Datatype type = reduced_type(from.scalar_type());
          const MPI_Op operation = operation_of(op, input.scalar_type());
          const auto element = static_cast<std::int64_t>(from.element_size());
          if (to.numel() == 0) return;
          if (from.numel() <= kLargestCount) {
            checked(MPI_Ireduce_scatter_block(at_byte(from, 0), at_byte(to, 0), static_cast<int>(to.numel()), type,
                                              operation, comm_, &next(pending)),
                    "MPI_Ireduce_scatter_block");
            return;
          }
          for (std::int64_t member = 0; member < size_; ++member) {
            in_pieces(to.numel(), [&](std::int64_t begin, int count) {
              checked(MPI_Ireduce(at_byte(from, (member * to.numel() + begin) * element), at_byte(to, begin * element),
                                  count, type, operation, static_cast<int>(member), comm_, &next(pending)),
                      "MPI_Ireduce");
            });
          }
        },
        to.is_same(output) ? std::function<void()>() : [output, to] { output.copy_(to); });
  }

  // Messages between all pairs.
  std::shared_ptr<Operation> all_to_all(at::Tensor output, at::Tensor input, std::vector<std::int64_t> output_elems,
                                        std::vector<std::int64_t> input_elems) override {
    return post(moving("all_to_all", input), input, {output, input},
                [&](Pending& pending) {
                  const auto element = static_cast<std::int64_t>(input.element_size());
                  std::int64_t from = 0, to = 0;
                  for (std::int64_t member = 0; member < size_; ++member) {
                    const std::int64_t out = input_elems[static_cast<std::size_t>(member)] * element;
                    const std::int64_t in = output_elems[static_cast<std::size_t>(member)] * element;
                    if (member == me_) {
                      if (in > 0) std::memmove(at_byte(output, to), at_byte(input, from), static_cast<std::size_t>(in));
                    } else {
                      receive_bytes(output, to, in, member, pending);
                      send_bytes(input, from, out, member, pending);
                    }
                    from += out;
                    to += in;
                  }
                },
                {});
  }

  std::shared_ptr<Operation> send(at::Tensor tensor, std::int64_t to, std::int64_t tag) override {
    const int mpi_tag = checked_tag("send", tag);
    const at::Tensor copy = tensor.clone();
    const auto name = named(moving("send", tensor, fmt::format(") to rank {}, tag {},", to, tag)));
    (void)session_->post({copy}, name, [&](Pending& pending) {
      message(bytes_of(copy), [&](std::int64_t begin, int count) {
        checked(MPI_Isend(at_byte(copy, begin), count, MPI_BYTE, static_cast<int>(to), mpi_tag, comm_, &next(pending)),
                "MPI_Isend");
      });
    });
    session_->bytes_sent += bytes_of(tensor);
    return std::make_shared<MpiOperation>(session_, std::make_shared<Pending>());
  }

  std::shared_ptr<Operation> recv(at::Tensor tensor, std::int64_t from, std::int64_t tag) override {
    const int mpi_tag = checked_tag("recv", tag);
    const auto name = named(moving("recv", tensor, fmt::format(") from rank {}, tag {},", from, tag)));
    return std::make_shared<MpiOperation>(session_, session_->post({tensor}, name, [&](Pending& pending) {
      pending.owes = false;
      message(bytes_of(tensor), [&](std::int64_t begin, int count) {
        pending.received_bytes.push_back(count);
        checked(
            MPI_Irecv(at_byte(tensor, begin), count, MPI_BYTE, static_cast<int>(from), mpi_tag, comm_, &next(pending)),
            "MPI_Irecv");
      });
    }));
  }

  std::shared_ptr<Operation> barrier() override {
    return post([suffix = suffix_](std::int64_t sequence) { return fmt::format("barrier() #{}{}", sequence, suffix); },
                at::Tensor(), {},
                [&](Pending& pending) { checked(MPI_Ibarrier(comm_, &next(pending)), "MPI_Ibarrier"); }, {});
  }

 private:
  using Described = std::function<std::string(std::int64_t sequence)>;

  static std::int64_t bytes_of(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }
  static MPI_Request& next(Pending& pending) { return pending.requests.emplace_back(MPI_REQUEST_NULL); }

  Described moving(std::string_view what, const at::Tensor& tensor, std::string rest = ")") const {
    return [what, dtype = dtype_name(tensor.scalar_type()), count = tensor.numel(), rest, suffix = suffix_](
               auto sequence) { return fmt::format("{}({} x {}{} #{}{}", what, dtype, count, rest, sequence, suffix); };
  }
  Described reduction(std::string_view what, ReduceOp op, const at::Tensor& tensor, std::string rest = ")") const {
    return [what, op, dtype = dtype_name(tensor.scalar_type()), count = tensor.numel(), rest,
            suffix = suffix_](auto sequence) {
      return fmt::format("{}({}, {} x {}{} #{}{}", what, detail::to_string(op), dtype, count, rest, sequence, suffix);
    };
  }
  std::function<std::string()> named(Described described) {
    return [described = std::move(described), sequence = sequence_++] { return described(sequence); };
  }

  // `sent` counts as sent (undefined: nothing does).
  std::shared_ptr<Operation> post(Described described, const at::Tensor& sent, std::vector<at::Tensor> tensors,
                                  const std::function<void(Pending&)>& start, std::function<void()> finish) {
    const std::lock_guard lock(mutex_);  // all members must start in the same order
    auto pending = session_->post(std::move(tensors), named(std::move(described)), [&](Pending& posted) {
      start(posted);
      posted.finish = std::move(finish);
    });
    if (sent.defined()) session_->bytes_sent += bytes_of(sent);
    return std::make_shared<MpiOperation>(session_, std::move(pending));
  }

  void broadcast_bytes(const at::Tensor& tensor, std::int64_t offset, std::int64_t bytes, std::int64_t root,
                       Pending& pending) {
    in_pieces(bytes, [&](std::int64_t begin, int count) {
      checked(
          MPI_Ibcast(at_byte(tensor, offset + begin), count, MPI_BYTE, static_cast<int>(root), comm_, &next(pending)),
          "MPI_Ibcast");
    });
  }

  void send_bytes(const at::Tensor& tensor, std::int64_t offset, std::int64_t bytes, std::int64_t to,
                  Pending& pending) {
    in_pieces(bytes, [&](std::int64_t begin, int count) {
      checked(MPI_Isend(at_byte(tensor, offset + begin), count, MPI_BYTE, static_cast<int>(to), kOwnTag, comm_,
                        &next(pending)),
              "MPI_Isend");
    });
  }
  void receive_bytes(const at::Tensor& tensor, std::int64_t offset, std::int64_t bytes, std::int64_t from,
                     Pending& pending) {
    in_pieces(bytes, [&](std::int64_t begin, int count) {
      checked(MPI_Irecv(at_byte(tensor, offset + begin), count, MPI_BYTE, static_cast<int>(from), kOwnTag, comm_,
                        &next(pending)),
              "MPI_Irecv");
    });
  }

  // As in_pieces, but an empty message is a message.
  template <class Piece>
  static void message(std::int64_t bytes, const Piece& piece) {
    if (bytes == 0) {
      piece(0, 0);
    } else {
      in_pieces(bytes, piece);
    }
  }

  int checked_tag(std::string_view where, std::int64_t tag) const {
    const std::int64_t largest = session_->largest_tag() - kFirstUserTag;
    ESPALIER_CHECK_CONFIG(tag >= 0 && tag <= largest, "{}: tag {}; over mpi tags go from 0 to {}", where, tag, largest);
    return static_cast<int>(tag) + kFirstUserTag;
  }

  const std::shared_ptr<Session> session_;
  const MPI_Comm comm_;
  const std::int64_t size_;
  const std::int64_t me_;
  const std::string suffix_;
  const Capabilities capabilities_ = capabilities_of("mpi");
  std::mutex mutex_;
  std::atomic<std::int64_t> sequence_{0};
};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  std::shared_ptr<Communicator> connect(const RankSet& members, std::string_view name, std::uint64_t context) override {
    return std::make_shared<MpiCommunicator>(session_, session_->connect(members, name, context), members, name);
  }
  void abort(std::string_view reason) override { session_->abort(reason); }
  void close() override { session_->close(); }
  double wait_seconds() const override { return session_->wait_seconds(); }
  std::int64_t bytes_sent() const override { return session_->bytes_sent.load(); }

 private:
  const std::shared_ptr<Session> session_;
};

}  // namespace
}  // namespace mpi

bool has_mpi() { return true; }

void require_mpi() {}

MpiWorld join_mpi(const MpiOptions& options) {
  mpi::start_mpi();
  mpi::wait_for_all_ranks(options.timeout);  // what follows has no deadline
  MPI_Comm host = MPI_COMM_NULL;
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  mpi::checked(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  mpi::checked(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  mpi::checked(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host),
               "finding this host's ranks");
  mpi::checked(MPI_Comm_rank(host, &local_rank), "MPI_Comm_rank");
  mpi::checked(MPI_Comm_size(host, &local_size), "MPI_Comm_size");
  // Every host is known by its lowest rank.
  int lowest = rank;
  mpi::checked(MPI_Bcast(&lowest, 1, MPI_INT, 0, host), "MPI_Bcast");
  std::vector<int> lowest_of(static_cast<std::size_t>(size));
  mpi::checked(MPI_Allgather(&lowest, 1, MPI_INT, lowest_of.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
  MPI_Comm_free(&host);
  std::map<int, std::int64_t> numbers;
  std::vector<std::int64_t> host_of_rank;
  for (const int one : lowest_of) {
    const auto next = static_cast<std::int64_t>(numbers.size());
    host_of_rank.push_back(numbers.emplace(one, next).first->second);
  }
  if (numbers.size() == 1) host_of_rank.clear();
  std::shared_ptr<Transport> transport;
  if (size > 1) transport = std::make_shared<mpi::MpiTransport>(std::make_shared<mpi::Session>(options));
  return {.rank = rank,
          .size = size,
          .local_rank = local_rank,
          .local_size = local_size,
          .host_of_rank = std::move(host_of_rank),
          .transport = std::move(transport)};
}

}  // namespace espalier::detail
