# Everything that Helmway links and does not own: Debian's gRPC, protobuf, abseil, glog, curl, RE2, OpenSSL, nlohmann's
# JSON (headers only), GoogleTest.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Protobuf REQUIRED)
find_package(absl REQUIRED)
find_package(GTest REQUIRED)
pkg_check_modules(GRPCPP REQUIRED IMPORTED_TARGET grpc++>=1.51)
pkg_check_modules(GLOG REQUIRED IMPORTED_TARGET libglog)
pkg_check_modules(CURL REQUIRED IMPORTED_TARGET libcurl>=7.85)
pkg_check_modules(RE2 REQUIRED IMPORTED_TARGET re2)
find_package(OpenSSL REQUIRED)
find_package(nlohmann_json REQUIRED)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
endif()
