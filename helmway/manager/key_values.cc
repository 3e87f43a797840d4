#include "helmway/manager/key_values.h"

#include <algorithm>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace helmway::manager {
namespace {

constexpr char kManagerRestarted[] =
    "the resource manager has started again, and what the workers of this slice have told each other is lost "
    "with its earlier life; this worker has to start again";

// For messages: keys are bytes, and may be long.
std::string Printed(absl::string_view key) {
  constexpr size_t kMaxBytes = 200;
  return absl::StrCat("'", absl::CHexEscape(key.substr(0, kMaxBytes)), key.size() > kMaxBytes ? "..." : "",
                      "'");
}

AnswerKeyValue Answer(KeyValueCallId call, uint64_t generation) {
  AnswerKeyValue answer{call, absl::OkStatus(), {}};
  answer.answer.set_generation(generation);
  return answer;
}

AnswerKeyValue AnswerWith(KeyValueCallId call, uint64_t generation, const std::string& value) {
  AnswerKeyValue answer = Answer(call, generation);
  answer.answer.set_value(value);
  return answer;
}

}  // namespace

KeyValues::KeyValues(const ManagerSettings* settings, uint64_t manager_incarnation)
    : settings_(settings),
      manager_incarnation_(manager_incarnation),
      next_generation_(manager_incarnation),
      slices_(settings->slices.size()) {}

absl::Status KeyValues::WhyUnknown(const cluster::proto::KeyValueRequest& request) const {
  if (request.manager_incarnation() == manager_incarnation_) {
    return absl::AbortedError("another worker has taken the place of this one in its slice");
  }
  if (request.generation() != 0) {
    return absl::UnavailableError("the resource manager has started again and not heard of this worker yet");
  }
  return absl::AbortedError(kManagerRestarted);
}

void KeyValues::Begin(int32_t slice_index, std::string reason, Outdated& outdated, Actions& actions) {
  Slice& slice = slices_[static_cast<size_t>(slice_index)];
  for (const auto& [task, incarnation] : slice.members) {
    outdated.workers.push_back(incarnation);
    slice.outdated[task] = incarnation;
  }
  outdated.reason = reason;
  const absl::Status status = absl::AbortedError(reason);
  for (const auto& [key, calls] : std::exchange(slice.waiting, {})) {
    for (const KeyValueCallId call : calls) {
      const auto it = waiting_.find(call);
      due_.erase({it->second.until, call});
      waiting_.erase(it);
      actions.push_back(AnswerKeyValue{call, status, {}});
    }
  }
  slice.waiting_calls = 0;
  slice.values.clear();
  slice.bytes = 0;
  slice.members.clear();
  slice.formed = false;
  slice.begun_because = std::move(reason);
  if (next_generation_ == 0) ++next_generation_;
  slice.generation = next_generation_++;
}

absl::Status KeyValues::Join(int32_t slice_index, int32_t task,
                             const cluster::proto::KeyValueRequest& request, Outdated& outdated,
                             Actions& actions) {
  Slice& slice = slices_[static_cast<size_t>(slice_index)];
  const uint64_t incarnation = request.incarnation();
  const auto member = slice.members.find(task);
  if (member != slice.members.end() && member->second == incarnation) return absl::OkStatus();
  if (const auto it = slice.outdated.find(task); it != slice.outdated.end() && it->second == incarnation) {
    return absl::AbortedError(slice.begun_because);
  }
  // It has told an earlier life of the manager something that is lost.
  if (request.manager_incarnation() != manager_incarnation_) return absl::AbortedError(kManagerRestarted);
  if (slice.generation == 0) {
    Begin(slice_index, "", outdated, actions);
  } else if (slice.formed || member != slice.members.end()) {
    Begin(slice_index,
          absl::StrCat(
              "host ", task, " of slice ", slice_index,
              " has started again, and the plugin's client spans all hosts of the slice; this worker has "
              "to start again too"),
          outdated, actions);
  }
  slice.outdated.erase(task);
  slice.members[task] = incarnation;
  return absl::OkStatus();
}

KeyValues::Outdated KeyValues::OnFormed(int32_t slice_index, int32_t task, uint64_t incarnation,
                                        uint64_t generation) {
  Slice& slice = slices_[static_cast<size_t>(slice_index)];
  Outdated outdated;
  if (slice.generation == 0) slice.generation = generation;
  if (slice.generation == generation) {
    slice.formed = true;
    slice.members[task] = incarnation;
    return outdated;
  }
  slice.outdated[task] = incarnation;
  outdated.workers.push_back(incarnation);
  outdated.reason =
      !slice.begun_because.empty()
          ? slice.begun_because
          : absl::StrCat("a worker of slice ", slice_index,
                         " has started again, and the plugin's client spans all hosts of the slice; "
                         "this worker has to start again too");
  return outdated;
}

