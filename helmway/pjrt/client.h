#ifndef HELMWAY_PJRT_CLIENT_H_
#define HELMWAY_PJRT_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "helmway/async/outstanding.h"
#include "helmway/pjrt/attribute.h"
#include "helmway/pjrt/buffer.h"
#include "helmway/pjrt/client_options.h"
#include "helmway/pjrt/element_type.h"
#include "helmway/pjrt/event.h"
#include "helmway/pjrt/executable.h"
#include "helmway/pjrt/key_value_store.h"
#include "helmway/pjrt/plugin.h"

struct PJRT_Client;
struct PJRT_Device;
struct PJRT_Memory;

namespace helmway::pjrt {

class Client;
class Memory;

// One device of a client. Immutable, owned by the client, at a fixed address.
class Device {
 public:
  // Global id: on CPU 2048 times the process id plus the local index.
  int id() const { return id_; }
  // -1 if the device has none or is not addressable.
  int local_hardware_id() const { return local_hardware_id_; }
  int process_index() const { return process_index_; }
  // Whether this client can use the device. Of the others only the description is known.
  bool is_addressable() const { return is_addressable_; }
  const std::string& kind() const { return kind_; }
  const std::string& debug_string() const { return debug_string_; }
  const std::string& to_string() const { return to_string_; }
  const AttributeMap& attributes() const { return attributes_; }
  // Empty and null for a device that is not addressable.
  absl::Span<Memory* const> memories() const { return memories_; }
  Memory* default_memory() const { return default_memory_; }
  // The memory of `kind` ("device", "pinned_host", ...), or null.
  Memory* FindMemory(std::string_view kind) const;

  PJRT_Device* get() const { return device_; }

 private:
  friend class Client;
  PJRT_Device* device_ = nullptr;
  int id_ = 0;
  int local_hardware_id_ = -1;
  int process_index_ = 0;
  bool is_addressable_ = false;
  std::string kind_;
  std::string debug_string_;
  std::string to_string_;
  AttributeMap attributes_;
  std::vector<Memory*> memories_;
  Memory* default_memory_ = nullptr;
};

// One addressable memory space of a client. Immutable, owned by the client, at a fixed address.
class Memory {
 public:
  int id() const { return id_; }
  int kind_id() const { return kind_id_; }
  const std::string& kind() const { return kind_; }
  const std::string& debug_string() const { return debug_string_; }
  const std::string& to_string() const { return to_string_; }
  // The devices that can use it.
  absl::Span<Device* const> devices() const { return devices_; }

  PJRT_Memory* get() const { return memory_; }

 private:
  friend class Client;
  PJRT_Memory* memory_ = nullptr;
  int id_ = 0;
  int kind_id_ = 0;
  std::string kind_;
  std::string debug_string_;
  std::string to_string_;
  std::vector<Device*> devices_;
};

struct CompileRequest {
  std::string_view code;
  // "mlir" (text or bytecode), "hlo" or "hlo_with_config" (serialized protos).
  std::string_view format = "mlir";
  // A serialized xla.CompileOptionsProto; empty means one replica and one partition (compile_options.h).
  std::string_view serialized_options;
};

// What the plugin may do with the host memory given to BufferFromHost, and for how long it must live and not
// change.
enum class HostBufferSemantics {
  // Until BufferFromHost returns; the plugin copies within the call.
  kImmutableOnlyDuringCall,
  // Until the done event.
  kImmutableUntilTransferCompletes,
  // Until the done event, which comes when the buffer's memory is given up: the buffer may alias host memory
  // (on CPU: if it is 64-byte aligned) but never writes it.
  kImmutableZeroCopy,
  // The same, but the plugin may write the memory (a donated buffer becomes an output in place).
  kMutableZeroCopy,
};

struct HostBufferArgs {
  const void* data = nullptr;
  ElementType type = ElementType::kInvalid;
  absl::Span<const int64_t> dims;
  // Bytes from one element to the next per dimension, as many as `dims`; may be negative (`data` is then the
  // address of element zero). nullopt: dense row-major. Sub-byte types take one byte per element.
  std::optional<absl::Span<const int64_t>> byte_strides;
  HostBufferSemantics semantics = HostBufferSemantics::kImmutableOnlyDuringCall;
  // Where to: `memory` if set, else the default memory of `device`.
  const Device* device = nullptr;
  const Memory* memory = nullptr;
  // Layout on the device as an order of dimensions. nullopt: dense row-major.
  std::optional<absl::Span<const int64_t>> minor_to_major;
};

struct HostBufferResult {
  Buffer buffer;
  Event done_with_host_buffer;
};

struct DeviceViewArgs {
  // An address in `memory` (Buffer::OpaqueDevicePointer) that holds the contents already, in their device
  // form.
  void* data = nullptr;
  ElementType type = ElementType::kInvalid;
  absl::Span<const int64_t> dims;
  const Memory* memory = nullptr;
  // Order of dimensions on the device. nullopt: the plugin's default layout. Not for sub-byte types, whose
  // packing it cannot say.
  std::optional<absl::Span<const int64_t>> minor_to_major;
};

// A plugin's view of the devices of this process. Shared ownership: buffers and executables hold it, and the
// last reference destroys it; that must not happen on a plugin thread (in an Event callback). Any thread.
class Client : public std::enable_shared_from_this<Client> {
 public:
  // `key_values`: where the plugin's clients of several processes meet; null: this client has no others. Then
  // it blocks until the others are made too, or the plugin has no more patience. Errors are the plugin's,
  // with its code and text, after the name of its file.
  static absl::StatusOr<std::shared_ptr<Client>> Create(std::shared_ptr<Plugin> plugin,
                                                        std::vector<Option> options = {},
                                                        std::shared_ptr<KeyValueStore> key_values = nullptr);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::shared_ptr<Plugin>& plugin() const { return plugin_; }
  const PJRT_Api* api() const { return plugin_->api(); }
  PJRT_Client* get() const { return client_; }

