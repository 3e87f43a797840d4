#ifndef HELMWAY_WORKER_TOKEN_H_
#define HELMWAY_WORKER_TOKEN_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "helmway/base/mutex.h"
#include "helmway/pjrt/client.h"
#include "helmway/pjrt/executable.h"

namespace helmway::worker {

// Makes tokens, arrays without contents that only order programs. Plugins take none from the host, so a
// program returns them. Any thread.
class TokenMaker {
 public:
  // `client` must outlive this.
  explicit TokenMaker(const pjrt::Client* client) : client_(client) {}

  // A token on the device, in its default memory. Compiles the program the first time, and blocks for that
  // long.
  absl::StatusOr<pjrt::Buffer> Make(const pjrt::Device* device);

 private:
  absl::StatusOr<std::shared_ptr<const pjrt::LoadedExecutable>> Program();

  const pjrt::Client* const client_;
  base::Mutex mu_;
  std::shared_ptr<const pjrt::LoadedExecutable> program_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_TOKEN_H_
