#!/usr/bin/env bash
# Sets everything up and runs all tests: C++, then the Python tests with every supported jax that some Python on
# this machine can run. Arguments go to pytest. Fails if anything fails.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

helmway_fake_gcs
[[ -n "${HELMWAY_FAKE_GCS_SERVER}" ]] ||
  helmway_results+=("LEFT OUT tests against the Cloud Storage emulator: ${HELMWAY_FAKE_GCS_MISSING}")
helmway_setup all
logs="$(mktemp -d)"
# end_tests: ends what still runs in the background, as Ctrl-C would.
end_tests() {
  local group
  for group in $(jobs -pr); do kill -INT -- "-${group}" || true; done
  wait
  rm -rf "${logs}"
}
trap end_tests EXIT

helmway_ctest "C++ (ctest)" release "${logs}/ctest"

# What jax is tested with, and where.
versions=()
venvs=()
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
  versions+=("${jax}")
  venvs+=("${venv}")
done
((${#versions[@]})) || helmway_failed=1

# test_with I ARGUMENT...: pytest with versions[I]. What it prints is kept too.
test_with() {
  local i="$1"
  shift
  helmway_say "Python tests with jax ${versions[i]}"
  HELMWAY_BINARY="${HELMWAY_BINARY_PATH}" HELMWAY_PJRT_PLUGIN="${HELMWAY_PLUGIN}" \
    HELMWAY_FAKE_GCS_SERVER="${HELMWAY_FAKE_GCS_SERVER}" \
    "${venvs[i]}/bin/python" -m pytest "${HELMWAY_ROOT}/tests" "$@" 2>&1 | tee "${logs}/${i}"
}

# record_tests I CODE: keeps the verdict of versions[I].
record_tests() {
  local code="$2"
  (($1 > 0 && code == 5)) && code=0 # none of the tests asked for is left
  helmway_record "jax ${versions[$1]}, $("${venvs[$1]}/bin/python" --version) (pytest)" "${code}" \
    "$(tail -n 1 "${logs}/$1" | tr -d =)"
}

# The first version alone. Then the others, without what concerns the server alone, side by side: each keeps one
# core busy. They may be slower for that, which their time-outs must not tell.
running=()
for i in "${!versions[@]}"; do
  code=0
  if ((i == 0)); then
    test_with 0 "$@" || code=$?
    record_tests 0 "${code}"
  else
    set -m # a group of processes for each
    HELMWAY_TEST_PATIENCE="${HELMWAY_TEST_PATIENCE:-2}" test_with "${i}" -m "not one_jax" "$@" |
      sed -u "s/^/jax ${versions[i]} | /" &
    running+=("${i}:$!")
  fi
done
set +m
for run in "${running[@]}"; do
  code=0
  wait "${run#*:}" || code=$?
  record_tests "${run%%:*}" "${code}"
done

helmway_end
