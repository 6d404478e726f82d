# Each command installs what it needs into .venv:
#   make demo          grade an example softmax kernel on the best device and sandbox available
#   make demo-server   serve leaderboards of example data, and grade ten submissions
#   make test          check format, lint, types and import rules, and run the tests
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo demo-server test clean

BIN := .venv/bin
COMMA := ,
# Tests run in parallel, and beside mypy, except on a machine with a GPU, where they could disturb
# timings. Many wait for other processes, so there are more of them than cores.
PROCESSES := $(shell echo $$(( $$(env -u OMP_NUM_THREADS nproc) * 2 )))
PARALLEL := --numprocesses $(PROCESSES) --maxprocesses 8 --dist loadscope --no-loadscope-reorder
# A machine with an NVIDIA GPU also needs the CUDA bindings.
GPU := $(if $(wildcard /dev/nvidia0),gpu)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt --editable

demo: .venv/.installed
	$(BIN)/grade practice problems/softmax submissions/softmax/accepted/triton_softmax.py

demo-server: .venv/.installed-server
	$(BIN)/python -m scripts.demo_server

# Tests start more than a thousand processes, which would each compile the package again.
test: export PYTHONDONTWRITEBYTECODE :=
test: .venv/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	types=; $(BIN)/mypy $(if $(GPU),;,& types=$$!;) \
	$(BIN)/pytest --durations 15 $(if $(GPU),,$(PARALLEL)) && wait $$types

clean:
	rm -rf .venv .venv-* build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing grade into .venv. The first installation takes minutes: PyTorch is large."
	$(INSTALL) '.$(GPU:%=[%])'
	@touch $@

.venv/.installed-server: .venv/.installed
	$(INSTALL) '.[server$(GPU:%=$(COMMA)%)]'
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(INSTALL) '.[dev$(GPU:%=$(COMMA)%)]'
	@touch $@

.venv/bin/python:
	@for python in $${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    "$$python" -m venv .venv && exit 0; \
	    rm -rf .venv; \
	    echo "$$python cannot create a virtual environment." \
	        "On Debian or Ubuntu: apt-get install python3-venv" >&2; \
	    exit 1; \
	done; \
	echo "grade needs Python 3.11 or newer, and none was found." \
	    "Install it, or give its path: make demo PYTHON=/path/to/python3.11" >&2; \
	exit 1
