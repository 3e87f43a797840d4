#include "helmway/cluster/worker_messages.h"

#include <utility>
#include <variant>

#include "absl/strings/cord.h"

namespace helmway::cluster {
namespace {

template <typename Values, typename Field>
void Append(const Values& values, Field* field) {
  field->Add(values.begin(), values.end());
}

void SetStrides(const std::optional<std::vector<int64_t>>& strides, proto::Strides* message) {
  Append(*strides, message->mutable_bytes());
}

}  // namespace

proto::StatusProto ToProto(const absl::Status& status) {
  proto::StatusProto message;
  message.set_code(static_cast<int32_t>(status.code()));
  message.set_message(std::string(status.message()));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    (*message.mutable_payloads())[std::string(type)] = std::string(payload);
  });
  return message;
}

absl::Status FromProto(const proto::StatusProto& message) {
  absl::Status status(static_cast<absl::StatusCode>(message.code()), message.message());
  for (const auto& [type, payload] : message.payloads()) status.SetPayload(type, absl::Cord(payload));
  return status;
}

proto::Names ToProto(const BufferNames& names) {
  proto::Names message;
  if (names.list.empty()) {
    message.set_first(names.first);
    message.set_count(names.count);
  } else {
    Append(names.list, message.mutable_list());
  }
  return message;
}

BufferNames FromProto(const proto::Names& message) {
  BufferNames names;
  names.first = message.first();
  names.count = message.count();
  names.list.assign(message.list().begin(), message.list().end());
  return names;
}

void AddTargets(const BufferTargets& targets, google::protobuf::RepeatedPtrField<proto::Target>* messages) {
  for (const BufferTarget& target : targets) {
    proto::Target& message = *messages->Add();
    message.set_buffer(target.buffer);
    message.set_device(target.device);
  }
}

BufferTargets TargetsFrom(const google::protobuf::RepeatedPtrField<proto::Target>& messages) {
  BufferTargets targets;
  for (const proto::Target& message : messages) targets.push_back({message.buffer(), message.device()});
  return targets;
}

proto::Declare ToProto(const DeclareBuffers& command) {
  proto::Declare message;
  AddTargets(command.targets, message.mutable_targets());
  return message;
}

DeclareBuffers FromProto(const proto::Declare& message) { return {TargetsFrom(message.targets())}; }

proto::Fill ToProto(const HostContents& contents) {
  proto::Fill message;
  AddTargets(contents.targets, message.mutable_targets());
  message.set_element_type(contents.element_type);
  Append(contents.dims, message.mutable_dims());
  if (contents.byte_strides) SetStrides(contents.byte_strides, message.mutable_byte_strides());
  message.set_memory_kind(contents.memory_kind);
  if (contents.minor_to_major)
    Append(*contents.minor_to_major, message.mutable_layout()->mutable_minor_to_major());
  message.set_size(contents.bytes.size);
  message.set_user_context(contents.user_context);
  return message;
}

HostContents FromProto(const proto::Fill& message) {
  HostContents contents;
  contents.targets = TargetsFrom(message.targets());
  contents.element_type = message.element_type();
  contents.dims.assign(message.dims().begin(), message.dims().end());
  if (message.has_byte_strides()) {
    contents.byte_strides.emplace(message.byte_strides().bytes().begin(),
                                  message.byte_strides().bytes().end());
  }
  contents.memory_kind = message.memory_kind();
  contents.user_context = message.user_context();
  if (message.has_layout()) {
    contents.minor_to_major.emplace(message.layout().minor_to_major().begin(),
                                    message.layout().minor_to_major().end());
  }
  return contents;
}

proto::Execute ToProto(const Launch& launch) {
  proto::Execute message;
  message.set_id(launch.id);
  message.set_executable(launch.executable);
  for (const BufferNames& names : launch.arguments) *message.add_arguments() = ToProto(names);
  for (const BufferNames& names : launch.results) *message.add_results() = ToProto(names);
  Append(launch.donated, message.mutable_donated());
  Append(launch.kept, message.mutable_kept());
  message.set_held(launch.held);
  message.set_user_context(launch.user_context);
  message.set_stream(launch.stream);
  message.set_place(launch.place);
  message.set_may_be_passed(launch.may_be_passed);
  message.set_settles(launch.settles);
  message.set_end_is_awaited(launch.end_is_awaited);
  return message;
}

Launch FromProto(const proto::Execute& message) {
  Launch launch;
  launch.id = message.id();
  launch.executable = message.executable();
  for (const proto::Names& names : message.arguments()) launch.arguments.push_back(FromProto(names));
  for (const proto::Names& names : message.results()) launch.results.push_back(FromProto(names));
  launch.donated.assign(message.donated().begin(), message.donated().end());
  launch.kept.assign(message.kept().begin(), message.kept().end());
  launch.held = message.held();
  launch.user_context = message.user_context();
  launch.stream = message.stream();
  launch.place = message.place();
  launch.may_be_passed = message.may_be_passed();
  launch.settles = message.settles();
  launch.end_is_awaited = message.end_is_awaited();
  return launch;
}

