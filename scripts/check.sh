#!/usr/bin/env bash
# Style and static checks of the C++ code.
#   scripts/check.sh format   clang-format, nothing is changed (the default)
#   scripts/check.sh fix      clang-format, in place
#   scripts/check.sh tidy     clang-tidy with .clang-tidy, tests left out; needs a configured and built build/release.
#                             Takes all cores, or HELMWAY_TIDY_JOBS of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sources() { find helmway bench -name "$1" -not -path '*/third_party/*' -print0; }
need() { command -v "$1" >/dev/null || { echo "error: $1 is not installed (apt-get install $1)" >&2; exit 1; }; }

case "${1:-format}" in
  format)
    need clang-format
    { sources '*.cc'; sources '*.h'; } | xargs -0 clang-format --dry-run -Werror
    echo "check.sh: clang-format has no complaints"
    ;;
  fix)
    need clang-format
    { sources '*.cc'; sources '*.h'; } | xargs -0 clang-format -i
    ;;
  tidy)
    need clang-tidy
    database=build/release/compile_commands.json
    [[ -f "${database}" ]] || { echo "error: there is no ${database}; run scripts/test.sh first" >&2; exit 1; }
    # Only files that are compiled have an entry. Tests would more than double the time.
    while IFS= read -r -d '' file; do
      case "${file}" in *_test.cc | *_testing.cc) continue ;; esac
      if grep -qF "/${file}\"" "${database}"; then printf '%s\0' "${file}"; fi
    done < <(sources '*.cc') | xargs -0 -n 1 -P "${HELMWAY_TIDY_JOBS:-$(nproc)}" clang-tidy -p build/release --quiet
    echo "check.sh: clang-tidy has no complaints"
    ;;
  *)
    echo "usage: scripts/check.sh [format|fix|tidy]" >&2
    exit 2
    ;;
esac
