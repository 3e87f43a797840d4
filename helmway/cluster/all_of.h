#ifndef HELMWAY_CLUSTER_ALL_OF_H_
#define HELMWAY_CLUSTER_ALL_OF_H_

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace helmway::cluster {

// Calls back once, when all of several parts have given a status: with the first error in the order of the
// parts.
class AllOf {
 public:
  AllOf(size_t parts, absl::AnyInvocable<void(const absl::Status&)> done)
      : statuses_(parts), remaining_(parts), done_(std::move(done)) {}
  void Give(size_t part, const absl::Status& status) {
    statuses_[part] = status;
    if (remaining_.fetch_sub(1) != 1) return;
    for (const absl::Status& one : statuses_) {
      if (!one.ok()) return done_(one);
    }
    done_(absl::OkStatus());
  }

 private:
  std::vector<absl::Status> statuses_;  // each written by its part, before the count
  std::atomic<size_t> remaining_;
  absl::AnyInvocable<void(const absl::Status&)> done_;
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_ALL_OF_H_
