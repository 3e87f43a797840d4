#include "helmway/worker/reduce.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

namespace helmway::worker {
namespace {

using pjrt::ElementType;
using program::Reduction;

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Sixteen bits that are computed with as floats and rounded, to the nearest and to even, after each step.
struct Bfloat16 {
  uint16_t bits;
  Bfloat16() = default;
  explicit Bfloat16(float value) {
    const uint32_t from = Bits(value);
    if ((from & 0x7fffffffU) > 0x7f800000U) {
      bits = static_cast<uint16_t>((from >> 16) | 0x40U);
    } else {
      bits = static_cast<uint16_t>((from + 0x7fffU + ((from >> 16) & 1U)) >> 16);
    }
  }
  explicit operator float() const { return FromBits(static_cast<uint32_t>(bits) << 16); }
};

struct Half {
  uint16_t bits;
  Half() = default;
  explicit Half(float value) {
    const uint32_t from = Bits(value);
    const uint32_t sign = (from >> 16) & 0x8000U;
    const uint32_t magnitude = from & 0x7fffffffU;
    uint32_t half;
    if (magnitude > 0x7f800000U) {
      half = 0x7e00U;
    } else if (magnitude >= 0x477ff000U) {
      half = 0x7c00U;  // rounds to infinity
    } else if (magnitude < 0x38800000U) {
      // Subnormal: the addition aligns the last bits of a half with those of a float, and rounds.
      half = Bits(FromBits(magnitude) + FromBits(0x3f000000U)) - 0x3f000000U;
    } else {
      half = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    }
    bits = static_cast<uint16_t>(sign | half);
  }
  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
    const uint32_t magnitude = bits & 0x7fffU;
    if (magnitude >= 0x7c00U) return FromBits(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
    if (magnitude < 0x400U) {
      const float value = static_cast<float>(magnitude) * FromBits(0x33800000U);  // 2^-24
      return FromBits(sign | Bits(value));
    }
    return FromBits(sign | ((magnitude << 13) + 0x38000000U));
  }
};

// How a type is added, multiplied and compared.
template <typename T>
struct Arithmetic {
  static constexpr bool kOrdered = true;
  static constexpr bool kBitwise = std::is_integral_v<T>;
  static T Zero() { return T(0); }
  static T One() { return T(1); }
  static T Lowest() {
    return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                : std::numeric_limits<T>::lowest();
  }
  static T Highest() {
    return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                : std::numeric_limits<T>::max();
  }
  static T Add(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
  static T Multiply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      // Wide enough that a product of two shorts is no signed overflow.
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
  static bool Less(T a, T b) { return a < b; }
};

template <typename T>
struct RoundedArithmetic {
  static constexpr bool kOrdered = true;
  static constexpr bool kBitwise = false;
  static T Zero() { return T(0.0F); }
  static T One() { return T(1.0F); }
  static T Lowest() { return T(-std::numeric_limits<float>::infinity()); }
  static T Highest() { return T(std::numeric_limits<float>::infinity()); }
  static T Add(T a, T b) { return T(static_cast<float>(a) + static_cast<float>(b)); }
  static T Multiply(T a, T b) { return T(static_cast<float>(a) * static_cast<float>(b)); }
  static bool Less(T a, T b) { return static_cast<float>(a) < static_cast<float>(b); }
};
template <>
struct Arithmetic<Half> : RoundedArithmetic<Half> {};
template <>
struct Arithmetic<Bfloat16> : RoundedArithmetic<Bfloat16> {};

template <typename T>
struct Arithmetic<std::complex<T>> {
  static constexpr bool kOrdered = false;
  static constexpr bool kBitwise = false;
  static std::complex<T> Zero() { return T(0); }
  static std::complex<T> One() { return T(1); }
  static std::complex<T> Add(std::complex<T> a, std::complex<T> b) { return a + b; }
  static std::complex<T> Multiply(std::complex<T> a, std::complex<T> b) { return a * b; }
};

template <typename T, typename Function>
void Fold(T neutral, absl::Span<const uint8_t* const> inputs, uint8_t* result, int64_t bytes,
          Function function) {
  // In tiles that stay in the cache while the inputs pass.
  constexpr int64_t kTile = 8192 / sizeof(T);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  T* const out = reinterpret_cast<T*>(result);
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t end = std::min(begin + kTile, count);
    std::fill(out + begin, out + end, neutral);
    for (const uint8_t* input : inputs) {
      const T* const in = reinterpret_cast<const T*>(input);
      for (int64_t i = begin; i < end; ++i) out[i] = function(out[i], in[i]);
    }
  }
}

// With no result: whether it is possible.
template <typename T>
bool ReduceAs(Reduction reduction, absl::Span<const uint8_t* const> inputs, uint8_t* result, int64_t bytes) {
  using A = Arithmetic<T>;
  auto fold = [&](T neutral, auto function) {
    if (result != nullptr) Fold(neutral, inputs, result, bytes, function);
    return true;
  };
  switch (reduction) {
    case Reduction::kSum:
      return fold(A::Zero(), [](T a, T b) { return A::Add(a, b); });
    case Reduction::kProduct:
      return fold(A::One(), [](T a, T b) { return A::Multiply(a, b); });
    case Reduction::kMin:
      if constexpr (A::kOrdered) {
        return fold(A::Highest(), [](T a, T b) { return A::Less(b, a) ? b : a; });
      }
      break;
    case Reduction::kMax:
      if constexpr (A::kOrdered) {
        return fold(A::Lowest(), [](T a, T b) { return A::Less(a, b) ? b : a; });
      }
      break;
    case Reduction::kAnd:
      if constexpr (A::kBitwise) return fold(static_cast<T>(~T(0)), [](T a, T b) { return T(a & b); });
      break;
    case Reduction::kOr:
      if constexpr (A::kBitwise) return fold(T(0), [](T a, T b) { return T(a | b); });
      break;
    case Reduction::kXor:
      if constexpr (A::kBitwise) return fold(T(0), [](T a, T b) { return T(a ^ b); });
      break;
    case Reduction::kNone:
      break;
  }
  return false;
}

// One byte each, 0 or 1.
bool ReduceBool(Reduction reduction, absl::Span<const uint8_t* const> inputs, uint8_t* result,
                int64_t bytes) {
  auto fold = [&](uint8_t neutral, auto function) {
    if (result != nullptr) Fold(neutral, inputs, result, bytes, function);
    return true;
  };
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMax:
    case Reduction::kOr:
      return fold(0, [](uint8_t a, uint8_t b) { return static_cast<uint8_t>((a | b) != 0); });
    case Reduction::kProduct:
    case Reduction::kMin:
    case Reduction::kAnd:
      return fold(1, [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a != 0 && b != 0); });
    case Reduction::kXor:
      return fold(0, [](uint8_t a, uint8_t b) { return static_cast<uint8_t>((a != 0) != (b != 0)); });
    case Reduction::kNone:
      break;
  }
  return false;
}

