# Sourced by demo.sh and test.sh: a Python environment with the package in it.
#
#   use_environment SET EXTRAS [FOLDER]
#       makes an environment in FOLDER (.venv in the checkout) unless a virtual environment is
#       active; installs the package with OpenMMLab's SET (onedl or openmmlab) and the EXTRAS
#       (a list with blanks); sets $PYTHON.
#
# An OpenMMLab that the environment has already is left as it is, whichever it is. What has been
# installed is noted in the environment, so that a second run starts at once.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

use_environment() {
    local set=$1 extras=$2 venv=${VIRTUAL_ENV:-${3:-$ROOT/.venv}}
    if [ ! -x "$venv/bin/python" ]; then
        "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
            echo 'error: Python 3.10 or newer is needed; name it with PYTHON=/path/to/python' >&2
            return 2
        }
        echo "Making a virtual environment in $venv"
        "${PYTHON:-python3}" -m venv "$venv" || {
            echo 'error: no virtual environment could be made (on Debian: apt install python3-venv)' >&2
            return 2
        }
    fi
    PYTHON=$venv/bin/python

    local there
    there=$(PYTHONPATH=$ROOT "$PYTHON" -c \
        'from mmspatial.compat.distributions import installed_set; print(installed_set())')
    case "$there" in
        none | "$set") extras="$set $extras" ;;
        *) echo "Keeping the OpenMMLab distributions that are in $venv ($there)" ;;
    esac
    install_package "$venv/.mmspatial" $extras
}

install_package() { # STAMP EXTRAS...
    local stamp=$1 source extra missing='' list
    shift
    source="$ROOT $(cksum <"$ROOT/setup.py")"
    if [ "$(head -n 1 "$stamp" 2>/dev/null)" = "$source" ]; then
        for extra in "$@"; do
            grep -qx "$extra" "$stamp" || missing=yes
        done
        [ -n "$missing" ] || return 0
    fi
    list=$(IFS=,; echo "$*")
    echo "Installing mmspatial${list:+[$list]} (a few minutes the first time)"
    "$PYTHON" -m pip install --quiet --editable "$ROOT${list:+[$list]}" || {
        echo "error: the installation failed; pip's message is above" >&2
        return 2
    }
    if [ "$(head -n 1 "$stamp" 2>/dev/null)" != "$source" ]; then
        printf '%s\n' "$source" >"$stamp"
    fi
    printf '%s\n' "$@" >>"$stamp"
}
