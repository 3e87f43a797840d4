#include "helmway/cache/key.h"

#include <openssl/evp.h>
#ifdef __linux__
#include <sys/auxv.h>
#endif

#include <array>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace helmway::cache {
namespace {

// Changes whenever the meaning of keys or entries does.
constexpr char kKeyVersion[] = "helmway compile cache 1";

class Hash {
 public:
  Hash() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
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
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

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
  std::string set = "x86-64";
  // __builtin_cpu_supports takes literals only.
#define HELMWAY_FEATURE(name) \
  if (__builtin_cpu_supports(name)) absl::StrAppend(&set, " ", name)
  HELMWAY_FEATURE("sse3");
  HELMWAY_FEATURE("ssse3");
  HELMWAY_FEATURE("sse4.1");
  HELMWAY_FEATURE("sse4.2");
  HELMWAY_FEATURE("popcnt");
  HELMWAY_FEATURE("aes");
  HELMWAY_FEATURE("pclmul");
  HELMWAY_FEATURE("avx");
  HELMWAY_FEATURE("f16c");
  HELMWAY_FEATURE("fma");
  HELMWAY_FEATURE("fma4");
  HELMWAY_FEATURE("xop");
  HELMWAY_FEATURE("avx2");
  HELMWAY_FEATURE("bmi");
  HELMWAY_FEATURE("bmi2");
  HELMWAY_FEATURE("lzcnt");
  HELMWAY_FEATURE("movbe");
  HELMWAY_FEATURE("adx");
  HELMWAY_FEATURE("sha");
  HELMWAY_FEATURE("gfni");
  HELMWAY_FEATURE("vaes");
  HELMWAY_FEATURE("vpclmulqdq");
  HELMWAY_FEATURE("avx512f");
  HELMWAY_FEATURE("avx512cd");
  HELMWAY_FEATURE("avx512dq");
  HELMWAY_FEATURE("avx512bw");
  HELMWAY_FEATURE("avx512vl");
  HELMWAY_FEATURE("avx512ifma");
  HELMWAY_FEATURE("avx512vbmi");
  HELMWAY_FEATURE("avx512vbmi2");
  HELMWAY_FEATURE("avx512vnni");
  HELMWAY_FEATURE("avx512bitalg");
  HELMWAY_FEATURE("avx512vpopcntdq");
  HELMWAY_FEATURE("avx512bf16");
  HELMWAY_FEATURE("avx512fp16");
  HELMWAY_FEATURE("avx512vp2intersect");
  HELMWAY_FEATURE("avxvnni");
  HELMWAY_FEATURE("amx-tile");
  HELMWAY_FEATURE("amx-int8");
  HELMWAY_FEATURE("amx-bf16");
#undef HELMWAY_FEATURE
  return set;
#elif defined(__linux__)
  return absl::StrCat("hwcap ", absl::Hex(getauxval(AT_HWCAP)), " ", absl::Hex(getauxval(AT_HWCAP2)));
#else
  return "unknown";
#endif
}

}  // namespace helmway::cache
