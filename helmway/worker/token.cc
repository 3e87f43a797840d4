#include "helmway/worker/token.h"

#include <string>
#include <utility>

#include "absl/types/span.h"
#include "helmway/base/status.h"
#include "helmway/wire/xla_compile_options.pb.h"

namespace helmway::worker {
namespace {

constexpr char kProgram[] = R"(
module @make_token {
  func.func public @main() -> !stablehlo.token {
    %0 = stablehlo.after_all : !stablehlo.token
    return %0 : !stablehlo.token
  }
})";

}  // namespace

absl::StatusOr<std::shared_ptr<const pjrt::LoadedExecutable>> TokenMaker::Program() {
  {
    base::MutexLock lock(&mu_);
    if (program_ != nullptr) return program_;
  }
  xla::CompileOptionsProto options;
  options.set_compile_portable_executable(true);
  xla::ExecutableBuildOptionsProto& build = *options.mutable_executable_build_options();
  build.set_device_ordinal(-1);
  build.set_num_replicas(1);
  build.set_num_partitions(1);
  const std::string serialized = options.SerializeAsString();
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<const pjrt::LoadedExecutable> program,
                           client_->Compile({.code = kProgram, .serialized_options = serialized}));
  base::MutexLock lock(&mu_);
  if (program_ == nullptr) program_ = std::move(program);
  return program_;
}

absl::StatusOr<pjrt::Buffer> TokenMaker::Make(const pjrt::Device* device) {
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<const pjrt::LoadedExecutable> program, Program());
  pjrt::Buffer token[1];
  HELMWAY_RETURN_IF_ERROR(program->ExecuteOn(device, {}, absl::MakeSpan(token)));
  return std::move(token[0]);
}

}  // namespace helmway::worker
