#ifndef HELMWAY_PJRT_EVENT_H_
#define HELMWAY_PJRT_EVENT_H_

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "helmway/async/outstanding.h"

struct PJRT_Api;
struct PJRT_Event;

namespace helmway::pjrt {

// A point in the plugin's asynchronous work that is reached once, with or without an error. Move-only;
// destroys the plugin's event when dropped, which neither waits for the work nor cancels it. const methods
// may be called from any thread at once; moves and destruction need exclusive access.
//
// A default-constructed or moved-from Event is empty: it counts as ready without error.
class Event {
 public:
  Event() = default;
  // Takes ownership of `event`. Callbacks count in `callbacks`, if it is not null, until they and their state
  // are gone.
  Event(const PJRT_Api* api, PJRT_Event* event, async::Outstanding* callbacks)
      : api_(api), event_(event), callbacks_(callbacks) {}
  Event(Event&& other) noexcept
      : api_(std::exchange(other.api_, nullptr)),
        event_(std::exchange(other.event_, nullptr)),
        callbacks_(std::exchange(other.callbacks_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;
  ~Event() { Reset(); }

  bool empty() const { return event_ == nullptr; }

  // Whether the point is reached. A failure of the call itself counts as ready; Error() then says why.
  bool IsReady() const;
  // Blocks until ready and gives the outcome. Never call it from an OnReady callback.
  absl::Status Await() const;
  // The outcome of a ready event. FAILED_PRECONDITION while it is not ready.
  absl::Status Error() const;

  // Calls `callback` exactly once with the outcome: on a plugin thread, or on this one before OnReady returns
  // if the event is ready (or empty) already. The callback owns its state; the Event may be destroyed before
  // it runs. It must be quick, must not block, and must not drop the last reference to a Client
  // (Client::WaitForCallbacks tells when none can any more). May be called several times; every callback
  // runs. If the plugin refuses the registration, the callback gets that error.
  void OnReady(std::function<void(absl::Status)> callback) const;

  // Drops the event; this Event is empty afterwards.
  void Reset();

  PJRT_Event* get() const { return event_; }

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Event* event_ = nullptr;
  async::Outstanding* callbacks_ = nullptr;
};

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_EVENT_H_
