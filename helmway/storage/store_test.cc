// What every store must do, for each kind. Cloud Storage is the emulator fake-gcs-server, if the environment
// says where it is (HELMWAY_FAKE_GCS_SERVER).
#include "helmway/storage/store.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "helmway/base/random.h"
#include "helmway/storage/gcs_store.h"
#include "helmway/storage/http.h"
#include "helmway/storage/local_store.h"
#include "helmway/storage/memory_store.h"
#include "helmway/storage/open.h"

extern char** environ;

namespace helmway::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "helmway-store-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The emulator as a process of its own, with one bucket.
class Emulator {
 public:
  // Null if the environment does not say where it is.
  static Emulator* Get() {
    static Emulator* instance = [] {
      const char* program = std::getenv("HELMWAY_FAKE_GCS_SERVER");
      return program == nullptr || *program == '\0' ? nullptr : new Emulator(program);
    }();
    return instance;
  }
  const std::string& endpoint() const { return endpoint_; }

 private:
  explicit Emulator(const char* program) {
    const std::string port = absl::StrCat(FreePort());
    endpoint_ = absl::StrCat("http://127.0.0.1:", port);
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    std::string words[] = {program, "-backend",  "memory", "-scheme", "http",
                           "-host", "127.0.0.1", "-port",  port};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    static pid_t pid;
    EXPECT_EQ(posix_spawn(&pid, program, &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    std::atexit([] {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    });
    // Its log says when it listens.
    std::string log;
    char byte;
    while (!absl::StrContains(log, "server started") && read(ends[0], &byte, 1) == 1) log.push_back(byte);
    std::thread([end = ends[0]] {
      char rest[4096];
      while (read(end, rest, sizeof(rest)) > 0) {
      }
    }).detach();
    HttpRequest request;
    request.method = "POST";
    request.url = endpoint_ + "/storage/v1/b?project=test";
    request.headers = {{"Content-Type", "application/json"}};
    request.body = R"({"name":"bucket"})";
    const absl::StatusOr<HttpResponse> response = MakeCurlTransport(1)->Call(request);
    EXPECT_TRUE(response.ok() && response->code == 200) << response.status() << log;
  }

  // It can't say which port it took itself.
  static int FreePort() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    close(fd);
    return ntohs(address.sin_port);
  }

  std::string endpoint_;
};

class StoreTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "memory") {
      store_ = std::make_unique<MemoryStore>();
    } else if (GetParam() == "local") {
      store_ = std::make_unique<LocalStore>(directory_.path() + "/not/yet/there");
    } else {
      Emulator* emulator = Emulator::Get();
      if (emulator == nullptr) GTEST_SKIP() << "HELMWAY_FAKE_GCS_SERVER is not set";
      GcsOptions options;
      options.endpoint = emulator->endpoint();
      options.resumable_above_bytes = 256 << 10;
      store_ = std::make_unique<GcsStore>("bucket", absl::StrCat("test/", absl::Hex(base::UnguessableId())),
                                          MakeCurlTransport(4), NoToken(), options);
    }
  }

  std::vector<std::string> Names(absl::string_view prefix = "", size_t limit = 1000) {
    std::vector<std::string> names;
    absl::StatusOr<std::vector<ObjectInfo>> found = store_->List(prefix, limit);
    EXPECT_TRUE(found.ok()) << found.status();
    if (found.ok()) {
      for (const ObjectInfo& info : *found) names.push_back(info.name);
    }
    return names;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, StoreTest, testing::Values("memory", "local", "gcs"),
                         [](const auto& kind) { return kind.param; });

TEST_P(StoreTest, GivesBackWhatWasPut) {
  std::string all_bytes;
  for (int i = 0; i < 256; ++i) all_bytes.push_back(static_cast<char>(i));
  for (const std::string& bytes : {std::string(), std::string("text"), all_bytes}) {
    const std::string name = absl::StrCat("a/b-", bytes.size(), "+%~=.bin");
    ASSERT_EQ(store_->Put(name, bytes, PutMode::kCreate), absl::OkStatus());
    EXPECT_EQ(store_->Get(name).value_or("?"), bytes);
  }
}

