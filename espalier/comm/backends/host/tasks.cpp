// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/host/tasks.hpp"

#include <algorithm>
#include <cstring>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/host/endpoint.hpp"
#include "espalier/comm/backends/host/reduce.hpp"

namespace espalier::detail::host {
namespace {

// Rounds that a member may scatter ahead of the one it reduces; blocks of one stream that may lie unread.
constexpr std::int64_t kWindow = 2;
constexpr std::size_t kUnreadBlocks = 4;

constexpr std::uint32_t kScatter = 0;
constexpr std::uint32_t kGather = 1;

char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

}  // namespace

// ---- ExchangeTask ----

ExchangeTask::ExchangeTask(Space& the_space, const Call& the_call, std::vector<Outgoing> outgoing,
                           std::vector<Incoming> incoming, std::vector<at::Tensor> tensors)
    : Task(the_space, the_call),
      outgoing_(std::move(outgoing)),
      incoming_(std::move(incoming)),
      tensors_(std::move(tensors)),
      streams_open_(outgoing_.size()) {
  members_open_ = std::count_if(incoming_.begin(), incoming_.end(), [](const Incoming& in) { return in.expected; });
}

bool ExchangeTask::advance(Endpoint& endpoint) {
  for (bool moved = true; moved && streams_open_ > 0;) {
    moved = false;
    for (Outgoing& stream : outgoing_) {
      if (!stream.complete && advance_stream(endpoint, stream)) moved = true;
    }
  }
  std::erase_if(loans_, [&](const Loan& loan) { return endpoint.returned(loan); });
  return streams_open_ == 0 && members_open_ == 0 && loans_.empty();
}

// The next part, wherever it lies; false when there is no room.
bool ExchangeTask::lend_part(Endpoint& endpoint, Outgoing& stream) {
  const std::size_t bytes = std::min(kLentPartBytes, stream.bytes - stream.sent);
  Descriptor header = descriptor();
  header.total_bytes = stream.bytes;
  header.bytes = static_cast<std::uint32_t>(bytes);
  header.place = *stream.place + stream.sent;
  header.lent = Lent::to_read;
  const std::optional<Loan> loan = endpoint.lend(stream.to, header);
  if (!loan) return false;
  loans_.push_back(*loan);
  stream.sent += bytes;
  return true;
}

// One chunk of one stream; false when there is no room.
bool ExchangeTask::advance_stream(Endpoint& endpoint, Outgoing& stream) {
  if (stream.place) {
    if (!lend_part(endpoint, stream)) return false;
    stream.complete = stream.sent == stream.bytes;
    if (stream.complete) --streams_open_;
    return true;
  }
  if (unread_.size() >= kUnreadBlocks * outgoing_.size()) {
    std::erase_if(unread_, [&](const Arena::Room& room) { return endpoint.released(room); });
    if (unread_.size() >= kUnreadBlocks * outgoing_.size()) return false;
  }
  const std::size_t bytes = std::min({kChunkBytes, space.largest_block, stream.bytes - stream.sent});
  Parcel parcel;
  if (!endpoint.reserve(stream.to, bytes, parcel)) return false;
  if (bytes > 0) std::memcpy(parcel.data, stream.data + stream.sent, bytes);
  Descriptor header = descriptor();
  header.total_bytes = stream.bytes;
  endpoint.dispatch(stream.to, header, parcel);
  if (parcel.room.offset != 0) unread_.push_back(parcel.room);
  stream.sent += bytes;
  stream.complete = stream.sent == stream.bytes;
  if (stream.complete) --streams_open_;
  return true;
}

void ExchangeTask::arrive(Endpoint& endpoint, Message* message) {
  Incoming& in = incoming_[static_cast<std::size_t>(message->member)];
  const Descriptor& part = message->descriptor;
  if (!in.expected || part.total_bytes != in.bytes) {
    endpoint.fail(fmt::format("{}: {} sends {} bytes to {}, which expects {}; sizes must agree on both sides",
                              describe(), endpoint.describe_rank(message->source), part.total_bytes,
                              endpoint.describe_rank(endpoint.rank()), in.expected ? in.bytes : 0));
  }
  if (part.bytes > 0) std::memcpy(in.data + in.received, message->payload, part.bytes);
  in.received += part.bytes;
  if (in.received == in.bytes) {
    in.expected = false;
    --members_open_;
  }
  endpoint.release(message);
}

std::vector<std::int32_t> ExchangeTask::awaited() const {
  std::vector<std::int32_t> members;
  for (std::int32_t member = 0; member < space.size(); ++member) {
    if (incoming_[static_cast<std::size_t>(member)].expected) members.push_back(member);
  }
  if (members_open_ == 0) {
    for (const Outgoing& stream : outgoing_) {
      if (stream.complete) continue;
      for (const std::int32_t rank : stream.to) members.push_back(space.index_of[static_cast<std::size_t>(rank)]);
    }
    for (const std::int32_t rank : space.others) {
      const std::int32_t member = space.index_of[static_cast<std::size_t>(rank)];
      const bool keeps =
          std::any_of(loans_.begin(), loans_.end(), [&](const Loan& loan) { return !loan.returned_by(rank); });
      if (keeps && std::find(members.begin(), members.end(), member) == members.end()) members.push_back(member);
    }
  }
  return members;
}

// ---- DirectReduceTask ----

DirectReduceTask::DirectReduceTask(Space& the_space, const Call& the_call, at::Tensor tensor)
    : Task(the_space, the_call),
      tensor_(std::move(tensor)),
      data_(bytes_of(tensor_)),
      bytes_(tensor_.nbytes()),
      contributions_(static_cast<std::size_t>(the_space.size()), nullptr),
      missing_(the_space.size() - 1) {}

bool DirectReduceTask::advance(Endpoint& endpoint) {
  if (!published_) {
    Parcel parcel;
    if (!endpoint.reserve(space.others, bytes_, parcel)) return false;
    if (bytes_ > 0) std::memcpy(parcel.data, data_, bytes_);
    Descriptor header = descriptor();
    header.total_bytes = bytes_;
    endpoint.dispatch(space.others, header, parcel);
    published_ = true;
  }
  if (missing_ > 0) return false;
  std::vector<const void*> sources(contributions_.size(), data_);
  for (std::size_t member = 0; member < sources.size(); ++member) {
    if (contributions_[member] != nullptr) sources[member] = contributions_[member]->payload;
  }
  host::reduce(call.reduce, call.dtype, sources, data_, {}, call.count);
  for (Message* message : contributions_) {
    if (message != nullptr) endpoint.release(message);
  }
  return true;
}

void DirectReduceTask::arrive(Endpoint&, Message* message) {
  contributions_[static_cast<std::size_t>(message->member)] = message;
  --missing_;
}

std::vector<std::int32_t> DirectReduceTask::awaited() const {
  std::vector<std::int32_t> members;
  for (std::int32_t member = 0; member < space.size(); ++member) {
    if (member != space.me && contributions_[static_cast<std::size_t>(member)] == nullptr) members.push_back(member);
  }
  return members;
}

// ---- RootReduceTask ----

RootReduceTask::RootReduceTask(Space& the_space, const Call& the_call, at::Tensor tensor)
    : Task(the_space, the_call),
      tensor_(std::move(tensor)),
      data_(bytes_of(tensor_)),
      bytes_(tensor_.nbytes()),
      parts_(static_cast<std::size_t>(the_space.size())),
      taken_(static_cast<std::size_t>(the_space.size()), 0),
      sources_(static_cast<std::size_t>(the_space.size()), nullptr) {}

// As far as the parts of all members reach, which may be cut differently.
bool RootReduceTask::advance(Endpoint& endpoint) {
  const auto me = static_cast<std::size_t>(space.me);
  for (;;) {
    std::size_t bytes = bytes_ - reduced_;
    for (std::size_t member = 0; member < parts_.size(); ++member) {
      if (member == me) {
        sources_[member] = data_ + reduced_;
        continue;
      }
      if (parts_[member].empty()) return false;
      const Message& part = *parts_[member].front();
      sources_[member] = part.payload + taken_[member];
      bytes = std::min(bytes, part.descriptor.bytes - taken_[member]);
    }
    host::reduce(call.reduce, call.dtype, sources_, data_ + reduced_, {},
                 static_cast<std::int64_t>(bytes / tensor_.element_size()));
    reduced_ += bytes;
    for (std::size_t member = 0; member < parts_.size(); ++member) {
      if (member == me || (taken_[member] += bytes) < parts_[member].front()->descriptor.bytes) continue;
      endpoint.release(parts_[member].pop());
      taken_[member] = 0;
    }
    if (reduced_ == bytes_) return true;
  }
}

void RootReduceTask::arrive(Endpoint&, Message* message) {
  parts_[static_cast<std::size_t>(message->member)].push(message);
}

std::vector<std::int32_t> RootReduceTask::awaited() const {
  std::vector<std::int32_t> members;
  for (std::int32_t member = 0; member < space.size(); ++member) {
    if (member != space.me && parts_[static_cast<std::size_t>(member)].empty()) members.push_back(member);
  }
  return members;
}

// ---- ReduceTask ----

ReduceTask::ReduceTask(Space& the_space, const Call& the_call, at::Tensor output, at::Tensor input,
                       std::optional<std::uint64_t> place)
    : Task(the_space, the_call),
      output_(std::move(output)),
      input_(std::move(input)),
      output_data_(bytes_of(output_)),
      input_data_(static_cast<const char*>(input_.const_data_ptr())),
      element_bytes_(input_.element_size()),
      count_(output_.numel()),
      round_elems_(static_cast<std::int64_t>(std::min(kChunkBytes, the_space.largest_block) / element_bytes_) *
                   (gathers() ? the_space.size() : 1)),
      rounds_(std::max<std::int64_t>(1, (count_ + round_elems_ - 1) / round_elems_)),
      place_(place),
      gathers_missing_(gathers() && !place ? rounds_ * (the_space.size() - 1) : 0),
      slices_(static_cast<std::size_t>(the_space.size())),
      gathered_(static_cast<std::size_t>(the_space.size()), 0),
      sources_(static_cast<std::size_t>(the_space.size()), nullptr) {}

ReduceTask::Range ReduceTask::slice(std::int64_t round, std::int32_t member) const {
  const std::int64_t begin = round * round_elems_;
  const std::int64_t count = std::min(round_elems_, count_ - begin);
  if (!gathers()) return {member * count_ + begin, count};
  const std::int64_t size = space.size();
  const std::int64_t first = count * member / size;
  return {begin + first, count * (member + 1) / size - first};
}

bool ReduceTask::advance(Endpoint& endpoint) {
  if (place_ && scattered_ == 0 && !lend(endpoint)) return false;
  for (bool moved = true; moved;) {
    moved = false;
    while (scattered_ < rounds_ && scattered_ < reduced_ + kWindow && scatter(endpoint)) moved = true;
    while (reduced_ < scattered_ && round_arrived() && reduce(endpoint)) moved = true;
  }
  if (loan_ && endpoint.returned(*loan_)) loan_.reset();
  return reduced_ == rounds_ && gathers_missing_ == 0 && !loan_;
}

// Instead of all my slices; false: no room.
bool ReduceTask::lend(Endpoint& endpoint) {
  Descriptor header = descriptor();
  header.phase = kScatter;
  header.total_bytes = input_.nbytes();
  header.place = *place_;
  header.lent = gathers() ? Lent::to_write : Lent::to_read;
  loan_ = endpoint.lend(space.others, header);
  if (!loan_) return false;
  scattered_ = rounds_;
  endpoint.count_sent(input_.nbytes() / sources_.size() * (sources_.size() - 1));  // the others' slices
  return true;
}

// Sends my contributions to the slices of the next round; false when there is no room for all of them now.
bool ReduceTask::scatter(Endpoint& endpoint) {
  for (; scattered_to_ < space.others.size(); ++scattered_to_) {
    const std::int32_t to = space.others[scattered_to_];
    const Range range = slice(scattered_, space.index_of[static_cast<std::size_t>(to)]);
    const std::size_t bytes = static_cast<std::size_t>(range.count) * element_bytes_;
    Parcel parcel;
    if (!endpoint.reserve({&to, 1}, bytes, parcel)) return false;
    if (bytes > 0)
      std::memcpy(parcel.data, input_data_ + static_cast<std::size_t>(range.begin) * element_bytes_, bytes);
    Descriptor header = descriptor();
    header.phase = kScatter;
    header.part = static_cast<std::uint32_t>(scattered_);
    endpoint.dispatch({&to, 1}, header, parcel);
  }
  ++scattered_;
  scattered_to_ = 0;
  return true;
}

bool ReduceTask::round_arrived() const {
  for (std::int32_t member = 0; member < space.size(); ++member) {
    if (member != space.me && slices_[static_cast<std::size_t>(member)].empty()) return false;
  }
  return true;
}

// Reduces my slice of the next round, whose contributions have all come, and hands out the result: straight into what
// was lent, by message to the others. False: no room for that.
bool ReduceTask::reduce(Endpoint& endpoint) {
  const Range range = slice(reduced_, space.me);
  const std::size_t begin = static_cast<std::size_t>(range.begin) * element_bytes_;
  const bool last = reduced_ + 1 == rounds_;
  copiers_.clear();
  outputs_.clear();
  for (std::size_t member = 0; member < sources_.size(); ++member) {
    if (slices_[member].empty()) {
      sources_[member] = input_data_ + begin;
      continue;
    }
    const Message& message = *slices_[member].front();
    const bool lent = message.descriptor.lent != Lent::no;
    sources_[member] = message.payload + (lent ? begin : 0);
    if (!gathers()) continue;
    if (lent) {
      outputs_.push_back(const_cast<char*>(message.payload) + begin);
    } else {
      copiers_.push_back(message.source);
    }
  }
  const std::size_t num_written = outputs_.size();
  Parcel result;
  if (!copiers_.empty()) {
    if (!endpoint.reserve(copiers_, static_cast<std::size_t>(range.count) * element_bytes_, result)) return false;
    outputs_.push_back(result.data);
  }
  const std::int64_t out = gathers() ? range.begin : reduced_ * round_elems_;
  host::reduce(call.reduce, call.dtype, sources_, output_data_ + static_cast<std::size_t>(out) * element_bytes_,
               outputs_, range.count);
  endpoint.count_sent(num_written * static_cast<std::size_t>(range.count) * element_bytes_);
  for (MessageQueue& queue : slices_) {
    if (!queue.empty() && (last || queue.front()->descriptor.lent == Lent::no)) endpoint.release(queue.pop());
  }
  if (!copiers_.empty()) {
    Descriptor header = descriptor();
    header.phase = kGather;
    header.part = static_cast<std::uint32_t>(reduced_);
    endpoint.dispatch(copiers_, header, result);
  }
  ++reduced_;
  return true;
}

void ReduceTask::arrive(Endpoint& endpoint, Message* message) {
  const auto member = static_cast<std::size_t>(message->member);
  if (message->descriptor.phase == kScatter) {
    slices_[member].push(message);
    return;
  }
  const Range range = slice(gathered_[member]++, message->member);
  if (range.count > 0) {
    std::memcpy(output_data_ + static_cast<std::size_t>(range.begin) * element_bytes_, message->payload,
                static_cast<std::size_t>(range.count) * element_bytes_);
  }
  --gathers_missing_;
  endpoint.release(message);
}

std::vector<std::int32_t> ReduceTask::awaited() const {
  std::vector<std::int32_t> members;
  for (std::int32_t member = 0; member < space.size(); ++member) {
    const auto m = static_cast<std::size_t>(member);
    const bool owes_slice = reduced_ < rounds_ && slices_[m].empty();
    const bool owes_result = gathers() && !place_ && gathered_[m] < rounds_;
    const bool keeps = loan_ && !loan_->returned_by(space.members[m]);
    if (member != space.me && (owes_slice || owes_result || keeps)) members.push_back(member);
  }
  return members;
}

// ---- SendTask ----

SendTask::SendTask(Space& the_space, const Call& the_call, at::Tensor tensor, std::int32_t to, std::int64_t the_tag)
    : Task(the_space, the_call),
      tensor_(std::move(tensor)),
      data_(static_cast<const char*>(tensor_.const_data_ptr())),
      bytes_(tensor_.nbytes()) {
  peer = to;
  tag = the_tag;
}

bool SendTask::advance(Endpoint& endpoint) {
  if (space.channels[{peer, tag}].senders.front() != this) return false;  // an earlier one goes first
  const std::int32_t to = space.members[static_cast<std::size_t>(peer)];
  while (!complete_) {
    const std::size_t bytes = std::min({kSendChunkBytes, space.largest_block, bytes_ - sent_});
    Parcel parcel;
    if (!endpoint.reserve({&to, 1}, bytes, parcel)) return false;
    if (bytes > 0) std::memcpy(parcel.data, data_ + sent_, bytes);
    Descriptor header = descriptor();
    header.total_bytes = bytes_;
    endpoint.dispatch({&to, 1}, header, parcel);
    sent_ += bytes;
    complete_ = sent_ == bytes_;
  }
  return true;
}

void SendTask::keep(Endpoint& endpoint) {
  copy_bytes_ = bytes_ - sent_;
  endpoint.add_copies(static_cast<std::int64_t>(copy_bytes_), *this);
  copy_ = std::make_unique_for_overwrite<char[]>(copy_bytes_);
  if (copy_bytes_ > 0) std::memcpy(copy_.get(), data_ + sent_, copy_bytes_);
  data_ = copy_.get() - sent_;
  tensor_.reset();
}

void SendTask::retire(Endpoint& endpoint) {
  endpoint.add_copies(-static_cast<std::int64_t>(copy_bytes_), *this);
  const auto found = space.channels.find({peer, tag});
  Channel& channel = found->second;
  channel.senders.erase(channel.senders.begin());
  if (!channel.senders.empty()) channel.senders.front()->due = true;
  if (channel.idle()) space.channels.erase(found);
}

// ---- RecvTask ----

RecvTask::RecvTask(Space& the_space, const Call& the_call, at::Tensor tensor, std::int32_t from, std::int64_t the_tag)
    : Task(the_space, the_call), tensor_(std::move(tensor)), data_(bytes_of(tensor_)), bytes_(tensor_.nbytes()) {
  peer = from;
  tag = the_tag;
}

bool RecvTask::advance(Endpoint& endpoint) {
  Channel& channel = space.channels[{peer, tag}];
  if (channel.receivers.front() != this) return false;
  while (!channel.arrived.empty()) {
    Message* message = channel.arrived.pop();
    const Descriptor& part = message->descriptor;
    if (part.call.dtype != call.dtype || part.call.count != call.count) {
      endpoint.fail(
          fmt::format("{}: {} sent {} #{}, but {} receives {}; both sides must name the same dtype and number "
                      "of elements",
                      describe(), endpoint.describe_rank(message->source), to_string(part.call), part.sequence,
                      endpoint.describe_rank(endpoint.rank()), to_string(call)));
    }
    if (part.bytes > 0) std::memcpy(data_ + received_, message->payload, part.bytes);
    received_ += part.bytes;
    endpoint.release(message);
    if (received_ == bytes_) return true;
  }
  return false;
}

void RecvTask::retire(Endpoint&) {
  const auto found = space.channels.find({peer, tag});
  Channel& channel = found->second;
  channel.receivers.erase(channel.receivers.begin());
  if (!channel.receivers.empty()) channel.receivers.front()->due = true;
  if (channel.idle()) space.channels.erase(found);
}

}  // namespace espalier::detail::host
