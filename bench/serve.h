#ifndef HELMWAY_BENCH_SERVE_H_
#define HELMWAY_BENCH_SERVE_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

namespace helmway::bench {

// Serves on a free port of the loopback interface, with messages of any size, until stdin is closed; calls
// that are under way then are cut off. `announce` says on stdout where. Returns the exit code of `program`.
inline int ServeUntilStdinCloses(const char* program, grpc::Service& service,
                                 const std::function<void(int port)>& announce) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::cerr << program << ": no port to listen on" << std::endl;
    return 1;
  }
  announce(port);
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace helmway::bench

#endif  // HELMWAY_BENCH_SERVE_H_
