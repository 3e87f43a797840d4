#include "helmway/proxy/fake_stream_testing.h"

#include "absl/strings/str_cat.h"
#include "helmway/wire/status.h"

namespace helmway::proxy {

using ::xla::ifrt::proxy::IfrtRequest;
using ::xla::ifrt::proxy::IfrtResponse;

void FakeStream::Expect(const IfrtRequest& request) {
  base::MutexLock lock(&mu_);
  expected_[request.request_metadata().op_id()] = static_cast<int>(request.request_case());
}

std::optional<Answer> FakeStream::Find(uint64_t op_id) const {
  base::MutexLock lock(&mu_);
  const auto it = answers_.find(op_id);
  return it == answers_.end() ? std::nullopt : std::optional<Answer>(it->second);
}

Answer FakeStream::Await(uint64_t op_id) const {
  base::MutexLock lock(&mu_);
  auto here = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return answers_.count(op_id) > 0; };
  mu_.Await(absl::Condition(&here));
  return answers_.at(op_id);
}

std::vector<uint64_t> FakeStream::order() const {
  base::MutexLock lock(&mu_);
  return order_;
}

size_t FakeStream::num_unanswered() const {
  base::MutexLock lock(&mu_);
  return expected_.size();
}

bool FakeStream::paused() const {
  base::MutexLock lock(&mu_);
  return paused_;
}

int FakeStream::num_pauses() const {
  base::MutexLock lock(&mu_);
  return pauses_;
}

void FakeStream::Send(const IfrtResponse& response, bool patient) {
  Answer answer;
  answer.patient = patient;
  // Over the wire: what is not valid UTF-8 does not arrive.
  if (!answer.response.ParseFromString(response.SerializeAsString())) {
    broken_->Add("a response does not parse: " + response.ShortDebugString());
  }
  const auto& metadata = answer.response.response_metadata();
  answer.status = wire::StatusFromProto(metadata.status());
  const int member = static_cast<int>(answer.response.response_case());

  base::MutexLock lock(&mu_);
  const auto asked = expected_.find(metadata.op_id());
  if (asked == expected_.end()) {
    broken_->Add(
        absl::StrCat("an answer to op ", metadata.op_id(), ", which was not asked or answered before"));
    return;
  }
  if (member != (answer.status.ok() ? asked->second : 0)) {
    broken_->Add(absl::StrCat("op ", metadata.op_id(), ", request ", asked->second,
                              ", is answered with member ", member, " and status ",
                              answer.status.ToString()));
  }
  if (!answer.status.ok() && patient) broken_->Add("an error that is sent late");
  expected_.erase(asked);
  order_.push_back(metadata.op_id());
  answers_[metadata.op_id()] = std::move(answer);
}

void FakeStream::SetPaused(bool paused) {
  base::MutexLock lock(&mu_);
  if (paused != paused_) ++pauses_;
  paused_ = paused;
}

void FakeStream::Close(const absl::Status& status) {
  broken_->Add("the session closes its stream: " + status.ToString());
}

}  // namespace helmway::proxy
