# `make demo` and `make test` set everything up by themselves; `make help` lists the rest.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
BUILD  ?= dev
CORE   := $(VENV)/.core-$(BUILD)

.DEFAULT_GOAL := help
.PHONY: help
help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

# The environment: made once, made again when the requirements change.
$(VENV)/.ready: pyproject.toml
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing the development requirements into $(VENV)"
	@$(PY) -m pip install -q --disable-pip-version-check -U pip setuptools "cython>=3.1,<4"
	@JSCLIENT_BUILD=release $(PY) -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@touch $@

# The compiled core: built in place when a source changed.
$(CORE): $(VENV)/.ready setup.py $(wildcard csrc/*)
	@echo "compiling the core ($(BUILD))"
	@JSCLIENT_BUILD=$(BUILD) $(PY) setup.py -q build_ext --inplace --force
	@rm -f $(VENV)/.core-*
	@touch $@

.PHONY: build
build: $(CORE)  ## compile the core in place (BUILD=release|dev|debug|trace|sanitize)
