#!/usr/bin/env bash
# Sets everything up and runs all tests: C++, then the Python tests with every supported jax that some Python on
# this machine can run. Arguments go to pytest. Fails if anything fails.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

results=()  # one line per runner
failed=0

# record NAME CODE CLOSING_LINE
record() {
  local verdict=passed
  if (($2 != 0)); then
    verdict=FAILED
    failed=1
  fi
  results+=("${verdict}  $1: $3")
}

helmway_fake_gcs
[[ -n "${HELMWAY_FAKE_GCS_SERVER}" ]] ||
  results+=("LEFT OUT tests against the Cloud Storage emulator: ${HELMWAY_FAKE_GCS_MISSING}")
helmway_setup all
log="$(mktemp)"
trap 'rm -f "${log}"' EXIT

helmway_say "C++ tests"
code=0
(cd "${HELMWAY_ROOT}" && ctest --preset release -j "$(nproc)" --no-tests=error) 2>&1 | tee "${log}" || code=$?
record "C++ (ctest)" "${code}" "$(grep -E 'tests (passed|failed)' "${log}" | tail -n 1)"

tested=0
for jax in "${HELMWAY_JAX_VERSIONS[@]}"; do
  if ! python="$(helmway_python_for_jax "${jax}")"; then
    results+=("LEFT OUT jax ${jax}: needs one of Python ${HELMWAY_PYTHONS_FOR[${jax}]// /, }")
    continue
  fi
  # The demo's environment serves for its own version.
  venv="${HELMWAY_VENV}"
  [[ "${jax}" == "${HELMWAY_JAX}" ]] || venv="${HELMWAY_ROOT}/.venv-${jax}"
  helmway_venv "${venv}" "${python}" "${jax}"
  helmway_add "${venv}" test
  helmway_package "${venv}"
  helmway_say "Python tests with jax ${jax}"
  code=0
  HELMWAY_BINARY="${HELMWAY_BINARY_PATH}" HELMWAY_PJRT_PLUGIN="${HELMWAY_PLUGIN}" \
    HELMWAY_FAKE_GCS_SERVER="${HELMWAY_FAKE_GCS_SERVER}" \
    "${venv}/bin/python" -m pytest "${HELMWAY_ROOT}/tests" "$@" 2>&1 | tee "${log}" || code=$?
  record "jax ${jax}, $("${venv}/bin/python" --version) (pytest)" "${code}" "$(tail -n 1 "${log}" | tr -d =)"
  tested=$((tested + 1))
done
((tested)) || failed=1

helmway_say "results"
printf '%s\n' "${results[@]}"
exit "${failed}"