proto::Copy ToProto(const CopyBuffers& command) {
  proto::Copy message;
  *message.mutable_sources() = ToProto(command.sources);
  *message.mutable_results() = ToProto(command.results);
  Append(command.devices, message.mutable_devices());
  message.set_memory_kind(command.memory_kind);
  message.set_default_layout(command.default_layout);
  message.set_user_context(command.user_context);
  return message;
}

CopyBuffers FromProto(const proto::Copy& message) {
  CopyBuffers command;
  command.sources = FromProto(message.sources());
  command.results = FromProto(message.results());
  command.devices.assign(message.devices().begin(), message.devices().end());
  command.memory_kind = message.memory_kind();
  command.default_layout = message.default_layout();
  command.user_context = message.user_context();
  return command;
}

proto::Assemble ToProto(const AssembleBuffers& command) {
  proto::Assemble message;
  *message.mutable_sources() = ToProto(command.sources);
  for (const AssembleBuffers::Result& result : command.results) {
    proto::Assemble::Result& out = *message.add_results();
    AddTargets(result.targets, out.mutable_targets());
    Append(result.dims, out.mutable_dims());
    for (const BufferBlock& block : result.blocks) {
      proto::Block& b = *out.add_blocks();
      b.set_source(block.source);
      Append(block.source_origin, b.mutable_source_origin());
      Append(block.result_origin, b.mutable_result_origin());
      Append(block.shape, b.mutable_shape());
    }
  }
  message.set_element_type(command.element_type);
  message.set_memory_kind(command.memory_kind);
  if (command.minor_to_major)
    Append(*command.minor_to_major, message.mutable_layout()->mutable_minor_to_major());
  return message;
}

AssembleBuffers FromProto(const proto::Assemble& message) {
  AssembleBuffers command;
  command.sources = FromProto(message.sources());
  for (const proto::Assemble::Result& in : message.results()) {
    AssembleBuffers::Result& result = command.results.emplace_back();
    result.targets = TargetsFrom(in.targets());
    result.dims.assign(in.dims().begin(), in.dims().end());
    for (const proto::Block& b : in.blocks()) {
      result.blocks.push_back({b.source(),
                               {b.source_origin().begin(), b.source_origin().end()},
                               {b.result_origin().begin(), b.result_origin().end()},
                               {b.shape().begin(), b.shape().end()}});
    }
  }
  command.element_type = message.element_type();
  command.memory_kind = message.memory_kind();
  if (message.has_layout()) {
    command.minor_to_major.emplace(message.layout().minor_to_major().begin(),
                                   message.layout().minor_to_major().end());
  }
  return command;
}

proto::Bitcast ToProto(const BitcastBuffers& command) {
  proto::Bitcast message;
  *message.mutable_sources() = ToProto(command.sources);
  *message.mutable_results() = ToProto(command.results);
  message.set_element_type(command.element_type);
  for (const Dims& dims : command.dims) Append(dims, message.add_dims()->mutable_dims());
  if (command.minor_to_major)
    Append(*command.minor_to_major, message.mutable_layout()->mutable_minor_to_major());
  return message;
}

BitcastBuffers FromProto(const proto::Bitcast& message) {
  BitcastBuffers command;
  command.sources = FromProto(message.sources());
  command.results = FromProto(message.results());
  command.element_type = message.element_type();
  for (const proto::Bitcast::Dims& dims : message.dims()) {
    command.dims.emplace_back(dims.dims().begin(), dims.dims().end());
  }
  if (message.has_layout()) {
    command.minor_to_major.emplace(message.layout().minor_to_major().begin(),
                                   message.layout().minor_to_major().end());
  }
  return command;
}

proto::Send ToProto(const SendBuffers& command) {
  proto::Send message;
  *message.mutable_sources() = ToProto(command.sources);
  *message.mutable_results() = ToProto(command.results);
  message.set_address(command.to.address);
  message.set_incarnation(command.to.incarnation);
  return message;
}

SendBuffers FromProto(const proto::Send& message) {
  return {
      FromProto(message.sources()), FromProto(message.results()), {message.address(), message.incarnation()}};
}

proto::Receive ToProto(const ReceiveBuffers& command) {
  proto::Receive message;
  *message.mutable_results() = ToProto(command.results);
  Append(command.devices, message.mutable_devices());
  message.set_memory_kind(command.memory_kind);
  message.set_default_layout(command.default_layout);
  return message;
}

