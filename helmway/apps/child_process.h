#ifndef HELMWAY_APPS_CHILD_PROCESS_H_
#define HELMWAY_APPS_CHILD_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "helmway/apps/flags.h"

namespace helmway::apps {

// Finds a command as a shell does: a name with a slash is a path, any other is looked up in PATH. NOT_FOUND
// if there is none, PERMISSION_DENIED if there is one that may not be executed.
absl::StatusOr<std::string> FindCommand(const std::string& name, const Environment& environment);

struct ChildFiles {
  bool background =
      false;         // reads nothing and prints to stderr; else it has the standard files of this process
  int kept_fd = -1;  // a file descriptor that the child inherits under its number
};

// Starts `command` (at least one word) with exactly this environment and signal mask, in this process group.
// The child gets SIGTERM when the calling thread ends, so call it
// from the main one; other threads may exist. Returns once the command runs. NOT_FOUND or PERMISSION_DENIED
// (everything else that keeps it from being executed) as a shell tells 127 from 126.
absl::StatusOr<pid_t> StartChild(const std::vector<std::string>& command, const Environment& environment,
                                 const sigset_t& mask, const ChildFiles& files = {});

// The exit code that a shell would give for a status of waitpid: the command's own, or 128 + signal.
int ShellExitCode(int wait_status);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_CHILD_PROCESS_H_
