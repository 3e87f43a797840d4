# Steps that scripts/demo.sh, scripts/test.sh and scripts/sanitize.sh share: system packages, Python environments, the
# build, the closing lines.
# Run as a program it does everything that the demo needs, and with `all` builds the tests too. Every step may be
# repeated, and does nothing if its result is there.
set -euo pipefail

HELMWAY_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
HELMWAY_BINARY_PATH="${HELMWAY_ROOT}/build/release/helmway/apps/helmway"
HELMWAY_REQUIREMENTS="${HELMWAY_ROOT}/scripts/requirements"

# Supported jax versions, newest first, each with the Pythons to use for it, best first. The versions differ in
# their first choice so that a machine with several Pythons tests with several.
HELMWAY_JAX_VERSIONS=(0.12.0.1 0.11.2 0.10.2)
declare -A HELMWAY_PYTHONS_FOR=(
  [0.12.0.1]="3.13 3.12"
  [0.11.2]="3.12 3.13"
  [0.10.2]="3.11 3.12 3.13"
)

HELMWAY_APT_BUILD=(cmake ninja-build g++ pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler
  protobuf-compiler-grpc libabsl-dev libgoogle-glog-dev libgtest-dev libgmock-dev python3-venv libpython3-dev
  libcurl4-openssl-dev libre2-dev libssl-dev nlohmann-json3-dev)
HELMWAY_APT_TEST=(clang-format clang-tidy)
# The emulator of Cloud Storage that tests run against (BSD licence), and the oldest Go that builds it.
HELMWAY_FAKE_GCS_VERSION=v1.52.3
HELMWAY_FAKE_GCS_GO=1.23

