#include "helmway/apps/local_cluster.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "helmway/apps/child_process.h"
#include "helmway/apps/logging.h"
#include "helmway/apps/role_flags.h"
#include "helmway/apps/signals.h"
#include "helmway/apps/worker_server.h"
#include "helmway/base/random.h"
#include "helmway/base/status.h"

namespace helmway::apps {
namespace {

constexpr absl::Duration kPatienceAtTheEnd = absl::Seconds(5);

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string WorkerName(int number, int workers, int slices) {
  const std::string name = absl::StrCat("worker ", number);
  return slices == 1 ? name : absl::StrCat(name, " (slice ", number / (workers / slices), ")");
}

// What a worker reports when it serves: "PORT INCARNATION\n".
std::string Report(int port, uint64_t incarnation) { return absl::StrCat(port, " ", incarnation, "\n"); }

bool ParseReport(absl::string_view text, int* port, uint64_t* incarnation) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  return words.size() == 2 && absl::SimpleAtoi(words[0], port) && absl::SimpleAtoi(words[1], incarnation);
}

// Reads a line; UNAVAILABLE at the end of the file, DEADLINE_EXCEEDED at the deadline.
absl::StatusOr<std::string> ReadLine(int fd, absl::Time deadline) {
  std::string line;
  while (true) {
    pollfd wanted{.fd = fd, .events = POLLIN};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    const int ready = poll(&wanted, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return absl::DeadlineExceededError("it did not start in time");
    char byte;
    const ssize_t size = read(fd, &byte, 1);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return absl::UnavailableError("it ended while it started");
    if (byte == '\n') return line;
    line += byte;
  }
}

const FlagTable& LocalWorkerFlags() {
  static const auto* table = [] {
    auto* made = new FlagTable{
        .command = "helmway local_worker",
        .usage = "helmway local_worker [flags]",
        .purpose = "One worker of 'helmway up --workers', which starts it.",
        .flags = {{.name = "number", .type = FlagType::kInt, .default_value = "0", .max = 1 << 16},
                  {.name = "slice", .type = FlagType::kInt, .default_value = "0", .max = 1 << 16},
                  {.name = "task", .type = FlagType::kInt, .default_value = "0", .max = 1 << 16},
                  {.name = "devices", .type = FlagType::kInt, .default_value = "1", .min = 1, .max = 2048},
                  {.name = "pjrt_plugin"},
                  {.name = "report_fd",
                   .type = FlagType::kInt,
                   .default_value = "1",
                   .help = "Open file that gets port and incarnation."},
                  PythonFlag(),
                  ScratchLocationFlag()}};
    for (FlagSpec& spec : TimeoutFlags()) made->flags.push_back(std::move(spec));
    for (FlagSpec& spec : LoggingFlags()) made->flags.push_back(std::move(spec));
    return made;
  }();
  return *table;
}

}  // namespace

absl::Status LocalCluster::StartWorker(const LocalClusterOptions& options, int number, int report_fd) {
  const int per_slice = options.workers / options.slices;
  std::vector<std::string> command = {options.executable,
                                      "local_worker",
                                      absl::StrCat("--number=", number),
                                      absl::StrCat("--slice=", number / per_slice),
                                      absl::StrCat("--task=", number % per_slice),
                                      absl::StrCat("--devices=", options.devices_per_worker),
                                      absl::StrCat("--pjrt_plugin=", options.plugin_path),
                                      absl::StrCat("--python=", options.python),
                                      absl::StrCat("--gcs_scratch_location=", options.scratch_location),
                                      absl::StrCat("--report_fd=", report_fd)};
  command.insert(command.end(), options.flags.begin(), options.flags.end());
  HELMWAY_ASSIGN_OR_RETURN(const pid_t child, StartChild(command, options.environment, options.signal_mask,
                                                         {.background = true, .kept_fd = report_fd}));
  children_.push_back(child);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const LocalClusterOptions& options) {
  auto cluster = std::unique_ptr<LocalCluster>(new LocalCluster());
  std::vector<FileDescriptor> reports;
  for (int number = 0; number < options.workers; ++number) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot start workers");
    reports.emplace_back(ends[0]);
    const FileDescriptor write_end(ends[1]);
    HELMWAY_RETURN_IF_ERROR(cluster->StartWorker(options, number, write_end.get()));
  }
  const absl::Time deadline = absl::Now() + options.start_timeout;
  for (int number = 0; number < options.workers; ++number) {
    const std::string name = WorkerName(number, options.workers, options.slices);
    absl::StatusOr<std::string> line = ReadLine(reports[static_cast<size_t>(number)].get(), deadline);
    if (!line.ok()) return base::Annotate(line.status(), name);
    int port;
    uint64_t incarnation;
    if (!ParseReport(*line, &port, &incarnation)) {
      return absl::InternalError(absl::StrCat(name, " reports \"", *line, "\""));
    }
    cluster->addresses_.push_back({absl::StrCat("127.0.0.1:", port), name, incarnation});
  }
  return cluster;
}

