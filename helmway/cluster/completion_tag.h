#ifndef HELMWAY_CLUSTER_COMPLETION_TAG_H_
#define HELMWAY_CLUSTER_COMPLETION_TAG_H_

#include "helmway/base/happens_before.h"

namespace helmway::cluster {

// What comes back from a gRPC completion queue: an operation of a call is over.
struct Tag {
  void* call;
  void (*over)(void* call, bool ok);
};

// A tag whose operation ends in (call->*kOver)(ok).
template <auto kOver, typename Call>
Tag MakeTag(Call* call) {
  return {call, [](void* c, bool ok) { (static_cast<Call*>(c)->*kOver)(ok); }};
}

// Every operation's tag goes through Arm, on the thread that starts the operation, and through Run on the
// thread that takes it off the queue.
inline void* Arm(Tag* tag) {
  base::HappensBefore(tag);
  return tag;
}

inline void Run(void* tag, bool ok) {
  base::HappensAfter(tag);
  const Tag* over = static_cast<const Tag*>(tag);
  over->over(over->call, ok);
}

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_COMPLETION_TAG_H_
