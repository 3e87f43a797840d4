#ifndef HELMWAY_WORKER_RUN_DATA_H_
#define HELMWAY_WORKER_RUN_DATA_H_

#include <cstddef>

namespace helmway::worker {

class CallbackRun;
class LaunchShare;

// What the custom calls of one device's run find (pjrt::FfiCall::run_data). Lives until the run is over.
struct RunData {
  LaunchShare* share = nullptr;      // of a program with our collectives
  size_t part = 0;                   // of the share
  CallbackRun* callbacks = nullptr;  // of a program that calls Python functions of its client
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_RUN_DATA_H_
