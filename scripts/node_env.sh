#!/bin/sh
# node_env.sh FOLDER: the Node packages of FOLDER/package-lock.json. Without Node.js it says so and succeeds: what needs them is then skipped.
set -eu

folder=$1
if ! command -v npm >/dev/null 2>&1 || ! node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' 2>/dev/null; then
    echo "== set-up: $folder left out: Node.js 20 or newer with npm is missing"
    exit 0
fi
echo "== set-up: $folder from $folder/package-lock.json"
(cd "$folder" && npm ci --no-audit --no-fund --no-update-notifier --loglevel=error)
touch "$folder/node_modules/.stamp"
