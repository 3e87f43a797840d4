#include "helmway/pjrt/error.h"

#include "absl/strings/string_view.h"
#include "helmway/pjrt/extensions.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {

absl::Status ToStatus(const PJRT_Api* api, PJRT_Error* error) {
  if (error == nullptr) return absl::OkStatus();

  PJRT_Error_GetCode_Args code_args{.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE, .error = error};
  absl::StatusCode code = absl::StatusCode::kUnknown;
  if (PJRT_Error* second = api->PJRT_Error_GetCode(&code_args); second != nullptr) {
    PJRT_Error_Destroy_Args args{.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = second};
    api->PJRT_Error_Destroy(&args);
  } else if (int number = EnumNumber(code_args.code); number > 0 && number <= 16) {
    // PJRT's codes are numbered like abseil's.
    code = static_cast<absl::StatusCode>(number);
  }

  PJRT_Error_Message_Args message_args{.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE, .error = error};
  api->PJRT_Error_Message(&message_args);
  absl::Status status(code, absl::string_view(message_args.message, message_args.message_size));

  PJRT_Error_Destroy_Args destroy_args{.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
  api->PJRT_Error_Destroy(&destroy_args);
  return status;
}

}  // namespace helmway::pjrt
