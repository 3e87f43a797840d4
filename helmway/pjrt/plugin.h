#ifndef HELMWAY_PJRT_PLUGIN_H_
#define HELMWAY_PJRT_PLUGIN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "helmway/pjrt/attribute.h"

struct PJRT_Api;

namespace helmway::pjrt {

struct LayoutsExtension;
struct ShardingsExtension;
struct FfiExtension;
struct XlaTransformExtension;

struct ApiVersion {
  int major = 0;
  int minor = 0;
};

// The oldest plugin interface that Load accepts: the minor of the vendored C header. It has every function
// and every argument field that this folder uses from the main table.
inline constexpr ApiVersion kOldestApi = {0, 81};

// One PJRT plugin (a shared library that exports GetPjrtApi), loaded and initialized. Stays in the process
// for good: plugins start threads and register exit handlers, so they cannot be unloaded. Immutable; any
// thread.
class Plugin {
 public:
  // Loads `path`. NOT_FOUND: no such file. FAILED_PRECONDITION: the file is no PJRT plugin, lacks a library,
  // or speaks another version of the interface. All messages name the file and what to install. Loading one
  // path twice gives two Plugins over one library, which is initialized once.
  static absl::StatusOr<std::shared_ptr<Plugin>> Load(const std::string& path);

  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::string& path() const { return path_; }
  ApiVersion api_version() const { return api_version_; }
  // What the plugin says of itself, e.g. "stablehlo_current_version" (list of three integers).
  const AttributeMap& attributes() const { return attributes_; }

  // Valid for the rest of the process. Only code in this folder can use it.
  const PJRT_Api* api() const { return api_; }

  // Optional parts of the interface, or null where the plugin lacks one (extensions.h). Process lifetime.
  const LayoutsExtension* layouts() const { return layouts_; }
  const ShardingsExtension* shardings() const { return shardings_; }
  const FfiExtension* ffi() const { return ffi_; }
  const XlaTransformExtension* xla_transform() const { return xla_transform_; }

 private:
  Plugin(std::string path, const PJRT_Api* api);
  absl::Status Initialize();

  std::string path_;
  const PJRT_Api* api_;
  ApiVersion api_version_;
  AttributeMap attributes_;
  const LayoutsExtension* layouts_ = nullptr;
  const ShardingsExtension* shardings_ = nullptr;
  const FfiExtension* ffi_ = nullptr;
  const XlaTransformExtension* xla_transform_ = nullptr;
};

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_PLUGIN_H_
