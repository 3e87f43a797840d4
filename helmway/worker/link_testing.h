#ifndef HELMWAY_WORKER_LINK_TESTING_H_
#define HELMWAY_WORKER_LINK_TESTING_H_

// For tests of anything behind a cluster::SessionLink.

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/python_callback.h"

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

inline absl::StatusOr<std::string> DefaultLayout(cluster::WorkerLink& link, cluster::ElementType type,
                                                 const std::vector<int64_t>& dims) {
  Answer<absl::StatusOr<std::string>> answer;
  link.DefaultLayout(type, dims, answer);
  return answer.Wait();
}

template <typename T = float>
std::vector<T> Values(const base::HostBytes& bytes) {
  std::vector<T> values(static_cast<size_t>(bytes.size) / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data, values.size() * sizeof(T));
  return values;
}

// Takes the calls of programs to their client, for the test to answer. Any thread.
class TestSink final : public cluster::CallbackSink {
 public:
  void Call(cluster::CallbackCall call) override {
    base::MutexLock lock(&mu_);
    calls_.push_back(std::move(call));
  }
  cluster::CallbackCall Next() {
    auto there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !calls_.empty(); };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&there));
    cluster::CallbackCall call = std::move(calls_.front());
    calls_.pop_front();
    return call;
  }
  bool empty() {
    base::MutexLock lock(&mu_);
    return calls_.empty();
  }

 private:
  base::Mutex mu_;
  std::deque<cluster::CallbackCall> calls_ ABSL_GUARDED_BY(mu_);
};

inline std::vector<float> Floats(const cluster::CallbackArray& array) {
  std::vector<float> values(static_cast<size_t>(array.bytes) / sizeof(float));
  std::memcpy(values.data(), array.data, static_cast<size_t>(array.bytes));
  return values;
}

// The function of the client: every number times ten.
inline void AnswerTimesTen(cluster::CallbackCall call) {
  std::vector<float> values = Floats(call.arguments.at(0));
  for (float& value : values) value *= 10;
  ASSERT_EQ(call.results.at(0).bytes, call.arguments.at(0).bytes);
  std::memcpy(call.results[0].data, values.data(), values.size() * sizeof(float));
  call.done(absl::OkStatus());
}

// On four devices: the sum over all of callback(shard of x), in every shard.
inline constexpr char kAllCallBack[] = R"(
module @all_call_back attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%a: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
      -> (tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
    %0 = stablehlo.custom_call @Sharding(%a) {mhlo.sharding = "{devices=[4]<=[4]}"}
        : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"}
        : (tensor<8xf32>) -> tensor<2xf32>
    %2 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%1) {api_version = 4 : i32, has_side_effect = true,
        backend_config = {callback = 5 : ui64, client = 77 : ui64}, mhlo.sharding = "{manual}"}
        : (tensor<2xf32>) -> tensor<2xf32>
    %3 = "stablehlo.all_reduce"(%2) ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %s = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, mhlo.sharding = "{manual}"}
        : (tensor<2xf32>) -> tensor<2xf32>
    %4 = stablehlo.custom_call @Sharding(%3) {mhlo.sharding = "{manual}"} : (tensor<2xf32>) -> tensor<2xf32>
    %5 = stablehlo.custom_call @SPMDShardToFullShape(%4) {mhlo.sharding = "{devices=[4]<=[4]}"}
        : (tensor<2xf32>) -> tensor<8xf32>
    return %5 : tensor<8xf32>
  }
})";

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_LINK_TESTING_H_
