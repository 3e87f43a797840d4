#include "helmway/worker/dumps.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <google/protobuf/text_format.h>
#include <re2/re2.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "helmway/base/random.h"
#include "helmway/base/status.h"
#include "helmway/program/hlo_text.h"
#include "helmway/storage/local_store.h"
#include "helmway/storage/open.h"
#include "helmway/wire/xla_compile_options.pb.h"

extern char** environ;

namespace helmway::worker {
namespace {

constexpr size_t kMaxWaiting = 32;
constexpr size_t kMaxFiles = 10'000;
constexpr int64_t kMaxFileBytes = int64_t{512} << 20;
constexpr size_t kMaxStores = 16;

// argv: a file with bytecode, and the file to write.
constexpr char kPrintProgram[] = R"py(
import sys
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
with open(sys.argv[1], 'rb') as file:
  code = file.read()
with ir.Context() as context:
  context.allow_unregistered_dialects = True
  stablehlo.register_dialect(context)
  try:
    from jaxlib.mlir.dialects import sdy
    sdy.register_dialect(context)
  except ImportError:
    pass
  try:
    module = stablehlo.deserialize_portable_artifact(context, code)
  except Exception:
    module = ir.Module.parse(code)
  with open(sys.argv[2], 'w') as file:
    file.write(str(module))
)py";

// For a part of an object's name.
std::string ForName(absl::string_view text) {
  std::string name(text.substr(0, 100));
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '_';
  }
  return name.empty() || name[0] == '.' ? absl::StrCat("_", name) : name;
}

std::string NewCompileName() {
  return absl::StrCat(absl::FormatTime("%Y%m%dT%H%M%E3SZ", absl::Now(), absl::UTCTimeZone()), "-",
                      absl::Hex(base::UnguessableId() >> 32, absl::kZeroPad8));
}

}  // namespace

absl::StatusOr<std::optional<DumpRequest>> TakeDumpOptions(std::string& options,
                                                           absl::string_view directory) {
  xla::CompileOptionsProto proto;
  if (!proto.ParseFromString(options)) return absl::InvalidArgumentError("the compile options do not parse");
  auto& overrides = *proto.mutable_env_option_overrides();
  DumpRequest request;
  bool any = false;
  for (auto it = overrides.begin(); it != overrides.end();) {
    if (!absl::StartsWith(it->first, "xla_dump_")) {
      ++it;
      continue;
    }
    any = true;
    if (it->first == "xla_dump_to") request.location = it->second.string_field();
    if (it->first == "xla_dump_hlo_module_re") request.module_re = it->second.string_field();
    it = directory.empty() ? overrides.erase(it) : std::next(it);
  }
  if (!any) return std::nullopt;
  if (!directory.empty()) overrides["xla_dump_to"].set_string_field(std::string(directory));
  options = proto.SerializeAsString();
  if (request.location.empty()) return std::nullopt;
  if (const absl::Status status = storage::ParseLocation(request.location).status(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("xla_dump_to=", status.message()));
  }
  if (const re2::RE2 expression(request.module_re, re2::RE2::Quiet); !expression.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("xla_dump_hlo_module_re=", request.module_re, ": ", expression.error()));
  }
  return request;
}

bool Matches(const DumpRequest& request, const std::string& module) {
  return request.module_re.empty() ||
         re2::RE2::PartialMatch(module, re2::RE2(request.module_re, re2::RE2::Quiet));
}

Dumps::Dumps(std::string python, std::map<std::string, std::string> environment)
    : python_(std::move(python)),
      environment_(std::move(environment)),
      writer_(std::make_unique<async::ThreadPool>(
          async::ThreadPool::Options{.name = "dumps", .threads = 1, .max_queued = kMaxWaiting})) {}

Dumps::~Dumps() { writer_.reset(); }

absl::StatusOr<std::string> Dumps::MakeDirectory() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error)
    return absl::UnavailableError(absl::StrCat("no directory for temporary files: ", error.message()));
  std::string pattern = (parent / "helmway-dump-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr)
    return absl::ErrnoToStatus(errno, absl::StrCat("can't make ", pattern));
  return pattern;
}

std::shared_ptr<storage::Store> Dumps::StoreAt(const std::string& location) {
  base::MutexLock lock(&mu_);
  std::shared_ptr<storage::Store>& store = stores_[location];
  if (store == nullptr) store = storage::OpenStore(*storage::ParseLocation(location), environment_);
  std::shared_ptr<storage::Store> found = store;
  if (stores_.size() > kMaxStores) stores_.clear();
  return found;
}

