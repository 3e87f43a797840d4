#include "helmway/worker/callback_clients.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"

namespace helmway::worker {
namespace {

constexpr size_t kMaxClients = 8;

}  // namespace

void CallbackClient::AwaitTurn() {
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !busy_; };
  base::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&idle));
  busy_ = true;
}

void CallbackClient::EndTurn() {
  base::MutexLock lock(&mu_);
  busy_ = false;
}

CallbackClients::CallbackClients(std::shared_ptr<pjrt::Client> home, int process_id,
                                 async::GrowingPool* threads)
    : home_(std::move(home)), process_id_(process_id), threads_(threads) {}

absl::StatusOr<std::shared_ptr<CallbackClient>> CallbackClients::Lease() {
  if (home_->platform_name() != "cpu") {
    return absl::UnimplementedError(absl::StrCat(
        "programs that call Python functions of their client, on the platform ", home_->platform_name()));
  }
  CallbackClient* chosen = nullptr;
  {
    base::MutexLock lock(&mu_);
    const auto entry = std::min_element(entries_.begin(), entries_.end(),
                                        [](const Entry& a, const Entry& b) { return a.holders < b.holders; });
    if (entry != entries_.end() && (entry->holders == 0 || entries_.size() >= kMaxClients)) {
      ++entry->holders;
      chosen = entry->client.get();
    }
  }
  if (chosen == nullptr) {
    // Not asynchronous: programs of one device then run on the thread that starts them, and none waits for
    // another.
    HELMWAY_ASSIGN_OR_RETURN(
        std::shared_ptr<pjrt::Client> client,
        pjrt::Client::Create(home_->plugin(),
                             {{"cpu_device_count", static_cast<int64_t>(home_->addressable_devices().size())},
                              {"process_id", static_cast<int64_t>(process_id_)},
                              {"asynchronous", false}}));
    auto made = std::make_unique<CallbackClient>(std::move(client), home_, threads_);
    chosen = made.get();
    base::MutexLock lock(&mu_);
    entries_.push_back({std::move(made), /*holders=*/1});
  }
  return std::shared_ptr<CallbackClient>(chosen, [this](CallbackClient* client) {
    base::MutexLock lock(&mu_);
    for (Entry& entry : entries_) {
      if (entry.client.get() == client) --entry.holders;
    }
  });
}

}  // namespace helmway::worker