  const std::string& platform_name() const { return platform_name_; }
  const std::string& platform_version() const { return platform_version_; }
  int process_index() const { return process_index_; }

  // In the plugin's order. devices() has every device the plugin knows, addressable or not.
  absl::Span<Device* const> devices() const { return device_list_; }
  absl::Span<Device* const> addressable_devices() const { return addressable_devices_; }
  absl::Span<Memory* const> memories() const { return memory_list_; }

  // Null if there is none.
  Device* FindDevice(int id) const;
  Memory* FindMemory(int id) const;
  Device* FindDevice(const PJRT_Device* device) const;
  Memory* FindMemory(const PJRT_Memory* memory) const;

  // Blocks for as long as compiling takes. Errors are the compiler's, with its code (the CPU plugin gives
  // UNKNOWN for programs that it cannot parse) and text, or INVALID_ARGUMENT from CheckCompileOptions.
  absl::StatusOr<std::unique_ptr<LoadedExecutable>> Compile(const CompileRequest& request) const;

  // Loads the result of LoadedExecutable::Serialize from the same plugin version and a host with the same CPU
  // features. `serialized_options` (xla.CompileOptionsProto) replaces the options kept in `bytes`.
  absl::StatusOr<std::unique_ptr<LoadedExecutable>> DeserializeAndLoad(
      std::string_view bytes, std::optional<std::string_view> serialized_options = std::nullopt) const;

  // Device ids, replica-major: result[replica * partitions + partition]. For more than there are devices the
  // plugin may make ids up.
  absl::StatusOr<std::vector<int>> DefaultDeviceAssignment(int replicas, int partitions) const;

  // The layout the plugin gives a buffer by default, as text: "{1,0}". UNIMPLEMENTED without the Layouts
  // extension.
  absl::StatusOr<std::string> DefaultLayout(ElementType type, absl::Span<const int64_t> dims) const;

  absl::StatusOr<HostBufferResult> BufferFromHost(const HostBufferArgs& args) const;

  // A buffer that lies in device memory which something else owns: nothing is copied. A program that donates
  // it may write that memory (the CPU plugin copies instead). What `args` points to need not outlive the
  // call. `on_release` runs once, on any thread, when the plugin is done with the memory: if the call fails,
  // before it returns. It must be quick and must not block. INVALID_ARGUMENT for what the plugin cannot
  // describe, also for arrays without elements; UNIMPLEMENTED if the plugin has no views.
  absl::StatusOr<Buffer> ViewOfDeviceMemory(const DeviceViewArgs& args,
                                            std::function<void()> on_release) const;

  // Blocks until no callback of an event of this client is registered or running, and what they held is
  // dropped. Then, if no more are registered, this reference may be the last one. Not inside a callback.
  // Callbacks of done_with_host_buffer are not waited for: they come when their buffer dies.
  void WaitForCallbacks() const { callbacks_.WaitForNone(); }
  // Where events of this client count their callbacks.
  async::Outstanding* callbacks() const { return &callbacks_; }

  // A buffer whose contents are the error `error` (not OK): its ready event, copies and every execution that
  // uses it fail with it. UNIMPLEMENTED if the plugin lacks it.
  absl::StatusOr<Buffer> ErrorBuffer(const absl::Status& error, ElementType type,
                                     absl::Span<const int64_t> dims, const Memory* memory) const;

 private:
  Client(std::shared_ptr<Plugin> plugin, std::shared_ptr<KeyValueStore> key_values, PJRT_Client* client);
  absl::Status Describe();
  absl::Status DescribeDevice(Device& device);
  absl::Status DescribeMemory(Memory& memory);

  std::shared_ptr<Plugin> plugin_;
  const std::shared_ptr<KeyValueStore> key_values_;  // the plugin calls it as long as the client lives
  PJRT_Client* client_;
  mutable async::Outstanding callbacks_;
  std::string platform_name_;
  std::string platform_version_;
  int process_index_ = 0;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<Device*> device_list_;
  std::vector<Device*> addressable_devices_;
  std::vector<Memory*> memory_list_;
  absl::flat_hash_map<int, Device*> device_by_id_;
  absl::flat_hash_map<int, Memory*> memory_by_id_;
  absl::flat_hash_map<const PJRT_Device*, Device*> device_by_handle_;
  absl::flat_hash_map<const PJRT_Memory*, Memory*> memory_by_handle_;
};

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_CLIENT_H_
