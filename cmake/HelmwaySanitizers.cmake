# HELMWAY_FUZZ: builds the libFuzzer targets, and everything else so that they see which code they reach. Address and
# undefined behaviour sanitizers are part of it. Needs clang and its runtime (Debian: libclang-rt-14-dev).
option(HELMWAY_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
if(HELMWAY_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "HELMWAY_FUZZ needs clang: CXX=clang++-14 cmake --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()

# HELMWAY_SANITIZE: empty, "address" (with undefined behaviour) or "thread". Applies to every target.
set(HELMWAY_SANITIZE "" CACHE STRING "address, thread or empty")
if(HELMWAY_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(HELMWAY_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  # GCC 12 warns that TSan does not model atomic_thread_fence, which only system headers use here.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-error=tsan>)
  add_link_options(-fsanitize=thread)
  # GCC's own macro would change the layout of protobuf's maps, and libprotobuf has the other layout. So headers
  # do not see it, but for the standard library, which leaves out what TSan would take for a race.
  add_compile_options(-U__SANITIZE_THREAD__)
  add_compile_definitions(HELMWAY_THREAD_SANITIZER=1 _GLIBCXX_TSAN=1)
elseif(NOT HELMWAY_SANITIZE STREQUAL "")
  message(FATAL_ERROR "HELMWAY_SANITIZE must be address, thread or empty, not '${HELMWAY_SANITIZE}'")
endif()
