#ifndef HELMWAY_ASYNC_OUTSTANDING_H_
#define HELMWAY_ASYNC_OUTSTANDING_H_

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "helmway/base/mutex.h"

namespace helmway::async {

// Counts what is under way, so that whatever it uses can wait for it before it goes. Any thread.
class Outstanding {
 public:
  // Counts as one thing under way for as long as it lives, as does each copy; made by default or moved from,
  // it counts as nothing. A member that is to be dropped after others is declared before them.
  class Token {
   public:
    Token() = default;
    Token(const Token& other) : of_(other.of_) {
      if (of_ != nullptr) of_->Add();
    }
    Token(Token&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    Token& operator=(Token other) noexcept {
      std::swap(of_, other.of_);
      return *this;
    }
    ~Token() {
      if (of_ != nullptr) of_->Drop();
    }

   private:
    friend class Outstanding;
    explicit Token(Outstanding* of) : of_(of) { of_->Add(); }
    Outstanding* of_ = nullptr;
  };

  Token Begin() { return Token(this); }

  // Blocks until nothing is under way. The last token's end touches this object no more once it has returned.
  void WaitForNone() {
    auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return count_ == 0; };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&none));
  }

 private:
  void Add() {
    base::MutexLock lock(&mu_);
    ++count_;
  }
  void Drop() {
    base::MutexLock lock(&mu_);
    --count_;
  }

  base::Mutex mu_;
  int64_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace helmway::async

#endif  // HELMWAY_ASYNC_OUTSTANDING_H_
