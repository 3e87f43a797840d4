#include "helmway/proxy/python_callbacks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/random.h"

namespace helmway::proxy {
namespace {

absl::Status SessionEnded(uint64_t callback) {
  return absl::CancelledError(absl::StrCat("Python callback ", callback, ": the session has ended"));
}

absl::Status NoStream(uint64_t callback) {
  return absl::UnavailableError(
      absl::StrCat("Python callback ", callback, ": the client has no stream for callbacks (any more)"));
}

int64_t TotalBytes(const std::vector<cluster::CallbackArray>& arrays) {
  int64_t bytes = 0;
  for (const cluster::CallbackArray& array : arrays) bytes += array.bytes;
  return bytes;
}

// Passes over arrays of which nothing is left.
void Advance(const std::vector<cluster::CallbackArray>& arrays, size_t& array, int64_t& offset) {
  while (array < arrays.size() && offset == arrays[array].bytes) {
    ++array;
    offset = 0;
  }
}

}  // namespace

// One stream's way to the callbacks of its session.
class PythonCallbacks::Handler final : public net::CallbackStreamHandler {
 public:
  Handler(std::shared_ptr<PythonCallbacks> owner, uint64_t stream)
      : owner_(std::move(owner)), stream_(stream) {}

  absl::Status OnMessage(const callbacks::FromClient& message) override {
    return owner_->OnMessage(stream_, message);
  }
  bool Next(callbacks::FromServer& message) override { return owner_->Next(stream_, message); }
  void OnClosed() override { owner_->OnStreamClosed(stream_); }

 private:
  const std::shared_ptr<PythonCallbacks> owner_;
  const uint64_t stream_;
};

std::string PythonCallbacks::NewKey() {
  return absl::StrCat(absl::Hex(base::UnguessableId(), absl::kZeroPad16),
                      absl::Hex(base::UnguessableId(), absl::kZeroPad16));
}

PythonCallbacks::~PythonCallbacks() { Close(); }

absl::StatusOr<std::shared_ptr<net::CallbackStreamHandler>> PythonCallbacks::Open(
    uint64_t client, std::shared_ptr<net::CallbackStream> stream) {
  std::shared_ptr<net::CallbackStream> before;
  std::vector<Done> dropped;
  uint64_t number;
  {
    base::MutexLock lock(&mu_);
    if (closed_) return absl::CancelledError("the session has ended");
    dropped = DropAllLocked();
    before = std::exchange(stream_, std::move(stream));
    client_ = client;
    greeted_ = false;
    number = ++stream_number_;
  }
  if (before != nullptr) before->Close(absl::AbortedError("the client has opened another stream"));
  for (Done& done : dropped) {
    done(absl::UnavailableError("a Python callback was under way when the client opened another stream"));
  }
  return std::make_shared<Handler>(shared_from_this(), number);
}

void PythonCallbacks::Call(cluster::CallbackCall call) {
  absl::Status refusal;
  Done refused;
  {
    base::MutexLock lock(&mu_);
    if (closed_) {
      refusal = SessionEnded(call.callback);
    } else if (stream_ == nullptr) {
      refusal = NoStream(call.callback);
    } else if (call.client != client_) {
      refusal = absl::FailedPreconditionError(absl::StrCat(
          "Python callback ", call.callback, " is a function of another process, which made this program"));
    } else if (calls_.size() >= limits_.max_calls) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat("Python callback ", call.callback, ": too many calls wait for the client"));
    }
    if (refusal.ok()) {
      const uint64_t id = next_call_++;
      Pending& pending = calls_[id];
      pending.argument_bytes = TotalBytes(call.arguments);
      pending.call = std::move(call);
      waiting_.push_back(id);
    } else {
      refused = std::move(call.done);
    }
  }
  if (refused) return refused(refusal);
  Wake();
}

void PythonCallbacks::Wake() {
  std::shared_ptr<net::CallbackStream> stream;
  {
    base::MutexLock lock(&mu_);
    stream = stream_;
  }
  if (stream != nullptr) stream->Wake();
}

bool PythonCallbacks::MaySendLocked(const Pending& pending) const {
  if (sent_calls_ >= limits_.max_sent_calls) return false;
  return pending.argument_bytes <= limits_.inline_bytes || sent_bytes_ == 0 ||
         sent_bytes_ + pending.argument_bytes <= limits_.max_sent_bytes;
}

