# The only commands that are needed. `make help` lists them.

PYTHON ?= $(shell scripts/find-python 3.11 || scripts/find-python 3.12 || scripts/find-python 3.13 || echo python3)
BIN := .venv/bin
NATIVE := setup.py $(shell find rust \( -name target -o -path rust/fuzz \) -prune -o \( -name '*.rs' -o -name 'Cargo.*' -o -path 'rust/profile/*' \) -print)
OTHER_PYTHONS := 3.12 3.13
PYTHONS := 3.11 $(OTHER_PYTHONS)
EXTRA := dev

# Tests start hundreds of processes, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install serve serve-llm wheels test test-native-ready test-native test-python-ready test-pythons-ready test-python test-pythons test-oldest check check-python check-native format fuzz mutants profile bench docs clean

help: ## Show the commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: .venv/.installed ## Build .venv with everything: the package, its extras, and what tests need.

.venv/.installed: pyproject.toml constraints.txt $(NATIVE)
	@scripts/system-packages
	@scripts/make-venv .venv "$(PYTHON)" $(EXTRA)
	@touch $@

serve: install ## Serve the example policy on http://127.0.0.1:8080, on the embedded store, behind the front door.
	@$(BIN)/headgate serve examples/shop.yaml --threads 2 $(ARGS)

serve-llm: install ## Serve a proxy of language models with an example provider on http://127.0.0.1:8081.
	@$(BIN)/headgate llm serve --example $(ARGS)

wheels: $(PYTHONS:%=dist/.wheel-%) ## Build what users install without a compiler: a wheel for each Python, in dist/.
	@for summary in $^; do test ! -f $$summary || cat $$summary; done

dist/.wheel-%: pyproject.toml README.md $(NATIVE) $(shell find src -name '*.egg-info' -prune -o -name __pycache__ -prune -o -type f ! -name '*.so' -print)
	@scripts/system-packages
	@scripts/build-wheels $*

# The native core's own tests mostly wait, so they run in parallel.
test: install ## Run all tests, on every Python that is at hand.
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-native test-pythons
	@$(MAKE) --no-print-directory test-python

test-python-ready: install
	@scripts/system-packages test
	@scripts/older-fastapi $(BIN)/python
	@scripts/envoy $(BIN)/python

test-pythons-ready: install
	@scripts/system-packages test
	@scripts/other-pythons $(OTHER_PYTHONS)

# These tests run once, for seconds: to optimize their programs takes minutes more than it saves. Cargo does not use the
# job server of this make.
TEST_NATIVE = env -u MAKEFLAGS -u MFLAGS CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_TARGET_DIR=rust/target/tests \
    cargo test --quiet --release --manifest-path rust/Cargo.toml \
    $(addprefix --package headgate-,core logs policy answers server checks redis)

test-native-ready: install
	@if command -v cargo >/dev/null; then $(TEST_NATIVE) --no-run; fi

test-native: install
	@if command -v cargo >/dev/null; then $(TEST_NATIVE); \
	else echo "no Rust toolchain: the native core's own tests are left out"; fi

test-python: test-python-ready
	@$(BIN)/pytest --quiet -n 2 tests/unit tests/laws
	@# These tests have deadlines of milliseconds on any machine: a test that fails is repeated up to twice, and reported.
	@$(BIN)/pytest --quiet -n 4 --dist loadfile --no-loadscope-reorder --reruns 2 -rR tests/integration

test-pythons: test-pythons-ready
	@scripts/test-with $(OTHER_PYTHONS)

test-oldest: install ## Run the tests with the oldest version of each library that Headgate works with.
	@scripts/system-packages test
	@scripts/oldest-versions

check: install ## Check format, lint and types, of Python and Rust.
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target check-python check-native

check-python: install
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/pyright --warnings

check-native: install
	@if command -v cargo >/dev/null; then \
	    cargo fmt --check --manifest-path rust/Cargo.toml --all && \
	    cargo fmt --check --manifest-path rust/fuzz/Cargo.toml && \
	    env -u MAKEFLAGS -u MFLAGS cargo clippy --quiet --release --manifest-path rust/Cargo.toml --all-targets -- -D warnings && \
	    $(BIN)/stubtest headgate._native && scripts/third-party --check && \
	    $(BIN)/python scripts/check-profile; fi

format: install ## Bring the code into its form.
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .
	@if command -v cargo >/dev/null; then \
	    cargo fmt --manifest-path rust/Cargo.toml --all; cargo fmt --manifest-path rust/fuzz/Cargo.toml; fi

fuzz: ## Fuzz the parsers and the gate with cargo-fuzz, guided by coverage: a minute each, or ARGS="--seconds 600 head".
	@$(PYTHON) scripts/fuzz $(ARGS)

mutants: install ## Change the code that decides, a piece at a time, and list the changes that no test notices.
	@HEADGATE_CORE=python HEADGATE_TOPOLOGIES= HEADGATE_LAWS=mutants $(BIN)/mutmut run $(ARGS)
	@$(BIN)/mutmut results
	@$(BIN)/mutmut results --all true | sed -nE 's/^ +(headgate[^:]*)\.[^.:]*: (.*)$$/\1: \2/p' | sort | uniq -c

profile: install ## Learn the hot paths of the native core anew, for builds by this compiler; about four minutes.
	@scripts/profile-native

bench: install ## Measure speed and memory against peers; writes docs/benchmarks.md.
	@scripts/system-packages bench
	@$(BIN)/python -m benchmarks $(ARGS)

docs: install ## Draw the pictures of the docs.
	@$(BIN)/python docs/pictures.py

clean: ## Remove what was built.
	@rm -rf .venv .venv-* .peer-* rust/target rust/fuzz/target rust/fuzz/corpus rust/fuzz/artifacts build dist src/headgate/_native*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants
