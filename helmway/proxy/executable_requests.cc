// Requests about loaded executables: what they are, running them, forgetting them.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/base/clock.h"
#include "helmway/base/status.h"
#include "helmway/program/cost_analysis.h"
#include "helmway/program/hlo_text.h"
#include "helmway/proxy/proxy.h"
#include "helmway/proxy/session.h"
#include "helmway/wire/attributes.h"
#include "helmway/wire/dtype.h"
#include "helmway/wire/status.h"

namespace helmway::proxy {

using ::helmway::array::ArrayRef;
using ::xla::ifrt::proxy::LoadedExecutableCostAnalysisRequest;
using ::xla::ifrt::proxy::LoadedExecutableDestructRequest;
using ::xla::ifrt::proxy::LoadedExecutableExecuteRequest;
using ::xla::ifrt::proxy::LoadedExecutableExecuteResponse;
using ::xla::ifrt::proxy::LoadedExecutableFetchExecuteResultRequest;
using ::xla::ifrt::proxy::LoadedExecutableHumanReadableProgramTextRequest;
using ::xla::ifrt::proxy::LoadedExecutableMetadataRequest;
using ::xla::ifrt::proxy::LoadedExecutableMetadataResponse;

namespace {

void SetShardings(const std::vector<program::ValueSpec>& values,
                  LoadedExecutableMetadataResponse::ShardingList* list) {
  for (const program::ValueSpec& value : values) {
    xla::OpSharding* sharding = list->add_shardings();
    if (value.op_sharding) {
      *sharding = *value.op_sharding;
    } else {
      sharding->set_type(xla::OpSharding::REPLICATED);
    }
  }
}

void SetLayouts(const std::vector<program::ValueSpec>& values,
                LoadedExecutableMetadataResponse::LayoutList* list) {
  for (const program::ValueSpec& value : values) *list->add_layouts() = value.layout.ToXlaProto();
}

constexpr char kNotOfPython[] =
    "a Python function has no layouts, no memory statistics, no costs and no text";

// Whether an array may be argument `i` of a program.
absl::Status CheckArgument(const Executable& executable, size_t i, const array::ArraySpec& argument_spec) {
  const program::ExecutableSpec& spec = executable.spec;
  const absl::Span<const int32_t> devices = argument_spec.sharding->devices();
  if (devices != absl::MakeConstSpan(executable.devices)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "argument ", i, " of program ", spec.name, " lies on devices [", absl::StrJoin(devices, ","),
        "], the program runs on [", absl::StrJoin(executable.devices, ","), "]"));
  }
  absl::StatusOr<xla::PrimitiveType> type = wire::ToPrimitiveType(argument_spec.dtype);
  absl::StatusOr<std::vector<int64_t>> dims = argument_spec.sharding->ShardShapeAt(argument_spec.dims, 0);
  // On CPU JAX keeps empty arrays of booleans for tokens; the plugin takes them too.
  const bool stands_for_token = spec.parameters[i].is_token &&
                                argument_spec.dtype == xla::ifrt::DTypeProto::KIND_PRED && dims.ok() &&
                                *dims == std::vector<int64_t>{0};
  if (!stands_for_token && (!type.ok() || *type != spec.parameters[i].element_type ||
                            (dims.ok() && *dims != spec.parameters[i].shard_dims))) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument ", i, " of program ", spec.name, " has shards ",
                     wire::DTypeName(argument_spec.dtype), "[", dims.ok() ? absl::StrJoin(*dims, ",") : "?",
                     "], the program wants ", xla::PrimitiveType_Name(spec.parameters[i].element_type), "[",
                     absl::StrJoin(spec.parameters[i].shard_dims, ","), "]"));
  }
  // The plugin takes the bytes as they lie.
  const program::Layout& wanted = spec.parameters[i].layout;
  if (!stands_for_token && !array::IsPlaced(argument_spec, wanted, spec.parameters[i].shard_dims)) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument ", i, " of program ", spec.name, " has the layout ",
                     argument_spec.layout ? argument_spec.layout->ToText() : "by default",
                     ", the program wants ", wanted.ToText()));
  }
  return absl::OkStatus();
}

std::string Describe(const array::ArraySpec& spec) {
  return absl::StrCat(wire::DTypeName(spec.dtype), "[", absl::StrJoin(spec.dims, ","), "] on devices [",
                      absl::StrJoin(spec.sharding->devices(), ","), "]");
}

absl::Status CheckPythonArgument(const Executable& executable, size_t i, const array::ArraySpec& argument) {
  const array::ArraySpec& wanted = executable.python_inputs[i];
  bool fits = argument.dtype == wanted.dtype && argument.dims == wanted.dims &&
              argument.sharding->devices() == wanted.sharding->devices();
  for (size_t d = 0; fits && d < wanted.sharding->devices().size(); ++d) {
    const auto at = static_cast<int64_t>(d);
    const auto shard = argument.sharding->ShardShapeAt(argument.dims, at);
    fits = shard.ok() && *shard == *wanted.sharding->ShardShapeAt(wanted.dims, at);
  }
  if (fits) {
    const auto domains = argument.sharding->IndexDomains(argument.dims);
    const auto wanted_domains = wanted.sharding->IndexDomains(wanted.dims);
    // Some shardings do not say.
    fits = !domains.ok() || !wanted_domains.ok() || *domains == *wanted_domains;
  }
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument ", i, " of the Python program ", executable.spec.name, " is ",
                     Describe(argument), " with the sharding ", argument.sharding->DebugString(),
                     ", the program wants ", Describe(wanted), " with ", wanted.sharding->DebugString()));
  }
  return absl::OkStatus();
}

// The names of an array's shards in the order of the program's devices.
cluster::BufferNames NamesInOrder(const array::Array& array, const std::vector<int32_t>& devices) {
  const cluster::BufferNames names = array.shards().Names();
  const absl::Span<const int32_t> own = array.spec().sharding->devices();
  if (own == absl::MakeConstSpan(devices)) return names;
  cluster::BufferNames ordered;
  for (const int32_t device : devices) {
    ordered.list.push_back(
        names.at(static_cast<size_t>(std::find(own.begin(), own.end(), device) - own.begin())));
  }
  return ordered;
}

}  // namespace

absl::Status Session::HandleLoadedExecutableMetadata(const LoadedExecutableMetadataRequest& request,
                                                     Reply& reply) {
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<const Executable> executable,
                           GetExecutable(request.loaded_executable_handle()));
  const program::ExecutableSpec& spec = executable->spec;
  LoadedExecutableMetadataResponse& metadata = *reply.response.mutable_loaded_executable_metadata_response();
  auto& kinds = *metadata.mutable_output_memory_kinds()->add_memory_kind_lists();
  for (const std::string& kind : executable->output_memory_kinds) kinds.add_memory_kinds(kind);
  if (executable->is_python) {
    const auto none = wire::StatusToProto(absl::UnimplementedError(kNotOfPython));
    *metadata.mutable_parameter_layouts_error() = none;
    *metadata.mutable_output_layouts_error() = none;
    *metadata.mutable_compiled_memory_stats_error() = none;
    metadata.mutable_donated_input_indices();
    return absl::OkStatus();
  }
  // A program on one device has no sharding to speak of.
  if (executable->devices.size() > 1) {
    SetShardings(spec.parameters, metadata.mutable_parameter_shardings());
    SetShardings(spec.outputs, metadata.mutable_output_shardings());
  }
  SetLayouts(spec.parameters, metadata.mutable_parameter_layouts_list());
  SetLayouts(spec.outputs, metadata.mutable_output_layouts_list());
  auto& donated = *metadata.mutable_donated_input_indices();
  for (const int32_t index : spec.donated_parameters)
    donated.add_donated_input_indices(static_cast<uint32_t>(index));
  if (executable->memory_stats.ok()) {
    if (!metadata.mutable_compiled_memory_stats()->ParseFromString(*executable->memory_stats)) {
      return absl::InternalError("the worker's memory statistics can't be parsed");
    }
  } else {
    *metadata.mutable_compiled_memory_stats_error() = wire::StatusToProto(executable->memory_stats.status());
  }
  metadata.set_size_of_generated_code_in_bytes(executable->code_size_bytes);
  return absl::OkStatus();
}

absl::Status Session::HandleLoadedExecutableExecute(const LoadedExecutableExecuteRequest& request,
                                                    Reply& reply) {
  cluster::Launch launch;
  launch.id = proxy_->NewLaunch();
  const bool first_run = request.result_array_handle_size() == 0;
  const bool wants_status = request.execute_options().fill_status();
  LoadedExecutableExecuteResponse& response = *reply.response.mutable_loaded_executable_execute_response();

  base::MutexLock lock(&mu_);
  std::shared_ptr<const Executable> executable = FindExecutable(request.loaded_executable_handle());
  if (executable == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no executable has the handle ", request.loaded_executable_handle()));
  }
  const program::ExecutableSpec& spec = executable->spec;
  if (request.device_ids_size() > 0) {
    return absl::UnimplementedError("LoadedExecutableExecuteRequest with device_ids (portable executables)");
  }
  if (request.execute_options().version_number() != 0) {
    return absl::UnimplementedError(absl::StrCat("execute options of format version ",
                                                 request.execute_options().version_number(),
                                                 " (version 0 is supported)"));
  }
  // Any order: a map has none that lasts.
  for (const auto& [name, value] : request.execute_options().custom_options().attributes()) {
    return absl::UnimplementedError(absl::StrCat("the custom execute option \"", name, "\""));
  }
  const size_t num_arguments =
      executable->is_python ? executable->python_inputs.size() : spec.parameters.size();
  if (static_cast<size_t>(request.args_handles_size()) != num_arguments) {
    return absl::InvalidArgumentError(absl::StrCat("program ", spec.name, " takes ", num_arguments,
                                                   " arguments, got ", request.args_handles_size()));
  }
  if (!first_run && static_cast<size_t>(request.result_array_handle_size()) != executable->outputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("program ", spec.name, " has ", executable->outputs.size(),
                                                   " outputs, the request has handles for ",
                                                   request.result_array_handle_size()));
  }
  if (request.result_status_handle() != 0 && futures_.contains(request.result_status_handle())) {
    return absl::AlreadyExistsError(
        absl::StrCat("the status handle ", request.result_status_handle(), " is in use"));
  }

  std::vector<ArrayRef> arguments;
  arguments.reserve(num_arguments);
  launch.arguments.reserve(num_arguments);
  std::vector<std::shared_ptr<const array::Arrival>> arrivals;
  for (size_t i = 0; i < num_arguments; ++i) {
    HELMWAY_ASSIGN_OR_RETURN(ArrayRef argument, FindArray(request.args_handles(static_cast<int>(i))));
    HELMWAY_RETURN_IF_ERROR(executable->is_python ? CheckPythonArgument(*executable, i, argument->spec())
                                                  : CheckArgument(*executable, i, argument->spec()));
    launch.arguments.push_back(NamesInOrder(*argument, executable->devices));
    for (const auto& arrival : argument->arrivals()) {
      if (!arrival->here) arrivals.push_back(arrival);
    }
    arguments.push_back(std::move(argument));
  }

  const auto& kept = request.execute_options().non_donatable_input_indices();
  for (const int32_t index : kept) {
    if (index < 0 || static_cast<size_t>(index) >= num_arguments) {
      return absl::InvalidArgumentError(absl::StrCat("argument ", index, " of program ", spec.name,
                                                     " shall not be donated, but does not exist"));
    }
  }
  for (const int32_t index : spec.donated_parameters) {
    if (std::find(kept.begin(), kept.end(), index) == kept.end()) launch.donated.push_back(index);
  }
  launch.kept.assign(kept.begin(), kept.end());

  std::vector<ArrayRef> results;
  results.reserve(executable->outputs.size());
  launch.results.reserve(executable->outputs.size());
  for (const auto& output_spec : executable->outputs) {
    results.push_back(NewArray(output_spec));
    launch.results.push_back(NamesInOrder(*results.back(), executable->devices));
  }
  std::vector<uint64_t> handles;  // of the outputs, if the client learns them from the answer
  if (first_run) {
    for (const auto& output_spec : executable->outputs) {
      handles.push_back(NewServerHandle());
      LoadedExecutableExecuteResponse::Output& output = *response.add_outputs();
      output.mutable_dtype()->set_kind(output_spec->dtype);
      for (const int64_t dim : output_spec->dims) output.mutable_shape()->add_dims(dim);
      *output.mutable_sharding() = output_spec->sharding->Encode();
      output.set_array_handle(handles.back());
    }
    HELMWAY_RETURN_IF_ERROR(BindAll(handles, results));
  } else {
    HELMWAY_RETURN_IF_ERROR(BindAll(request.result_array_handle(), results));
  }
  // Nothing fails from here on.

  async::CompletionRef run;
  if (wants_status) {
    run = base::MakeRef<async::Completion>();
    if (request.result_status_handle() != 0) {
      futures_[request.result_status_handle()] = run;
    } else {
      response.set_status_handle(AddFuture(run));
    }
  }
  for (const int32_t index : launch.donated) arguments[static_cast<size_t>(index)]->Delete();

  launch.executable = executable->id;
  launch.stream = request.execute_options().execution_stream_id();
  launch.user_context = user_context_;
  if (first_run && !spec.python_callbacks.empty()) {
    reply.deferred = true;
    late_answers_[launch.id] = {reply.op_id, base::SteadyNow(), std::move(handles),
                                std::move(reply.response)};
    proxy_->WatchSessions(proxy_->options().callback_patience);
  }
  launch.end_is_awaited = executable->callbacks != nullptr;
  launch.on_done = [self = shared_from_this(), run, user_context = user_context_,
                    callbacks = executable->callbacks, launch = launch.id](const absl::Status& status) {
    if (run) run->Finish(status);
    if (status.ok()) self->user_contexts_.Release(user_context);
    if (callbacks) self->AnswerFirstRun(launch, status);
    self->LaunchDone();
  };
  if (++launches_under_way_ >= proxy_->options().max_launches_under_way && !paused_) {
    paused_ = true;
    stream_->SetPaused(true);
  }
  // A launch whose host bytes are still on their way keeps its place, and those behind it, out of the
  // devices' queues: other sessions go on.
  ReleaseHeldLaunches();
  launch.held = !arrivals.empty() || !held_.empty();
  if (launch.held) held_.push_back({launch.id, std::move(arrivals)});
  link_->Execute(std::move(launch));
  // The outputs of the first run are what its client waits for.
  reply.patient = !first_run;
  return absl::OkStatus();
}

void Session::AnswerFirstRun(cluster::LaunchId launch, const absl::Status& status) {
  LateAnswer late;
  {
    base::MutexLock lock(&mu_);
    const auto it = late_answers_.find(launch);
    if (it == late_answers_.end()) return;
    late = std::move(it->second);
    late_answers_.erase(it);
    if (!status.ok()) {
      // The client never hears of these handles.
      for (const uint64_t output : late.outputs) arrays_.erase(output);
      futures_.erase(late.response.loaded_executable_execute_response().status_handle());
    }
  }
  if (status.ok()) {
    Send(late.op_id, status, late.response);
  } else {
    SendError(late.op_id, wire::WithoutUserContext(status));
  }
}

bool Session::AnswerRunsBefore(absl::Time time) {
  std::vector<cluster::LaunchId> overdue;
  bool remain = false;
  {
    base::MutexLock lock(&mu_);
    for (const auto& [launch, late] : late_answers_) {
      if (late.since < time) {
        overdue.push_back(launch);
      } else {
        remain = true;
      }
    }
  }
  for (const cluster::LaunchId launch : overdue) AnswerFirstRun(launch, absl::OkStatus());
  return remain;
}

void Session::ReleaseHeldLaunches() {
  while (!held_.empty()) {
    const HeldLaunch& first = held_.front();
    if (!std::all_of(first.arrivals.begin(), first.arrivals.end(),
                     [](const auto& arrival) { return arrival->here; }))
      return;
    link_->ReleaseLaunch(first.id, 0);
    held_.pop_front();
  }
}

void Session::LaunchDone() {
  base::MutexLock lock(&mu_);
  --launches_under_way_;
  if (paused_ && launches_under_way_ <= proxy_->options().max_launches_under_way / 2) {
    paused_ = false;
    stream_->SetPaused(false);
  }
}

absl::Status Session::HandleLoadedExecutableFetchExecuteResult(
    const LoadedExecutableFetchExecuteResultRequest& request, Reply& reply) {
  reply.response.mutable_loaded_executable_fetch_execute_result_response();
  return AnswerWithFuture(request.result_status_handle(), reply);
}

namespace {

// For plugins that have none.
absl::StatusOr<cluster::CostProperties> CostProperties(const Executable& executable) {
  HELMWAY_ASSIGN_OR_RETURN(const program::Costs costs,
                           program::CostsOf(executable.optimized_hlo_format, executable.optimized_hlo));
  cluster::CostProperties properties;
  // Under XLA's names, and like there only what is not zero.
  for (const auto& [name, value] : {std::pair("flops", costs.flops),
                                    {"transcendentals", costs.transcendentals},
                                    {"bytes accessed", costs.bytes_accessed}}) {
    if (value != 0) properties[name] = {static_cast<float>(value)};
  }
  return properties;
}

}  // namespace

absl::Status Session::HandleLoadedExecutableCostAnalysis(const LoadedExecutableCostAnalysisRequest& request,
                                                         Reply& reply) {
  absl::StatusOr<std::shared_ptr<const Executable>> executable =
      GetExecutable(request.loaded_executable_handle());
  // An error goes into the response's own status: the client turns an error response into an unreadable one.
  auto answer = [self = shared_from_this(), op_id = reply.op_id,
                 executable](absl::StatusOr<cluster::CostProperties> properties) {
    if (executable.ok() && absl::IsUnimplemented(properties.status()))
      properties = CostProperties(**executable);
    Response response;
    auto& result = *response.mutable_loaded_executable_cost_analysis_response();
    if (properties.ok()) {
      auto& map = *result.mutable_attributes();
      for (const auto& [name, value] : *properties) {
        if (const auto* number = std::get_if<float>(&value.value))
          wire::SetFloatAttribute(map, name, *number);
        if (const auto* number = std::get_if<int64_t>(&value.value)) {
          wire::SetFloatAttribute(map, name, static_cast<float>(*number));
        }
      }
    } else {
      *result.mutable_status() = wire::StatusToProto(properties.status());
    }
    self->Send(op_id, absl::OkStatus(), response);
  };
  reply.deferred = true;
  if (!executable.ok()) {
    answer(executable.status());
  } else if ((*executable)->is_python) {
    answer(absl::InvalidArgumentError(kNotOfPython));
  } else {
    link_->CostAnalysis((*executable)->id, std::move(answer));
  }
  return absl::OkStatus();
}

absl::Status Session::HandleLoadedExecutableHumanReadableProgramText(
    const LoadedExecutableHumanReadableProgramTextRequest& request, Reply& reply) {
  auto& result = *reply.response.mutable_loaded_executable_human_readable_program_text_response();
  absl::StatusOr<std::shared_ptr<const Executable>> executable =
      GetExecutable(request.loaded_executable_handle());
  absl::StatusOr<std::string> text = absl::UnknownError("");
  if (executable.ok() && (*executable)->is_python) {
    text = absl::UnimplementedError(kNotOfPython);
  } else if (executable.ok()) {
    text = program::HloText((*executable)->optimized_hlo_format, (*executable)->optimized_hlo);
  } else {
    text = executable.status();
  }
  if (text.ok()) {
    result.set_human_readable_program_text(*std::move(text));
  } else {
    *result.mutable_status() = wire::StatusToProto(text.status());
  }
  return absl::OkStatus();
}

absl::Status Session::HandleLoadedExecutableDestruct(const LoadedExecutableDestructRequest& request,
                                                     Reply& reply) {
  std::shared_ptr<const Executable> executable;
  {
    base::MutexLock lock(&mu_);
    const auto it = executables_.find(request.loaded_executable_handle());
    if (it == executables_.end()) {
      return absl::NotFoundError(
          absl::StrCat("no executable has the handle ", request.loaded_executable_handle()));
    }
    executable = std::move(it->second);
    executables_.erase(it);
  }
  std::optional<int64_t> stream;
  if (request.has_delete_options()) stream = request.delete_options().deletion_stream_id();
  link_->Unload(executable->id, stream);
  reply.response.mutable_loaded_executable_destruct_response();
  return absl::OkStatus();
}

}  // namespace helmway::proxy
