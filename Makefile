# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test lint types sanitize bench bench-smoke scaling bench-scale crash audits tuning federation reproduce clean

help:
	@echo "make demo         train 200 clients on digits and write a page to look at"
	@echo "make test         lint, type check, tests, and whether speed was lost"
	@echo "make lint         ruff and basedpyright only"
	@echo "make sanitize     the compiled kernels' tests under the address and undefined-behaviour sanitizers"
	@echo "make bench        seconds a round beside pfl-research, Flower, Opacus and the machine's limit; about 25 minutes"
	@echo "make bench-smoke  three workloads beside a plain PyTorch loop, under a minute: fails on a loss of 30%"
	@echo "make scaling      time and memory against cohort, population, parameters, local steps, threads"
	@echo "make bench-scale  100,000 clients: memory and time a round"
	@echo "make federation   a real federation on loopback: parity, faults, hostile node, outsiders; about an hour"
	@echo "make notebooks    every tutorial and how-to as a notebook, executed, in build/notebooks"
	@echo "make reproduce    list the papers' tables and figures; NAME=fedhdp/mnist measures one again"
	@echo "make crash        kill a run at 20 random moments and resume it each time"
	@echo "make audits       attack whole runs, twelve honest and five with a planted fault"
	@echo "make tuning       what a private search costs and gains on MNIST"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,flower,hub,secagg]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/tacit demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.smoke

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

# The sanitizers come before Python, which was built without them, and with what torch throws its errors by. Python and
# torch leave memory to the system at exit: that is no leak.
SANITIZER = $(shell gcc -print-file-name=libasan.so) $(shell gcc -print-file-name=libstdc++.so)
KERNEL_TESTS = tests/compile/test_native.py tests/compile/test_native_bounds.py tests/compile/test_client_loop.py \
	tests/compile/test_compiled_passes.py tests/simulation/test_draws.py tests/privacy/mechanisms/test_keyed_normal.py
sanitize: $(STAMP)
	CC=gcc TACIT_SANITIZE=1 LD_PRELOAD="$(SANITIZER)" ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 \
		$(BIN)/pytest -p no:cacheprovider -q $(KERNEL_TESTS) -k "not built_once and not trusted"  # they build anew

bench: $(STAMP)
	$(BIN)/python -m benchmarks.speed

bench-smoke: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.smoke

scaling: $(STAMP)
	$(BIN)/python -m benchmarks.scaling

bench-scale: $(STAMP)
	$(BIN)/python -m benchmarks.scale

crash: $(STAMP)
	$(BIN)/python -m benchmarks.crash

audits: $(STAMP)
	$(BIN)/python -m benchmarks.audits

tuning: $(STAMP)
	$(BIN)/python -m benchmarks.tuning

federation: $(STAMP)
	$(BIN)/python -m benchmarks.federation.parity
	$(BIN)/python -m benchmarks.federation.parity --dtype float32
	$(BIN)/python -m benchmarks.federation.faults
	$(BIN)/python -m benchmarks.federation.orphans
	$(BIN)/python -m benchmarks.federation.hostile
	$(BIN)/python -m benchmarks.federation.hostile --plan distributed
	$(BIN)/python -m benchmarks.federation.invented
	$(BIN)/python -m benchmarks.federation.oracle
	$(BIN)/python -m benchmarks.federation.sizes
	$(BIN)/python -m benchmarks.federation.paths
	$(BIN)/python -m benchmarks.federation.outsider
	$(BIN)/python -m benchmarks.federation.restored --loopback
	$(BIN)/python -m benchmarks.federation.neighbour
	$(BIN)/python -m benchmarks.federation.quiet
	$(BIN)/python -m benchmarks.federation.page

notebooks: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks]'
	OMP_NUM_THREADS=1 $(BIN)/python docs/make_notebooks.py

reproduce: $(STAMP)
	$(BIN)/python -m papers $(if $(NAME),run $(NAME) $(ARGS),list)

clean:
	rm -rf $(VENV) runs
