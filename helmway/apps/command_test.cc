#include "helmway/apps/command.h"

#include <arpa/inet.h>
#include <glog/logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/apps/child_process.h"
#include "helmway/apps/listen_address.h"
#include "helmway/apps/role_flags.h"
#include "helmway/apps/server_command.h"
#include "helmway/apps/signals.h"
#include "helmway/apps/up_command.h"
#include "helmway/net/completion_thread.h"

namespace helmway::apps {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FakeServer : public EmbeddedServer {
 public:
  explicit FakeServer(int* shutdowns) : shutdowns_(shutdowns) {}
  int port() const override { return 4711; }
  absl::Status ReturnWorker(size_t /*number*/, const RemoteWorkerAddress& /*address*/) override {
    return absl::OkStatus();
  }
  void Shutdown() override { ++*shutdowns_; }

 private:
  int* shutdowns_;
};

class FakeManager : public ManagerServer {
 public:
  explicit FakeManager(int* shutdowns) : shutdowns_(shutdowns) {}
  int port() const override { return 4712; }
  void Shutdown() override { ++*shutdowns_; }

 private:
  int* shutdowns_;
};

// What happened to a worker, in order.
using WorkerEvents = std::vector<std::string>;

class FakeWorker : public WorkerServer {
 public:
  FakeWorker(WorkerEvents* events, absl::Status devices) : events_(events), devices_(std::move(devices)) {}
  int port() const override { return 4713; }
  absl::StatusOr<cluster::WorkerInfo> Place(const WorkerPlace& place,
                                            const std::string& peer_address) override {
    events_->push_back(absl::StrCat("slice ", place.slice, " task ", place.task, " with ", place.devices,
                                    " device(s) at ", peer_address));
    return devices_;
  }
  void StopWaiting() override {}
  uint64_t slice_generation() const override { return 0; }
  grpc::CompletionQueue* queue() override { return calls_.queue(); }
  void FinishWriting(absl::Duration /*patience*/) override {}
  void Shutdown() override { events_->push_back("shutdown"); }
  void EndProcess(int exit_code) override { events_->push_back(absl::StrCat("end with ", exit_code)); }

 private:
  WorkerEvents* events_;
  const absl::Status devices_;
  net::CompletionThread calls_;
};

class LogLines : public google::LogSink {
 public:
  LogLines() { google::AddLogSink(this); }
  ~LogLines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int, const google::LogMessageTime&,
            const char* message, size_t size) override {
    lines.emplace_back(message, size);
  }
  std::vector<std::string> lines;
};

// A socket that listens on a port of 127.0.0.1.
class BusyPort {
 public:
  BusyPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~BusyPort() { close(fd_); }
  int port() const { return port_; }

 private:
  int fd_;
  int port_;
};

