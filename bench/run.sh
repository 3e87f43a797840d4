#!/usr/bin/env bash
# Measures Helmway beside its yardsticks and prints ratios.
#
#   bench/run.sh [--rounds FACTOR] [--without-helmway] [NAME ...]     names: a to n, reshard, callback
#
# HELMWAY_BINARY        the server            (build/release/helmway/apps/helmway)
# HELMWAY_BENCH_BUILD   grpc_echo, null_server, store_io, stub_cluster (build/release/bench)
# HELMWAY_BENCH_PYTHON  a Python with jax, flax, optax and pathwaysutils (.venv/bin/python)
# HELMWAY_FAKE_GCS_SERVER  the Cloud Storage emulator, for its rows in (m) and (n); left out without it
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${HELMWAY_BENCH_PYTHON:-$here/../.venv/bin/python}"
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
exec "$python" "$here/run.py" "$@"
