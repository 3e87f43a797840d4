#ifndef HELMWAY_PROXY_PYTHON_CALLBACKS_H_
#define HELMWAY_PROXY_PYTHON_CALLBACKS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/python_callback.h"
#include "helmway/net/callback_service.h"

namespace helmway::proxy {

// The Python functions of one session's client that its programs may call: calls on their way to the client
// and back, over the stream that it has opened, and which functions it must keep. Any thread.
//
// A call fails at once, and never waits, if there is no stream; and all that wait fail when the stream or the
// session ends. The client is sent no more than a number of calls and bytes that it has not answered; the
// rest waits here, without memory of its own: arguments lie in the running program, results are written
// there. (A function that itself waits for calls whose arguments would go over that many bytes waits for
// ever.)
class PythonCallbacks final : public cluster::CallbackSink,
                              public std::enable_shared_from_this<PythonCallbacks> {
 public:
  struct Limits {
    size_t max_calls = 100'000;    // waiting and sent; more are RESOURCE_EXHAUSTED
    size_t max_sent_calls = 1024;  // sent and not answered
    int64_t max_sent_bytes = int64_t{1} << 30;
    int64_t chunk_bytes = 1 << 20;    // of data in one message
    int64_t inline_bytes = 64 << 10;  // arguments up to this size come with their call; such calls pass the
                                      // limit of bytes
  };

  PythonCallbacks() : PythonCallbacks(Limits{}) {}
  explicit PythonCallbacks(const Limits& limits) : limits_(limits) {}
  ~PythonCallbacks() override;

  // Random text that the session tells its client, and that opens its stream of callbacks.
  const std::string& key() const { return key_; }

  // A stream of this session's client takes the place of the one before. CANCELLED: the session has ended.
  absl::StatusOr<std::shared_ptr<net::CallbackStreamHandler>> Open(
      uint64_t client, std::shared_ptr<net::CallbackStream> stream);

  void Call(cluster::CallbackCall call) override;

  // A program that may call `callbacks` has been loaded, or is gone and has no runs any more.
  void Use(absl::Span<const uint64_t> callbacks);
  void Unuse(absl::Span<const uint64_t> callbacks);

  // Ends the stream; all calls fail with CANCELLED from now on.
  void Close();

 private:
  class Handler;
  struct Pending {
    cluster::CallbackCall call;
    int64_t argument_bytes = 0;
    bool sent = false;
    // The next argument byte to send and result byte to come, as array number and offset.
    size_t next_array = 0;
    int64_t next_offset = 0;
  };
  using Done = absl::AnyInvocable<void(const absl::Status&)>;

  // Called by the handler of the stream number `stream`.
  absl::Status OnMessage(uint64_t stream, const callbacks::FromClient& message);
  bool Next(uint64_t stream, callbacks::FromServer& message);
  void OnStreamClosed(uint64_t stream);

  bool MaySendLocked(const Pending& pending) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FillCall(uint64_t id, const Pending& pending, callbacks::Call& call) const;
  // Copies the next arguments' bytes, up to a chunk.
  void FillData(Pending& pending, std::string& data) const;
  absl::Status TakeResults(Pending& pending, absl::string_view data) const;
  // Takes all calls out.
  std::vector<Done> DropAllLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Done TakeLocked(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wake();

  const Limits limits_;
  const std::string key_ = NewKey();
  static std::string NewKey();

  base::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t stream_number_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<net::CallbackStream> stream_ ABSL_GUARDED_BY(mu_);  // null: the client has none
  uint64_t client_ ABSL_GUARDED_BY(mu_) = 0;
  bool greeted_ ABSL_GUARDED_BY(mu_) = false;  // Ready has been sent
  uint64_t next_call_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, Pending> calls_ ABSL_GUARDED_BY(mu_);
  std::deque<uint64_t> waiting_ ABSL_GUARDED_BY(mu_);  // not sent yet; some may be over
  uint64_t sending_ ABSL_GUARDED_BY(mu_) = 0;          // the call whose data is being sent
  size_t sent_calls_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t sent_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, int> uses_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<uint64_t> unwanted_ ABSL_GUARDED_BY(mu_);  // by the client, but used
  std::vector<uint64_t> forgotten_ ABSL_GUARDED_BY(mu_);         // to be told
};

// The callbacks of one program, for as long as it or a run of it exists.
class CallbackUse {
 public:
  CallbackUse(std::shared_ptr<PythonCallbacks> owner, std::vector<uint64_t> callbacks)
      : owner_(std::move(owner)), callbacks_(std::move(callbacks)) {
    owner_->Use(callbacks_);
  }
  ~CallbackUse() { owner_->Unuse(callbacks_); }
  CallbackUse(const CallbackUse&) = delete;
  CallbackUse& operator=(const CallbackUse&) = delete;

 private:
  const std::shared_ptr<PythonCallbacks> owner_;
  const std::vector<uint64_t> callbacks_;
};

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_PYTHON_CALLBACKS_H_
