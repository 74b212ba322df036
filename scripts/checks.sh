#!/bin/sh
# checks.sh [lint] [tests]: runs every step whatever the others say, then tells how each went. Fails if one failed.
set -u

bin=.venv/bin
summary=""
failed=0

note() { # note NAME RESULT
    summary="$summary
  $1: $2"
}

step() { # step NAME COMMAND...
    name=$1
    shift
    echo
    echo "== $name"
    if "$@"; then
        note "$name" passed
    else
        note "$name" "FAILED"
        failed=1
    fi
}

for part in "$@"; do
    case $part in
    lint)
        step "ruff format" "$bin/ruff" format --check .
        step "ruff check" "$bin/ruff" check .
        if [ -e tools/node_modules/.stamp ]; then
            step "pyright" node tools/node_modules/pyright/index.js
        else
            note "pyright" "NOT RUN, because Node.js 20 or newer is missing"
            # On a machine that only checks, a check left out is a failure.
            [ -z "${CI:-}" ] || failed=1
        fi
        # Its cache remembers a module that was not there yet as a name of the package, so it is not asked.
        step "lint-imports" "$bin/lint-imports" --no-cache
        ;;
    tests)
        step "pytest" "$bin/python" -m pytest
        ;;
    *)
        echo "checks.sh: unknown part '$part': use lint, tests" >&2
        exit 2
        ;;
    esac
done

echo
echo "== summary$summary"
exit $failed