TEST_P(StoreTest, AnObjectIsMadeOnlyOnce) {
  ASSERT_EQ(store_->Put("x", "first", PutMode::kCreate), absl::OkStatus());
  EXPECT_EQ(store_->Put("x", "second", PutMode::kCreate).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store_->Put("x", "first", PutMode::kCreate).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store_->Get("x").value_or("?"), "first");
  ASSERT_EQ(store_->Put("x", "third", PutMode::kReplace), absl::OkStatus());
  EXPECT_EQ(store_->Get("x").value_or("?"), "third");
}

TEST_P(StoreTest, LargeObjectsTooInPieces) {
  // Four pieces for Cloud Storage, the last one not full.
  std::string bytes(size_t{800} << 10, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 13);
  ASSERT_EQ(store_->Put("large", bytes, PutMode::kCreate), absl::OkStatus());
  absl::StatusOr<std::string> got = store_->Get("large");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(*got == bytes);
  EXPECT_EQ(store_->GetRange("large", 300'000, 7).value_or("?"), bytes.substr(300'000, 7));
  EXPECT_EQ(store_->Put("large", bytes, PutMode::kReplace), absl::OkStatus());
}

TEST_P(StoreTest, ReadsRanges) {
  ASSERT_EQ(store_->Put("x", "0123456789", PutMode::kCreate), absl::OkStatus());
  EXPECT_EQ(store_->GetRange("x", 0, 3).value_or("?"), "012");
  EXPECT_EQ(store_->GetRange("x", 4, 100).value_or("?"), "456789");
  EXPECT_EQ(store_->GetRange("x", 9, 1).value_or("?"), "9");
  EXPECT_EQ(store_->GetRange("x", 3, 0).value_or("?"), "");
  EXPECT_EQ(store_->GetRange("x", 10, 1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(store_->GetRange("x", -1, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->GetRange("y", 0, 1).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(StoreTest, ListsByPrefixInOrder) {
  EXPECT_THAT(Names(), IsEmpty());
  for (const char* name : {"b/2", "a", "b/1", "b/10", "c/d/e"}) {
    ASSERT_EQ(store_->Put(name, name, PutMode::kCreate), absl::OkStatus());
  }
  EXPECT_THAT(Names(), ElementsAre("a", "b/1", "b/10", "b/2", "c/d/e"));
  EXPECT_THAT(Names("b/"), ElementsAre("b/1", "b/10", "b/2"));
  EXPECT_THAT(Names("b/1"), ElementsAre("b/1", "b/10"));
  EXPECT_THAT(Names("", 2), ElementsAre("a", "b/1"));
  EXPECT_THAT(Names("nothing"), IsEmpty());
  const absl::StatusOr<std::vector<ObjectInfo>> found = store_->List("c/", 1);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ((*found)[0].size_bytes, 5);
  EXPECT_LT(absl::AbsDuration(absl::Now() - (*found)[0].updated), absl::Hours(1));
}

TEST_P(StoreTest, Deletes) {
  ASSERT_EQ(store_->Put("a/x", "1", PutMode::kCreate), absl::OkStatus());
  EXPECT_EQ(store_->Delete("a/x"), absl::OkStatus());
  EXPECT_EQ(store_->Delete("a/x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Get("a/x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Put("a/x", "2", PutMode::kCreate), absl::OkStatus());
}

TEST_P(StoreTest, RefusesNamesThatCouldMeanSomethingElse) {
  for (const char* name : {"", "/", "/x", "x/", "a//b", ".", "..", "a/../b", "a b", "\xc3\xa4", "a\nb",
                           ".helmway-tmp-x", "a/.helmway-tmp-x"}) {
    EXPECT_EQ(store_->Put(name, "", PutMode::kCreate).code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store_->Get(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store_->Delete(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST_P(StoreTest, OfManyWritersOneWins) {
  std::vector<std::thread> threads;
  std::vector<absl::Status> outcomes(8);
  for (size_t t = 0; t < outcomes.size(); ++t) {
    threads.emplace_back(
        [&, t] { outcomes[t] = store_->Put("race", absl::StrCat("writer ", t), PutMode::kCreate); });
  }
  for (std::thread& thread : threads) thread.join();
  int won = 0;
  for (size_t t = 0; t < outcomes.size(); ++t) {
    if (outcomes[t].ok()) {
      ++won;
      EXPECT_EQ(store_->Get("race").value_or("?"), absl::StrCat("writer ", t));
    } else {
      EXPECT_EQ(outcomes[t].code(), absl::StatusCode::kAlreadyExists) << outcomes[t];
    }
  }
  EXPECT_EQ(won, 1);
}

TEST(LocalStoreTest, LeavesNoTemporaryFilesAndRemovesThoseOfTheDead) {
  TemporaryDirectory directory;
  LocalStore store(directory.path());
  ASSERT_EQ(store.Put("a/x", "1", PutMode::kCreate), absl::OkStatus());
  ASSERT_EQ(store.Put("a/x", "2", PutMode::kReplace), absl::OkStatus());
  EXPECT_EQ(store.Put("a/x", "3", PutMode::kCreate).code(), absl::StatusCode::kAlreadyExists);
  const std::string torn = absl::StrCat(directory.path(), "/a/", kTemporaryPrefix, "0123");
  std::ofstream(torn) << "half";
  const absl::StatusOr<std::vector<ObjectInfo>> found = store.List("", 10);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->size(), 1U);
  EXPECT_EQ(store.RemoveUnfinished(absl::Now() - absl::Hours(1)), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::exists(torn));
  EXPECT_EQ(store.RemoveUnfinished(absl::Now() + absl::Hours(1)), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(torn));
  EXPECT_EQ(store.Get("a/x").value_or("?"), "2");
}

TEST(LocalStoreTest, ADirectoryWhereTheObjectWouldBeIsNone) {
  TemporaryDirectory directory;
  LocalStore store(directory.path());
  ASSERT_EQ(store.Put("a/x", "1", PutMode::kCreate), absl::OkStatus());
  EXPECT_EQ(store.Get("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store.Get("a/x/y").status().code(), absl::StatusCode::kNotFound);
}

TEST(LocalStoreTest, SaysThatThereIsNoSpaceAndLeavesNothing) {
  TemporaryDirectory directory;
  LocalStore store(directory.path());
  // A limit on the size of files stands for the end of a disk.
  struct rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit small = before;
  small.rlim_cur = 4096;
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = store.Put("x", std::string(100'000, 'x'), PutMode::kCreate);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(LocalStoreTest, SaysThatItMayNotWrite) {
  // Nothing can be made there, not even by root.
  const absl::Status status = LocalStore("/proc/self/helmway").Put("x", "1", PutMode::kCreate);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "/proc/self/helmway")) << status;
}

TEST(LocationTest, ReadsWhatPeopleWrite) {
  const std::tuple<const char*, Location::Kind, const char*, const char*, const char*> cases[] = {
      {"/a/b/", Location::Kind::kLocal, "", "/a/b", "/a/b/x"},
      {"/", Location::Kind::kLocal, "", "/", "/x"},
      {"file:///a", Location::Kind::kLocal, "", "/a", "/a/x"},
      {"gs://b", Location::Kind::kGcs, "b", "", "gs://b/x"},
      {"gs://b/", Location::Kind::kGcs, "b", "", "gs://b/x"},
      {"gs://b/p/q/", Location::Kind::kGcs, "b", "p/q", "gs://b/p/q/x"},
      {"memory://", Location::Kind::kMemory, "", "", "memory://x"}};
  for (const auto& [text, kind, bucket, path, below] : cases) {
    const absl::StatusOr<Location> location = ParseLocation(text);
    ASSERT_TRUE(location.ok()) << location.status();
    EXPECT_EQ(location->kind, kind) << text;
    EXPECT_EQ(location->bucket, bucket) << text;
    EXPECT_EQ(location->path, path) << text;
    EXPECT_EQ(location->Below("x").ToString(), below) << text;
  }
  for (const char* text : {"", "x", "./x", "file://x", "gs://", "gs:///x", "gs://b?/x", "gs://b/a//b",
                           "gs://b/../c", "s3://b", "memory://x"}) {
    EXPECT_EQ(ParseLocation(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace helmway::storage
