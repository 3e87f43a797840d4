#include "helmway/net/remote_callbacks.h"

#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/cluster/worker_messages.h"
#include "helmway/net/frame.h"

namespace helmway::net {
namespace {

namespace proto = cluster::proto;

using Arrays = google::protobuf::RepeatedPtrField<proto::CallbackArray>;

absl::Status Ended() { return absl::CancelledError("the session has ended during a Python callback"); }

int64_t TotalBytes(const std::vector<cluster::CallbackArray>& arrays) {
  int64_t total = 0;
  for (const cluster::CallbackArray& array : arrays) total += array.bytes;
  return total;
}

void Describe(const std::vector<cluster::CallbackArray>& arrays, Arrays* described) {
  for (const cluster::CallbackArray& array : arrays) {
    proto::CallbackArray& one = *described->Add();
    one.set_element_type(array.element_type);
    one.mutable_dims()->Add(array.dims.begin(), array.dims.end());
    one.set_bytes(array.bytes);
  }
}

absl::StatusOr<int64_t> TotalBytes(const Arrays& arrays) {
  int64_t total = 0;
  for (const proto::CallbackArray& array : arrays) {
    if (array.bytes() < 0 || array.bytes() > std::numeric_limits<int64_t>::max() - total) {
      return absl::InvalidArgumentError("an array of a Python callback has an impossible size");
    }
    total += array.bytes();
  }
  return total;
}

// The arrays, one behind the other from `data` on.
std::vector<cluster::CallbackArray> Place(const Arrays& arrays, uint8_t* data) {
  std::vector<cluster::CallbackArray> placed;
  placed.reserve(static_cast<size_t>(arrays.size()));
  for (const proto::CallbackArray& array : arrays) {
    placed.push_back({array.element_type(), {array.dims().begin(), array.dims().end()}, nullptr, 0});
    if (array.bytes() == 0) continue;
    placed.back().data = data;
    placed.back().bytes = array.bytes();
    data += array.bytes();
  }
  return placed;
}

}  // namespace

void CallbackForwarder::Call(cluster::CallbackCall call) {
  absl::StatusOr<base::HostBlock> block = memory_->Allocate(TotalBytes(call.arguments));
  if (!block.ok()) return call.done(block.status());
  uint8_t* to = block->data;
  for (const cluster::CallbackArray& array : call.arguments) {
    if (array.bytes == 0) continue;
    std::memcpy(to, array.data, static_cast<size_t>(array.bytes));
    to += array.bytes;
  }
  base::HostBytes bytes = (*std::move(block)).Finish();
  proto::Event event;
  proto::Callback& message = *event.mutable_callback();
  message.set_client(call.client);
  message.set_callback(call.callback);
  Describe(call.arguments, message.mutable_arguments());
  Describe(call.results, message.mutable_results());
  message.set_size(bytes.size);
  {
    base::MutexLock lock(&mu_);
    if (stream_ != nullptr) {
      message.set_id(next_++);
      if (bytes.size > kMaxInlineBytes) {
        message.set_transfer(transfers_->Send(std::move(bytes)));
        bytes = {};
      }
      calls_.emplace(message.id(), std::move(call));
      stream_->Send(MakeFrame(event, bytes));
      return;
    }
  }
  call.done(Ended());
}

void CallbackForwarder::OnAnswer(const proto::CallbackAnswer& answer,
                                 absl::StatusOr<base::HostBytes> results) {
  cluster::CallbackCall call;
  {
    base::MutexLock lock(&mu_);
    const auto it = calls_.find(answer.id());
    if (it == calls_.end()) return;
    call = std::move(it->second);
    calls_.erase(it);
  }
  if (answer.has_status()) return call.done(cluster::FromProto(answer.status()));
  if (!results.ok()) return call.done(results.status());
  if (results->size != TotalBytes(call.results)) {
    return call.done(absl::InternalError(absl::StrCat("a Python callback was answered with ", results->size,
                                                      " bytes of results, not ", TotalBytes(call.results))));
  }
  const uint8_t* from = results->data;
  for (const cluster::CallbackArray& array : call.results) {
    if (array.bytes == 0) continue;
    std::memcpy(array.data, from, static_cast<size_t>(array.bytes));
    from += array.bytes;
  }
  call.done(absl::OkStatus());
}

void CallbackForwarder::End() {
  decltype(calls_) calls;
  {
    base::MutexLock lock(&mu_);
    stream_ = nullptr;
    transfers_ = nullptr;
    calls.swap(calls_);
  }
  for (auto& [id, call] : calls) call.done(Ended());
}

absl::Status TakeCallback(const proto::Callback& message, base::HostBytes arguments,
                          base::HostMemoryPool& memory, cluster::CallbackSink& sink,
                          absl::AnyInvocable<void(proto::CallbackAnswer, base::HostBytes)> answer) {
  HELMWAY_ASSIGN_OR_RETURN(const int64_t argument_bytes, TotalBytes(message.arguments()));
  HELMWAY_ASSIGN_OR_RETURN(const int64_t result_bytes, TotalBytes(message.results()));
  if (argument_bytes != arguments.size) {
    return absl::InvalidArgumentError("a Python callback announces other bytes than come with it");
  }
  proto::CallbackAnswer reply;
  reply.set_id(message.id());
  absl::StatusOr<base::HostBlock> block = memory.Allocate(result_bytes);
  if (!block.ok()) {
    *reply.mutable_status() = cluster::ToProto(block.status());
    answer(std::move(reply), {});
    return absl::OkStatus();
  }
  cluster::CallbackCall call;
  call.client = message.client();
  call.callback = message.callback();
  // Arguments are only read.
  call.arguments = Place(message.arguments(), const_cast<uint8_t*>(arguments.data));
  call.results = Place(message.results(), block->data);
  call.done = [arguments = std::move(arguments), block = *std::move(block), reply = std::move(reply),
               answer = std::move(answer)](const absl::Status& status) mutable {
    if (status.ok()) return answer(std::move(reply), std::move(block).Finish());
    *reply.mutable_status() = cluster::ToProto(status);
    answer(std::move(reply), {});
  };
  sink.Call(std::move(call));
  return absl::OkStatus();
}

}  // namespace helmway::net
