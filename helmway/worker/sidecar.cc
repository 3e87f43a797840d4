#include "helmway/worker/sidecar.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "helmway/base/status.h"
#include "helmway/worker/sidecar_source.h"

extern char** environ;

namespace helmway::worker {
namespace {

using Json = nlohmann::json;

// What the Python command runs: it takes sidecar.py from the connection, so that command lines stay short and
// a child process that imports its main module again gets nothing.
constexpr char kBootstrap[] = R"py(
import os, socket, struct, sys, types
os.set_inheritable(3, False)
stream = socket.socket(fileno=3)
def take(size):
  data = b""
  while len(data) < size:
    part = stream.recv(size - len(data))
    if not part: os._exit(1)
    data += part
  return data
module = types.ModuleType("helmway_sidecar")
module.__file__ = "<helmway sidecar>"
sys.modules[module.__name__] = module
exec(compile(take(*struct.unpack("<Q", take(8))), module.__file__, "exec"), module.__dict__)
del sys.argv[1:]
module.main(stream)
)py";

// sidecar.py has the same numbers.
constexpr uint32_t kInFile = 1;
constexpr int64_t kAlignment = 64;
constexpr int64_t kMaxInlineBytes = 64 << 10;
constexpr uint32_t kMaxJsonBytes = 64 << 20;
struct Prefix {
  uint32_t json_bytes = 0;
  uint32_t flags = 0;
  uint64_t region_bytes = 0;
};
static_assert(sizeof(Prefix) == 16);

constexpr size_t kMaxLineBytes = 4096;
constexpr int kMaxLinesPerSecond = 1000;

int64_t Aligned(int64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

// Where the parts of a region begin, and its size.
std::vector<int64_t> OffsetsOf(const std::vector<base::HostBytes>& parts, int64_t* size) {
  std::vector<int64_t> offsets;
  int64_t at = 0;
  *size = 0;
  for (const base::HostBytes& part : parts) {
    offsets.push_back(at);
    if (part.size > 0) *size = at + part.size;
    at += Aligned(part.size);
  }
  return offsets;
}

absl::Status WriteAt(int file, const base::HostBytes& bytes, int64_t offset) {
  int64_t done = 0;
  while (done < bytes.size) {
    const ssize_t wrote =
        pwrite(file, bytes.data + done, static_cast<size_t>(bytes.size - done), offset + done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return absl::ErrnoToStatus(errno, "writing arrays for Python");
    done += wrote;
  }
  return absl::OkStatus();
}

// A descriptor that is closed at the end.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

absl::StatusOr<Descriptor> MakeMemoryFile(const std::vector<base::HostBytes>& parts,
                                          const std::vector<int64_t>& offsets, int64_t size) {
  Descriptor file(memfd_create("helmway-sidecar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) return absl::ErrnoToStatus(errno, "memfd_create");
  if (ftruncate(file.get(), size) != 0) return absl::ErrnoToStatus(errno, "memory for arrays for Python");
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return absl::ErrnoToStatus(errno, "fcntl(F_ADD_SEALS)");
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    HELMWAY_RETURN_IF_ERROR(WriteAt(file.get(), parts[i], offsets[i]));
  }
  return file;
}

// The contents of a memory file that the process has made.
absl::StatusOr<base::HostBytes> MapMemoryFile(int file, int64_t size) {
  // What can be made smaller would end this process when it reads there.
  const int seals = fcntl(file, F_GET_SEALS);
  struct stat info;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file, &info) != 0 || info.st_size < size) {
    return absl::InvalidArgumentError("a memory file that is not as large as it is said to be for good");
  }
  void* data =
      mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, "mapping arrays from Python");
  base::HostBytes bytes;
  bytes.owner = std::shared_ptr<const void>(
      data, [size](const void* mapped) { munmap(const_cast<void*>(mapped), static_cast<size_t>(size)); });
  bytes.data = static_cast<const uint8_t*>(data);
  bytes.size = size;
  return bytes;
}

absl::Status WriteAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return absl::UnavailableError(std::strerror(errno));
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return absl::OkStatus();
}