void Dumps::Write(Compile compile) {
  const std::string directory = compile.directory;
  const auto remove = [directory] {
    std::error_code ignored;
    if (!directory.empty()) std::filesystem::remove_all(directory, ignored);
  };
  // Whose compile failed has no name to be matched.
  if (compile.result.ok() && !Matches(compile.request, compile.result->name)) return remove();
  const std::string location = compile.request.location;
  const auto add = [this](int count) {
    base::MutexLock lock(&mu_);
    waiting_ += count;
  };
  add(1);
  const bool posted = writer_->Post([this, compile = std::move(compile), remove, add] {
    WriteNow(compile);
    remove();
    add(-1);
  });
  if (posted) return;
  add(-1);
  LOG(WARNING) << "Too many dumps wait to be written to " << location << "; one is left out";
  remove();
}

void Dumps::Flush(absl::Time deadline) {
  const auto is_empty = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return waiting_ == 0; };
  base::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&is_empty), deadline - absl::Now());
}

absl::StatusOr<std::string> Dumps::ToText(const std::string& directory, const std::string& code) {
  if (python_.empty()) return absl::FailedPreconditionError("no Python with jaxlib (--python)");
  storage::LocalStore files(directory);
  HELMWAY_RETURN_IF_ERROR(files.Put("program.mlirbc", code, storage::PutMode::kReplace));
  // A process of its own: printing may fail in any way.
  std::string words[] = {python_, "-c", kPrintProgram, directory + "/program.mlirbc",
                         directory + "/program.mlir"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  absl::Cleanup destroy = [&actions] { posix_spawn_file_actions_destroy(&actions); };
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  if (const int error = posix_spawn(&pid, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
      error != 0) {
    return absl::ErrnoToStatus(error, absl::StrCat("can't run ", python_));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0)
    return absl::FailedPreconditionError(absl::StrCat("the jaxlib of ", python_, " can't print it"));
  return files.Get("program.mlir");
}

void Dumps::WriteNow(const Compile& compile) {
  const std::string name = NewCompileName();
  const std::shared_ptr<storage::Store> store = StoreAt(compile.request.location);
  const bool ok = compile.result.ok();
  nlohmann::json index = {{"module", ok ? compile.result->name : ""},
                          {"folder", name},
                          {"outcome", ok ? "OK" : compile.result.status().ToString()},
                          {"files", nlohmann::json::array()},
                          {"missing", nlohmann::json::object()}};
  absl::Status outcome;
  const auto put = [&](const std::string& file, const absl::StatusOr<std::string>& contents) {
    absl::Status status = contents.status();
    if (status.ok() && outcome.ok()) {
      status = store->Put(absl::StrCat(name, "/", file), *contents, storage::PutMode::kCreate);
      outcome = status;  // what the store refuses once it will refuse again
    }
    if (status.ok() && outcome.ok()) {
      index["files"].push_back(file);
    } else {
      index["missing"][file] = std::string((status.ok() ? outcome : status).message());
    }
  };
  put("program.mlirbc", compile.code);
  put("compile_options.pb", compile.options);
  xla::CompileOptionsProto options;
  std::string text;
  if (options.ParseFromString(compile.options) &&
      google::protobuf::TextFormat::PrintToString(options, &text)) {
    put("compile_options.txt", text);
  }
  if (ok) {
    const bool with_config = compile.result->optimized_hlo_format != "hlo";
    put(with_config ? "after_optimizations.hlo_with_config.pb" : "after_optimizations.hlo.pb",
        compile.result->optimized_hlo);
    put("after_optimizations.txt",
        program::HloText(compile.result->optimized_hlo_format, compile.result->optimized_hlo));
  } else {
    put("error.txt", compile.result.status().ToString());
  }
  if (!compile.directory.empty()) {
    storage::LocalStore written(compile.directory);
    const absl::StatusOr<std::vector<storage::ObjectInfo>> files = written.List("", kMaxFiles);
    if (files.ok()) {
      for (const storage::ObjectInfo& file : *files) {
        const std::string target = absl::StrCat("xla/", ForName(file.name));
        if (file.size_bytes > kMaxFileBytes) {
          put(target, absl::ResourceExhaustedError(absl::StrCat("it has ", file.size_bytes, " bytes")));
        } else {
          put(target, written.Get(file.name));
        }
      }
    }
    put("program.mlir", ToText(compile.directory, compile.code));
  }
  if (outcome.ok()) {
    outcome = store->Put(
        absl::StrCat("index/", ForName(ok ? compile.result->name : "failed"), "/", name, ".json"),
        index.dump(2, ' ', false, nlohmann::json::error_handler_t::replace), storage::PutMode::kCreate);
  }
  LOG_IF(WARNING, !outcome.ok()) << "A dump could not be written to " << compile.request.location << ": "
                                 << outcome;
}

}  // namespace helmway::worker
