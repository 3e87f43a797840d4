#ifndef HELMWAY_BASE_REF_COUNTED_H_
#define HELMWAY_BASE_REF_COUNTED_H_

#include <atomic>
#include <cstdint>
#include <utility>

namespace helmway::base {

// Intrusive reference count for objects that are made once per launch or buffer, where a shared_ptr's second
// word and control block would be felt. Any thread. Derived classes have a virtual destructor or are final.
template <typename T>
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  void AddRef() const { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Release() const {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete static_cast<const T*>(this);
  }

 protected:
  ~RefCounted() = default;

 private:
  mutable std::atomic<uint32_t> refs_{0};
};

// Owning pointer to a RefCounted object. May be null.
template <typename T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) {
    if (object_) object_->AddRef();
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_) object_->Release();
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  void reset() { *this = Ref(); }

 private:
  T* object_ = nullptr;
};

template <typename T, typename... Args>
Ref<T> MakeRef(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace helmway::base

#endif  // HELMWAY_BASE_REF_COUNTED_H_
