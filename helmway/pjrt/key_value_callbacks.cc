#include "helmway/pjrt/key_value_callbacks.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "absl/strings/str_cat.h"

namespace helmway::pjrt {
namespace {

// The plugin copies the text.
PJRT_Error* ToError(const absl::Status& status, PJRT_CallbackError* make_error) {
  const absl::string_view text = status.message();
  // PJRT's codes are numbered like abseil's.
  return (*make_error)(static_cast<PJRT_Error_Code>(status.code()), text.data(), text.size());
}

void DeleteValue(char* value) { delete[] value; }

// The plugin owns the result and gives it back to DeleteValue.
char* NewValue(const std::string& bytes) {
  // A pointer that is not null, also for no bytes.
  char* value = new char[bytes.size() + 1];
  std::memcpy(value, bytes.data(), bytes.size());
  value[bytes.size()] = '\0';
  return value;
}

// What `call`, a function of the store without arguments, gives; no exception gets out of it.
template <typename Call>
auto WithoutThrowing(Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& exception) {
    return absl::InternalError(absl::StrCat("the key-value store has thrown: ", exception.what()));
  } catch (...) {
    return absl::InternalError("the key-value store has thrown");
  }
}

template <typename Args, typename Find>
PJRT_Error* Return(Args* args, Find find) {
  absl::Status status;
  try {
    absl::StatusOr<std::string> value = WithoutThrowing(find);
    if (value.ok()) {
      args->value = NewValue(*value);
      args->value_size = value->size();
      args->value_deleter_callback = DeleteValue;
      return nullptr;
    }
    status = value.status();
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("no memory for a value of the key-value store");
  }
  return ToError(status, args->callback_error);
}

PJRT_Error* Get(PJRT_KeyValueGetCallback_Args* args) {
  return Return(args, [args] {
    return static_cast<KeyValueStore*>(args->user_arg)
        ->Get(std::string(args->key, args->key_size), absl::Milliseconds(std::max(0, args->timeout_in_ms)));
  });
}

PJRT_Error* TryGet(PJRT_KeyValueTryGetCallback_Args* args) {
  return Return(args, [args] {
    return static_cast<KeyValueStore*>(args->user_arg)->TryGet(std::string(args->key, args->key_size));
  });
}

PJRT_Error* Put(PJRT_KeyValuePutCallback_Args* args) {
  const absl::Status status = WithoutThrowing([args] {
    return static_cast<KeyValueStore*>(args->user_arg)
        ->Put(std::string(args->key, args->key_size), std::string(args->value, args->value_size));
  });
  return status.ok() ? nullptr : ToError(status, args->callback_error);
}

}  // namespace

void SetKeyValueCallbacks(KeyValueStore* store, PJRT_Client_Create_Args* args) {
  args->kv_get_callback = Get;
  args->kv_get_user_arg = store;
  args->kv_try_get_callback = TryGet;
  args->kv_try_get_user_arg = store;
  args->kv_put_callback = Put;
  args->kv_put_user_arg = store;
}

}  // namespace helmway::pjrt
