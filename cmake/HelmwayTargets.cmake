# One function per kind of target, and the rule that dependencies only point downwards.
#
#   helmway_cc_library(FOLDER base SRCS a.cc DEPS helmway_x absl::status)   -> helmway_base
#   helmway_proto_library(FOLDER wire PROTOS a.proto [GRPC b.proto])        -> helmway_wire_proto
#   helmway_cc_test(NAME base_foo_test SRCS foo_test.cc DEPS helmway_base)
#   helmway_cc_binary(NAME helmway SRCS main.cc DEPS ...)
#   helmway_cc_fuzz(NAME base_foo_fuzz SRCS foo_fuzz.cc DEPS helmway_base)
#
# The library of helmway/<folder> is called helmway_<folder>.

option(HELMWAY_BUILD_TESTS "Build the C++ unit tests" ON)

# The rank of each folder. A library may depend on folders of a lower rank only, so two folders of one
# rank (the roles, above all) never see each other.
set(HELMWAY_RANK_base 0)
set(HELMWAY_RANK_async 1)
set(HELMWAY_RANK_wire 2)
set(HELMWAY_RANK_cluster 2)
set(HELMWAY_RANK_pjrt 2)
set(HELMWAY_RANK_storage 2)
set(HELMWAY_RANK_metrics 2)
set(HELMWAY_RANK_net 3)
set(HELMWAY_RANK_program 4)
set(HELMWAY_RANK_array 5)
set(HELMWAY_RANK_cache 5)
set(HELMWAY_RANK_checkpoint 5)
set(HELMWAY_RANK_profiling 5)
set(HELMWAY_RANK_manager 6)
set(HELMWAY_RANK_worker 6)
set(HELMWAY_RANK_proxy 6)
set(HELMWAY_RANK_apps 7)

function(helmway_check_layering folder)
  if(NOT DEFINED HELMWAY_RANK_${folder})
    message(FATAL_ERROR "helmway/${folder} has no rank in cmake/HelmwayTargets.cmake")
  endif()
  foreach(dep IN LISTS ARGN)
    if(dep MATCHES "^helmway_([a-z]+)(_proto)?$")
      set(target_folder "${CMAKE_MATCH_1}")
      if(target_folder STREQUAL folder)
        continue()
      endif()
      if(NOT DEFINED HELMWAY_RANK_${target_folder})
        message(FATAL_ERROR "helmway/${folder} depends on ${dep}, a folder without a rank")
      endif()
      if(NOT HELMWAY_RANK_${target_folder} LESS HELMWAY_RANK_${folder})
        message(FATAL_ERROR "helmway/${folder} must not depend on helmway/${target_folder}: "
                            "dependencies point downwards only (docs/architecture.md)")
      endif()
    endif()
  endforeach()
endfunction()

set(HELMWAY_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers -Werror)