void PythonCallbacks::FillCall(uint64_t id, const Pending& pending, callbacks::Call& call) const {
  call.set_call(id);
  call.set_callback(pending.call.callback);
  for (const cluster::CallbackArray& argument : pending.call.arguments) {
    callbacks::Array& array = *call.add_arguments();
    array.set_type(argument.element_type);
    for (const int64_t dim : argument.dims) array.add_dims(dim);
  }
  call.set_bytes(pending.argument_bytes);
}

void PythonCallbacks::FillData(Pending& pending, std::string& data) const {
  const std::vector<cluster::CallbackArray>& arrays = pending.call.arguments;
  data.reserve(static_cast<size_t>(std::min(limits_.chunk_bytes, pending.argument_bytes)));
  int64_t room = limits_.chunk_bytes;
  Advance(arrays, pending.next_array, pending.next_offset);
  while (room > 0 && pending.next_array < arrays.size()) {
    const cluster::CallbackArray& array = arrays[pending.next_array];
    const int64_t size = std::min(room, array.bytes - pending.next_offset);
    data.append(reinterpret_cast<const char*>(array.data) + pending.next_offset, static_cast<size_t>(size));
    pending.next_offset += size;
    room -= size;
    Advance(arrays, pending.next_array, pending.next_offset);
  }
}

bool PythonCallbacks::Next(uint64_t stream, callbacks::FromServer& message) {
  base::MutexLock lock(&mu_);
  if (stream != stream_number_ || closed_) return false;
  if (!greeted_) {
    greeted_ = true;
    message.mutable_ready();
    return true;
  }
  if (const auto sending = calls_.find(sending_); sending != calls_.end()) {
    Pending& pending = sending->second;
    message.mutable_data()->set_call(sending_);
    FillData(pending, *message.mutable_data()->mutable_data());
    if (pending.next_array == pending.call.arguments.size()) {
      pending.next_array = 0;
      pending.next_offset = 0;
      sending_ = 0;
    }
    return true;
  }
  if (!forgotten_.empty()) {
    for (const uint64_t callback : forgotten_) message.mutable_forgotten()->add_callbacks(callback);
    forgotten_.clear();
    return true;
  }
  while (!waiting_.empty()) {
    const uint64_t id = waiting_.front();
    const auto it = calls_.find(id);
    if (it != calls_.end() && !MaySendLocked(it->second)) return false;
    waiting_.pop_front();
    if (it == calls_.end()) continue;
    Pending& pending = it->second;
    pending.sent = true;
    ++sent_calls_;
    sent_bytes_ += pending.argument_bytes;
    FillCall(id, pending, *message.mutable_call());
    if (pending.argument_bytes <= limits_.inline_bytes) {
      FillData(pending, *message.mutable_call()->mutable_data());
      pending.next_array = 0;
      pending.next_offset = 0;
    } else {
      sending_ = id;
    }
    return true;
  }
  return false;
}

absl::Status PythonCallbacks::TakeResults(Pending& pending, absl::string_view data) const {
  const std::vector<cluster::CallbackArray>& arrays = pending.call.results;
  while (!data.empty()) {
    Advance(arrays, pending.next_array, pending.next_offset);
    if (pending.next_array == arrays.size()) {
      return absl::InternalError(
          absl::StrCat("the client returned more bytes than the ", TotalBytes(arrays), " of the results"));
    }
    const cluster::CallbackArray& array = arrays[pending.next_array];
    const size_t size = std::min(data.size(), static_cast<size_t>(array.bytes - pending.next_offset));
    std::memcpy(array.data + pending.next_offset, data.data(), size);
    pending.next_offset += static_cast<int64_t>(size);
    data.remove_prefix(size);
  }
  return absl::OkStatus();
}

PythonCallbacks::Done PythonCallbacks::TakeLocked(uint64_t id) {
  const auto it = calls_.find(id);
  Done done = std::move(it->second.call.done);
  if (it->second.sent) {
    --sent_calls_;
    sent_bytes_ -= it->second.argument_bytes;
  }
  calls_.erase(it);
  return done;
}

