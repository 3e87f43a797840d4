#include "helmway/proxy/untrusted_requests_testing.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/stubs/logging.h"
#include "helmway/base/host_memory.h"
#include "helmway/proxy/fake_stream_testing.h"
#include "helmway/proxy/fake_worker_testing.h"
#include "helmway/proxy/proxy.h"
#include "helmway/proxy/session_testing.h"
#include "helmway/wire/serialized.h"
#include "helmway/wire/versions.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::proxy {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;
using ::xla::ifrt::proxy::IfrtRequest;
using ::xla::ifrt::proxy::IfrtResponse;

constexpr int64_t kHostBufferBytes = 1 << 16;
constexpr size_t kMaxSteps = 400;
constexpr char kPeer[] = "unix:";

void Require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "Broken promise: %s\n", what.c_str());
  std::abort();
}

// Makes choices of bytes. All are 0 when there are none left.
class Choices {
 public:
  explicit Choices(absl::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(bytes_[0]);
    bytes_.remove_prefix(1);
    return byte;
  }
  // Below `limit`, which is 1 to 256.
  size_t Below(size_t limit) { return Byte() % limit; }
  bool OneIn(size_t n) { return Below(n) == n - 1; }
  template <typename T>
  const T& Of(const std::vector<T>& values) {
    return values[Below(values.size())];
  }
  std::string Bytes(size_t size) {
    const size_t taken = std::min(size, bytes_.size());
    std::string result(bytes_.substr(0, taken));
    bytes_.remove_prefix(taken);
    return result;
  }

 private:
  absl::string_view bytes_;
};

// Writes requests.
class Writer {
 public:
  explicit Writer(Choices* choices) : c_(*choices) {}

  // Handles that the server made.
  std::vector<uint64_t> programs;
  std::vector<uint64_t> others;

  // One that may be known.
  uint64_t Handle() {
    if (!others.empty() && c_.OneIn(8)) return c_.Of(others);
    if (c_.OneIn(2)) return fresh_ - c_.Below(std::min<uint64_t>(fresh_, 8));
    return c_.Below(c_.OneIn(2) ? 32 : 8);
  }
  // One that was not used, mostly.
  uint64_t NewHandle() { return c_.OneIn(8) ? Handle() : ++fresh_; }
  std::vector<uint64_t> Handles(size_t count) {
    std::vector<uint64_t> handles(count);
    for (uint64_t& handle : handles) handle = Handle();
    return handles;
  }
  std::vector<uint64_t> NewHandles(size_t count) {
    std::vector<uint64_t> handles(count);
    for (uint64_t& handle : handles) handle = NewHandle();
    return handles;
  }
  uint64_t Program() { return programs.empty() || c_.OneIn(16) ? Handle() : c_.Of(programs); }
  std::vector<int64_t> Dims() { return c_.Of<std::vector<int64_t>>({{4}, {4}, {2}, {}, {2, 2}, {0}, {3}}); }
  std::vector<int32_t> Devices() {
    return c_.Of<std::vector<int32_t>>({{10}, {10}, {10, 11}, {11}, {11, 10}, {12}, {10, 11, 12, 13}});
  }
  xla::ifrt::ShardingProto Sharding(const std::vector<int32_t>& devices, size_t rank) {
    switch (c_.Below(8)) {
      case 0:
        return OpaqueOver(devices);
      case 1:
      case 2:
        return Replicated(devices);
      case 3:
        return OneDevice(devices[0], "pinned_host");
      default:
        if (devices.size() == 1 || rank == 0) return OneDevice(devices[0]);
        return Split(devices, static_cast<int>(rank));
    }
  }
  xla::ifrt::proto::ArrayCopySemantics Semantics() {
    return static_cast<xla::ifrt::proto::ArrayCopySemantics>(c_.Below(4));
  }

