#include "helmway/cache/key.h"

#include <openssl/evp.h>
#ifdef __linux__
#include <sys/auxv.h>
#endif
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <array>
#include <cstdint>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/leak_sanitizer.h"

namespace helmway::cache {
namespace {

// Changes whenever the meaning of keys or entries does.
constexpr char kKeyVersion[] = "helmway compile cache 1";

class Hash {
 public:
  Hash() : context_(nullptr, &EVP_MD_CTX_free) {
    // The first use makes OpenSSL look up all its digests, some of which the server's Python holds until the
    // end.
    static const bool looked_up = [] {
      base::KeptByLibrary kept;
      EVP_MD_CTX_free(Begin());
      return true;
    }();
    static_cast<void>(looked_up);
    context_.reset(Begin());
  }
  void Add(absl::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  // With its length, so that neighbours can't run together.
  void AddPart(absl::string_view bytes) {
    Add(absl::StrCat(bytes.size(), ":"));
    Add(bytes);
  }
  std::string Hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
    return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
  }

 private:
  static EVP_MD_CTX* Begin() {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    EVP_DigestInit_ex(context, EVP_sha256(), nullptr);
    return context;
  }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

#if defined(__x86_64__)
enum Word { kEax, kEbx, kEcx, kEdx };

// Register states that the system must save for instructions to be usable, as in XCR0.
constexpr uint64_t kVectors = 0x6, kMasks = 0xe6, kTiles = 0x60000;

struct Feature {
  const char* name;  // as compilers call it
  uint32_t leaf, subleaf;
  Word word;
  int bit;
  uint64_t registers = 0;
};

// Intel 64 and IA-32 Architectures Software Developer's Manual, CPUID; AMD64 Architecture Programmer's
// Manual, volume 3, appendix E. __builtin_cpu_supports knows other names in each compiler.
constexpr uint32_t kExtended = 0x80000001;
constexpr Feature kFeatures[] = {
    {"sse3", 1, 0, kEcx, 0},
    {"ssse3", 1, 0, kEcx, 9},
    {"sse4.1", 1, 0, kEcx, 19},
    {"sse4.2", 1, 0, kEcx, 20},
    {"popcnt", 1, 0, kEcx, 23},
    {"aes", 1, 0, kEcx, 25},
    {"pclmul", 1, 0, kEcx, 1},
    {"avx", 1, 0, kEcx, 28, kVectors},
    {"f16c", 1, 0, kEcx, 29, kVectors},
    {"fma", 1, 0, kEcx, 12, kVectors},
    {"movbe", 1, 0, kEcx, 22},
    {"fma4", kExtended, 0, kEcx, 16, kVectors},
    {"xop", kExtended, 0, kEcx, 11, kVectors},
    {"lzcnt", kExtended, 0, kEcx, 5},
    {"avx2", 7, 0, kEbx, 5, kVectors},
    {"bmi", 7, 0, kEbx, 3},
    {"bmi2", 7, 0, kEbx, 8},
    {"adx", 7, 0, kEbx, 19},
    {"sha", 7, 0, kEbx, 29},
    {"avx512f", 7, 0, kEbx, 16, kMasks},
    {"avx512cd", 7, 0, kEbx, 28, kMasks},
    {"avx512dq", 7, 0, kEbx, 17, kMasks},
    {"avx512bw", 7, 0, kEbx, 30, kMasks},
    {"avx512vl", 7, 0, kEbx, 31, kMasks},
    {"avx512ifma", 7, 0, kEbx, 21, kMasks},
    {"gfni", 7, 0, kEcx, 8},
    {"vaes", 7, 0, kEcx, 9, kVectors},
    {"vpclmulqdq", 7, 0, kEcx, 10, kVectors},
    {"avx512vbmi", 7, 0, kEcx, 1, kMasks},
    {"avx512vbmi2", 7, 0, kEcx, 6, kMasks},
    {"avx512vnni", 7, 0, kEcx, 11, kMasks},
    {"avx512bitalg", 7, 0, kEcx, 12, kMasks},
    {"avx512vpopcntdq", 7, 0, kEcx, 14, kMasks},
    {"avx512fp16", 7, 0, kEdx, 23, kMasks},
    {"avx512vp2intersect", 7, 0, kEdx, 8, kMasks},
    {"amx-tile", 7, 0, kEdx, 24, kTiles},
    {"amx-int8", 7, 0, kEdx, 25, kTiles},
    {"amx-bf16", 7, 0, kEdx, 22, kTiles},
    {"avx512bf16", 7, 1, kEax, 5, kMasks},
    {"avxvnni", 7, 1, kEax, 4, kVectors},
};

// All zero where the processor has no such leaf.
std::array<uint32_t, 4> Cpuid(uint32_t leaf, uint32_t subleaf) {
  std::array<uint32_t, 4> words{};
  if (__get_cpuid_count(leaf, subleaf, &words[kEax], &words[kEbx], &words[kEcx], &words[kEdx]) == 0)
    return {};
  return words;
}

uint64_t SavedRegisters() {
  constexpr int kXgetbvUsable = 27;
  if ((Cpuid(1, 0)[kEcx] >> kXgetbvUsable & 1) == 0) return 0;
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}
#endif

}  // namespace

std::string MakeKey(const KeyParts& parts) {
  Hash hash;
  for (const absl::string_view part : {absl::string_view(kKeyVersion), parts.program, parts.options,
                                       parts.plugin, parts.devices, parts.host}) {
    hash.AddPart(part);
  }
  return hash.Hex();
}

std::string Sha256(absl::string_view bytes) {
  Hash hash;
  hash.Add(bytes);
  return hash.Hex();
}

absl::StatusOr<std::string> PluginIdentity(const std::string& path, absl::string_view version) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return absl::NotFoundError(absl::StrCat("can't read the plugin ", path));
  Hash hash;
  std::vector<char> block(1 << 20);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())), file.gcount() > 0) {
    hash.Add(absl::string_view(block.data(), static_cast<size_t>(file.gcount())));
  }
  if (file.bad()) return absl::UnavailableError(absl::StrCat("can't read the plugin ", path));
  return absl::StrCat(version, " ", hash.Hex());
}

std::string HostInstructionSet() {
#if defined(__x86_64__)
  const uint64_t saved = SavedRegisters();
  std::string set = "x86-64";
  for (const Feature& feature : kFeatures) {
    if ((saved & feature.registers) != feature.registers) continue;
    if (Cpuid(feature.leaf, feature.subleaf)[feature.word] >> feature.bit & 1) {
      absl::StrAppend(&set, " ", feature.name);
    }
  }
  return set;
#elif defined(__linux__)
  return absl::StrCat("hwcap ", absl::Hex(getauxval(AT_HWCAP)), " ", absl::Hex(getauxval(AT_HWCAP2)));
#else
  return "unknown";
#endif
}

}  // namespace helmway::cache
