#include "helmway/pjrt/ffi.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"
#include "helmway/base/status.h"
#include "helmway/pjrt/error.h"
#include "helmway/pjrt/extensions.h"
#include "helmway/pjrt/ffi_api.h"
#include "helmway/pjrt/thread_sanitizer.h"
#include "pjrt_c_api.h"
#include "xla_ffi_c_api.h"

namespace helmway::pjrt {
namespace {

// The youngest interface whose additions were looked at.
constexpr ApiVersion kYoungestFfi = {0, 5};

XLA_FFI_Metadata* MetadataOf(const XLA_FFI_CallFrame* frame) {
  const XLA_FFI_InternalExtension* extension = frame->extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return nullptr;
  return reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata;
}

void GiveVersion(XLA_FFI_Metadata* metadata, const XLA_FFI_Api_Version& version) {
  metadata->api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, version.major_version,
                           version.minor_version};
}

// Plugins ask a handler for its version when it is registered, with their own interface at hand; so
// registering this one shows it.
std::atomic<const XLA_FFI_Api*> probed_api{nullptr};

XLA_FFI_Error* Probe(XLA_FFI_CallFrame* frame) {
  probed_api.store(frame->api, std::memory_order_release);
  if (XLA_FFI_Metadata* metadata = MetadataOf(frame)) {
    GiveVersion(metadata, frame->api->api_version);
    metadata->traits = 0;
  }
  return nullptr;
}

absl::Status Register(const Plugin& plugin, absl::string_view target, absl::string_view platform,
                      FfiHandler* handler) {
  if (plugin.ffi() == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the PJRT plugin '", plugin.path(), "' has no registry for custom calls"));
  }
  FfiRegisterHandlerArgs args{.struct_size = sizeof(FfiRegisterHandlerArgs),
                              .target_name = target.data(),
                              .target_name_size = target.size(),
                              .handler = reinterpret_cast<void*>(handler),
                              .platform_name = platform.data(),
                              .platform_name_size = platform.size(),
                              .traits = 0};
  return ToStatus(plugin.api(), CallPlugin(plugin.ffi()->register_handler, &args));
}

absl::StatusOr<ApiVersion> VersionOf(const XLA_FFI_Api* api, FfiHandler* handler) {
  XLA_FFI_Metadata metadata = {};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr};
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  frame.api = api;
  if (XLA_FFI_Error* error = handler(&frame)) {
    // How its text is asked for differs between versions.
    XLA_FFI_Error_Destroy_Args destroy = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    CallPlugin(api->XLA_FFI_Error_Destroy, &destroy);
    return absl::FailedPreconditionError(
        "a custom call handler does not tell for which interface it was built");
  }
  return ApiVersion{metadata.api_version.major_version, metadata.api_version.minor_version};
}

// Handlers get no data of their own, so each forwarded handler takes one function of a fixed set.
constexpr size_t kMaxForwarded = 1024;
std::array<FfiHandler*, kMaxForwarded> forwarded;  // written before its function is registered
std::atomic<size_t> num_forwarded{0};

template <size_t i>
XLA_FFI_Error* Forward(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = forwarded[i](frame);
  if (error == nullptr) {
    if (XLA_FFI_Metadata* metadata = MetadataOf(frame)) GiveVersion(metadata, frame->api->api_version);
  }
  return error;
}

template <size_t... i>
constexpr std::array<FfiHandler*, sizeof...(i)> Forwarders(std::index_sequence<i...> /*all*/) {
  return {&Forward<i>...};
}
constexpr std::array<FfiHandler*, kMaxForwarded> kForwarders =
    Forwarders(std::make_index_sequence<kMaxForwarded>());

std::string Text(ApiVersion version) { return absl::StrCat(version.major, ".", version.minor); }

}  // namespace

