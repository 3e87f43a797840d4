#include "helmway/apps/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace helmway::apps {
namespace {

absl::Status NotExecutable(absl::string_view command, int error) {
  const std::string message = absl::StrCat("cannot run '", command, "': ", strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == ENOEXEC) {
    return absl::PermissionDeniedError(
        absl::StrCat(message, "; a script needs a first line with its interpreter, such as #!/bin/sh"));
  }
  return absl::PermissionDeniedError(message);
}

// Between fork and exec other threads may hold any lock: system calls only, and nothing that allocates.
[[noreturn]] void RunChild(const char* path, char* const* argv, char* const* envp, const sigset_t& mask,
                           const ChildFiles& files, pid_t parent, int error_pipe) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  // The parent may have died before the line above; nobody would then send the signal.
  if (getppid() != parent) _exit(127);
  struct sigaction default_action = {};
  default_action.sa_handler = SIG_DFL;
  sigaction(SIGPIPE, &default_action, nullptr);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (files.background) {
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  if (files.kept_fd >= 0) fcntl(files.kept_fd, F_SETFD, 0);
  execve(path, argv, envp);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(error_pipe, &error, sizeof(error));
  _exit(127);
}

}  // namespace

absl::StatusOr<std::string> FindCommand(const std::string& name, const Environment& environment) {
  if (name.empty()) return absl::NotFoundError("cannot run '': the command is empty");
  const auto executable_file = [](const std::string& path, int* error) {
    struct stat status;
    if (stat(path.c_str(), &status) != 0) {
      *error = errno;
      return false;
    }
    *error = EACCES;
    return S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
  };
  int error = ENOENT;
  if (name.find('/') != std::string::npos) {
    if (executable_file(name, &error)) return name;
    return NotExecutable(name, error);
  }
  int first_error = ENOENT;
  for (const absl::string_view directory :
       absl::StrSplit(Lookup(environment, "PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
    // An empty entry is the current directory.
    const std::string path = absl::StrCat(directory.empty() ? "." : directory, "/", name);
    if (executable_file(path, &error)) return path;
    if (error == EACCES) first_error = EACCES;
  }
  if (first_error == EACCES) return NotExecutable(name, EACCES);
  return absl::NotFoundError(absl::StrCat("cannot run '", name, "': there is no such command in PATH"));
}

absl::StatusOr<pid_t> StartChild(const std::vector<std::string>& command, const Environment& environment,
                                 const sigset_t& mask, const ChildFiles& files) {
  auto path = FindCommand(command[0], environment);
  if (!path.ok()) return path.status();

  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(absl::StrCat(name, "=", value));
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);

  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot start '", command[0], "'"));
  }
  const pid_t parent = getpid();
  // _Fork runs none of the handlers that libraries register for forks: the child leaves at once by exec.
  const pid_t child = _Fork();
  if (child == 0) RunChild(path->c_str(), argv.data(), envp.data(), mask, files, parent, error_pipe[1]);
  const int fork_error = errno;
  close(error_pipe[1]);
  if (child < 0) {
    close(error_pipe[0]);
    return absl::ErrnoToStatus(fork_error, absl::StrCat("cannot start '", command[0], "'"));
  }
  int error = 0;
  ssize_t bytes;
  do {
    bytes = read(error_pipe[0], &error, sizeof(error));
  } while (bytes < 0 && errno == EINTR);
  close(error_pipe[0]);
  if (bytes == static_cast<ssize_t>(sizeof(error))) {
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    return NotExecutable(*path, error);
  }
  return child;
}

int ShellExitCode(int wait_status) {
  if (WIFSIGNALED(wait_status)) return 128 + WTERMSIG(wait_status);
  return WEXITSTATUS(wait_status);
}

}  // namespace helmway::apps
