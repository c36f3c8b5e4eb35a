#!/usr/bin/env bash
# Install what the tests need, check the style, run the tests.
#
#   bash tools/test.sh [--openmmlab] [pytest's arguments]
#
# --openmmlab takes upstream's distributions instead of the OneDL forks, in .venv-openmmlab, unless
# an environment is active: its OpenMMLab is the one that is tested.
set -euo pipefail
# shellcheck source=tools/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

set=onedl folder=
if [ "${1:-}" = --openmmlab ]; then
    shift
    set=openmmlab folder=$ROOT/.venv-openmmlab
fi
use_environment "$set" test "$folder"
cd "$ROOT"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
exec "$PYTHON" -m pytest "$@"
