#include <glog/logging.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "helmway/apps/command.h"
#include "helmway/apps/embedded_server.h"
#include "helmway/apps/logging.h"
#include "helmway/apps/manager_server.h"
#include "helmway/apps/worker_server.h"

int main(int argc, char** argv) {
  using helmway::apps::Environment;

#ifdef NDEBUG
  // Abseil's mutexes look for lock cycles unless told otherwise; the tests do that, a server shall not pay
  // for it.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif

  // A reader of our output that goes away must not end the server.
  signal(SIGPIPE, SIG_IGN);

  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  // The plugin reads this variable by itself, and ends the process over a word that it does not know. Its
  // flags are applied through the options of each compile instead.
  unsetenv("XLA_FLAGS");
  std::error_code error;
  const std::string executable = std::filesystem::read_symlink("/proc/self/exe", error).string();

  return helmway::apps::RunHelmway(std::vector<std::string>(argv, argv + argc),
                                   {.environment = environment,
                                    .executable_path = error ? "" : executable,
                                    .out = std::cout,
                                    .err = std::cerr,
                                    .start_server = helmway::apps::EmbeddedServer::Start,
                                    .start_manager = helmway::apps::ManagerServer::Start,
                                    .start_worker = helmway::apps::WorkerServer::Start,
                                    .start_logging = [](const helmway::apps::LogSettings& settings) {
                                      helmway::apps::StartLogging("helmway", settings);
                                    }});
}