ReceiveBuffers FromProto(const proto::Receive& message) {
  ReceiveBuffers command;
  command.results = FromProto(message.results());
  command.devices.assign(message.devices().begin(), message.devices().end());
  command.memory_kind = message.memory_kind();
  command.default_layout = message.default_layout();
  return command;
}

proto::PythonFunction ToProto(const PythonFunction& function) {
  proto::PythonFunction message;
  for (const PythonHost& host : function.hosts) {
    proto::PythonFunction::Host& one = *message.add_hosts();
    one.set_process(host.process);
    one.set_devices(host.devices);
    one.set_slice(host.slice);
    one.set_task(host.task);
  }
  message.set_python_version(function.python_version);
  message.set_jax_version(function.jax_version);
  return message;
}

PythonFunction FromProto(const proto::PythonFunction& message) {
  PythonFunction function;
  for (const proto::PythonFunction::Host& one : message.hosts()) {
    function.hosts.push_back({one.process(), one.devices(), one.slice(), one.task()});
  }
  function.python_version = message.python_version();
  function.jax_version = message.jax_version();
  return function;
}

proto::Load ToProto(const LoadProgram& command) {
  proto::Load message;
  message.set_executable(command.executable);
  message.set_options(command.options);
  message.set_outline(command.outline);
  Append(command.devices, message.mutable_devices());
  for (const ProgramWorker& worker : command.workers) {
    proto::ProgramWorker& one = *message.add_workers();
    one.set_address(worker.address.address);
    one.set_incarnation(worker.address.incarnation);
    Append(worker.positions, one.mutable_positions());
  }
  message.set_self(command.self);
  return message;
}

LoadProgram FromProto(const proto::Load& message) {
  LoadProgram command;
  command.executable = message.executable();
  command.options = message.options();
  command.outline = message.outline();
  command.devices.assign(message.devices().begin(), message.devices().end());
  for (const proto::ProgramWorker& one : message.workers()) {
    command.workers.push_back(
        {{one.address(), one.incarnation()}, {one.positions().begin(), one.positions().end()}});
  }
  command.self = message.self();
  return command;
}

proto::CollectivePart ToProto(const CollectivePart& part) {
  proto::CollectivePart message;
  message.set_session(part.session);
  message.set_launch(part.launch);
  message.set_instruction(part.instruction);
  message.set_occurrence(part.occurrence);
  message.set_group(part.group);
  message.set_phase(part.phase);
  message.set_source(part.source);
  message.set_size(part.bytes.size);
  return message;
}

CollectivePart FromProto(const proto::CollectivePart& message) {
  CollectivePart part;
  part.session = message.session();
  part.launch = message.launch();
  part.instruction = message.instruction();
  part.occurrence = message.occurrence();
  part.group = message.group();
  part.phase = message.phase();
  part.source = message.source();
  return part;
}

proto::Program ToProto(const CompiledProgram& program) {
  proto::Program message;
  message.set_name(program.name);
  message.set_num_replicas(program.num_replicas);
  message.set_num_partitions(program.num_partitions);
  Append(program.devices, message.mutable_devices());
  message.set_optimized_hlo_format(program.optimized_hlo_format);
  message.set_optimized_hlo(program.optimized_hlo);
  message.set_outline(program.outline);
  for (const std::string& kind : program.output_memory_kinds) message.add_output_memory_kinds(kind);
  message.set_fingerprint(program.fingerprint);
  if (program.memory_stats.ok()) {
    message.set_memory_stats(*program.memory_stats);
  } else {
    *message.mutable_memory_stats_error() = ToProto(program.memory_stats.status());
  }
  message.set_code_size_bytes(program.code_size_bytes);
  message.set_serialized(program.serialized);
  message.set_has_collectives(program.has_collectives);
  message.set_calls_python(program.calls_python);
  return message;
}

CompiledProgram FromProto(const proto::Program& message) {
  CompiledProgram program;
  program.name = message.name();
  program.num_replicas = message.num_replicas();
  program.num_partitions = message.num_partitions();
  program.devices.assign(message.devices().begin(), message.devices().end());
  program.optimized_hlo_format = message.optimized_hlo_format();
  program.optimized_hlo = message.optimized_hlo();
  program.outline = message.outline();
  program.output_memory_kinds.assign(message.output_memory_kinds().begin(),
                                     message.output_memory_kinds().end());
  program.fingerprint = message.fingerprint();
  if (message.has_memory_stats_error()) {
    program.memory_stats = FromProto(message.memory_stats_error());
  } else {
    program.memory_stats = message.memory_stats();
  }
  program.code_size_bytes = message.code_size_bytes();
  program.serialized = message.serialized();
  program.has_collectives = message.has_collectives();
  program.calls_python = message.calls_python();
  return program;
}

}  // namespace helmway::cluster
