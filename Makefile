# `make demo` and `make test` are all a newcomer needs; both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test bench lint lock

demo: .venv/ready
	$(BIN)/mucola demo

test: .venv/ready
	$(BIN)/python -m pytest $(TESTS)

# A few minutes; BENCH=step for one of them, OPTIONS=--full for the real thing.
bench: .venv/ready
	$(BIN)/python -m benchmarks $(or $(BENCH),all) $(OPTIONS)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The marker is written last, so an interrupted installation is taken up again, and a changed
# lock file or pyproject.toml installs what is new.
.venv/ready: requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "mucola needs Python 3.10 or newer; none was found as '$(PYTHON)'." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "mucola needs Python 3.10 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "Setting up .venv (once; a few minutes) ..."
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev]'
	@touch $@

# Resolve anew for all supported Pythons. The file is used as pip constraints: it pins, it adds nothing.
lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.10 --no-header --no-annotate --no-emit-index-url --output-file requirements.lock