  // A request that might work, as far as one without memory can tell.
  IfrtRequest Sensible() {
    IfrtRequest request;
    switch (c_.Below(22)) {
      case 0:
      case 1:
      case 2: {
        const std::vector<int64_t> dims = Dims();
        auto& make = *request.mutable_make_array_from_host_buffer_request();
        make = FromHost(NewHandle(), dims, Sharding(Devices(), dims.size()));
        if (c_.OneIn(4)) *make.mutable_byte_strides() = Strides(std::vector<int64_t>(dims.size(), 4));
        break;
      }
      case 3:
      case 4: {
        auto& make = *request.mutable_make_arrays_from_host_buffer_shards_request();
        for (size_t a = c_.Below(3); a < 3; ++a) {
          const std::vector<int32_t> devices = Devices();
          const auto count = static_cast<int64_t>(devices.size());
          const uint64_t handle = NewHandle();
          std::vector<ShardBuffer> buffers;
          for (int64_t i = 0; i < count; ++i) {
            buffers.push_back({c_.OneIn(8) ? Handle() : handle + static_cast<uint64_t>(i), {4}, {i}});
          }
          AddArray(make, handle, Spec({4 * count}, Split(devices)), buffers);
        }
        break;
      }
      case 5: {
        const std::vector<int32_t> devices = Devices();
        *request.mutable_assemble_array_from_single_device_arrays_request() =
            Assemble(Handles(devices.size()), NewHandle(), {4 * static_cast<int64_t>(devices.size())},
                     Sharding(devices, 1), Semantics());
        break;
      }
      case 6: {
        auto& disassemble = *request.mutable_disassemble_into_single_device_arrays_request();
        const uint64_t array = Handle();
        disassemble = Disassemble(array, NewHandles(c_.Of<size_t>({1, 2, 4, 0})));
        disassemble.set_copy_semantics(Semantics());
        break;
      }
      case 7: {
        const uint64_t array = Handle();
        *request.mutable_fully_replicated_shard_request() = ShardOf(array, NewHandle());
        request.mutable_fully_replicated_shard_request()->set_copy_semantics(Semantics());
        break;
      }
      case 8: {
        const size_t count = c_.Below(4);
        const std::vector<uint64_t> arrays = Handles(count);
        *request.mutable_copy_arrays_request() =
            Copy(arrays, NewHandles(count), c_.OneIn(4) ? std::vector<int32_t>() : Devices(), Semantics());
        break;
      }
      case 9: {
        const uint64_t buffer = NewHandle();
        *request.mutable_copy_to_host_buffer_request() = ReadInto(buffer, Handle());
        break;
      }
      case 10:
        *request.mutable_check_value_ready_request() = Ready(Handles(c_.Below(4)));
        break;
      case 11:
        *request.mutable_delete_array_request() = Delete(Handles(c_.Of<size_t>({1, 1, 2, 0})));
        break;
      case 12:
        *request.mutable_destruct_array_request() = Destruct(Handles(c_.Of<size_t>({1, 1, 2, 0})));
        break;
      case 13:
        request.mutable_check_future_request()->set_future_handle(Handle());
        break;
      case 14:
        *request.mutable_compile_request() = CompileFor(Devices(), c_.OneIn(2) ? 3 : 6);
        break;
      case 15:
        if (c_.OneIn(4)) {
          request.mutable_loaded_executable_destruct_request()->set_loaded_executable_handle(Program());
        } else {
          request.mutable_loaded_executable_metadata_request()->set_loaded_executable_handle(Program());
        }
        break;
      default: {
        Run run;
        run.executable = Program();
        run.arguments = Handles(c_.Of<size_t>({1, 1, 1, 1, 1, 1, 0, 2}));
        run.results = NewHandles(c_.Of<size_t>({1, 1, 1, 1, 1, 0, 0, 2}));
        run.fill_status = c_.OneIn(2);
        if (run.fill_status) run.status_handle = NewHandle();
        if (c_.OneIn(4)) run.not_donatable.push_back(static_cast<int32_t>(c_.Below(4)) - 1);
        *request.mutable_loaded_executable_execute_request() = Execute(run);
      }
    }
    return request;
  }

  // Any request, with anything in it.
  IfrtRequest Random() {
    IfrtRequest request;
    const auto& members = *IfrtRequest::descriptor()->FindOneofByName("request");
    const FieldDescriptor* member = members.field(static_cast<int>(c_.Below(members.field_count())));
    Fill(request.GetReflection()->MutableMessage(&request, member), 0);
    return request;
  }