void LocalCluster::Reap() {
  for (size_t i = 0; i < children_.size(); ++i) {
    int status;
    if (children_[i] == 0 || waitpid(children_[i], &status, WNOHANG) != children_[i]) continue;
    LOG(ERROR) << (i < addresses_.size() ? addresses_[i].name : "a worker") << ", process " << children_[i]
               << ", has ended"
               << (WIFSIGNALED(status)
                       ? absl::StrCat(" by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")")
                       : absl::StrCat(" with exit code ", WEXITSTATUS(status)));
    children_[i] = 0;
  }
}

LocalCluster::~LocalCluster() {
  for (const pid_t child : children_) {
    if (child != 0) kill(child, SIGTERM);
  }
  const absl::Time deadline = absl::Now() + kPatienceAtTheEnd;
  for (const pid_t child : children_) {
    if (child == 0) continue;
    // A worker that is stopped, or inside a plugin that takes the signal for itself.
    while (waitpid(child, nullptr, WNOHANG) == 0) {
      if (absl::Now() >= deadline) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        break;
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
}

int RunLocalWorker(const std::vector<std::string>& arguments, const CommandContext& context) {
  ParsedFlags flags = ParseFlags(LocalWorkerFlags(), arguments, context.environment);
  if (flags.help) {
    context.out << HelpText(LocalWorkerFlags()) << std::flush;
    return kExitOk;
  }
  std::string scratch_location = ReadScratchLocation(flags, /*has_older_name=*/false);
  PrintNotes(LocalWorkerFlags(), flags, context.err);
  if (!flags.ok()) return kExitUsage;
  const int number = static_cast<int>(flags.Int("number"));
  const auto fail = [&](const absl::Status& status) {
    context.err << "helmway worker " << number << ": " << status.message() << std::endl;
    return kExitFailure;
  };

  context.start_logging(ResolveLogSettings(flags, context.environment, /*default_level=*/1));
  // What a terminal sends goes to all of the process group; it is for the parent to end the workers.
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  BlockedSignals signals({SIGTERM});
  const uint64_t incarnation = base::UnguessableId();
  auto server = context.start_worker({.listen_address = "127.0.0.1:0",
                                      .plugin_path = flags.String("pjrt_plugin"),
                                      .python = flags.String("python"),
                                      .scratch_location = std::move(scratch_location),
                                      .environment = context.environment,
                                      .incarnation = incarnation,
                                      .software = Software(),
                                      .timeouts = TimeoutsFrom(flags)});
  if (!server.ok()) return fail(server.status());
  const auto placed = (*server)->Place({.number = number,
                                        .slice = static_cast<int>(flags.Int("slice")),
                                        .task = static_cast<int>(flags.Int("task")),
                                        .devices = static_cast<int>(flags.Int("devices"))},
                                       absl::StrCat("127.0.0.1:", (*server)->port()));
  if (!placed.ok()) return fail(placed.status());
  const std::string report = Report((*server)->port(), incarnation);
  const int report_fd = static_cast<int>(flags.Int("report_fd"));
  if (write(report_fd, report.data(), report.size()) != static_cast<ssize_t>(report.size())) {
    return fail(absl::ErrnoToStatus(errno, "cannot report the address"));
  }
  if (report_fd > STDERR_FILENO) close(report_fd);

  const int signal = signals.Wait().si_signo;
  LOG(INFO) << "worker " << number << " ends on SIGTERM";
  (*server)->FinishWriting(kPatienceAtTheEnd);
  (*server)->EndProcess(128 + signal);
  return 128 + signal;
}

}  // namespace helmway::apps
