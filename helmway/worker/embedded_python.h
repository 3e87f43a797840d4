#ifndef HELMWAY_WORKER_EMBEDDED_PYTHON_H_
#define HELMWAY_WORKER_EMBEDDED_PYTHON_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace helmway::worker {

// The CPython interpreter inside this process. There is at most one; once started it stays. Between scripts
// no thread of ours holds the GIL. Any thread.
class EmbeddedPython {
 public:
  // Starts the interpreter that `python` (the path of a python3 command, often one of a virtual environment)
  // would be, with its packages. Loads that interpreter's shared library, for which the command is run once.
  // Later calls give the same object if they name the same command. NOT_FOUND: no such command.
  // FAILED_PRECONDITION: the command does not run, has no shared library, or another interpreter has been
  // started in this process. Installs no signal handlers and leaves standard files alone.
  static absl::StatusOr<EmbeddedPython*> Get(const std::string& python);

  EmbeddedPython(const EmbeddedPython&) = delete;
  EmbeddedPython& operator=(const EmbeddedPython&) = delete;

  // Runs `script` in a namespace of its own. An exception that leaves it is returned as FAILED_PRECONDITION
  // with its text ("ModuleNotFoundError: No module named 'scipy'"). Scripts reach C++ through ctypes, with
  // the addresses of functions written into their text.
  absl::Status Run(const std::string& script);

  const std::string& command() const { return command_; }

 private:
  // The functions of libpython that are used. All are in its stable ABI or as old as it.
  struct Api {
    wchar_t* (*decode_locale)(const char*, size_t* length);
    void (*set_program_name)(const wchar_t*);
    void (*initialize)(int install_signal_handlers);
    int (*run_simple_string)(const char*, void* flags);
    void* (*save_thread)();
    int (*ensure_gil)();
    void (*release_gil)(int state);
  };

  EmbeddedPython(std::string command, const Api& api);
  static absl::StatusOr<Api> LoadLibrary(const std::string& command);

  const std::string command_;
  const Api api_;
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_EMBEDDED_PYTHON_H_
