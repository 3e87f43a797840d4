#ifndef HELMWAY_PROXY_COPY_SEMANTICS_H_
#define HELMWAY_PROXY_COPY_SEMANTICS_H_

#include "helmway/wire/ifrt_array.pb.h"

namespace helmway::proxy {

// What a request says about its input arrays: keep them and share nothing with them, or use their buffers and
// give them up. Neither: results may share their buffers.
inline bool IsAlwaysCopy(xla::ifrt::proto::ArrayCopySemantics semantics) {
  return semantics == xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY;
}
inline bool IsDonate(xla::ifrt::proto::ArrayCopySemantics semantics) {
  return semantics == xla::ifrt::proto::ARRAY_COPY_SEMANTICS_DONATE_INPUT;
}

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_COPY_SEMANTICS_H_
