# make test   set up everything and run every check and test      make run    set up and show the demo
# make check  the checks without the tests                        make soak   a random walk over all faults, for minutes
# make lock   write the lock files anew
# make setup  only the set-up                                     make clean  remove what the set-up made
#
# Needs Python 3.11 or newer, and Node.js 20 or newer with npm. uv is used where it is installed; without it, venv and pip do the same.

.PHONY: test run check setup soak lock clean
.DELETE_ON_ERROR:

test: setup
	@sh scripts/checks.sh lint tests

check: .venv/.stamp tools/node_modules/.stamp
	@sh scripts/checks.sh lint

run: .venv/.stamp demo/node_modules/.stamp
	@.venv/bin/python demo/run.py

setup: .venv/.stamp .venv-mcp1/.stamp tools/node_modules/.stamp tests/servers/node_modules/.stamp demo/node_modules/.stamp

.venv/.stamp: requirements.lock pyproject.toml
	@sh scripts/python_env.sh .venv requirements.lock project

.venv-mcp1/.stamp: requirements-mcp1.lock
	@sh scripts/python_env.sh .venv-mcp1 requirements-mcp1.lock

%/node_modules/.stamp: %/package.json %/package-lock.json
	@sh scripts/node_env.sh $*

# SOAK_SECONDS: how long; SOAK_SEED: which walk (printed, to walk it again).
soak: setup
	@SOAK_SECONDS=$${SOAK_SECONDS:-180} .venv/bin/python -m pytest tests/faults/test_walk.py

lock:
	@sh scripts/lock.sh

clean:
	rm -rf .venv .venv-mcp1 tools/node_modules tests/servers/node_modules demo/node_modules build dist
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache .cache
	find src tests bench demo -name __pycache__ -type d -prune -exec rm -rf {} +
