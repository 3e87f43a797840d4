// Puts and gets of one store, for bench/run.py: "store_io LOCATION", then lines of "put NAME BYTES" and "get
// NAME" on stdin. Each is answered with its duration in nanoseconds.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "helmway/storage/open.h"
#include "helmway/storage/store.h"

namespace helmway::bench {
namespace {

// Bytes that no file system or service can pack.
std::string Noise(size_t size) {
  std::string bytes(size, '\0');
  uint64_t state = 88172645463325252U;
  for (char& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<char>(state);
  }
  return bytes;
}

int Fail(const absl::Status& status) {
  std::cerr << status << std::endl;
  return 1;
}

int Run(const std::string& where) {
  std::map<std::string, std::string> environment;
  if (const char* emulator = std::getenv("STORAGE_EMULATOR_HOST"))
    environment["STORAGE_EMULATOR_HOST"] = emulator;
  const absl::StatusOr<storage::Location> location = storage::ParseLocation(where);
  if (!location.ok()) return Fail(location.status());
  const std::shared_ptr<storage::Store> store = storage::OpenStore(*location, environment);
  std::string contents;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb, name;
    size_t size = 0;
    words >> verb >> name >> size;
    if (verb == "put" && contents.size() != size) contents = Noise(size);
    const auto start = std::chrono::steady_clock::now();
    absl::Status status;
    if (verb == "put") {
      status = store->Put(name, contents, storage::PutMode::kReplace);
    } else {
      status = store->Get(name).status();
    }
    const auto end = std::chrono::steady_clock::now();
    if (!status.ok()) return Fail(status);
    std::cout << std::chrono::nanoseconds(end - start).count() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace helmway::bench

int main(int argc, char** argv) {
  if (argc == 2) return helmway::bench::Run(argv[1]);
  std::cerr << "use: store_io LOCATION" << std::endl;
  return 2;
}