absl::StatusOr<const XLA_FFI_Api*> FfiApiOf(const Plugin& plugin) {
  static base::Mutex& mu = *new base::Mutex;
  static auto& known = *new std::map<const PJRT_Api*, const XLA_FFI_Api*>;
  base::MutexLock lock(&mu);
  if (const auto it = known.find(plugin.api()); it != known.end()) return it->second;
  probed_api.store(nullptr, std::memory_order_relaxed);
  HELMWAY_RETURN_IF_ERROR(Register(plugin, "helmway_probe", "Host", &Probe));
  const XLA_FFI_Api* api = probed_api.load(std::memory_order_acquire);
  if (api == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the PJRT plugin '", plugin.path(), "' does not show its custom call interface"));
  }
  return known[plugin.api()] = api;
}

absl::StatusOr<int64_t> RunDataTypeId(const XLA_FFI_Api* api) {
  static base::Mutex& mu = *new base::Mutex;
  static auto& known = *new std::map<const XLA_FFI_Api*, int64_t>;
  base::MutexLock lock(&mu);
  if (const auto it = known.find(api); it != known.end()) return it->second;
  constexpr absl::string_view kName = "helmway_run_data";
  XLA_FFI_TypeId id = {0};  // to be chosen
  XLA_FFI_TypeInfo info = {XLA_FFI_TypeInfo_STRUCT_SIZE, nullptr, nullptr};
  XLA_FFI_Type_Register_Args args = {
      XLA_FFI_Type_Register_Args_STRUCT_SIZE, nullptr, {kName.data(), kName.size()}, &id, &info};
  HELMWAY_RETURN_IF_ERROR(TakeFfiError(api, CallPlugin(api->XLA_FFI_Type_Register, &args)));
  return known[api] = id.type_id;
}

XLA_FFI_Error* MakeFfiError(const XLA_FFI_Api* api, const absl::Status& status) {
  const std::string message(status.message());
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message.c_str(),
                                    static_cast<XLA_FFI_Error_Code>(status.code())};
  return CallPlugin(api->XLA_FFI_Error_Create, &args);
}

absl::Status TakeFfiError(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  if (error == nullptr) return absl::OkStatus();
  XLA_FFI_Error_GetDetails_Args details = {XLA_FFI_Error_GetDetails_Args_STRUCT_SIZE, nullptr, error, nullptr,
                                           XLA_FFI_Error_Code_UNKNOWN};
  api->XLA_FFI_Error_GetDetails(&details);
  absl::Status status(static_cast<absl::StatusCode>(details.errc),
                      details.message == nullptr ? "" : details.message);
  XLA_FFI_Error_Destroy_Args destroy = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  CallPlugin(api->XLA_FFI_Error_Destroy, &destroy);
  return status;
}

absl::StatusOr<ApiVersion> FfiHandlerVersion(const Plugin& plugin, FfiHandler* handler) {
  HELMWAY_ASSIGN_OR_RETURN(const XLA_FFI_Api* api, FfiApiOf(plugin));
  return VersionOf(api, handler);
}

absl::Status RegisterFfiHandler(const Plugin& plugin, absl::string_view target, absl::string_view platform,
                                FfiHandler* handler) {
  HELMWAY_ASSIGN_OR_RETURN(const XLA_FFI_Api* api, FfiApiOf(plugin));
  HELMWAY_ASSIGN_OR_RETURN(const ApiVersion version, VersionOf(api, handler));
  const ApiVersion own = {api->api_version.major_version, api->api_version.minor_version};
  if (version.major != own.major || (version.minor > own.minor && version.minor > kYoungestFfi.minor)) {
    return absl::FailedPreconditionError(absl::StrCat("the custom call '", target, "' was built for version ",
                                                      Text(version), " of the interface, the plugin has ",
                                                      Text(own)));
  }
  if (version.minor > own.minor) {
    const size_t i = num_forwarded.fetch_add(1);
    if (i >= kMaxForwarded)
      return absl::ResourceExhaustedError("too many custom calls of a younger interface");
    forwarded[i] = handler;
    handler = kForwarders[i];
  }
  return Register(plugin, target, platform, handler);
}

}  // namespace helmway::pjrt
