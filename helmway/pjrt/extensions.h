#ifndef HELMWAY_PJRT_EXTENSIONS_H_
#define HELMWAY_PJRT_EXTENSIONS_H_

// Parts of the plugin interface that the vendored C header does not declare: extensions, and what versions
// after its own added. Declared after their public definitions in OpenXLA (xla/pjrt/c/pjrt_c_api.h and
// xla/pjrt/c/pjrt_c_api_{layouts,shardings,ffi,xla_transform}_extension.h), plugin interface 0.81 to 0.115.
// Only sources and tests of this folder include it.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pjrt_c_api.h"

namespace helmway::pjrt {

// PJRT_Extension_Type of extensions younger than the vendored header.
inline constexpr int kShardingsExtensionType = 19;
inline constexpr int kXlaTransformExtensionType = 24;

// The number in an enum field that a plugin younger than the header wrote. Reading it as the enum would be
// undefined for numbers that the enum cannot hold.
template <typename Enum>
int EnumNumber(const Enum& field) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number;
  std::memcpy(&number, &field, sizeof(number));
  return number;
}

// The extension of `type` in a plugin's chain, or null.
inline const PJRT_Extension_Base* FindExtension(const PJRT_Api* api, int type) {
  for (const PJRT_Extension_Base* extension = api->extension_start; extension != nullptr;
       extension = extension->next) {
    if (EnumNumber(extension->type) == type) return extension;
  }
  return nullptr;
}

// Whether a struct that begins with its size has `field`, by that size.
#define HELMWAY_PJRT_HAS_FIELD(type, field, size) \
  ((size) >= offsetof(type, field) + sizeof(static_cast<type*>(nullptr)->field))

// ------------------------------------------------------------------ Layouts, type 4
struct LayoutHandle;            // an opaque layout
struct SerializedLayoutHandle;  // backs the bytes of a serialized layout

struct LayoutDestroyArgs {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  LayoutHandle* layout;
};

struct LayoutSerializeArgs {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  LayoutHandle* layout;
  const char* bytes;                                    // out: the text form, not null-terminated
  size_t bytes_size;                                    // out
  SerializedLayoutHandle* serialized;                   // out
  void (*serialized_deleter)(SerializedLayoutHandle*);  // out: to be called once
};

struct ClientDefaultLayoutArgs {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_Buffer_Type type;
  const int64_t* dims;
  size_t num_dims;
  LayoutHandle* layout;  // out: the caller destroys it
};

struct BufferLayoutArgs {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  LayoutHandle* layout;  // out: the caller destroys it
};

// Of the outputs and of the parameters alike.
struct ExecutableLayoutsArgs {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_layouts;      // out
  LayoutHandle** layouts;  // out: owned by the executable
};

struct LayoutsExtension {
  PJRT_Extension_Base base;
  PJRT_Error* (*destroy)(LayoutDestroyArgs*);
  PJRT_Error* (*serialize)(LayoutSerializeArgs*);
  PJRT_Error* (*client_default_layout)(ClientDefaultLayoutArgs*);
  PJRT_Error* (*buffer_layout)(BufferLayoutArgs*);
  void* topology_default_layout;
  PJRT_Error* (*output_layouts)(ExecutableLayoutsArgs*);     // since 0.81
  PJRT_Error* (*parameter_layouts)(ExecutableLayoutsArgs*);  // since 0.93
};

// ------------------------------------------------------------------ Shardings, type 19
// Of the outputs and of the parameters alike. The arrays are owned by the executable; null if it has no
// shardings.
struct ExecutableShardingsArgs {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_shardings;          // out
  const char* const* shardings;  // out: serialized xla.OpSharding
  const size_t* sizes;           // out: bytes of each
};

struct ShardingsExtension {
  PJRT_Extension_Base base;
  PJRT_Error* (*parameter_shardings)(ExecutableShardingsArgs*);
  PJRT_Error* (*output_shardings)(ExecutableShardingsArgs*);
};

// ------------------------------------------------------------------ FFI, type 5
struct FfiRegisterHandlerArgs {
  size_t struct_size;  // no extension_start here
  const char* target_name;
  size_t target_name_size;
  void* handler;  // XLA_FFI_Handler*
  const char* platform_name;
  size_t platform_name_size;
  unsigned traits;
};

// What a run carries for its custom calls; `type_id` is one that the custom call interface has given out.
struct FfiUserDataAddArgs {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_ExecuteContext* context;
  int64_t type_id;
  void* data;
};

struct FfiExtension {
  PJRT_Extension_Base base;
  void* type_register;
  PJRT_Error* (*user_data_add)(FfiUserDataAddArgs*);
  PJRT_Error* (*register_handler)(FfiRegisterHandlerArgs*);
};

// ------------------------------------------------------------------ XlaTransform, type 24
inline constexpr int64_t kXlaTransformVersion = 1;
inline constexpr int kBeforeScheduling = 0;

struct TransformText {
  const char* data;
  size_t size;
};

struct TransformArgs {
  size_t struct_size;
  int64_t api_version;
  void* data;                   // out: for cleanup
  void (*cleanup)(void* data);  // out: called once the rest has been read; may be null
  bool has_error;               // out
  PJRT_Error_Code code;         // out; plugins ignore it
  TransformText error;          // out
  TransformText module;         // a serialized xla.HloModuleProto
  TransformText new_module;     // out: the same
  bool changed;                 // out
};

struct TransformCallbacks {
  int64_t version;
  void (*destroy)(TransformCallbacks*);  // may be null
  void (*transform)(TransformCallbacks*, TransformArgs*);
};

struct RegisterTransformArgs {
  size_t struct_size;  // no extension_start here
  const char* name;
  size_t name_size;
  int stage;
  TransformCallbacks* callbacks;  // must live as long as the plugin
};

struct XlaTransformExtension {
  PJRT_Extension_Base base;
  PJRT_Error* (*register_transform)(RegisterTransformArgs*);
  void* clear_transform;
  void* pass_pipeline_trace;
  void* destroy_pass_pipeline_trace;
};

// ------------------------------------------------------------------ since 0.82: error buffers
struct CreateErrorBufferArgs {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_Error_Code error_code;
  const char* error_message;
  size_t error_message_size;
  const int64_t* shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout* shape_layout;
  PJRT_Memory* memory;
  PJRT_Buffer* buffer;    // out
  void* later_fields[2];  // two words that 0.115 has and that may be empty
};

// The function table as far as this folder uses it.
struct ApiSince82 {
  PJRT_Api base;
  PJRT_Error* (*create_error_buffer)(CreateErrorBufferArgs*);
};
static_assert(offsetof(ApiSince82, create_error_buffer) == PJRT_Api_STRUCT_SIZE);

// ------------------------------------------------------------------ argument structs that grew
// A plugin refuses a struct smaller than its own and ignores what it does not know, so the grown form is sent
// to every plugin.

// Since 0.90.
struct CompiledMemoryStatsArgs {
  PJRT_Executable_GetCompiledMemoryStats_Args base;
  int64_t total_size_in_bytes;  // out
  int64_t later_fields[8];      // room for plugins that know more
};

// Since 0.97.
struct GrownExecuteOptions {
  PJRT_ExecuteOptions base;
  void* multi_slice_config;
};

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_EXTENSIONS_H_