bool ReduceOrAsk(Reduction reduction, ElementType type, absl::Span<const uint8_t* const> inputs,
                 uint8_t* result, int64_t bytes) {
  switch (type) {
    case ElementType::kPred:
      return ReduceBool(reduction, inputs, result, bytes);
    case ElementType::kS8:
      return ReduceAs<int8_t>(reduction, inputs, result, bytes);
    case ElementType::kS16:
      return ReduceAs<int16_t>(reduction, inputs, result, bytes);
    case ElementType::kS32:
      return ReduceAs<int32_t>(reduction, inputs, result, bytes);
    case ElementType::kS64:
      return ReduceAs<int64_t>(reduction, inputs, result, bytes);
    case ElementType::kU8:
      return ReduceAs<uint8_t>(reduction, inputs, result, bytes);
    case ElementType::kU16:
      return ReduceAs<uint16_t>(reduction, inputs, result, bytes);
    case ElementType::kU32:
      return ReduceAs<uint32_t>(reduction, inputs, result, bytes);
    case ElementType::kU64:
      return ReduceAs<uint64_t>(reduction, inputs, result, bytes);
    case ElementType::kF16:
      return ReduceAs<Half>(reduction, inputs, result, bytes);
    case ElementType::kBF16:
      return ReduceAs<Bfloat16>(reduction, inputs, result, bytes);
    case ElementType::kF32:
      return ReduceAs<float>(reduction, inputs, result, bytes);
    case ElementType::kF64:
      return ReduceAs<double>(reduction, inputs, result, bytes);
    case ElementType::kC64:
      return ReduceAs<std::complex<float>>(reduction, inputs, result, bytes);
    case ElementType::kC128:
      return ReduceAs<std::complex<double>>(reduction, inputs, result, bytes);
    default:
      return false;
  }
}

}  // namespace

bool CanReduce(Reduction reduction, ElementType type) { return ReduceOrAsk(reduction, type, {}, nullptr, 0); }

void Reduce(Reduction reduction, ElementType type, absl::Span<const uint8_t* const> inputs, uint8_t* result,
            int64_t bytes) {
  if (bytes > 0) ReduceOrAsk(reduction, type, inputs, result, bytes);
}

}  // namespace helmway::worker
