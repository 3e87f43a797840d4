#include "helmway/pjrt/plugin.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/pjrt/error.h"
#include "helmway/pjrt/extensions.h"
#include "helmway/pjrt/named_value.h"
#include "helmway/pjrt/thread_sanitizer.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {
namespace {

constexpr char kInstall[] =
    "Helmway needs a PJRT CPU plugin: `pip install --no-deps lammps-jax-pjrt-cpu==0.11.2`, then give the "
    "path of "
    "pjrt_c_api_cpu_plugin.so inside that package";

// One per library, so that each is initialized once whatever Load is called.
struct Initialization {
  std::once_flag once;
  absl::Status status;
};

Initialization& InitializationOf(const PJRT_Api* api) {
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<const PJRT_Api*, Initialization>;
  std::lock_guard<std::mutex> lock(mutex);
  return all[api];
}

// The extension of `type`, or null if the plugin lacks it or has a form too small to hold `needed_bytes`.
template <typename Extension>
const Extension* Find(const PJRT_Api* api, int type, size_t needed_bytes) {
  const PJRT_Extension_Base* extension = FindExtension(api, type);
  if (extension == nullptr || extension->struct_size < needed_bytes) return nullptr;
  return reinterpret_cast<const Extension*>(extension);
}

}  // namespace

Plugin::Plugin(std::string path, const PJRT_Api* api)
    : path_(std::move(path)),
      api_(api),
      api_version_{api->pjrt_api_version.major_version, api->pjrt_api_version.minor_version},
      layouts_(Find<LayoutsExtension>(api, PJRT_Extension_Type_Layouts,
                                      offsetof(LayoutsExtension, output_layouts))),
      shardings_(Find<ShardingsExtension>(api, kShardingsExtensionType, sizeof(ShardingsExtension))),
      ffi_(Find<FfiExtension>(api, PJRT_Extension_Type_FFI, sizeof(FfiExtension))),
      xla_transform_(Find<XlaTransformExtension>(api, kXlaTransformExtensionType,
                                                 offsetof(XlaTransformExtension, clear_transform))) {}

absl::StatusOr<std::shared_ptr<Plugin>> Plugin::Load(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(
        absl::StrCat("cannot load the PJRT plugin '", path, "': ", std::strerror(errno), ". ", kInstall));
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return absl::FailedPreconditionError(absl::StrCat("cannot load the PJRT plugin '", path,
                                                      "': ", reason == nullptr ? "dlopen failed" : reason,
                                                      ". ", kInstall));
  }
  // The library stays loaded on every path below, also when it is refused: see the class comment.
  auto* get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' is no PJRT plugin: it does not export GetPjrtApi. ", kInstall));
  }
  const PJRT_Api* api = get_api();
  if (api == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "': GetPjrtApi gave no interface. ", kInstall));
  }
  if (api->struct_size < offsetof(PJRT_Api, pjrt_api_version) + PJRT_Api_Version_STRUCT_SIZE) {
    return absl::FailedPreconditionError(absl::StrCat("'", path, "': its PJRT interface has only ",
                                                      api->struct_size, " bytes, too few for a version. ",
                                                      kInstall));
  }
  const PJRT_Api_Version& version = api->pjrt_api_version;
  if (version.major_version != kOldestApi.major || version.minor_version < kOldestApi.minor) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' speaks PJRT interface ", version.major_version, ".", version.minor_version,
                     "; needed is major version ", kOldestApi.major, ", at least ", kOldestApi.major, ".",
                     kOldestApi.minor, ". ", kInstall));
  }
  if (api->struct_size < PJRT_Api_STRUCT_SIZE) {
    return absl::FailedPreconditionError(absl::StrCat(
        "'", path, "' says it speaks PJRT interface ", version.major_version, ".", version.minor_version,
        " but its table has ", api->struct_size, " bytes instead of at least ",
        static_cast<size_t>(PJRT_Api_STRUCT_SIZE), ". ", kInstall));
  }
  std::shared_ptr<Plugin> plugin(new Plugin(path, InterfaceOf(api)));
  if (absl::Status status = plugin->Initialize(); !status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("initializing the PJRT plugin '", path, "': ", status.message()));
  }
  return plugin;
}

absl::Status Plugin::Initialize() {
  Initialization& initialization = InitializationOf(api_);
  std::call_once(initialization.once, [&] {
    PJRT_Plugin_Initialize_Args args{.struct_size = PJRT_Plugin_Initialize_Args_STRUCT_SIZE};
    initialization.status = ToStatus(api_, api_->PJRT_Plugin_Initialize(&args));
  });
  if (!initialization.status.ok()) return initialization.status;
  PJRT_Plugin_Attributes_Args args{.struct_size = PJRT_Plugin_Attributes_Args_STRUCT_SIZE};
  if (absl::Status status = ToStatus(api_, api_->PJRT_Plugin_Attributes(&args)); !status.ok()) return status;
  attributes_ = ToAttributeMap(args.attributes, args.num_attributes);
  return absl::OkStatus();
}

}  // namespace helmway::pjrt
