#include "helmway/worker/embedded_python.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "helmway/base/leak_sanitizer.h"
#include "helmway/base/mutex.h"
#include "helmway/base/status.h"
#include "helmway/base/thread_sanitizer.h"

extern char** environ;

namespace helmway::worker {
namespace {

// Prints one line per item: the directory of the shared library, its file name.
constexpr char kDescribe[] =
    "import sysconfig\n"
    "print(sysconfig.get_config_var('LIBDIR') or '')\n"
    "print(sysconfig.get_config_var('INSTSONAME') or sysconfig.get_config_var('LDLIBRARY') or '')\n";

constexpr size_t kMaxOutputBytes = 1 << 16;

// Runs a command and returns what it prints on its standard output.
absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string output;
  if (error == 0) {
    char piece[4096];
    ssize_t got;
    while ((got = read(ends[0], piece, sizeof(piece))) > 0 || (got < 0 && errno == EINTR)) {
      if (got > 0 && output.size() < kMaxOutputBytes) output.append(piece, static_cast<size_t>(got));
    }
  }
  close(ends[0]);
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat("cannot run '", command[0], "': ", std::strerror(error)));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", command[0], "' does not run: wait status ", status));
  }
  return output;
}

template <typename Function>
absl::Status Resolve(void* library, const char* name, const std::string& path, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("'", path, "' does not export ", name));
}

// Called by scripts that have failed.
void TakeError(void* error, const char* text) { *static_cast<std::string*>(error) = text; }

}  // namespace

EmbeddedPython::EmbeddedPython(std::string command, const Api& api)
    : command_(std::move(command)), api_(api) {}

absl::StatusOr<EmbeddedPython::Api> EmbeddedPython::LoadLibrary(const std::string& command) {
  HELMWAY_ASSIGN_OR_RETURN(const std::string output, OutputOf({command, "-I", "-S", "-c", kDescribe}));
  const std::vector<std::string> lines = absl::StrSplit(output, '\n');
  const std::string name = lines.size() > 1 ? lines[1] : "";
  if (!absl::StrContains(name, ".so")) {
    return absl::FailedPreconditionError(
        absl::StrCat("the Python of '", command,
                     "' has no shared library to embed (on Debian it is in the package libpython3.x)"));
  }
  // Extension modules take Python's functions from the process, so the library's names are made global.
  const std::string path = absl::StrCat(lines[0], "/", name);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return absl::FailedPreconditionError(
        absl::StrCat("the shared library of '", command, "' cannot be loaded, neither from ", lines[0],
                     " nor from the system: ", reason == nullptr ? name : reason,
                     " (on Debian it is in the package libpython3.x)"));
  }
  Api api;
  HELMWAY_RETURN_IF_ERROR(Resolve(library, "Py_DecodeLocale", path, &api.decode_locale));
  HELMWAY_RETURN_IF_ERROR(Resolve(library, "Py_SetProgramName", path, &api.set_program_name));
  HELMWAY_RETURN_IF_ERROR(Resolve(library, "Py_InitializeEx", path, &api.initialize));
  HELMWAY_RETURN_IF_ERROR(Resolve(library, "PyRun_SimpleStringFlags", path, &api.run_simple_string));
  HELMWAY_RETURN_IF_ERROR(Resolve(library, "PyEval_SaveThread", path, &api.save_thread));
  HELMWAY_RETURN_IF_ERROR(Resolve(library, "PyGILState_Ensure", path, &api.ensure_gil));
  HELMWAY_RETURN_IF_ERROR(Resolve(library, "PyGILState_Release", path, &api.release_gil));
  return api;
}

absl::StatusOr<EmbeddedPython*> EmbeddedPython::Get(const std::string& python) {
  static base::Mutex& mu = *new base::Mutex;
  static EmbeddedPython* the_one = nullptr;
  base::MutexLock lock(&mu);
  if (the_one != nullptr) {
    if (the_one->command_ == python) return the_one;
    return absl::FailedPreconditionError(
        absl::StrCat("'", the_one->command_, "' is embedded already, so '", python, "' can't be"));
  }
  HELMWAY_ASSIGN_OR_RETURN(const Api api, LoadLibrary(python));
  // It is never ended, and most of its objects are known from its own arenas only.
  base::KeptByLibrary kept;
  // The command's own path lets Python find the environment that the command belongs to. Python keeps the
  // text.
  const wchar_t* program_name = api.decode_locale(python.c_str(), nullptr);
  if (program_name == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("the path '", python, "' can't be decoded"));
  }
  the_one = new EmbeddedPython(python, api);
  base::ForeignCode foreign;
  api.set_program_name(program_name);
  api.initialize(/*install_signal_handlers=*/0);
  api.save_thread();
  return the_one;
}

absl::Status EmbeddedPython::Run(const std::string& script) {
  std::string error;
  // The script travels as the text of a bytes literal, so that nothing in it can end the frame around it; the
  // frame does too, since threads share the namespace that it would otherwise run in.
  const std::string framed = absl::StrCat(
      "import ctypes, traceback\n"
      "try:\n"
      "  exec(compile(b\"",
      absl::CHexEscape(script),
      "\".decode(), 'helmway', 'exec'), {'__name__': 'helmway'})\n"
      "except BaseException as e:\n"
      "  text = ''.join(traceback.format_exception_only(type(e), e)).strip().encode(errors='replace')\n"
      "  ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(",
      reinterpret_cast<uintptr_t>(&TakeError), ")(", reinterpret_cast<uintptr_t>(&error),
      ", text.replace(b'\\0', b' '))\n");
  const std::string whole = absl::StrCat("exec(b\"", absl::CHexEscape(framed), "\".decode(), {})\n");
  int result;
  {
    base::ForeignCode foreign;
    base::KeptByLibrary kept;
    const int state = api_.ensure_gil();
    result = api_.run_simple_string(whole.c_str(), nullptr);
    api_.release_gil(state);
  }
  if (!error.empty()) return absl::FailedPreconditionError(error);
  if (result != 0) return absl::InternalError("the embedded Python could not run a script");
  return absl::OkStatus();
}

}  // namespace helmway::worker