// Takes descriptors that come with the bytes into `files`.
absl::Status ReadAll(int fd, void* data, size_t size, std::vector<Descriptor>* files) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    iovec part{at, size};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    for (cmsghdr* one = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); one != nullptr;
         one = CMSG_NXTHDR(&message, one)) {
      if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
      for (size_t i = 0; i < (one->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int file;
        std::memcpy(&file, CMSG_DATA(one) + i * sizeof(int), sizeof(int));
        files->emplace_back(file);
      }
    }
    if (got < 0) return absl::UnavailableError(std::strerror(errno));
    if (got == 0) return absl::UnavailableError("Python has closed its connection");
    at += got;
    size -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) {
    const char* name = strsignal(WTERMSIG(status));
    return absl::StrCat("was ended by signal ", WTERMSIG(status), name == nullptr ? "" : " (",
                        name == nullptr ? "" : name, name == nullptr ? "" : ")");
  }
  return absl::StrCat("has ended with exit code ", WEXITSTATUS(status));
}

// The environment of the process: JAX there uses the CPU, whatever this process was started for.
std::vector<std::string> SidecarEnvironment() {
  std::vector<std::string> variables;
  for (char** one = environ; *one != nullptr; ++one) {
    const absl::string_view variable(*one);
    bool drop = false;
    for (const char* name : {"JAX_PLATFORMS=", "JAX_BACKEND_TARGET=", "JAX_NUM_CPU_DEVICES="}) {
      drop = drop || absl::StartsWith(variable, name);
    }
    if (!drop) variables.emplace_back(variable);
  }
  variables.emplace_back("JAX_PLATFORMS=cpu");
  return variables;
}

// [[device, offset, size]...] for each array.
absl::StatusOr<SidecarArrays> ParseOutputs(const std::string& text, const base::HostBytes& region) {
  const absl::Status bad = absl::InternalError("Python's outputs can't be read");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) return bad;
  SidecarArrays outputs;
  for (const Json& output : json) {
    if (!output.is_array()) return bad;
    std::vector<SidecarShard>& shards = outputs.emplace_back();
    for (const Json& place : output) {
      if (!place.is_array() || place.size() != 3) return bad;
      for (const Json& number : place) {
        if (!number.is_number_integer()) return bad;
      }
      const int64_t offset = place[1].get<int64_t>();
      const int64_t size = place[2].get<int64_t>();
      if (offset < 0 || size < 0 || size > region.size || (size > 0 && offset > region.size - size))
        return bad;
      SidecarShard& shard = shards.emplace_back();
      shard.device = place[0].get<cluster::DeviceId>();
      // Nobody else uses what the process has given away.
      shard.bytes = {region.owner, size == 0 ? region.data : region.data + offset, size, /*exclusive=*/true};
    }
  }
  return outputs;
}

}  // namespace

struct Sidecar::Message {
  Json json;
  base::HostBytes region;
};

std::shared_ptr<Sidecar> Sidecar::Start(const SidecarOptions& options, async::GrowingPool* threads) {
  auto sidecar = std::shared_ptr<Sidecar>(new Sidecar(options, threads));
  threads->Run([sidecar] { sidecar->Watch(); });
  return sidecar;
}

Sidecar::Sidecar(SidecarOptions options, async::GrowingPool* threads)
    : options_(std::move(options)), threads_(threads) {}

Sidecar::~Sidecar() {
  for (const int fd : {socket_, peer_, lines_, lines_peer_, wake_}) {
    if (fd >= 0) close(fd);
  }
}

absl::Status Sidecar::Spawn() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  socket_ = sockets[0];
  peer_ = sockets[1];
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  lines_ = pipe_ends[0];
  lines_peer_ = pipe_ends[1];
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0) return absl::ErrnoToStatus(errno, "eventfd");

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, lines_peer_, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, lines_peer_, STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, peer_, 3);
  posix_spawn_file_actions_addclosefrom_np(&actions, 4);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A group of its own, and none of what this thread has set for signals.
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);

  const std::vector<std::string> words = {options_.python, "-u", "-c", kBootstrap};
  const std::vector<std::string> variables = SidecarEnvironment();
  std::vector<char*> argv, env;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  for (const std::string& variable : variables) env.push_back(const_cast<char*>(variable.c_str()));
  env.push_back(nullptr);
  int error = 0;
  {
    base::MutexLock lock(&mu_);
    if (!wanted_) {
      error = ECANCELED;
    } else {
      error = posix_spawn(&pid_, argv[0], &actions, &attributes, argv.data(), env.data());
      if (error != 0) pid_ = 0;
    }
  }
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(std::exchange(peer_, -1));
  close(std::exchange(lines_peer_, -1));
  if (error == ECANCELED) return absl::CancelledError("the session has ended");
  if (error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot run '", options_.python, "': ", std::strerror(error)));
  }
  return absl::OkStatus();
}

