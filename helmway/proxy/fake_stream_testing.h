#ifndef HELMWAY_PROXY_FAKE_STREAM_TESTING_H_
#define HELMWAY_PROXY_FAKE_STREAM_TESTING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "helmway/base/mutex.h"
#include "helmway/net/ifrt_service.h"
#include "helmway/proxy/fake_worker_testing.h"
#include "helmway/wire/ifrt_session.pb.h"

namespace helmway::proxy {

// What a client got for one request, as it came over the wire.
struct Answer {
  absl::Status status;
  xla::ifrt::proxy::IfrtResponse response;
  bool patient = false;
};

// A client's end of a session stream: keeps the answers by op id, and checks each as a client does: one for
// each request, which names it and parses; with the member of the request if it is OK, without any if not.
// Any thread.
class FakeStream final : public net::SessionStream {
 public:
  explicit FakeStream(std::shared_ptr<BrokenPromises> broken) : broken_(std::move(broken)) {}

  // A request with this metadata is about to be handed over.
  void Expect(const xla::ifrt::proxy::IfrtRequest& request);

  std::optional<Answer> Find(uint64_t op_id) const;
  // Blocks until the answer is there.
  Answer Await(uint64_t op_id) const;
  // The op ids of the answers, in the order of their coming.
  std::vector<uint64_t> order() const;
  size_t num_unanswered() const;
  bool paused() const;
  // How often it changed.
  int num_pauses() const;

  void Send(const xla::ifrt::proxy::IfrtResponse& response, bool patient) override;
  void SetPaused(bool paused) override;
  void Close(const absl::Status& status) override;

 private:
  const std::shared_ptr<BrokenPromises> broken_;
  mutable base::Mutex mu_;
  std::map<uint64_t, int> expected_ ABSL_GUARDED_BY(mu_);  // op id -> number of the request's member
  std::map<uint64_t, Answer> answers_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> order_ ABSL_GUARDED_BY(mu_);
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  int pauses_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_FAKE_STREAM_TESTING_H_
