#ifndef HELMWAY_NET_FLUSHER_H_
#define HELMWAY_NET_FLUSHER_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "helmway/base/mutex.h"

namespace helmway::net {

// Has what nobody waits for sent a little later, if it has not gone with something else by then. One thread,
// idle while there is nothing. Any thread.
class Flusher {
 public:
  class Sender {
   public:
    virtual ~Sender() = default;
    // Sends what there is.
    virtual void Flush() = 0;
  };

  explicit Flusher(absl::Duration patience);
  // What is still due is dropped. Not from Flush.
  ~Flusher();

  // Calls sender->Flush() once, soon.
  void Add(std::shared_ptr<Sender> sender);

 private:
  void Run();

  const absl::Duration patience_;
  base::Mutex mu_;
  std::vector<std::shared_ptr<Sender>> due_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_FLUSHER_H_
