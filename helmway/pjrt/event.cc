#include "helmway/pjrt/event.h"

#include <memory>

#include "helmway/base/happens_before.h"
#include "helmway/base/thread_sanitizer.h"
#include "helmway/pjrt/error.h"
#include "helmway/pjrt/thread_sanitizer.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {
namespace {

struct Waiter {
  async::Outstanding::Token token;  // dropped last
  const PJRT_Api* api;
  std::function<void(absl::Status)> callback;
};

void RunWaiter(PJRT_Error* error, void* user_arg) {
  base::OwnCode own;
  base::HappensAfter(user_arg);
  base::HappensAfter(&results_of_custom_calls);
  std::unique_ptr<Waiter> waiter(static_cast<Waiter*>(user_arg));
  waiter->callback(ToStatus(waiter->api, error));
}

}  // namespace

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    Reset();
    api_ = std::exchange(other.api_, nullptr);
    event_ = std::exchange(other.event_, nullptr);
    callbacks_ = std::exchange(other.callbacks_, nullptr);
  }
  return *this;
}

void Event::Reset() {
  if (event_ == nullptr) return;
  PJRT_Event_Destroy_Args args{.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE, .event = event_};
  // Nothing can be done about a failure here; the status is made so that the error is freed.
  ToStatus(api_, api_->PJRT_Event_Destroy(&args)).IgnoreError();
  event_ = nullptr;
  api_ = nullptr;
  callbacks_ = nullptr;
}

bool Event::IsReady() const {
  if (event_ == nullptr) return true;
  PJRT_Event_IsReady_Args args{.struct_size = PJRT_Event_IsReady_Args_STRUCT_SIZE, .event = event_};
  if (!ToStatus(api_, api_->PJRT_Event_IsReady(&args)).ok()) return true;
  if (args.is_ready) base::HappensAfter(&results_of_custom_calls);
  return args.is_ready;
}

absl::Status Event::Await() const {
  if (event_ == nullptr) return absl::OkStatus();
  PJRT_Event_Await_Args args{.struct_size = PJRT_Event_Await_Args_STRUCT_SIZE, .event = event_};
  PJRT_Error* error = api_->PJRT_Event_Await(&args);
  base::HappensAfter(&results_of_custom_calls);
  return ToStatus(api_, error);
}

absl::Status Event::Error() const {
  if (event_ == nullptr) return absl::OkStatus();
  // Plugins may abort when asked for the error of an event that is not ready.
  if (!IsReady()) return absl::FailedPreconditionError("Event::Error: the event is not ready");
  PJRT_Event_Error_Args args{.struct_size = PJRT_Event_Error_Args_STRUCT_SIZE, .event = event_};
  return ToStatus(api_, api_->PJRT_Event_Error(&args));
}

void Event::OnReady(std::function<void(absl::Status)> callback) const {
  if (event_ == nullptr) {
    callback(absl::OkStatus());
    return;
  }
  // RunWaiter owns it, and may have freed it before the plugin's call returns.
  auto* const waiter = new Waiter{callbacks_ == nullptr ? async::Outstanding::Token() : callbacks_->Begin(),
                                  api_, std::move(callback)};
  PJRT_Event_OnReady_Args args{.struct_size = PJRT_Event_OnReady_Args_STRUCT_SIZE,
                               .event = event_,
                               .callback = &RunWaiter,
                               .user_arg = waiter};
  base::HappensBefore(waiter);
  PJRT_Error* error = api_->PJRT_Event_OnReady(&args);
  if (error == nullptr) return;
  const std::unique_ptr<Waiter> refused(waiter);
  refused->callback(ToStatus(api_, error));
}

}  // namespace helmway::pjrt