absl::Status KeyValues::Put(Slice& slice, const std::string& key, const std::string& value,
                            Actions& actions) {
  if (const auto it = slice.values.find(key); it != slice.values.end()) {
    // A caller that has not got the answer says it again.
    if (it->second == value) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat("the key ", Printed(key), " has another value already"));
  }
  const auto added = static_cast<int64_t>(key.size() + value.size());
  if (added > settings_->key_values.bytes - slice.bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the key-value store of the slice is full: it has ", slice.bytes, " bytes, the key ", Printed(key),
        " and its value ", added, "; at most ", settings_->key_values.bytes, " are possible"));
  }
  slice.bytes += added;
  slice.values[key] = value;
  if (const auto it = slice.waiting.find(key); it != slice.waiting.end()) {
    const std::set<KeyValueCallId> calls = it->second;
    for (const KeyValueCallId call : calls) {
      Forget(call);
      actions.push_back(AnswerWith(call, slice.generation, value));
    }
  }
  return absl::OkStatus();
}

KeyValues::Outdated KeyValues::OnCall(absl::Time now, KeyValueCallId call, int32_t slice_index, int32_t task,
                                      const cluster::proto::KeyValueRequest& request, Actions& actions) {
  Outdated outdated;
  const auto refuse = [&](absl::Status status) {
    actions.push_back(AnswerKeyValue{call, std::move(status), {}});
  };
  if (absl::Status status = Join(slice_index, task, request, outdated, actions); !status.ok()) {
    refuse(std::move(status));
    return outdated;
  }
  Slice& slice = slices_[static_cast<size_t>(slice_index)];
  const auto there = slice.values.find(request.key());
  switch (request.operation_case()) {
    case cluster::proto::KeyValueRequest::kPut:
      if (absl::Status status = Put(slice, request.key(), request.put(), actions); !status.ok()) {
        refuse(std::move(status));
      } else {
        actions.push_back(Answer(call, slice.generation));
      }
      break;
    case cluster::proto::KeyValueRequest::kGetIfThere:
      actions.push_back(there == slice.values.end() ? Answer(call, slice.generation)
                                                    : AnswerWith(call, slice.generation, there->second));
      break;
    case cluster::proto::KeyValueRequest::kGetWithinMs:
      if (there != slice.values.end()) {
        actions.push_back(AnswerWith(call, slice.generation, there->second));
      } else if (slice.waiting_calls >= settings_->key_values.waiting_calls) {
        refuse(absl::ResourceExhaustedError(
            absl::StrCat(slice.waiting_calls, " calls wait for keys of the slice already")));
      } else {
        const absl::Time until =
            now + absl::Milliseconds(std::clamp<int64_t>(request.get_within_ms(), 0, int64_t{1} << 40));
        slice.waiting[request.key()].insert(call);
        ++slice.waiting_calls;
        waiting_[call] = {slice_index, request.key(), until};
        due_.insert({until, call});
      }
      break;
    case cluster::proto::KeyValueRequest::OPERATION_NOT_SET:
      refuse(absl::UnimplementedError("a call of the key-value store that this version does not know"));
      break;
  }
  return outdated;
}

KeyValues::Waiting KeyValues::Forget(KeyValueCallId call) {
  const auto it = waiting_.find(call);
  Waiting waiting = std::move(it->second);
  waiting_.erase(it);
  due_.erase({waiting.until, call});
  Slice& slice = slices_[static_cast<size_t>(waiting.slice)];
  --slice.waiting_calls;
  const auto calls = slice.waiting.find(waiting.key);
  calls->second.erase(call);
  if (calls->second.empty()) slice.waiting.erase(calls);
  return waiting;
}

void KeyValues::OnGone(KeyValueCallId call) {
  if (waiting_.contains(call)) Forget(call);
}

void KeyValues::OnTime(absl::Time now, Actions& actions) {
  while (!due_.empty() && due_.begin()->first <= now) {
    const KeyValueCallId call = due_.begin()->second;
    const Waiting waiting = Forget(call);
    const Slice& slice = slices_[static_cast<size_t>(waiting.slice)];
    actions.push_back(AnswerKeyValue{
        call,
        absl::DeadlineExceededError(absl::StrCat(
            "no worker of slice ", waiting.slice, " has put the key ", Printed(waiting.key), " in time; ",
            slice.members.size(), " of ", settings_->slices[static_cast<size_t>(waiting.slice)].hosts,
            " host(s) have said anything")),
        {}});
  }
}

absl::Time KeyValues::next_deadline() const {
  return due_.empty() ? absl::InfiniteFuture() : due_.begin()->first;
}

}  // namespace helmway::manager