class CommandTest : public ::testing::Test {
 protected:
  CommandTest() {
    // A background job of a script, or nohup, starts with these ignored.
    signal(SIGINT, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    std::string pattern = (fs::temp_directory_path() / "helmway_command_test.XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    plugin_ = (root_ / "cpu_plugin.so").string();
    std::ofstream(plugin_) << "x";
    environment_ = {{"HELMWAY_PJRT_PLUGIN", plugin_}, {"PATH", "/usr/bin:/bin"}, {"JAX_PLATFORMS", "cpu"}};
  }
  ~CommandTest() override { fs::remove_all(root_); }

  int Run(std::vector<std::string> words) {
    words.insert(words.begin(), "helmway");
    return RunHelmway(
        words,
        {.environment = environment_,
         .executable_path = "",
         .out = out_,
         .err = err_,
         .start_server =
             [this](const EmbeddedServerOptions& options) -> absl::StatusOr<std::unique_ptr<EmbeddedServer>> {
           options_ = options;
           if (on_start_) on_start_();
           if (!start_status_.ok()) return start_status_;
           return std::make_unique<FakeServer>(&shutdowns_);
         },
         .start_manager =
             [this](const ManagerServerOptions& options) -> absl::StatusOr<std::unique_ptr<ManagerServer>> {
           manager_options_ = options;
           if (on_start_) on_start_();
           if (!start_status_.ok()) return start_status_;
           return std::make_unique<FakeManager>(&shutdowns_);
         },
         .start_worker =
             [this](const WorkerServerOptions& options) -> absl::StatusOr<std::unique_ptr<WorkerServer>> {
           worker_options_ = options;
           if (on_start_) on_start_();
           if (!start_status_.ok()) return start_status_;
           return std::make_unique<FakeWorker>(&worker_events_, worker_devices_);
         },
         .start_logging = [this](const LogSettings& settings) { log_settings_ = settings; }});
  }
  int UpShell(const std::string& script) { return Run({"up", "--", "sh", "-c", script}); }

  fs::path root_;
  std::string plugin_;
  Environment environment_;
  std::ostringstream out_;
  std::ostringstream err_;
  std::optional<EmbeddedServerOptions> options_;
  std::optional<ManagerServerOptions> manager_options_;
  std::optional<WorkerServerOptions> worker_options_;
  WorkerEvents worker_events_;
  absl::Status worker_devices_;
  std::optional<LogSettings> log_settings_;
  std::function<void()> on_start_;
  absl::Status start_status_;
  int shutdowns_ = 0;
};

TEST_F(CommandTest, UsageVersionAndUnknownCommands) {
  EXPECT_EQ(Run({}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("usage: helmway COMMAND"));
  EXPECT_EQ(Run({"--help"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("usage: helmway COMMAND"));
  out_.str("");
  EXPECT_EQ(Run({"--version"}), kExitOk);
  EXPECT_THAT(out_.str(), ::testing::MatchesRegex("helmway [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  EXPECT_EQ(Run({"proxy_sever"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("unknown command 'proxy_sever'; did you mean 'proxy_server'?"));
  EXPECT_FALSE(options_.has_value());
}

TEST_F(CommandTest, HelpOfCommandsIsMadeFromTheirTables) {
  EXPECT_EQ(Run({"up", "--help"}), kExitOk);
  EXPECT_EQ(out_.str(), HelpText(UpFlags()));
  out_.str("");
  EXPECT_EQ(Run({"proxy_server", "--help"}), kExitOk);
  EXPECT_EQ(out_.str(), HelpText(ProxyFlags()));
  out_.str("");
  EXPECT_EQ(Run({"server", "--node_type=resource_manager", "--help"}), kExitOk);
  EXPECT_EQ(out_.str(), HelpText(ResourceManagerFlags()));
  out_.str("");
  // Without a role, both: nobody knows which is meant.
  EXPECT_EQ(Run({"server", "--help"}), kExitOk);
  EXPECT_EQ(out_.str(), HelpText(WorkerFlags()) + HelpText(ResourceManagerFlags()));
}

TEST_F(CommandTest, UpEndsAsItsCommandEnds) {
  EXPECT_EQ(UpShell("exit 7"), 7);
  EXPECT_EQ(shutdowns_, 1);
  EXPECT_EQ(UpShell("exit 0"), 0);
  EXPECT_EQ(UpShell("kill -KILL $$"), 128 + SIGKILL);
  EXPECT_EQ(UpShell("kill -TERM $$"), 128 + SIGTERM);
  EXPECT_EQ(shutdowns_, 4);
  EXPECT_EQ(out_.str(), "");
}

TEST_F(CommandTest, UpGivesTheCommandItsVariables) {
  const std::string file = (root_ / "variables").string();
  environment_["FILE"] = file;
  EXPECT_EQ(
      UpShell("echo $JAX_PLATFORMS $JAX_BACKEND_TARGET $IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS > $FILE"),
      0);
  std::string line;
  std::getline(std::ifstream(file), line);
  EXPECT_EQ(line, "proxy grpc://127.0.0.1:4711 true");
}

TEST_F(CommandTest, UpTellsWhyACommandDoesNotRun) {
  EXPECT_EQ(Run({"up", "--", "helmway-no-such-command"}), 127);
  EXPECT_THAT(err_.str(),
              HasSubstr("cannot run 'helmway-no-such-command': there is no such command in PATH"));
  EXPECT_EQ(Run({"up", "--", (root_ / "none").string()}), 127);
  EXPECT_EQ(Run({"up", "--", plugin_}), 126);
  EXPECT_THAT(err_.str(), HasSubstr("Permission denied"));
  EXPECT_EQ(Run({"up", "--", root_.string()}), 126);
  EXPECT_EQ(Run({"up", "--", ""}), 127);
  EXPECT_EQ(shutdowns_, 5);
}

TEST_F(CommandTest, UpReportsAFailedExec) {
  const std::string script = (root_ / "script").string();
  std::ofstream(script) << "echo no interpreter is named\n";
  ASSERT_EQ(chmod(script.c_str(), 0755), 0);
  EXPECT_EQ(Run({"up", "--", script}), 126);
  EXPECT_THAT(err_.str(), HasSubstr("a script needs a first line with its interpreter"));
  std::ofstream(script) << "#!/helmway/no/such/interpreter\n";
  EXPECT_EQ(Run({"up", "--", script}), 127);
}

TEST_F(CommandTest, UpPassesSignalsOn) {
  // The command sends the signal to its parent and waits to get it back.
  EXPECT_EQ(UpShell("trap 'kill $S; exit 42' TERM; sleep 600 >/dev/null 2>&1 & S=$!; kill -TERM $PPID; wait"),
            42);
  EXPECT_EQ(UpShell("trap 'kill $S; exit 43' INT; sleep 600 >/dev/null 2>&1 & S=$!; kill -INT $PPID; wait"),
            43);
  EXPECT_EQ(shutdowns_, 2);
}

TEST_F(CommandTest, UpSurvivesStopsOfItsCommand) {
  EXPECT_EQ(UpShell("(until grep -q '^State:.T' /proc/$$/status; do :; done; kill -CONT $$) & kill -STOP $$; "
                    "wait; exit 5"),
            5);
}

TEST_F(CommandTest, TheCommandHasTheSignalMaskOfBefore) {
  sigset_t mask;
  sigset_t before;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &mask, &before), 0);
  // Signals are bits of a hexadecimal number, the lowest for signal 1; SIGUSR2 is 12.
  EXPECT_EQ(Run({"up", "--", "grep", "-q", "^SigBlk:.*0000000000000800$", "/proc/self/status"}), 0);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
}

TEST_F(CommandTest, TerminalSignalsAreNotSentTwice) {
  siginfo_t info = {};
  info.si_code = SI_KERNEL;
  EXPECT_FALSE(ShouldForward(info));
  info.si_code = SI_USER;
  EXPECT_TRUE(ShouldForward(info));
  info.si_code = SI_TKILL;
  EXPECT_TRUE(ShouldForward(info));
}

TEST_F(CommandTest, UpWithoutACommandPrintsVariablesAndServesUntilASignal) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    out_.str("");
    on_start_ = [signal] { kill(getpid(), signal); };
    EXPECT_EQ(Run({"up", "--devices=8"}), kExitOk);
    EXPECT_EQ(out_.str(),
              "export JAX_PLATFORMS=proxy\n"
              "export JAX_BACKEND_TARGET=grpc://127.0.0.1:4711\n"
              "export IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS=true\n");
  }
  EXPECT_EQ(shutdowns_, 3);
  EXPECT_EQ(options_->listen_address, "127.0.0.1:0");
  EXPECT_EQ(options_->devices, 8);
  EXPECT_EQ(options_->plugin.path, plugin_);
  EXPECT_FALSE(options_->allow_remote_clients);
  EXPECT_EQ(log_settings_->min_level, 1);
}

TEST_F(CommandTest, UpFailsBeforeTheCommandStarts) {
  const std::string file = (root_ / "ran").string();
  EXPECT_EQ(Run({"up", "--device=2", "--", "touch", file}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("helmway up: unknown flag --device; did you mean --devices?"));
  EXPECT_EQ(Run({"up", "python", "x.py"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("helmway up -- python"));
  EXPECT_EQ(Run({"up", "--pjrt_plugin=/none.so", "--", "touch", file}), kExitFailure);
  BusyPort busy;
  EXPECT_EQ(Run({"up", absl::StrCat("--port=", busy.port()), "--", "touch", file}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr(absl::StrCat("helmway up: port ", busy.port(), " is already in use")));
  EXPECT_FALSE(options_.has_value());
  start_status_ = absl::InternalError("the plugin is broken");
  EXPECT_EQ(Run({"up", "--", "touch", file}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("helmway up: the plugin is broken"));
  EXPECT_FALSE(fs::exists(file));
}

TEST_F(CommandTest, ProxyServerSaysWhenItServesAndEndsOnASignal) {
  environment_["IFRT_PROXY_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"] = "/shared";
  for (const int signal : {SIGTERM, SIGINT}) {
    LogLines log;
    on_start_ = [signal] { kill(getpid(), signal); };
    EXPECT_EQ(Run({"proxy_server", "--server_port=0", "--devices=4", "--xla_a=1", ""}), kExitOk);
    EXPECT_THAT(log.lines, Contains("IFRT proxy server started with status OK"));
  }
  EXPECT_EQ(shutdowns_, 2);
  EXPECT_THAT(err_.str(),
              HasSubstr("argv[0]: 'helmway'\nargv[1]: 'proxy_server'\nargv[2]: '--server_port=0'\n"));
  EXPECT_THAT(err_.str(), HasSubstr("argv[5]: ''\n"));
  EXPECT_THAT(err_.str(), ::testing::Not(HasSubstr("warning: --xla_a")));
  EXPECT_THAT(options_->listen_address, ::testing::AnyOf("[::]:0", "0.0.0.0:0"));
  EXPECT_EQ(options_->devices, 4);
  EXPECT_EQ(options_->plugin.path, plugin_);
  EXPECT_FALSE(options_->allow_remote_clients);
  EXPECT_THAT(options_->xla_flags, ElementsAre("--xla_a=1"));
  EXPECT_EQ(options_->large_transfer_directory, "/shared");
  EXPECT_EQ(log_settings_->min_level, 0);
}

TEST_F(CommandTest, ProxyServerHandsOnOpenMode) {
  on_start_ = [] { kill(getpid(), SIGTERM); };
  EXPECT_EQ(Run({"proxy_server", "--server_port=0", "--allow_remote_clients"}), kExitOk);
  EXPECT_TRUE(options_->allow_remote_clients);
}

TEST_F(CommandTest, TheScratchLocationIsThatOfTheServer) {
  on_start_ = [] { kill(getpid(), SIGTERM); };
  EXPECT_EQ(Run({"proxy_server", "--server_port=0", "--gcs_scratch_location=gs://bucket/x"}), kExitOk);
  EXPECT_EQ(options_->scratch_location, "gs://bucket/x");
  EXPECT_EQ(options_->compile_cache_days, 30);
  EXPECT_EQ(Run({"proxy_server", "--server_port=0", "--gcs_scratch_location=", "--compile_cache_days=7"}),
            kExitOk);
  EXPECT_EQ(options_->scratch_location, "");
  EXPECT_EQ(options_->compile_cache_days, 7);
  on_start_ = nullptr;
  EXPECT_EQ(Run({"up", "--gcs_scratch_location=/scratch", "--", "true"}), kExitOk);
  EXPECT_EQ(options_->scratch_location, "/scratch");
  EXPECT_EQ(Run({"up", "--gcs_scratch_location=s3://x", "--", "true"}), kExitUsage);
}

TEST_F(CommandTest, ProxyServerRefusesWhatIsNotThere) {
  EXPECT_EQ(Run({"proxy_server", "--sidecar_name=external"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("UNIMPLEMENTED"));
  EXPECT_EQ(Run({"proxy_server", "--gcs_scratch_location=s3://b"}), kExitUsage);
  for (const std::string flag : {"--virtual_slices=cpu:2x4", "--worker_timeout=5", "--num_elastic_slices=1",
                                 "--temporary_flags_for_debugging=temporary_flag_for_debugging_experimental_"
                                 "num_ok_missing_slices=1"}) {
    err_.str("");
    EXPECT_EQ(Run({"proxy_server", flag}), kExitUsage) << flag;
    EXPECT_THAT(err_.str(), HasSubstr("needs --resource_manager_address"));
  }
  EXPECT_EQ(Run({"proxy_server", "--resource_manager_address=head:29001", "--devices=2"}), kExitUsage);
  EXPECT_FALSE(options_.has_value());
}

TEST_F(CommandTest, ProxyServerOfAClusterNeedsNoPlugin) {
  environment_.erase("HELMWAY_PJRT_PLUGIN");
  environment_["POD_NAME"] = "head-0";
  on_start_ = [] { kill(getpid(), SIGTERM); };
  const auto run = [this](std::vector<std::string> more) {
    more.insert(more.begin(), {"proxy_server", "--server_port=0", "--resource_manager_address=head:29001"});
    EXPECT_EQ(Run(more), kExitOk) << err_.str();
    return *options_;
  };
  EmbeddedServerOptions options = run({"--num_elastic_slices=0"});
  EXPECT_EQ(options.resource_manager_address, "head:29001");
  EXPECT_EQ(options.name, "head-0");
  EXPECT_TRUE(options.lease.all);
  EXPECT_EQ(options.elastic_slices, 0);
  EXPECT_EQ(options.worker_timeout, absl::Seconds(3));
  options = run({"--virtual_slices=tpuv6lite:2x2,cpu:2x4"});
  EXPECT_FALSE(options.lease.all);
  EXPECT_THAT(options.lease.instance_types, ElementsAre("tpuv6e:2x2", "cpu:2x4"));
  const std::string debugging =
      "--temporary_flags_for_debugging=temporary_flag_for_debugging_pipe_unreachable_timeout=30m";
  EXPECT_EQ(run({debugging}).worker_timeout, absl::Minutes(30));
  EXPECT_EQ(run({debugging, "--worker_timeout=7"}).worker_timeout, absl::Seconds(7));
}

TEST_F(CommandTest, ProxyServerNamesABusyPort) {
  BusyPort busy;
  EXPECT_EQ(Run({"proxy_server", absl::StrCat("--server_port=", busy.port())}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr(absl::StrCat("port ", busy.port(), " is already in use (")));
  EXPECT_THAT(err_.str(), HasSubstr("--server_port"));
  EXPECT_FALSE(options_.has_value());
}

// ---- server -------------------------------------------------------------------------------------------

TEST_F(CommandTest, TheResourceManagerServesUntilASignal) {
  environment_["HOST_ADDRESS"] = "head";
  for (const int signal : {SIGTERM, SIGINT}) {
    LogLines log;
    on_start_ = [signal] { kill(getpid(), signal); };
    EXPECT_EQ(Run({"server", "--server_port=0", "--node_type=resource_manager", "--instance_count=2",
                   "--instance_type=tpuv6lite:2x4", "--xla_a=1", ""}),
              128 + signal);
    EXPECT_THAT(log.lines, Contains("Pathways Server serving on [::]:4712"));
  }
  EXPECT_EQ(shutdowns_, 2);
  EXPECT_THAT(err_.str(), HasSubstr("argv[0]: 'helmway'\nargv[1]: 'server'\n"));
  EXPECT_THAT(manager_options_->listen_address, ::testing::AnyOf("[::]:0", "0.0.0.0:0"));
  const manager::ManagerSettings& settings = manager_options_->settings;
  ASSERT_EQ(settings.slices.size(), 2u);
  EXPECT_EQ(settings.slices[1].instance_type, "tpuv6e:2x4");
  EXPECT_EQ(settings.slices[1].platform, "tpu");
  EXPECT_EQ(settings.slices[1].hosts, 2);
  EXPECT_EQ(settings.slices[1].devices_per_host, 4);
  EXPECT_EQ(settings.advertised_host, "head");
  EXPECT_EQ(settings.health.period, manager::HealthSettings().period);
  EXPECT_FALSE(worker_options_.has_value());
}

TEST_F(CommandTest, TheRoleIsFoundInADirtyCommandLine) {
  on_start_ = [] { kill(getpid(), SIGTERM); };
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--instance_type", "cpu:2", "--instance_count", "3", "--node_type", "resource_manager"},
           {"--node_type='resource_manager' --instance_type=cpu:2 --instance_count=3"},
           {"--node_type=worker", "--instance_type=cpu:2", "--node_type=resource_manager",
            "--instance_count=3"}}) {
    std::vector<std::string> line = {"server", "--server_port=0"};
    line.insert(line.end(), words.begin(), words.end());
    manager_options_.reset();
    EXPECT_EQ(Run(line), 128 + SIGTERM);
    ASSERT_TRUE(manager_options_.has_value());
    EXPECT_EQ(manager_options_->settings.slices.size(), 3u);
  }
  EXPECT_EQ(Run({"server", "--node_type=proxy"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("known are resource_manager and worker"));
}

TEST_F(CommandTest, TheHealthOfWorkersIsWatchedAsTheFlagsSay) {
  on_start_ = [] { kill(getpid(), SIGTERM); };
  const auto health = [this](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"server", "--node_type=resource_manager", "--server_port=0", "--instance_type=cpu:1"});
    EXPECT_EQ(Run(more), 128 + SIGTERM);
    return manager_options_->settings.health;
  };
  const manager::HealthSettings given =
      health({"--health_check_initial_delay=7s", "--health_check_period=2s", "--health_check_timeout=500ms",
              "--health_check_failure_threshold=9"});
  EXPECT_EQ(given.initial_delay, absl::Seconds(7));
  EXPECT_EQ(given.period, absl::Seconds(2));
  EXPECT_EQ(given.timeout, absl::Milliseconds(500));
  EXPECT_EQ(given.failure_threshold, 9);
  // What the debugging flag allows a peer to be unreachable: 30 minutes of questions, one every 5 seconds.
  const std::string debugging =
      "--temporary_flags_for_debugging=temporary_flag_for_debugging_pipe_unreachable_timeout=30m";
  EXPECT_EQ(health({debugging}).failure_threshold, 360);
  EXPECT_EQ(health({debugging, "--health_check_failure_threshold=3"}).failure_threshold, 3);
  EXPECT_EQ(
      Run({"server", "--node_type=resource_manager", "--instance_type=cpu:1", "--health_check_period=0s"}),
      kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--health_check_period=0: must be above zero"));
}

TEST_F(CommandTest, TheResourceManagerRefusesWhatCannotBe) {
  const auto refused = [this](const std::vector<std::string>& more, const std::string& text) {
    std::vector<std::string> words = {"server", "--node_type=resource_manager"};
    words.insert(words.end(), more.begin(), more.end());
    err_.str("");
    EXPECT_EQ(Run(words), kExitUsage);
    EXPECT_THAT(err_.str(), HasSubstr(text));
  };
  refused({}, "--instance_type is missing");
  refused({"--instance_type=cpu:2x4096"}, "at most 2048");
  refused({"--instance_type=cpu:60000x1", "--instance_count=2"}, "at most 65536");
  refused({"--instance_type=cpu:1", "--instance_cuont=2"}, "did you mean --instance_count?");
  EXPECT_FALSE(manager_options_.has_value());
  BusyPort busy;
  EXPECT_EQ(Run({"server", "--node_type=resource_manager", "--instance_type=cpu:1",
                 absl::StrCat("--server_port=", busy.port())}),
            kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr(absl::StrCat("port ", busy.port(), " is already in use")));
}

TEST_F(CommandTest, AWorkerListensWhileItsManagerIsNotThere) {
  LogLines log;
  on_start_ = [] { kill(getpid(), SIGTERM); };
  EXPECT_EQ(Run({"server", "--server_port=0", "--resource_manager_address=helmway.invalid:29001"}),
            128 + SIGTERM);
  EXPECT_THAT(log.lines, Contains("Pathways Server serving on [::]:4713"));
  EXPECT_EQ(worker_options_->plugin.path, plugin_);
  EXPECT_NE(worker_options_->incarnation, 0u);
  EXPECT_EQ(worker_options_->scratch_location, "");
  EXPECT_EQ(worker_options_->message_port, 0);
  EXPECT_THAT(worker_events_, ElementsAre("end with 143"));
  EXPECT_FALSE(manager_options_.has_value());
}

TEST_F(CommandTest, AWorkerKeepsCompiledProgramsAndListensForMessagesWhereItIsTold) {
  LogLines log;
  on_start_ = [] { kill(getpid(), SIGTERM); };
  environment_["STORAGE_EMULATOR_HOST"] = "localhost:9000";
  int port;
  {
    BusyPort free_again;
    port = free_again.port();
  }
  Run({"server", "--server_port=0", "--resource_manager_address=helmway.invalid:29001",
       "--gcs_scratch_location=gs://bucket/scratch", absl::StrCat("--message_port=", port)});
  ASSERT_TRUE(worker_options_.has_value()) << err_.str();
  EXPECT_EQ(worker_options_->scratch_location, "gs://bucket/scratch");
  EXPECT_EQ(worker_options_->environment.at("STORAGE_EMULATOR_HOST"), "localhost:9000");
  EXPECT_EQ(worker_options_->message_port, port);
}

TEST_F(CommandTest, AWorkerWithoutDevicesFails) {
  auto manager = ManagerServer::Start(
      {.listen_address = "127.0.0.1:0",
       .settings = {.slices = {{.instance_type = "cpu:1x2", .platform = "cpu", .devices_per_host = 2}}}});
  ASSERT_TRUE(manager.ok()) << manager.status();
  worker_devices_ = absl::InternalError("the plugin has no devices");
  EXPECT_EQ(Run({"server", "--server_port=0",
                 absl::StrCat("--resource_manager_address=127.0.0.1:", (*manager)->port())}),
            kExitFailure);
  EXPECT_THAT(worker_events_, ElementsAre("slice 0 task 0 with 2 device(s) at 127.0.0.1:4713"));
  EXPECT_THAT(err_.str(), HasSubstr("helmway server: the plugin has no devices"));
}

TEST_F(CommandTest, AWorkerRefusesWhatCannotBe) {
  EXPECT_EQ(Run({"server"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--resource_manager_address is missing"));
  environment_["MEGASCALE_SLICE_ID"] = "first";
  EXPECT_EQ(Run({"server", "--resource_manager_address=head:29001"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("MEGASCALE_SLICE_ID=first"));
  environment_.erase("MEGASCALE_SLICE_ID");
  EXPECT_EQ(Run({"server", "--resource_manager_address=head:29001", "--pjrt_plugin=/none.so"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("/none.so"));
  BusyPort busy;
  EXPECT_EQ(Run({"server", "--resource_manager_address=head:29001", "--server_port=0",
                 absl::StrCat("--message_port=", busy.port())}),
            kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr(absl::StrCat("port ", busy.port(), " is already in use")));
  EXPECT_THAT(err_.str(), HasSubstr("--message_port"));
  EXPECT_EQ(
      Run({"server", "--resource_manager_address=head:29001", "--server_port=4711", "--message_port=4711"}),
      kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--message_port=4711: that is the --server_port"));
  EXPECT_FALSE(worker_options_.has_value());
}

TEST(ListenAddressTest, ChoosesByScope) {
  EXPECT_EQ(*ChooseListenAddress(ListenScope::kLoopback, 0, "port"), "127.0.0.1:0");
  BusyPort busy;
  EXPECT_EQ(ChooseListenAddress(ListenScope::kLoopback, busy.port(), "port").status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(CommandEnvironmentTest, TheNewerNameOfTheTransferDirectoryWins) {
  EXPECT_EQ(LargeTransferDirectory({}), "");
  EXPECT_EQ(LargeTransferDirectory({{"IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY", "/new"},
                                    {"IFRT_PROXY_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY", "/old"}}),
            "/new");
}

struct LogCase {
  std::vector<std::string> arguments;
  Environment environment;
  int level;
  int verbosity = 0;
};

TEST(LoggingTest, TheLowestLevelWins) {
  const std::vector<LogCase> cases = {
      {{}, {}, 1},
      {{"--minloglevel=2"}, {}, 2},
      {{"--minloglevel=2"}, {{"TF_CPP_MIN_LOG_LEVEL", "0"}}, 0},
      {{"--minloglevel=0"}, {{"TPU_MIN_LOG_LEVEL", "3"}}, 0},
      {{}, {{"TF_CPP_MIN_LOG_LEVEL", "3"}, {"TPU_STDERR_LOG_LEVEL", "2"}}, 2},
      {{}, {{"GLOG_minloglevel", "9"}}, 3},
      {{}, {{"LOGLEVEL", "debug"}}, 0},
      {{}, {{"LOGLEVEL", "ERROR"}}, 2},
      {{}, {{"LOGLEVEL", "loud"}}, 1},
      {{"--v=2"}, {}, 0, 2},
      {{}, {{"GLOG_v", "5"}}, 0, 5},
      {{"--v=0"}, {{"GLOG_v", "5"}}, 1, 0},
      {{"--vmodule=location_map=2"}, {}, 0},
  };
  for (const LogCase& each : cases) {
    SCOPED_TRACE(::testing::PrintToString(each.arguments) + ::testing::PrintToString(each.environment));
    const ParsedFlags flags = ParseFlags(UpFlags(), each.arguments, each.environment);
    const LogSettings settings = ResolveLogSettings(flags, each.environment, 1);
    EXPECT_EQ(settings.min_level, each.level);
    EXPECT_EQ(settings.verbosity, each.verbosity);
  }
}

TEST(LoggingTest, LinesForToolsAppearAtAnyLevel) {
  const int level = FLAGS_minloglevel;
  FLAGS_minloglevel = google::GLOG_ERROR;
  ::testing::internal::CaptureStderr();
  LogForTools("ready");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "ready\n");
  FLAGS_minloglevel = level;
}

// A parent that is killed takes its child with it.
TEST(ChildProcessTest, TheChildDiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  // The grandchild becomes ours when its parent dies, so that its end can be waited for.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    sigset_t mask;
    sigemptyset(&mask);
    const auto child = StartChild({"sleep", "600"}, {{"PATH", "/usr/bin:/bin"}}, mask);
    const pid_t pid = child.ok() ? *child : -1;
    [[maybe_unused]] const ssize_t written = write(ends[1], &pid, sizeof(pid));
    pause();
    _exit(0);
  }
  pid_t child = -1;
  ASSERT_EQ(read(ends[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  ASSERT_GT(child, 0);
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  int status;
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(ShellExitCode(status), 128 + SIGTERM);
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace helmway::apps