helmway_say() { printf '== %s\n' "$*" >&2; }
helmway_fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# helmway_system_packages NAME...: installs Debian packages that are missing, or says how.
helmway_system_packages() {
  if ! command -v dpkg >/dev/null; then
    helmway_say "not a Debian system: assuming that the equivalents of these are installed: $*"
    return
  fi
  local missing=() name
  for name in "$@"; do
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "${name}" 2>/dev/null)" == installed ]] || missing+=("${name}")
  done
  ((${#missing[@]})) || return 0
  local install=(apt-get install -y --no-install-recommends "${missing[@]}") become=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
      helmway_fail "system packages are missing. Install them and start again: sudo ${install[*]}"
    fi
    become=(sudo)
  fi
  helmway_say "installing ${missing[*]}"
  "${become[@]}" apt-get update -q >&2 || helmway_say "apt-get update failed; trying with the lists at hand"
  "${become[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" >&2 ||
    helmway_fail "these packages could not be installed: ${missing[*]}"
}

# helmway_find_python X.Y: prints the path of a CPython X.Y that runs and can make environments; fails if there is
# none. Commands found on PATH may be shims that refuse to run, so candidates are tried, and the places where
# version managers keep interpreters are searched too.
helmway_find_python() {
  local version="$1" candidate
  local check='
import sys, sysconfig, venv, ensurepip, ssl, zlib
wanted = tuple(map(int, sys.argv[1].split(".")))
if sys.version_info[:2] != wanted or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(1)
print(sys.executable)'
  while IFS= read -r candidate; do
    [[ -x "${candidate}" ]] && "${candidate}" -c "${check}" "${version}" 2>/dev/null && return 0
  done < <(
    type -ap "python${version}"
    type -ap python3
    compgen -G "${PYENV_ROOT:-${HOME}/.pyenv}/versions/${version}*/bin/python${version}"
    compgen -G "${UV_PYTHON_INSTALL_DIR:-${HOME}/.local/share/uv/python}/cpython-${version}*/bin/python${version}"
  )
  return 1
}

# helmway_python_for_jax VERSION: prints the interpreter to use with that jax; fails if there is none.
helmway_python_for_jax() {
  local python
  for python in ${HELMWAY_PYTHONS_FOR[$1]}; do
    helmway_find_python "${python}" && return 0
  done
  return 1
}

# helmway_choose_jax: prints the newest supported jax that the newest Python here can run, and that Python.
helmway_choose_jax() {
  local version python
  for version in "${HELMWAY_JAX_VERSIONS[@]}"; do
    if python="$(helmway_python_for_jax "${version}")"; then
      printf '%s %s\n' "${version}" "${python}"
      return 0
    fi
  done
  helmway_fail "no Python 3.11, 3.12 or 3.13 was found that can make environments (python3-venv on Debian)"
}

# helmway_once STAMP KEY COMMAND...: runs COMMAND unless STAMP says that it was done with the same KEY.
helmway_once() {
  local stamp="$1" key="$2"
  shift 2
  [[ -f "${stamp}" && "$(<"${stamp}")" == "${key}" ]] && return 0
  rm -f "${stamp}"
  "$@"
  printf '%s\n' "${key}" >"${stamp}"
}

helmway_hash() { cat "$@" | sha256sum | cut -d' ' -f1; }

# helmway_pip VENV ARGUMENTS...: pip of an environment.
helmway_pip() {
  local venv="$1"
  shift
  "${venv}/bin/python" -m pip --disable-pip-version-check "$@" >&2
}

_helmway_fill_venv() {
  local venv="$1" python="$2" jax="$3"
  helmway_say "environment ${venv##*/}: jax ${jax} on ${python}"
  rm -rf "${venv}"
  "${python}" -m venv "${venv}"
  # Every version is pinned in the lists, so there is nothing to resolve.
  helmway_pip "${venv}" install --quiet --no-deps -r "${HELMWAY_REQUIREMENTS}/jax-${jax}.txt" \
    -r "${HELMWAY_REQUIREMENTS}/build.txt"
  helmway_pip "${venv}" check
}

# helmway_venv VENV PYTHON JAX: an environment with that jax and everything the demo imports. Made anew if the
# requirements or the interpreter change.
helmway_venv() {
  local venv="$1" python="$2" jax="$3" key
  key="$(helmway_hash "${HELMWAY_REQUIREMENTS}/common.txt" "${HELMWAY_REQUIREMENTS}/build.txt" \
    "${HELMWAY_REQUIREMENTS}/jax-${jax}.txt") $("${python}" -c 'import sys; print(sys.executable, sys.version)')"
  helmway_once "${venv}/.stamp-jax" "${key//$'\n'/ }" _helmway_fill_venv "${venv}" "${python}" "${jax}"
}

# helmway_add VENV NAME: adds requirements/NAME.txt to an environment, as listed, without dependencies.
helmway_add() {
  local venv="$1" list="${HELMWAY_REQUIREMENTS}/$2.txt"
  helmway_once "${venv}/.stamp-$2" "$(helmway_hash "${list}")" \
    helmway_pip "${venv}" install --quiet --no-deps -r "${list}"
}

# helmway_plugin VENV: prints the path of the accelerator plugin in an environment.
helmway_plugin() {
  local plugin
  plugin="$(compgen -G "$1/lib/python3.*/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so")" ||
    helmway_fail "the plugin package in $1 holds no pjrt_c_api_cpu_plugin.so"
  printf '%s\n' "${plugin}"
}

# helmway_fake_gcs: builds the Cloud Storage emulator. Sets HELMWAY_FAKE_GCS_SERVER to the program, or, where it can't
# be built, to nothing and HELMWAY_FAKE_GCS_MISSING to the reason.
helmway_fake_gcs() {
  local name="github.com/fsouza/fake-gcs-server" have
  local folder="${HELMWAY_ROOT}/build/tools/fake-gcs-server-${HELMWAY_FAKE_GCS_VERSION}"
  HELMWAY_FAKE_GCS_SERVER=
  HELMWAY_FAKE_GCS_MISSING="they need Go ${HELMWAY_FAKE_GCS_GO} or later to build ${name}"
  if [[ ! -x "${folder}/fake-gcs-server" ]]; then
    have="$(go env GOVERSION 2>/dev/null)" || return 0
    [[ "$(printf '%s\n' "${HELMWAY_FAKE_GCS_GO}" "${have#go}" | sort -V | head -n 1)" == "${HELMWAY_FAKE_GCS_GO}" ]] ||
      return 0
    mkdir -p "${folder}"
    helmway_say "building the Cloud Storage emulator (fake-gcs-server ${HELMWAY_FAKE_GCS_VERSION})"
    HELMWAY_FAKE_GCS_MISSING="go install ${name} failed"
    GOBIN="${folder}" go install "${name}@${HELMWAY_FAKE_GCS_VERSION}" >&2 || return 0
  fi
  HELMWAY_FAKE_GCS_SERVER="${folder}/fake-gcs-server"
}

# helmway_build PLUGIN TARGET [PRESET]: the release build, or another; the C++ tests run with that plugin, and with the
# emulator that HELMWAY_FAKE_GCS_SERVER names, if any.
helmway_build() {
  local preset="${3:-release}"
  helmway_say "building (${preset}, ${2})"
  (
    cd "${HELMWAY_ROOT}"
    mkdir -p build
    # ccache, where there is one, serves every checkout of this repository.
    export CCACHE_BASEDIR="${HELMWAY_ROOT}" CCACHE_NOHASHDIR=1
    cmake --preset "${preset}" -DHELMWAY_PJRT_PLUGIN="$1" \
      -DHELMWAY_FAKE_GCS_SERVER="${HELMWAY_FAKE_GCS_SERVER:-}" >build/configure.log 2>&1 || {
      cat build/configure.log >&2
      exit 1
    }
    cmake --build --preset "${preset}" --target "$2" >&2
  ) || helmway_fail "the build failed"
}

# helmway_package VENV: installs python/helmway with the built binary into an environment.
helmway_package() {
  local venv="$1" key
  key="$(helmway_hash "${HELMWAY_BINARY_PATH}" "${HELMWAY_ROOT}"/python/*.* "${HELMWAY_ROOT}"/python/helmway/*.py)"
  helmway_once "${venv}/.stamp-helmway" "${key}" \
    helmway_pip "${venv}" install --quiet --no-deps --no-build-isolation --force-reinstall "${HELMWAY_ROOT}/python"
}

# helmway_setup: all that the demo needs. Sets HELMWAY_VENV (the environment), HELMWAY_JAX (its jax) and
# HELMWAY_PLUGIN (the accelerator plugin). TARGET of the build: helmway, or the argument.
helmway_setup() {
  local target="${1:-helmway}" python
  helmway_system_packages "${HELMWAY_APT_BUILD[@]}"
  read -r HELMWAY_JAX python < <(helmway_choose_jax) || exit 1
  HELMWAY_VENV="${HELMWAY_ROOT}/.venv"
  helmway_venv "${HELMWAY_VENV}" "${python}" "${HELMWAY_JAX}"
  helmway_add "${HELMWAY_VENV}" plugin
  HELMWAY_PLUGIN="$(helmway_plugin "${HELMWAY_VENV}")"
  helmway_build "${HELMWAY_PLUGIN}" "${target}"
  helmway_package "${HELMWAY_VENV}"
}

helmway_results=()  # one line per runner
helmway_failed=0

# helmway_record NAME CODE CLOSING_LINE: keeps a runner's verdict.
helmway_record() {
  local verdict=passed
  if (($2 != 0)); then
    verdict=FAILED
    helmway_failed=1
  fi
  helmway_results+=("${verdict}  $1: $3")
}

# helmway_ctest NAME PRESET LOG: runs the C++ tests and records the verdict.
helmway_ctest() {
  helmway_say "$1"
  local code=0
  (cd "${HELMWAY_ROOT}" && ctest --preset "$2" -j "$(nproc)" --no-tests=error) 2>&1 | tee "$3" || code=$?
  helmway_record "$1" "${code}" "$(grep -E 'tests (passed|failed)' "$3" | tail -n 1)"
}

# helmway_end: prints the verdicts and exits.
helmway_end() {
  helmway_say "results"
  printf '%s\n' "${helmway_results[@]}"
  exit "${helmway_failed}"
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  helmway_setup "$@"
  helmway_say "ready: ${HELMWAY_VENV}/bin/helmway, jax ${HELMWAY_JAX}"
fi
