# Three commands set everything up by themselves:
#   make demo          grade an example softmax kernel on the best device and sandbox found
#   make demo-server   serve a filled leaderboard, with ten submissions graded here
#   make test          format, lint, types, import rules, tests
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo demo-server test clean

BIN := .venv/bin
COMMA := ,
# Tests run beside each other, except where they might time something on one GPU.
BESIDE := --numprocesses auto --maxprocesses 8 --dist loadscope --no-loadscope-reorder
# A machine with an NVIDIA GPU needs the CUDA bindings besides.
GPU := $(if $(wildcard /dev/nvidia0),gpu)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt --editable

demo: .venv/.installed
	$(BIN)/grade practice problems/softmax submissions/softmax/accepted/triton_softmax.py

demo-server: .venv/.installed-server
	$(BIN)/python -m scripts.demo_server

test: .venv/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --durations 15 $(if $(GPU),,$(BESIDE))

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing grade into .venv. The first time takes some minutes: PyTorch is large."
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
	    echo "$$python cannot make a virtual environment." \
	        "On Debian or Ubuntu: apt-get install python3-venv" >&2; \
	    exit 1; \
	done; \
	echo "grade needs Python 3.11 or newer, and none was found." \
	    "Install it, or name one: make demo PYTHON=/path/to/python3.11" >&2; \
	exit 1
