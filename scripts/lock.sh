#!/bin/sh
# Writes the lock files anew from pyproject.toml and the package.json files. The newest versions: scripts/lock.sh --upgrade.
set -eu

command -v uv >/dev/null 2>&1 || {
    echo "make lock needs uv: install it, for instance with pip install uv." >&2
    exit 1
}
compile() { uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header "$@"; }

compile pyproject.toml --extra models --group build --group demo --group test --group lint -o requirements.lock ${1:-}
compile --group pyproject.toml:mcp1 -o requirements-mcp1.lock ${1:-}
for folder in tools tests/servers demo; do
    # Without addresses: whoever installs uses the registry that his own npm is set to.
    (cd "$folder" && npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund --loglevel=error)
done
