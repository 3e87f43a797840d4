#include "helmway/pjrt/thread_sanitizer.h"

#ifdef HELMWAY_THREAD_SANITIZER

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "helmway/base/thread_sanitizer.h"
#include "helmway/pjrt/extensions.h"

namespace helmway::pjrt {
namespace {

// All functions of the table take one pointer, and give one or nothing.
using Function = void* (*)(void*);

constexpr size_t kFirst = offsetof(PJRT_Api, PJRT_Error_Destroy);
constexpr size_t kFunctions = (sizeof(ApiSince82) - kFirst) / sizeof(Function);

// The table of the plugin's functions, and ours.
struct Tables {
  ApiSince82 theirs;
  ApiSince82 ours;
};

Function* FunctionsOf(ApiSince82& table) {
  return reinterpret_cast<Function*>(reinterpret_cast<char*>(&table) + kFirst);
}

Tables& TablesOfThePlugin() {
  static auto& tables = *new Tables{};
  return tables;
}

template <size_t kIndex>
void* Call(void* args) {
  const Function function = FunctionsOf(TablesOfThePlugin().theirs)[kIndex];
  base::ForeignCode foreign;
  return function(args);
}

template <size_t... kIndices>
constexpr std::array<Function, kFunctions> Calls(std::index_sequence<kIndices...>) {
  return {&Call<kIndices>...};
}

}  // namespace

const PJRT_Api* InterfaceOf(const PJRT_Api* api) {
  // A process uses one plugin. Of another, if there is one, nothing is said.
  static const PJRT_Api* const first = api;
  if (api != first) return api;
  static const PJRT_Api* const interface = [api] {
    constexpr std::array<Function, kFunctions> calls = Calls(std::make_index_sequence<kFunctions>());
    Tables& tables = TablesOfThePlugin();
    std::memcpy(&tables.theirs, api, std::min(api->struct_size, sizeof(ApiSince82)));
    tables.ours = tables.theirs;
    Function* ours = FunctionsOf(tables.ours);
    for (size_t i = 0; i < kFunctions; ++i) {
      if (ours[i] != nullptr) ours[i] = calls[i];
    }
    tables.ours.base.struct_size = std::min(api->struct_size, sizeof(ApiSince82));
    return &tables.ours.base;
  }();
  return interface;
}

}  // namespace helmway::pjrt

#endif  // HELMWAY_THREAD_SANITIZER
