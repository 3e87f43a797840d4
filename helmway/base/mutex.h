#ifndef HELMWAY_BASE_MUTEX_H_
#define HELMWAY_BASE_MUTEX_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#ifdef HELMWAY_THREAD_SANITIZER
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"
#endif

namespace helmway::base {

// Locks. In products they are abseil's. Under ThreadSanitizer they are the standard library's behind the same
// calls: a distribution's abseil is not instrumented, so the order that its locks make would be invisible.
// Conditions are absl::Condition in both.
#ifndef HELMWAY_THREAD_SANITIZER

using Mutex = absl::Mutex;
using MutexLock = absl::MutexLock;
using CondVar = absl::CondVar;
using Notification = absl::Notification;

#else

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  // libstdc++ forgets a mutex without a word. Told of it, TSan reports one that is held, and does not take
  // the next mutex at this address for the same.
  ~Mutex() { pthread_mutex_destroy(mu_.native_handle()); }
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    // Whoever awaits a condition looks at it again after every change.
    changed_.notify_all();
    mu_.unlock();
  }
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}
  void Await(const absl::Condition& condition) {
    std::unique_lock<std::mutex> lock(mu_, std::adopt_lock);
    changed_.notify_all();
    changed_.wait(lock, [&] { return condition.Eval(); });
    lock.release();
  }
  bool AwaitWithTimeout(const absl::Condition& condition, absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mu_, std::adopt_lock);
    changed_.notify_all();
    // The clock of the library overflows where a wait has no end.
    const auto bounded = absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
    const bool met = changed_.wait_for(lock, bounded, [&] { return condition.Eval(); });
    lock.release();
    return met;
  }

 private:
  friend class CondVar;
  std::mutex mu_;
  std::condition_variable changed_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

class CondVar {
 public:
  void Wait(Mutex* mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    mu->changed_.notify_all();
    signalled_.wait(lock);
    lock.release();
  }
  void Signal() { signalled_.notify_one(); }
  void SignalAll() { signalled_.notify_all(); }

 private:
  std::condition_variable signalled_;
};

class Notification {
 public:
  bool HasBeenNotified() const {
    MutexLock lock(&mu_);
    return notified_;
  }
  void Notify() {
    MutexLock lock(&mu_);
    notified_ = true;
  }
  void WaitForNotification() const {
    MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&notified_));
  }
  bool WaitForNotificationWithTimeout(absl::Duration timeout) const {
    MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&notified_), timeout);
  }

 private:
  mutable Mutex mu_;
  bool notified_ ABSL_GUARDED_BY(mu_) = false;
};

#endif

}  // namespace helmway::base

#endif  // HELMWAY_BASE_MUTEX_H_
