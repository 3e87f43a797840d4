#ifndef HELMWAY_WORKER_SIDECAR_SOURCE_H_
#define HELMWAY_WORKER_SIDECAR_SOURCE_H_

namespace helmway::worker {

// The text of sidecar.py.
extern const char* const kSidecarSource;

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_SIDECAR_SOURCE_H_