void Sidecar::Watch() {
  if (const absl::Status status = Spawn(); !status.ok()) return Ended(status);
  pid_t pid;
  {
    base::MutexLock lock(&mu_);
    pid = pid_;
  }
  threads_->Run([self = shared_from_this()] { self->Receive(); });
  threads_->Run([self = shared_from_this()] { self->ForwardLines(); });
  // On this thread, with which the process would end: it asks for that.
  siginfo_t info;
  while (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  // What it has started; as long as it is not waited for, its group is nobody else's.
  killpg(pid, SIGKILL);
  int status = 0;
  {
    base::MutexLock lock(&mu_);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
  }
  // A process that has left the group may still have the connection. What was said before counts.
  shutdown(socket_, SHUT_RDWR);
  eventfd_write(wake_, 1);
  received_.WaitForNotification();
  std::string how;
  {
    base::MutexLock lock(&mu_);
    how = absl::StrCat("the Python process of the session ",
                       reason_.empty() ? HowItEnded(status) : absl::StrCat("has ended: ", reason_));
  }
  LOG(INFO) << "sidecar " << pid << ": " << how;
  Ended(absl::DataLossError(absl::StrCat(how, "; what its functions kept is lost")));
}

void Sidecar::Ended(absl::Status status) {
  decltype(pending_) pending;
  {
    base::MutexLock lock(&mu_);
    if (!wanted_) status = absl::CancelledError("the session has ended");
    ended_ = status;
    pending.swap(pending_);
  }
  ready_->Finish(absl::IsCancelled(status) ? status : absl::FailedPreconditionError(status.message()));
  for (auto& [call, one] : pending) {
    one->status = status;
    one->done.Notify();
  }
}

void Sidecar::Kill() {
  base::MutexLock lock(&mu_);
  wanted_ = false;
  if (pid_ != 0) killpg(pid_, SIGKILL);
}

absl::Status Sidecar::status() const {
  base::MutexLock lock(&mu_);
  if (!ended_.ok()) return ended_;
  return wanted_ ? absl::OkStatus() : absl::CancelledError("the session has ended");
}

// ---- What it prints --------------------------------------------------------------------------------------

void Sidecar::ForwardLines() {
  pid_t pid;
  {
    base::MutexLock lock(&mu_);
    pid = pid_;
  }
  fcntl(lines_, F_SETFL, O_NONBLOCK);
  const std::string prefix = absl::StrCat("sidecar ", pid, ": ");
  std::string line = prefix;
  absl::Time second = absl::Now();
  int64_t lines = 0, left_out = 0;
  const auto log = [&] {
    if (absl::Now() - second >= absl::Seconds(1)) {
      second = absl::Now();
      lines = 0;
      if (left_out > 0) LOG(WARNING) << prefix << std::exchange(left_out, 0) << " lines left out";
    }
    if (++lines <= kMaxLinesPerSecond) {
      line += '\n';
      std::fwrite(line.data(), 1, line.size(), stderr);
    } else {
      ++left_out;
    }
    line = prefix;
  };
  bool over = false;
  while (true) {
    char piece[4096];
    const ssize_t got = read(lines_, piece, sizeof(piece));
    if (got > 0) {
      for (ssize_t i = 0; i < got; ++i) {
        if (piece[i] != '\n') line += piece[i];
        if (piece[i] == '\n' || line.size() >= kMaxLineBytes) log();
      }
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    // Nothing more now. Others that have the pipe may live on, and nobody cares what they say.
    if (got == 0 || errno != EAGAIN || over) break;
    pollfd polled[2] = {{lines_, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (poll(polled, 2, -1) < 0 && errno != EINTR) break;
    over = (polled[1].revents & POLLIN) != 0;
  }
  if (line != prefix) log();
  if (left_out > 0) LOG(WARNING) << prefix << left_out << " lines left out";
}

// ---- Messages --------------------------------------------------------------------------------------------

absl::Status Sidecar::Send(const std::string& json, const std::vector<base::HostBytes>& parts) {
  int64_t size = 0;
  const std::vector<int64_t> offsets = OffsetsOf(parts, &size);
  Prefix prefix;
  prefix.json_bytes = static_cast<uint32_t>(json.size());
  prefix.region_bytes = static_cast<uint64_t>(size);
  Descriptor file;
  std::string tail = json;
  if (size > kMaxInlineBytes) {
    prefix.flags = kInFile;
    HELMWAY_ASSIGN_OR_RETURN(file, MakeMemoryFile(parts, offsets, size));
  } else {
    tail.resize(json.size() + static_cast<size_t>(size));
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].size == 0) continue;
      std::memcpy(tail.data() + json.size() + offsets[i], parts[i].data, static_cast<size_t>(parts[i].size));
    }
  }

  base::MutexLock lock(&send_mu_);
  size_t sent = 0;
  if (file.get() >= 0) {
    iovec part{&prefix, sizeof(prefix)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = file.get();
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    ssize_t wrote;
    while ((wrote = sendmsg(socket_, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
    }
    if (wrote < 0) return absl::UnavailableError(std::strerror(errno));
    sent = static_cast<size_t>(wrote);
  }
  HELMWAY_RETURN_IF_ERROR(
      WriteAll(socket_, reinterpret_cast<const char*>(&prefix) + sent, sizeof(prefix) - sent));
  return WriteAll(socket_, tail.data(), tail.size());
}

absl::StatusOr<Sidecar::Message> Sidecar::ReceiveMessage() {
  Prefix prefix;
  std::vector<Descriptor> files;
  HELMWAY_RETURN_IF_ERROR(ReadAll(socket_, &prefix, sizeof(prefix), &files));
  const auto size = static_cast<int64_t>(prefix.region_bytes);
  const bool in_file = (prefix.flags & kInFile) != 0;
  if (prefix.json_bytes > kMaxJsonBytes || size < 0 ||
      (in_file ? files.size() != 1 : size > kMaxInlineBytes)) {
    return absl::InvalidArgumentError("a message that can't be");
  }
  std::string text(prefix.json_bytes, '\0');
  HELMWAY_RETURN_IF_ERROR(ReadAll(socket_, text.data(), text.size(), &files));
  Message message;
  message.json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!message.json.is_object()) return absl::InvalidArgumentError("a message that can't be read");
  if (in_file) {
    HELMWAY_ASSIGN_OR_RETURN(message.region, MapMemoryFile(files[0].get(), size));
  } else if (size > 0) {
    auto data = std::shared_ptr<uint8_t>(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, Aligned(size))),
                                         &std::free);
    HELMWAY_RETURN_IF_ERROR(ReadAll(socket_, data.get(), static_cast<size_t>(size), &files));
    message.region.data = data.get();
    message.region.size = size;
    message.region.owner = std::move(data);
  }
  return message;
}

void Sidecar::Receive() {
  Json hosts = Json::array();
  for (const cluster::PythonHost& host : options_.hosts) {
    hosts.push_back(Json::array({host.process, host.devices, host.slice, host.task}));
  }
  const Json start = {{"start", 1}, {"process", options_.process}, {"hosts", hosts}, {"parent", getpid()}};
  absl::Status status;
  {
    base::MutexLock lock(&send_mu_);
    const uint64_t size = std::strlen(kSidecarSource);
    status = WriteAll(socket_, &size, sizeof(size));
    if (status.ok()) status = WriteAll(socket_, kSidecarSource, size);
  }
  if (status.ok()) status = Send(start.dump());
  while (status.ok()) {
    absl::StatusOr<Message> message = ReceiveMessage();
    status = message.ok() ? OnMessage(*std::move(message)) : message.status();
  }
  {
    // It ends by itself, or is of no use any more.
    base::MutexLock lock(&mu_);
    if (pid_ != 0) {
      LOG_IF(WARNING, !absl::IsUnavailable(status))
          << "sidecar " << pid_ << ": ended for what it said: " << status;
      killpg(pid_, SIGKILL);
    }
  }
  received_.Notify();
}

absl::Status Sidecar::OnMessage(Message message) {
  const auto text = [&](const char* key) -> std::string {
    const auto it = message.json.find(key);
    return it != message.json.end() && it->is_string() ? it->get<std::string>() : "";
  };
  if (message.json.contains("ready")) {
    python_version_ = text("python");
    jax_version_ = text("jax");
    ready_->Finish(absl::OkStatus());
    return absl::OkStatus();
  }
  if (message.json.contains("failed")) {
    const std::string error = text("failed");
    const std::string advice =
        absl::StrContains(error, "ModuleNotFoundError")
            ? absl::StrCat(" (`", options_.python,
                           " -m pip install jax cloudpickle`, in the client's versions)")
            : "";
    ready_->Finish(absl::FailedPreconditionError(
        absl::StrCat("the server's ", options_.python, " cannot run them", advice, ": ", error)));
    return absl::OkStatus();
  }
  if (message.json.contains("ends")) {
    base::MutexLock lock(&mu_);
    reason_ = text("ends");
    return absl::OkStatus();
  }
  if (const auto share = message.json.find("share"); share != message.json.end()) {
    if (options_.says) options_.says(share->dump());
    return absl::OkStatus();
  }
  const auto call = message.json.find("call");
  if (call == message.json.end() || !call->is_number_unsigned()) {
    return absl::InvalidArgumentError("an answer to nothing");
  }
  std::shared_ptr<Pending> pending;
  {
    base::MutexLock lock(&mu_);
    const auto it = pending_.find(call->get<uint64_t>());
    if (it == pending_.end()) return absl::OkStatus();
    pending = std::move(it->second);
    pending_.erase(it);
  }
  if (message.json.contains("error")) {
    pending->status = absl::InvalidArgumentError(text("error"));
  } else if (const auto outputs = message.json.find("outputs"); outputs != message.json.end()) {
    pending->outputs = outputs->dump();
    pending->region = std::move(message.region);
  } else {
    pending->status = absl::InternalError("Python's answer can't be read");
  }
  pending->done.Notify();
  return absl::OkStatus();
}

uint64_t Sidecar::NewCall() {
  base::MutexLock lock(&mu_);
  return next_call_++;
}

absl::StatusOr<std::shared_ptr<Sidecar::Pending>> Sidecar::Call(uint64_t call, const std::string& json,
                                                                const std::vector<base::HostBytes>& parts) {
  auto pending = std::make_shared<Pending>();
  {
    base::MutexLock lock(&mu_);
    if (!ended_.ok()) return ended_;
    pending_[call] = pending;
  }
  if (const absl::Status status = Send(json, parts); !status.ok()) {
    base::MutexLock lock(&mu_);
    // Without it the end of the process is the answer; it has ended, or nothing was sent of the message.
    if (pending_.erase(call) > 0 && absl::IsResourceExhausted(status)) return status;
    if (ended_.ok() && pid_ != 0) killpg(pid_, SIGKILL);
    return ended_.ok()
               ? absl::DataLossError(absl::StrCat("the Python process of the session: ", status.message()))
               : ended_;
  }
  pending->done.WaitForNotification();
  if (!pending->status.ok()) return pending->status;
  return pending;
}

absl::Status Sidecar::AwaitReady(absl::Duration patience) {
  struct Waiter {
    base::Notification notification;
  };
  auto waiter = std::make_shared<Waiter>();
  ready_->OnDone([waiter](const absl::Status&) { waiter->notification.Notify(); });
  if (!waiter->notification.WaitForNotificationWithTimeout(patience)) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", options_.python, "' has not imported JAX within ", absl::FormatDuration(patience)));
  }
  return ready_->status();
}

