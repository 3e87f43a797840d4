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
#include "helmway/apps/plugin_choice.h"
#include "helmway/apps/role_flags.h"
#include "helmway/apps/signals.h"
#include "helmway/apps/worker_server.h"
#include "helmway/base/clock.h"
#include "helmway/base/random.h"
#include "helmway/base/status.h"

namespace helmway::apps {
namespace {

constexpr absl::Duration kPatienceAtTheEnd = absl::Seconds(5);
// Before a worker is started again.
constexpr absl::Duration kFirstWait = absl::Milliseconds(250);
constexpr absl::Duration kLongestWait = absl::Seconds(10);
constexpr absl::Duration kLongLife = absl::Minutes(1);

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

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot start a worker");
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

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
                  {.name = "report_fd",
                   .type = FlagType::kInt,
                   .default_value = "1",
                   .help = "Open file that gets port and incarnation."},
                  PythonFlag(),
                  ScratchLocationFlag()}};
    for (FlagSpec& spec : PluginFlags()) made->flags.push_back(std::move(spec));
    for (FlagSpec& spec : TimeoutFlags()) made->flags.push_back(std::move(spec));
    for (FlagSpec& spec : LoggingFlags()) made->flags.push_back(std::move(spec));
    return made;
  }();
  return *table;
}

}  // namespace

LocalCluster::LocalCluster(const LocalClusterOptions& options)
    : options_(options), chaos_(options.chaos_seed.value_or(0)) {
  base::MutexLock lock(&mu_);
  children_.resize(static_cast<size_t>(options.workers));
}

std::string LocalCluster::NameOf(size_t number) const {
  return WorkerName(static_cast<int>(number), options_.workers, options_.slices);
}

absl::StatusOr<pid_t> LocalCluster::StartWorker(size_t number, int report_fd) {
  const size_t per_slice = static_cast<size_t>(options_.workers / options_.slices);
  std::vector<std::string> command = {options_.executable,
                                      "local_worker",
                                      absl::StrCat("--number=", number),
                                      absl::StrCat("--slice=", number / per_slice),
                                      absl::StrCat("--task=", number % per_slice),
                                      absl::StrCat("--devices=", options_.devices_per_worker),
                                      absl::StrCat("--python=", options_.python),
                                      absl::StrCat("--gcs_scratch_location=", options_.scratch_location),
                                      absl::StrCat("--report_fd=", report_fd)};
  for (const auto* flags : {&options_.plugin_flags, &options_.flags}) {
    command.insert(command.end(), flags->begin(), flags->end());
  }
  HELMWAY_ASSIGN_OR_RETURN(const pid_t child, StartChild(command, options_.environment, options_.signal_mask,
                                                         {.background = true, .kept_fd = report_fd}));
  base::MutexLock lock(&mu_);
  children_[number].pid = child;
  children_[number].incarnation = 0;
  children_[number].started = base::SteadyNow();
  return child;
}

absl::StatusOr<RemoteWorkerAddress> LocalCluster::AwaitReport(size_t number, pid_t pid, int report_fd,
                                                              absl::Time deadline) {
  const std::string name = NameOf(number);
  absl::StatusOr<std::string> line = ReadLine(report_fd, deadline);
  if (!line.ok()) return base::Annotate(line.status(), name);
  int port;
  uint64_t incarnation;
  if (!ParseReport(*line, &port, &incarnation)) {
    return absl::InternalError(absl::StrCat(name, " reports \"", *line, "\""));
  }
  base::MutexLock lock(&mu_);
  if (children_[number].pid == pid) children_[number].incarnation = incarnation;
  return RemoteWorkerAddress{absl::StrCat("127.0.0.1:", port), name, incarnation};
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const LocalClusterOptions& options) {
  auto cluster = std::unique_ptr<LocalCluster>(new LocalCluster(options));
  std::vector<std::pair<pid_t, FileDescriptor>> started;
  for (size_t number = 0; number < static_cast<size_t>(options.workers); ++number) {
    HELMWAY_ASSIGN_OR_RETURN(Pipe report, MakePipe());
    HELMWAY_ASSIGN_OR_RETURN(const pid_t pid, cluster->StartWorker(number, report.write_end.get()));
    started.emplace_back(pid, std::move(report.read_end));
  }
  const absl::Time deadline = absl::Now() + options.start_timeout;
  for (size_t number = 0; number < started.size(); ++number) {
    const auto& [pid, report] = started[number];
    HELMWAY_ASSIGN_OR_RETURN(cluster->addresses_.emplace_back(),
                             cluster->AwaitReport(number, pid, report.get(), deadline));
  }
  return cluster;
}

void LocalCluster::Watch(Returned returned) {
  watching_ = true;
  returned_ = std::move(returned);
  starts_ = std::make_unique<async::ThreadPool>(
      async::ThreadPool::Options{.name = "worker-starts", .threads = std::min(options_.workers, 4)});
  if (options_.chaos_seed) {
    LOG(WARNING) << "chaos with the seed " << *options_.chaos_seed << ": kills a worker about every "
                 << absl::FormatDuration(options_.chaos_interval);
    next_kill_ = base::SteadyNow() + options_.chaos_interval;
  }
  Reap();  // what has ended meanwhile
}

void LocalCluster::StopWatching() {
  if (!std::exchange(watching_, false)) return;
  // What starts now is not needed, and not waited for.
  {
    base::MutexLock lock(&mu_);
    for (const Child& child : children_) {
      if (child.pid != 0 && child.incarnation == 0) kill(child.pid, SIGKILL);
    }
  }
  starts_->Stop();
}