function(helmway_cc_library)
  cmake_parse_arguments(ARG "" "FOLDER" "SRCS;DEPS" ${ARGN})
  helmway_check_layering(${ARG_FOLDER} ${ARG_DEPS})
  if(ARG_SRCS)
    add_library(helmway_${ARG_FOLDER} STATIC ${ARG_SRCS})
    target_compile_options(helmway_${ARG_FOLDER} PRIVATE ${HELMWAY_WARNINGS})
    set(scope PUBLIC)
  else()
    add_library(helmway_${ARG_FOLDER} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(helmway_${ARG_FOLDER} ${scope} "${CMAKE_SOURCE_DIR}")
  target_link_libraries(helmway_${ARG_FOLDER} ${scope} ${ARG_DEPS} Threads::Threads)
endfunction()

# Generated code is included as "helmway/<folder>/<name>.pb.h". GRPC lists protos whose services are generated too.
function(helmway_proto_library)
  cmake_parse_arguments(ARG "" "FOLDER" "PROTOS;GRPC;DEPS" ${ARGN})
  set(generated)
  set(root "${CMAKE_BINARY_DIR}/generated")
  file(MAKE_DIRECTORY "${root}")
  foreach(proto IN LISTS ARG_PROTOS ARG_GRPC)
    string(REGEX REPLACE "\\.proto$" "" stem "${proto}")
    set(out "${root}/helmway/${ARG_FOLDER}/${stem}")
    set(outputs "${out}.pb.cc" "${out}.pb.h")
    set(grpc_args)
    if(proto IN_LIST ARG_GRPC)
      list(APPEND outputs "${out}.grpc.pb.cc" "${out}.grpc.pb.h")
      set(grpc_args "--grpc_out=${root}" "--plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN}")
    endif()
    set(all_protos ${ARG_PROTOS} ${ARG_GRPC})
    list(TRANSFORM all_protos PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND protobuf::protoc "--proto_path=${CMAKE_SOURCE_DIR}" "--cpp_out=${root}" ${grpc_args}
              "helmway/${ARG_FOLDER}/${proto}"
      WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}"
      DEPENDS ${all_protos}
      VERBATIM)
    list(APPEND generated ${outputs})
  endforeach()
  add_library(helmway_${ARG_FOLDER}_proto STATIC ${generated})
  target_include_directories(helmway_${ARG_FOLDER}_proto SYSTEM PUBLIC "${root}")
  target_link_libraries(helmway_${ARG_FOLDER}_proto PUBLIC protobuf::libprotobuf ${ARG_DEPS})
  if(ARG_GRPC)
    target_link_libraries(helmway_${ARG_FOLDER}_proto PUBLIC PkgConfig::GRPCPP)
  endif()
endfunction()

# Programs of a build with ThreadSanitizer tell it of the threads of libraries that it does not see into.
if(HELMWAY_SANITIZE STREQUAL "thread")
  add_library(helmway_thread_sanitizer OBJECT "${CMAKE_SOURCE_DIR}/helmway/base/thread_sanitizer.cc"
                                              "${CMAKE_SOURCE_DIR}/helmway/net/grpc_thread_sanitizer.cc")
  target_compile_options(helmway_thread_sanitizer PRIVATE ${HELMWAY_WARNINGS})
  target_include_directories(helmway_thread_sanitizer PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(helmway_thread_sanitizer PUBLIC PkgConfig::GRPCPP ${CMAKE_DL_LIBS})
endif()
function(helmway_link_sanitizer name)
  if(TARGET helmway_thread_sanitizer)
    target_link_libraries(${name} PRIVATE helmway_thread_sanitizer)
  endif()
endfunction()

# A GoogleTest binary, one ctest entry. ENV: NAME=VALUE pairs set for the test.
function(helmway_cc_test)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS;ENV" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_compile_options(${ARG_NAME} PRIVATE ${HELMWAY_WARNINGS})
  target_include_directories(${ARG_NAME} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main Threads::Threads)
  helmway_link_sanitizer(${ARG_NAME})
  if(NOT HELMWAY_BUILD_TESTS)
    set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    return()
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
  if(ARG_ENV)
    set_tests_properties(${ARG_NAME} PROPERTIES ENVIRONMENT "${ARG_ENV}")
  endif()
endfunction()

# A libFuzzer binary, built with HELMWAY_FUZZ only. SRCS have LLVMFuzzerTestOneInput and no main. The target "fuzz"
# builds all of them.
function(helmway_cc_fuzz)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  if(NOT HELMWAY_FUZZ)
    return()
  endif()
  helmway_cc_binary(NAME ${ARG_NAME} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS})
  target_link_options(${ARG_NAME} PRIVATE -fsanitize=fuzzer)
  if(NOT TARGET fuzz)
    add_custom_target(fuzz)
  endif()
  add_dependencies(fuzz ${ARG_NAME})
endfunction()

function(helmway_cc_binary)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_compile_options(${ARG_NAME} PRIVATE ${HELMWAY_WARNINGS})
  target_include_directories(${ARG_NAME} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} Threads::Threads)
  helmway_link_sanitizer(${ARG_NAME})
endfunction()