  // Replaces one field, somewhere inside.
  void Spoil(Message* message) {
    const auto* type = message->GetDescriptor();
    if (type == xla::ifrt::Serialized::descriptor() && !c_.OneIn(4)) return SpoilPayload(message);
    if (type->field_count() == 0) return;
    const FieldDescriptor* field = type->field(static_cast<int>(c_.Below(type->field_count())));
    const Reflection& reflection = *message->GetReflection();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map() && !c_.OneIn(4)) {
      if (!field->is_repeated()) {
        if (reflection.HasField(*message, field)) return Spoil(reflection.MutableMessage(message, field));
      } else if (const int size = reflection.FieldSize(*message, field); size > 0) {
        return Spoil(reflection.MutableRepeatedMessage(
            message, field, static_cast<int>(c_.Below(static_cast<size_t>(std::min(size, 256))))));
      }
    }
    if (c_.OneIn(3)) return reflection.ClearField(message, field);
    Set(message, field, 0);
  }

 private:
  static constexpr int kMaxDepth = 6;

  void Fill(Message* message, int depth) {
    const auto* type = message->GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      if (!c_.OneIn(3)) Set(message, type->field(i), depth);
    }
  }

  int64_t Number() {
    static const auto* const kNumbers = new std::vector<int64_t>({0,
                                                                  1,
                                                                  2,
                                                                  3,
                                                                  4,
                                                                  8,
                                                                  10,
                                                                  11,
                                                                  12,
                                                                  13,
                                                                  14,
                                                                  16,
                                                                  65,
                                                                  -1,
                                                                  -4,
                                                                  1 << 20,
                                                                  int64_t{1} << 31,
                                                                  int64_t{1} << 48,
                                                                  int64_t{1} << 62,
                                                                  std::numeric_limits<int64_t>::max(),
                                                                  std::numeric_limits<int64_t>::min()});
    return c_.Of(*kNumbers);
  }

  std::string Text() {
    return c_.Of<std::string>({"", "device", "pinned_host", "strange", "{1,0}", "{0}", "{", "\xc3\xa4"});
  }

  template <typename Payload>
  void Put(Message* serialized, absl::string_view name, int depth) {
    Payload payload;
    Fill(&payload, depth);
    serialized->CopyFrom(wire::MakeSerialized(payload, name));
  }

  void FillSerialized(Message* serialized, int depth) {
    switch (c_.Below(9)) {
      case 0:
        return Put<xla::ifrt::SingleDeviceShardingProto>(serialized, wire::kSingleDeviceSharding, depth);
      case 1:
        return Put<xla::ifrt::HloShardingProto>(serialized, wire::kHloSharding, depth);
      case 2:
        return Put<xla::ifrt::OpaqueShardingProto>(serialized, wire::kOpaqueSharding, depth);
      case 3:
        return Put<xla::ifrt::ConcreteShardingProto>(serialized, wire::kConcreteSharding, depth);
      case 4:
        return Put<xla::ifrt::ConcreteEvenShardingProto>(serialized, wire::kConcreteEvenSharding, depth);
      case 5:
        return Put<xla::ifrt::PjRtLayoutProto>(serialized, wire::kPjRtLayout, depth);
      case 6:
        return Put<xla::ifrt::CompactLayoutProto>(serialized, wire::kCompactLayout, depth);
      case 7:
        return Put<xla::ifrt::XlaCompileOptionsProto>(serialized, wire::kXlaCompileOptions, depth);
      default:
        serialized->CopyFrom(wire::MakeSerialized(xla::ifrt::Serialized(), wire::kXlaProgram));
    }
  }

  // Of what is inside of the bytes.
  void SpoilPayload(Message* message) {
    auto& serialized = static_cast<xla::ifrt::Serialized&>(*message);
    const auto inside = [&](auto payload) {
      if (!payload.ParseFromString(serialized.data())) return;
      Spoil(&payload);
      payload.SerializeToString(serialized.mutable_data());
    };
    const std::string& name = serialized.type_name();
    if (name == wire::kSingleDeviceSharding) return inside(xla::ifrt::SingleDeviceShardingProto());
    if (name == wire::kHloSharding) return inside(xla::ifrt::HloShardingProto());
    if (name == wire::kOpaqueSharding) return inside(xla::ifrt::OpaqueShardingProto());
    if (name == wire::kXlaCompileOptions) return inside(xla::ifrt::XlaCompileOptionsProto());
    FillSerialized(message, 0);
  }

  void Set(Message* message, const FieldDescriptor* field, int depth) {
    const Reflection& reflection = *message->GetReflection();
    if (!field->is_repeated()) return SetOne(message, field, depth);
    reflection.ClearField(message, field);
    const size_t count = c_.OneIn(32) ? 70 : c_.Below(5);
    for (size_t i = 0; i < count; ++i) SetOne(message, field, depth);
  }

  void SetOne(Message* message, const FieldDescriptor* field, int depth) {
    const Reflection& reflection = *message->GetReflection();
    const bool add = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        if (depth >= kMaxDepth || field->is_map()) return;
        Message* inner =
            add ? reflection.AddMessage(message, field) : reflection.MutableMessage(message, field);
        if (inner->GetDescriptor() == xla::ifrt::Serialized::descriptor()) {
          return FillSerialized(inner, depth + 1);
        }
        return Fill(inner, depth + 1);
      }
      case FieldDescriptor::CPPTYPE_UINT64: {
        const uint64_t value = c_.OneIn(4)                        ? static_cast<uint64_t>(Number())
                               : c_.OneIn(4) && !programs.empty() ? c_.Of(programs)
                                                                  : Handle();
        return add ? reflection.AddUInt64(message, field, value)
                   : reflection.SetUInt64(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_INT64: {
        const int64_t value = Number();
        return add ? reflection.AddInt64(message, field, value) : reflection.SetInt64(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_INT32: {
        const auto value = static_cast<int32_t>(Number());
        return add ? reflection.AddInt32(message, field, value) : reflection.SetInt32(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_UINT32: {
        const auto value = static_cast<uint32_t>(Number());
        return add ? reflection.AddUInt32(message, field, value)
                   : reflection.SetUInt32(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int value = c_.OneIn(8) ? c_.Byte() : static_cast<int>(c_.Below(20));
        return add ? reflection.AddEnumValue(message, field, value)
                   : reflection.SetEnumValue(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_BOOL: {
        const bool value = c_.OneIn(2);
        return add ? reflection.AddBool(message, field, value) : reflection.SetBool(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_STRING: {
        const std::string value =
            field->type() == FieldDescriptor::TYPE_BYTES && c_.OneIn(2) ? c_.Bytes(c_.Below(32)) : Text();
        return add ? reflection.AddString(message, field, value)
                   : reflection.SetString(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        return;
    }
  }

  Choices& c_;
  uint64_t fresh_ = 40;
};

struct Client {
  Client(Proxy& proxy, FakeWorker& worker, Choices& choices)
      : stream(std::make_shared<FakeStream>(worker.broken_promises())), writer(&choices) {
    xla::ifrt::proxy::GrpcIfrtSessionMetadata metadata;
    metadata.mutable_version()->set_protocol_version(wire::kMaxProtocolVersion);
    metadata.mutable_version()->set_ifrt_serdes_version_number(wire::kMaxSerdesVersion);
    auto opened = proxy.OpenSession(metadata, kPeer, stream);
    Require(opened.ok(), "a session is refused");
    session = *std::move(opened);
    link = worker.links().back();
  }

  // Arrays 1 to 7 and a program that runs on each, so that what follows finds something to work with.
  void Prepare() {
    IfrtRequest request;
    *request.mutable_compile_request() = CompileFor({10});
    Send(std::move(request));
    link->AnswerAny(0, absl::OkStatus(),
                    Compiled({.parameters = {{{4}}}, .outputs = {{{4}}}, .donated = {0}}));
    for (uint64_t handle = 1; handle < 8; ++handle) {
      request.Clear();
      *request.mutable_make_array_from_host_buffer_request() = FromHost(handle, {4}, OneDevice(10));
      Send(std::move(request));
      auto bytes = session->StoreHostBuffer(handle, 16);
      Require(bytes.ok(), "a host buffer is refused");
      std::memset((*bytes)->Reserve(16), 'x', 16);
      Require((*bytes)->Finish().ok(), "a host buffer fails");
    }
  }

  void Send(IfrtRequest request) {
    request.mutable_request_metadata()->set_op_id(next_op++);
    // As it comes over the wire.
    IfrtRequest received;
    if (!received.ParseFromString(request.SerializeAsString())) return;
    stream->Expect(received);
    link->set_client_deletes(received.has_delete_array_request());
    session->OnRequest(received);
    link->set_client_deletes(false);
  }

  // Looks at what was answered since the last time.
  void Look(UntrustedRun& run) {
    for (const std::vector<uint64_t> order = stream->order(); seen < order.size(); ++seen) {
      const Answer answer = *stream->Find(order[seen]);
      if (!answer.status.ok()) continue;
      ++run.succeeded;
      const IfrtResponse& response = answer.response;
      if (response.has_compile_response()) {
        writer.programs.push_back(response.compile_response().loaded_executable_handle());
        writer.others.push_back(response.compile_response().ready_future_handle());
      } else if (response.has_loaded_executable_execute_response()) {
        const auto& made = response.loaded_executable_execute_response();
        for (const auto& output : made.outputs()) writer.others.push_back(output.array_handle());
        if (made.status_handle() != 0) writer.others.push_back(made.status_handle());
      } else if (response.has_delete_array_response()) {
        writer.others.push_back(response.delete_array_response().deletion_future_handle());
      }
    }
  }

  std::shared_ptr<FakeStream> stream;
  std::shared_ptr<net::SessionHandler> session;
  std::shared_ptr<FakeSessionLink> link;
  std::unique_ptr<net::HostBufferWriter> upload;  // one that is under way
  Writer writer;
  uint64_t next_op = 1;
  size_t seen = 0;
};

cluster::CompiledProgram SomeProgram(Choices& c) {
  ProgramForm form;
  form.devices = c.Of<std::vector<int32_t>>({{10}, {10, 11}, {10, 11, 12, 13}});
  for (size_t i = c.Of<size_t>({1, 1, 1, 0, 2}); i > 0; --i) {
    form.parameters.push_back({{4}, c.OneIn(2)});
    if (c.OneIn(2)) form.donated.push_back(static_cast<int32_t>(form.parameters.size() - 1));
  }
  for (size_t i = c.Of<size_t>({1, 1, 1, 0, 2}); i > 0; --i) form.outputs.push_back({{4}, c.OneIn(2)});
  return Compiled(form);
}

}  // namespace

UntrustedRun TryRequests(absl::string_view bytes) {
  const google::protobuf::LogSilencer no_parse_errors;
  Choices c(bytes);
  UntrustedRun run;
  FakeWorker worker;
  ProxyOptions options;
  options.host_memory = std::make_shared<base::HostMemoryPool>(0);
  options.max_host_buffer_bytes = kHostBufferBytes;
  options.max_launches_under_way = 8;
  Proxy proxy(&worker, options);
  {
    Client first(proxy, worker, c);
    Client second(proxy, worker, c);
    const std::vector<Client*> clients = {&first, &first, &first, &second};
    for (Client* client : {&first, &second}) {
      if (!c.OneIn(8)) client->Prepare();
      client->Look(run);
    }
    for (size_t step = 0; step < kMaxSteps && !c.empty(); ++step) {
      Client& client = *c.Of(clients);
      switch (c.Below(16)) {
        case 0: {
          IfrtRequest request;
          // Parsed as far as it goes, as a message that is cut off.
          request.ParsePartialFromString(c.Bytes(c.Byte()));
          client.Send(std::move(request));
          ++run.requests;
          break;
        }
        case 1:
          client.Send(client.writer.Random());
          ++run.requests;
          break;
        case 2: {
          IfrtRequest request = client.writer.Sensible();
          client.writer.Spoil(&request);
          client.Send(std::move(request));
          ++run.requests;
          break;
        }
        case 3:
        case 4:
        case 5: {
          // An upload, whole or, now and then, not.
          const uint64_t handle = client.writer.Handle();
          const int64_t size = c.Of<int64_t>({16, 16, 16, 8, 4, 0, 12, -1, kHostBufferBytes + 1});
          auto writer = client.session->StoreHostBuffer(handle, size);
          if (!writer.ok()) break;
          const int64_t sent = c.OneIn(8) ? size / 2 : size;
          uint8_t* target = (*writer)->Reserve(sent);
          if (sent > 0) std::memset(target, 'x', static_cast<size_t>(sent));
          if (c.OneIn(4)) {
            client.upload = *std::move(writer);
          } else {
            (*writer)->Finish().IgnoreError();
          }
          break;
        }
        case 6:
          if (client.upload == nullptr) break;
          if (c.OneIn(2)) client.upload->Finish().IgnoreError();
          client.upload.reset();
          break;
        case 7: {
          const uint64_t handle = client.writer.Handle();
          client.session->LookupHostBuffer(handle).IgnoreError();
          if (c.OneIn(2)) client.session->DeleteHostBuffer(handle).IgnoreError();
          break;
        }
        case 8:
        case 9:
        case 10: {
          const size_t waiting = client.link->num_waiting();
          if (waiting == 0) break;
          const size_t which = c.Below(std::min<size_t>(waiting, 256));
          const absl::Status status =
              c.OneIn(8) ? absl::DataLossError("the device died \xff") : absl::OkStatus();
          client.link->AnswerAny(which, status, SomeProgram(c));
          break;
        }
        default:
          client.Send(client.writer.Sensible());
          ++run.requests;
      }
      client.Look(run);
      for (const std::string& command : client.link->TakeCommands()) {
        if (command.rfind("execute", 0) == 0) ++run.launches;
      }
    }
    for (Client* client : {&first, &second}) {
      client->session->OnClosed();
      client->upload.reset();
      Require(client->stream->num_unanswered() == 0, "the end of a session leaves requests unanswered");
      const std::weak_ptr<net::SessionHandler> watched = client->session;
      client->session.reset();
      Require(watched.expired(), "something keeps a session that has ended");
    }
  }
  // All that their host buffers took is free again.
  Client last(proxy, worker, c);
  Require(last.session->StoreHostBuffer(1, kHostBufferBytes).ok(),
          "host buffers of ended sessions take memory");
  last.session->OnClosed();
  for (const std::string& broken : worker.broken_promises()->list()) Require(false, broken);
  return run;
}

}  // namespace helmway::proxy
