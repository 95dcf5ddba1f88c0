# Every target sets up what it needs in .venv; nothing here wants a GPU, a driver or nvcc but gpu-test and bench.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
ARGS   ?=

.PHONY: help demo test lint compile-all gpu-test bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo         a fused GEMM checked and timed here, then planned and compiled for a Hopper GPU"
	@echo "make test         every test that this machine can run (GPU tests are skipped without a GPU)"
	@echo "make lint         ruff and mypy"
	@echo "make compile-all  every kernel configuration for every architecture, with what its SASS holds"
	@echo "make gpu-test     the tests that need a GPU"
	@echo "make bench        the benchmark suites (needs a GPU); writes benchmarks/results/"
	@echo "make clean        removes .venv and build outputs"
	@echo "PYTHON=python3.12 chooses the interpreter for .venv; ARGS=... is passed on to the tool that runs."

# The stamps make a second run quick: pip runs again only when what it would install has changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "cutegemm needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "== set-up: a virtual environment in $(VENV) with cutegemm and its dependencies (a few minutes, once)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[cutlass-cpp,test]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "== set-up: ruff and mypy"
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed
	@echo "== demo: gemm with a fused epilogue on this machine, and the same kernel built for sm_90a"
	@$(VENV)/bin/cutegemm demo $(ARGS)

test: $(VENV)/.installed
	@echo "== test: unit and compile tests; GPU tests where there is a GPU"
	@$(PY) -m pytest -n 2 --dist worksteal $(ARGS)

gpu-test: $(VENV)/.installed
	@echo "== gpu-test: the tests marked gpu"
	@$(PY) -m pytest -m gpu $(ARGS)

# mypy does not follow a package-dir mapping: it is shown the packages as they import, through links.
TYPES := build/types
lint: $(VENV)/.installed-dev
	@echo "== lint: ruff, then mypy over cutegemm with its mapped folders, benchmarks and tools"
	@$(PY) -m ruff check .
	@rm -rf $(TYPES) && mkdir -p $(TYPES)/cutegemm
	@ln -s $(addprefix $(CURDIR)/,benchmarks tests tools) $(TYPES)
	@ln -s $(CURDIR)/cutegemm/* $(addprefix $(CURDIR)/,epilogues hand_kernels) $(TYPES)/cutegemm
	@cd $(TYPES) && $(CURDIR)/$(PY) -m mypy --config-file $(CURDIR)/pyproject.toml \
	  -p cutegemm -p benchmarks -p tools $(ARGS)

compile-all: $(VENV)/.installed
	@echo "== compile-all: every kernel configuration for every architecture"
	@$(PY) -m tools.compile_all $(ARGS)

bench: $(VENV)/.installed
	@echo "== bench: the suites in benchmarks/suites, results to benchmarks/results"
	@$(PY) -m benchmarks.run $(ARGS)

clean:
	@echo "== clean: $(VENV), build outputs and caches"
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
