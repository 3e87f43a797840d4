#!/usr/bin/env bash
# Sets everything up and trains the example on eight virtual devices behind a Helmway server. Arguments go to the
# example: scripts/demo.sh --epochs 20
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

helmway_setup
helmway_say "helmway up --devices 8 -- python examples/train_digits.py $*"
exec "${HELMWAY_VENV}/bin/helmway" up --devices 8 -- \
  "${HELMWAY_VENV}/bin/python" "${HELMWAY_ROOT}/examples/train_digits.py" "$@"
