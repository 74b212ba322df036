#!/bin/sh
# python_env.sh FOLDER LOCK [project]: a virtual environment with exactly what LOCK says, and with `project` Toolbay itself (editable).
set -eu

folder=$1
lock=$2
python=$(sh scripts/find_python.sh)
echo "== set-up: $folder from $lock"

if command -v uv >/dev/null 2>&1; then
    "$folder/bin/python" -c "" 2>/dev/null || { rm -rf "$folder" && uv venv --quiet --python "$python" "$folder"; }
    install() { uv pip install --quiet --python "$folder/bin/python" "$@"; }
else
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$python has no venv module: install it (on Debian and Ubuntu: apt-get install python3-venv), or install uv." >&2
        exit 1
    fi
    # An environment that uv made has no pip, and one whose Python is gone does not start: both are made anew.
    "$folder/bin/python" -c 'import pip' 2>/dev/null || "$python" -m venv --clear "$folder"
    install() { "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"; }
fi

install --require-hashes -r "$lock"
if [ "${3:-}" = project ]; then
    # The builder comes from the lock as well, so nothing is resolved here.
    install --no-deps --no-build-isolation --editable .
fi
touch "$folder/.stamp"
