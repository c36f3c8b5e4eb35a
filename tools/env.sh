# Sourced by demo.sh and test.sh: a Python environment with the package in it.
#
#   use_environment EXTRAS [FOLDER]   makes an environment in FOLDER (.venv in the checkout)
#                                     unless a virtual environment is active, installs the
#                                     package with the extras, and sets $PYTHON.
#
# An OpenMMLab that the environment has already is left as it is. What is installed is noted in
# the environment, so that a second run starts at once.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

use_environment() {
    local extras=$1 venv stamp want
    if [ -n "${VIRTUAL_ENV:-}" ]; then
        venv=$VIRTUAL_ENV
    else
        venv=${2:-$ROOT/.venv}
        if [ ! -x "$venv/bin/python" ]; then
            "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
                echo "error: Python 3.10 or newer is needed; name it with PYTHON=/path/to/python" >&2
                return 2
            }
            echo "Making a virtual environment in $venv"
            "${PYTHON:-python3}" -m venv "$venv" || {
                echo "error: no virtual environment could be made (on Debian: apt install python3-venv)" >&2
                return 2
            }
        fi
    fi
    PYTHON=$venv/bin/python

    if "$PYTHON" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("mmengine") is None)' \
        && [ ! -f "$venv/.mmspatial" ]; then
        extras=$(printf %s "$extras" | sed -E 's/(onedl|openmmlab),?//; s/,$//')
    fi
    stamp=$venv/.mmspatial
    want="$ROOT $extras $(cksum <"$ROOT/setup.py")"
    if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
        echo "Installing mmspatial[$extras] (a few minutes the first time)"
        "$PYTHON" -m pip install --quiet --editable "$ROOT[$extras]" || {
            echo "error: the installation failed; pip's message is above" >&2
            return 2
        }
        printf '%s\n' "$want" >"$stamp"
    fi
}
