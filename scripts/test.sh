#!/usr/bin/env bash
# Sets everything up and runs all tests: C++, then the Python tests with every supported jax that some Python on
# this machine can run. Arguments go to pytest. Fails if anything fails.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

helmway_fake_gcs
[[ -n "${HELMWAY_FAKE_GCS_SERVER}" ]] ||
  helmway_results+=("LEFT OUT tests against the Cloud Storage emulator: ${HELMWAY_FAKE_GCS_MISSING}")
helmway_setup all
log="$(mktemp)"
trap 'rm -f "${log}"' EXIT

helmway_ctest "C++ (ctest)" release "${log}"

tested=0
# What concerns the server alone is tested with the first version only.
marks=()
for jax in "${HELMWAY_JAX_VERSIONS[@]}"; do
  if ! python="$(helmway_python_for_jax "${jax}")"; then
    helmway_results+=("LEFT OUT jax ${jax}: needs one of Python ${HELMWAY_PYTHONS_FOR[${jax}]// /, }")
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
    "${venv}/bin/python" -m pytest "${HELMWAY_ROOT}/tests" "${marks[@]}" "$@" 2>&1 | tee "${log}" || code=$?
  ((code == 5 && tested)) && code=0 # none of the tests asked for is left
  helmway_record "jax ${jax}, $("${venv}/bin/python" --version) (pytest)" "${code}" "$(tail -n 1 "${log}" | tr -d =)"
  tested=$((tested + 1))
  marks=(-m "not one_jax")
done
((tested)) || helmway_failed=1

helmway_end
