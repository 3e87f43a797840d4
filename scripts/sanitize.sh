#!/usr/bin/env bash
# All tests with a sanitizer: builds its preset, runs the C++ tests, then the Python tests against its program, with
# the newest jax that a Python here can run. Slow. Fails if a test fails or a sanitizer reports anything.
#   scripts/sanitize.sh [address|thread] [pytest arguments]     without a name: both, one after the other
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

presets=(asan tsan)
case "${1:-}" in
  address) presets=(asan) ;;
  thread) presets=(tsan) ;;
  "" | -*) ;;
  *)
    echo "usage: scripts/sanitize.sh [address|thread] [pytest arguments]" >&2
    exit 2
    ;;
esac
((${#presets[@]} == 2)) || shift

# settings PRESET: what its test preset sets in the environment, NAME=VALUE a line.
settings() {
  "${HELMWAY_VENV}/bin/python" - "${HELMWAY_ROOT}" "$1" <<'PYTHON'
import json, pathlib, sys
root, name = sys.argv[1:]
presets = json.loads(pathlib.Path(root, "CMakePresets.json").read_text())["testPresets"]
for variable, value in next(preset for preset in presets if preset["name"] == name)["environment"].items():
    print(f"{variable}={value.replace('${sourceDir}', root)}")
PYTHON
}

helmway_fake_gcs
[[ -n "${HELMWAY_FAKE_GCS_SERVER}" ]] ||
  helmway_results+=("LEFT OUT tests against the Cloud Storage emulator: ${HELMWAY_FAKE_GCS_MISSING}")
helmway_setup
helmway_add "${HELMWAY_VENV}" test
log="$(mktemp)"
trap 'rm -f "${log}"' EXIT

for preset in "${presets[@]}"; do
  helmway_build "${HELMWAY_PLUGIN}" all "${preset}"
  helmway_ctest "C++ (ctest, ${preset})" "${preset}" "${log}"
  helmway_say "Python tests with jax ${HELMWAY_JAX} (${preset})"
  mapfile -t environment < <(settings "${preset}")
  code=0
  env "${environment[@]}" HELMWAY_TEST_PATIENCE=4 HELMWAY_PJRT_PLUGIN="${HELMWAY_PLUGIN}" \
    HELMWAY_FAKE_GCS_SERVER="${HELMWAY_FAKE_GCS_SERVER}" \
    HELMWAY_BINARY="${HELMWAY_ROOT}/build/${preset}/helmway/apps/helmway" \
    "${HELMWAY_VENV}/bin/python" -m pytest "${HELMWAY_ROOT}/tests" -o timeout=2400 "$@" 2>&1 | tee "${log}" || code=$?
  helmway_record "jax ${HELMWAY_JAX} (pytest, ${preset})" "${code}" "$(tail -n 1 "${log}" | tr -d =)"
done
helmway_end
