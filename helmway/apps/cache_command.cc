#include "helmway/apps/cache_command.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "helmway/apps/flags.h"
#include "helmway/cache/compile_cache.h"
#include "helmway/cache/entry.h"
#include "helmway/cache/keeper.h"
#include "helmway/storage/open.h"
#include "helmway/storage/store.h"

namespace helmway::apps {
namespace {

constexpr size_t kNoLimit = std::numeric_limits<int>::max();

FlagSpec LocationFlag() {
  return {.name = "location",
          .help =
              "The --gcs_scratch_location of the servers: gs://bucket/directory, file:///directory or "
              "/directory."};
}

const FlagTable& ListFlags() {
  static const auto* table = new FlagTable{.command = "helmway cache ls",
                                           .usage = "helmway cache ls --location=LOCATION",
                                           .purpose = "Lists the compiled programs that are kept.",
                                           .flags = {LocationFlag()}};
  return *table;
}

const FlagTable& StatsFlags() {
  static const auto* table = new FlagTable{.command = "helmway cache stats",
                                           .usage = "helmway cache stats --location=LOCATION",
                                           .purpose = "Says how much is kept, and for which plugins.",
                                           .flags = {LocationFlag()}};
  return *table;
}

const FlagTable& PurgeFlags() {
  static const auto* table =
      new FlagTable{.command = "helmway cache purge",
                    .usage = "helmway cache purge --location=LOCATION [--older_than_days=N]",
                    .purpose = "Deletes compiled programs. Servers that run lose nothing but time.",
                    .flags = {LocationFlag(),
                              {.name = "older_than_days",
                               .type = FlagType::kInt,
                               .default_value = "0",
                               .help = "Only those that were written so many days ago or more.",
                               .max = 100000}}};
  return *table;
}

std::string Size(int64_t bytes) {
  if (bytes < 10'000) return absl::StrCat(bytes, " B");
  if (bytes < 10'000'000) return absl::StrFormat("%.1f KB", static_cast<double>(bytes) / 1e3);
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

std::string Day(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M", time, absl::UTCTimeZone()); }

absl::StatusOr<cache::EntryHeader> Header(storage::Store& store, const std::string& name) {
  const absl::StatusOr<std::string> bytes = store.GetRange(name, 0, cache::kHeaderBytes);
  if (!bytes.ok()) return bytes.status();
  return cache::DecodeHeader(*bytes);
}

absl::Status List(storage::Store& store, std::ostream& out) {
  const absl::StatusOr<std::vector<storage::ObjectInfo>> entries = store.List("", kNoLimit);
  if (!entries.ok()) return entries.status();
  for (const storage::ObjectInfo& entry : *entries) {
    const absl::StatusOr<cache::EntryHeader> header = Header(store, entry.name);
    const std::string key = entry.name.substr(entry.name.rfind('/') + 1);
    out << absl::StrFormat("%-16s  %s  %10s  ", key.substr(0, 16), Day(entry.updated),
                           Size(entry.size_bytes));
    if (header.ok()) {
      out << header->platform << "x" << header->devices << "  " << header->name << "\n";
    } else {
      out << "? " << header.status().message() << "\n";
    }
  }
  out << entries->size() << " programs\n";
  return absl::OkStatus();
}

absl::Status Stats(storage::Store& store, std::ostream& out) {
  const absl::StatusOr<std::vector<storage::ObjectInfo>> entries = store.List("", kNoLimit);
  if (!entries.ok()) return entries.status();
  int64_t bytes = 0;
  absl::Time oldest = absl::InfiniteFuture();
  absl::Time newest = absl::InfinitePast();
  struct Share {
    int64_t programs = 0;
    int64_t bytes = 0;
  };
  std::map<std::string, Share> plugins;
  for (const storage::ObjectInfo& entry : *entries) {
    bytes += entry.size_bytes;
    oldest = std::min(oldest, entry.updated);
    newest = std::max(newest, entry.updated);
    const absl::StatusOr<cache::EntryHeader> header = Header(store, entry.name);
    Share& share = plugins[header.ok() ? header->plugin : "(unreadable)"];
    ++share.programs;
    share.bytes += entry.size_bytes;
  }
  out << "location  " << store.location() << "\nprograms  " << entries->size() << "\nsize      "
      << Size(bytes) << "\n";
  if (!entries->empty()) out << "oldest    " << Day(oldest) << " UTC\nnewest    " << Day(newest) << " UTC\n";
  for (const auto& [plugin, share] : plugins) {
    out << "plugin    " << plugin << ": " << share.programs << " programs, " << Size(share.bytes) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

int RunCache(const std::vector<std::string>& arguments, const CommandContext& context) {
  const std::string verb = arguments.empty() ? "" : arguments[0];
  const FlagTable* table = verb == "ls"      ? &ListFlags()
                           : verb == "stats" ? &StatsFlags()
                           : verb == "purge" ? &PurgeFlags()
                                             : nullptr;
  if (table == nullptr) {
    const bool help = verb == "--help" || verb == "-h";
    (help ? context.out : context.err) << "usage: " << ListFlags().usage << "\n       " << StatsFlags().usage
                                       << "\n       " << PurgeFlags().usage << std::endl;
    return help ? kExitOk : kExitUsage;
  }
  ParsedFlags flags = ParseFlags(*table, {arguments.begin() + 1, arguments.end()}, context.environment);
  if (flags.help) {
    context.out << HelpText(*table) << std::flush;
    return kExitOk;
  }
  const std::string text = flags.String("location");
  absl::StatusOr<storage::Location> location = storage::ParseLocation(text);
  if (text.empty()) {
    flags.Error("location", "--location is missing: it names the scratch location of the servers");
  } else if (!location.ok()) {
    flags.Error("location", absl::StrCat("--location=", location.status().message()));
  }
  PrintNotes(*table, flags, context.err);
  if (!flags.ok()) return kExitUsage;

  const std::shared_ptr<storage::Store> store =
      storage::OpenStore(location->Below(cache::kCacheDirectory), context.environment);
  absl::Status status;
  if (verb == "ls") {
    status = List(*store, context.out);
  } else if (verb == "stats") {
    status = Stats(*store, context.out);
  } else {
    const absl::Duration age = absl::Hours(24) * flags.Int("older_than_days");
    const absl::StatusOr<int> gone = cache::Sweep(*store, age, absl::Now());
    status = gone.status();
    if (gone.ok()) context.out << "deleted " << *gone << " programs\n";
  }
  context.out.flush();
  if (status.ok()) return kExitOk;
  context.err << table->command << ": " << status << std::endl;
  return kExitFailure;
}

}  // namespace helmway::apps