absl::Status PythonCallbacks::OnMessage(uint64_t stream, const callbacks::FromClient& message) {
  Done done;
  absl::Status outcome;
  {
    base::MutexLock lock(&mu_);
    if (stream != stream_number_ || closed_) return absl::OkStatus();
    switch (message.message_case()) {
      case callbacks::FromClient::kData:
      case callbacks::FromClient::kAnswer: {
        const bool is_answer = message.has_answer();
        const uint64_t id = is_answer ? message.answer().call() : message.data().call();
        const auto it = calls_.find(id);
        // A call that has failed meanwhile is not the client's mistake.
        if (it == calls_.end()) return absl::OkStatus();
        Pending& pending = it->second;
        if (!pending.sent || sending_ == id) {
          return absl::InvalidArgumentError(
              absl::StrCat("an answer to call ", id, ", which is not sent yet"));
        }
        if (is_answer && !message.answer().error().empty()) {
          outcome = absl::InternalError(message.answer().error());
        } else {
          outcome = TakeResults(pending, is_answer ? message.answer().data() : message.data().data());
          if (is_answer && outcome.ok()) {
            Advance(pending.call.results, pending.next_array, pending.next_offset);
            if (pending.next_array < pending.call.results.size()) {
              outcome = absl::InternalError(absl::StrCat("the client returned less than the ",
                                                         TotalBytes(pending.call.results),
                                                         " bytes of the results"));
            }
          }
          if (!is_answer && outcome.ok()) return absl::OkStatus();
        }
        done = TakeLocked(id);
        break;
      }
      case callbacks::FromClient::kForget:
        for (const uint64_t callback : message.forget().callbacks()) {
          if (uses_.contains(callback)) {
            unwanted_.insert(callback);
          } else {
            forgotten_.push_back(callback);
          }
        }
        if (forgotten_.size() > limits_.max_calls) {
          return absl::ResourceExhaustedError("the client forgets faster than it reads");
        }
        break;
      default:
        return absl::InvalidArgumentError("a message that this server does not know");
    }
  }
  if (done) done(outcome);
  Wake();
  return absl::OkStatus();
}

void PythonCallbacks::Use(absl::Span<const uint64_t> callbacks) {
  base::MutexLock lock(&mu_);
  for (const uint64_t callback : callbacks) ++uses_[callback];
}

void PythonCallbacks::Unuse(absl::Span<const uint64_t> callbacks) {
  bool told = false;
  {
    base::MutexLock lock(&mu_);
    for (const uint64_t callback : callbacks) {
      const auto it = uses_.find(callback);
      if (it == uses_.end() || --it->second > 0) continue;
      uses_.erase(it);
      if (unwanted_.erase(callback) > 0) {
        forgotten_.push_back(callback);
        told = true;
      }
    }
  }
  if (told) Wake();
}

std::vector<PythonCallbacks::Done> PythonCallbacks::DropAllLocked() {
  std::vector<Done> dropped;
  for (auto& [id, pending] : calls_) dropped.push_back(std::move(pending.call.done));
  calls_.clear();
  waiting_.clear();
  sending_ = 0;
  sent_calls_ = 0;
  sent_bytes_ = 0;
  unwanted_.clear();
  forgotten_.clear();
  return dropped;
}

void PythonCallbacks::OnStreamClosed(uint64_t stream) {
  std::vector<Done> dropped;
  {
    base::MutexLock lock(&mu_);
    if (stream != stream_number_ || stream_ == nullptr) return;
    dropped = DropAllLocked();
    stream_ = nullptr;
  }
  for (Done& done : dropped) {
    done(absl::UnavailableError("the client's stream for callbacks ended during a Python callback"));
  }
}

void PythonCallbacks::Close() {
  std::shared_ptr<net::CallbackStream> stream;
  std::vector<Done> dropped;
  {
    base::MutexLock lock(&mu_);
    closed_ = true;
    dropped = DropAllLocked();
    stream = std::move(stream_);
    stream_ = nullptr;
  }
  if (stream != nullptr) stream->Close(absl::CancelledError("the session has ended"));
  for (Done& done : dropped) done(absl::CancelledError("the session ended during a Python callback"));
}

}  // namespace helmway::proxy
