#ifndef HELMWAY_PROXY_USER_CONTEXTS_H_
#define HELMWAY_PROXY_USER_CONTEXTS_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "helmway/base/mutex.h"
#include "helmway/wire/ifrt_session.pb.h"

namespace helmway::proxy {

// The call sites in a client's program that its requests name, each as often as it was named, and when the
// client may forget them: an error that carries the number of one makes the client show it. A client keeps
// each for as long as its session lasts unless it is told (some 500 bytes a request), and ends its process
// when it is told too often.
//
// What clients do, as seen with jaxlib 0.10.2 to 0.12.0.1: they count successful responses from 0, and forget
// what one lists when they are done with it and with all lower numbers. Some they never get done with: the
// response to Init, which they hold on to, and those to deletions and destructions, with the checks that
// follow deletions. These go without a number, which is the number 0; a client then takes the list of the
// next response with that number for Init's, so that one has none. A gap, or a number on one of them, would
// make the client keep everything from there on.
//
// Any thread.
class UserContexts {
 public:
  // A request has come that names `id` (0: none). Until Settle the duty to release it is here.
  void Begin(uint64_t op_id, uint64_t id);
  // The release is the caller's duty, now or later. Returns the id, or 0 if it was released or taken already.
  uint64_t Take(uint64_t op_id);
  // The request cannot fail any more, nor what it has made.
  void Release(uint64_t id);
  // Completes the metadata of a response: an error's request stays named for good, since what it made has
  // failed. To be called in the order of sending. `counted`: the client looks at the number.
  void Settle(xla::ifrt::proxy::ResponseMetadata& metadata, bool ok, bool counted);

 private:
  base::Mutex mu_;
  absl::flat_hash_map<uint64_t, uint64_t> open_ ABSL_GUARDED_BY(mu_);  // request -> id
  std::vector<uint64_t> released_ ABSL_GUARDED_BY(mu_);                // not told yet
  int64_t next_number_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_USER_CONTEXTS_H_
