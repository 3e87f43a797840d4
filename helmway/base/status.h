#ifndef HELMWAY_BASE_STATUS_H_
#define HELMWAY_BASE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace helmway::base {

// The same code and payloads, with "<context>: " in front of the text. OK stays OK.
inline absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status result(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { result.SetPayload(url, payload); });
  return result;
}

}  // namespace helmway::base

// Leaves the enclosing function with the status of `expr` unless it is OK.
#define HELMWAY_RETURN_IF_ERROR(expr)                                                         \
  do {                                                                                        \
    if (absl::Status helmway_status_ = (expr); !helmway_status_.ok()) return helmway_status_; \
  } while (false)

#define HELMWAY_STATUS_CONCAT_INNER_(a, b) a##b
#define HELMWAY_STATUS_CONCAT_(a, b) HELMWAY_STATUS_CONCAT_INNER_(a, b)

// Declares or assigns `lhs` from a StatusOr, or leaves the enclosing function with its status.
#define HELMWAY_ASSIGN_OR_RETURN(lhs, expr) \
  HELMWAY_ASSIGN_OR_RETURN_IMPL_(HELMWAY_STATUS_CONCAT_(helmway_statusor_, __LINE__), lhs, expr)
#define HELMWAY_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                                   \
  if (!var.ok()) return std::move(var).status();       \
  lhs = *std::move(var)

#endif  // HELMWAY_BASE_STATUS_H_