void LocalCluster::Reap() {
  base::MutexLock lock(&mu_);
  for (size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    int status;
    if (child.pid != 0 && waitpid(child.pid, &status, WNOHANG) == child.pid) {
      LOG(ERROR) << NameOf(i) << ", process " << child.pid << ", has ended"
                 << (WIFSIGNALED(status) ? absl::StrCat(" by signal ", WTERMSIG(status), " (",
                                                        strsignal(WTERMSIG(status)), ")")
                                         : absl::StrCat(" with exit code ", WEXITSTATUS(status)));
      child.pid = 0;
    }
    if (!watching_ || child.pid != 0 || child.start_at != absl::InfiniteFuture()) continue;
    if (child.restarts >= options_.max_restarts) {
      if (child.restarts == options_.max_restarts && options_.max_restarts > 0) {
        LOG(ERROR) << NameOf(i) << " has been started again " << child.restarts
                   << " times and is left as it is";
      }
      child.restarts = options_.max_restarts + 1;
      continue;
    }
    ++child.restarts;
    const absl::Time now = base::SteadyNow();
    if (now - child.started > kLongLife) child.wait = absl::ZeroDuration();
    child.start_at = now + child.wait;
    child.wait = std::clamp(2 * child.wait, kFirstWait, kLongestWait);
  }
}

absl::Time LocalCluster::next_wake_up() const {
  absl::Time next = next_kill_;
  base::MutexLock lock(&mu_);
  for (const Child& child : children_) next = std::min(next, child.start_at);
  return next;
}

void LocalCluster::WakeUp() {
  const absl::Time now = base::SteadyNow();
  std::vector<size_t> due;
  {
    base::MutexLock lock(&mu_);
    for (size_t i = 0; i < children_.size(); ++i) {
      if (children_[i].start_at > now) continue;
      children_[i].start_at = absl::InfiniteFuture();
      due.push_back(i);
    }
  }
  for (const size_t number : due) {
    if (absl::Status status = StartAgain(number); !status.ok()) {
      LOG(ERROR) << "cannot start " << NameOf(number) << " again: " << status.message();
      Reap();  // for another try
    }
  }
  if (next_kill_ <= now) KillOne();
}

absl::Status LocalCluster::StartAgain(size_t number) {
  HELMWAY_ASSIGN_OR_RETURN(Pipe report, MakePipe());
  HELMWAY_ASSIGN_OR_RETURN(const pid_t pid, StartWorker(number, report.write_end.get()));
  const bool posted = starts_->Post([this, number, pid, fd = std::move(report.read_end)] {
    absl::StatusOr<RemoteWorkerAddress> address =
        AwaitReport(number, pid, fd.get(), absl::Now() + options_.start_timeout);
    absl::Status status = address.status();
    if (status.ok()) status = returned_(number, *address);
    if (status.ok()) return;
    LOG(ERROR) << NameOf(number) << " has not come back: " << status.message();
    base::MutexLock lock(&mu_);
    // It is of no use; the next one may be.
    if (children_[number].pid == pid) kill(pid, SIGKILL);
  });
  return posted ? absl::OkStatus() : absl::ResourceExhaustedError("too many workers start at once");
}

void LocalCluster::KillOne() {
  std::uniform_real_distribution<double> factor(0.5, 1.5);
  next_kill_ = base::SteadyNow() + options_.chaos_interval * factor(chaos_);
  base::MutexLock lock(&mu_);
  const size_t number = std::uniform_int_distribution<size_t>(0, children_.size() - 1)(chaos_);
  if (children_[number].pid == 0) return;
  LOG(WARNING) << "chaos kills " << NameOf(number);
  kill(children_[number].pid, SIGKILL);
}

void LocalCluster::Condemn(size_t number, uint64_t incarnation) {
  base::MutexLock lock(&mu_);
  const Child& child = children_[number];
  if (child.pid != 0 && child.incarnation == incarnation) kill(child.pid, SIGKILL);
}

LocalCluster::~LocalCluster() {
  StopWatching();
  base::MutexLock lock(&mu_);
  for (const Child& child : children_) {
    if (child.pid != 0) kill(child.pid, SIGTERM);
  }
  const absl::Time deadline = absl::Now() + kPatienceAtTheEnd;
  for (const Child& child : children_) {
    if (child.pid == 0) continue;
    // A worker that is stopped, or inside a plugin that takes the signal for itself.
    while (waitpid(child.pid, nullptr, WNOHANG) == 0) {
      if (absl::Now() >= deadline) {
        kill(child.pid, SIGKILL);
        waitpid(child.pid, nullptr, 0);
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

  const auto plugin = ChoosePlugin(flags, context.executable_path, context.environment);
  if (!plugin.ok()) return fail(plugin.status());
  context.start_logging(ResolveLogSettings(flags, context.environment, /*default_level=*/1));
  // What a terminal sends goes to all of the process group; it is for the parent to end the workers.
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  BlockedSignals signals({SIGTERM});
  const uint64_t incarnation = base::UnguessableId();
  auto server = context.start_worker({.listen_address = "127.0.0.1:0",
                                      .plugin = *plugin,
                                      .python = flags.String("python"),
                                      .scratch_location = std::move(scratch_location),
                                      .environment = context.environment,
                                      .incarnation = incarnation,
                                      .software = Software(),
                                      .timeouts = TimeoutsFrom(flags)});
  if (!server.ok()) return fail(server.status());
  const int devices = static_cast<int>(flags.Int("devices"));
  const auto placed = (*server)->Place({.number = number,
                                        .slice = static_cast<int>(flags.Int("slice")),
                                        .task = static_cast<int>(flags.Int("task")),
                                        .devices = devices,
                                        .first_device = number * devices},
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
