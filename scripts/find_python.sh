#!/bin/sh
# Prints the path of a Python that is new enough. PYTHON=... in the environment is tried first.
set -eu

oldest="3.11"
for name in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14 python; do
    if path=$("$name" -c 'import sys; print(sys.executable) if sys.version_info >= (3, 11) else sys.exit(1)' 2>/dev/null); then
        echo "$path"
        exit 0
    fi
done
found=$(python3 --version 2>/dev/null || echo "no python3")
echo "Toolbay needs Python $oldest or newer and found $found: install it, or name one with PYTHON=/path/to/python3 make ..." >&2
exit 1