absl::Status Sidecar::Load(cluster::ExecutableId id, const std::string& name, const base::HostBytes& pickled,
                           bool x64) {
  const uint64_t call = NewCall();
  const Json message = {{"load", id}, {"call", call}, {"name", name}, {"x64", x64}};
  return Call(call, message.dump(-1, ' ', false, Json::error_handler_t::replace), {pickled}).status();
}

absl::StatusOr<SidecarArrays> Sidecar::Run(cluster::ExecutableId id, int64_t stream,
                                           const SidecarArrays& arguments) {
  std::vector<base::HostBytes> parts;
  for (const std::vector<SidecarShard>& argument : arguments) {
    for (const SidecarShard& shard : argument) parts.push_back(shard.bytes);
  }
  int64_t size = 0;
  const std::vector<int64_t> offsets = OffsetsOf(parts, &size);
  Json inputs = Json::array();
  size_t part = 0;
  for (const std::vector<SidecarShard>& argument : arguments) {
    Json& places = inputs.emplace_back(Json::array());
    for (const SidecarShard& shard : argument) {
      places.push_back(Json::array({shard.device, offsets[part++], shard.bytes.size}));
    }
  }
  const uint64_t call = NewCall();
  const Json message = {{"run", id}, {"call", call}, {"stream", stream}, {"inputs", std::move(inputs)}};
  HELMWAY_ASSIGN_OR_RETURN(const std::shared_ptr<Pending> pending, Call(call, message.dump(), parts));
  return ParseOutputs(pending->outputs, pending->region);
}

void Sidecar::Tell(const std::string& text) {
  Json message;
  message["shared"] = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (message["shared"].is_array()) (void)Send(message.dump());
}

void Sidecar::Unload(cluster::ExecutableId id, int64_t stream) {
  // If it is gone, so is the function.
  const Json message = {{"unload", id}, {"stream", stream}};
  (void)Send(message.dump());
}

}  // namespace helmway::worker
