#ifndef HELMWAY_WORKER_LINK_TESTING_H_
#define HELMWAY_WORKER_LINK_TESTING_H_

// For tests of anything behind a cluster::SessionLink.

#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"

namespace helmway::worker {

// What a callback brings, once. Copies are the same answer.
template <typename T>
class Answer {
 public:
  void operator()(T value) const {
    base::MutexLock lock(&state_->mu);
    ++state_->times;
    state_->thread = std::this_thread::get_id();
    if (!state_->value) state_->value.emplace(std::move(value));
  }
  bool done() const {
    base::MutexLock lock(&state_->mu);
    return state_->value.has_value();
  }
  int times() const {
    base::MutexLock lock(&state_->mu);
    return state_->times;
  }
  std::thread::id thread() const {
    base::MutexLock lock(&state_->mu);
    return state_->thread;
  }
  const T& Wait() const {
    base::MutexLock lock(&state_->mu);
    auto here = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) { return state_->value.has_value(); };
    state_->mu.Await(absl::Condition(&here));
    return *state_->value;
  }
  // The value may be changed or dropped by the test's thread alone.
  T Steal() const {
    Wait();
    base::MutexLock lock(&state_->mu);
    return std::move(*state_->value);
  }

 private:
  struct State {
    base::Mutex mu;
    std::optional<T> value ABSL_GUARDED_BY(mu);
    int times ABSL_GUARDED_BY(mu) = 0;
    std::thread::id thread ABSL_GUARDED_BY(mu);
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};
using ReadAnswer = Answer<absl::StatusOr<base::HostBytes>>;
using StatusAnswer = Answer<absl::Status>;

template <typename T = float>
std::vector<T> Values(const base::HostBytes& bytes) {
  std::vector<T> values(static_cast<size_t>(bytes.size) / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data, values.size() * sizeof(T));
  return values;
}

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_LINK_TESTING_H_
