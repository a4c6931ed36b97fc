# Everything here sets up its own virtual environment first. Needs Python 3.11 with venv and headers, g++ and make.
#   make demo      build the bundled model's engine and generate text with it
#   make test      all tests; sets up a real tritonserver for them too, in .venv-triton
#   make test-avx2, test-scalar   the tests that computing matters to, as on a processor that has no more than that
#   make triton-serve REPO=DIR   that tritonserver, on the model repository DIR; TRITON_ARGS='...' are its own options
#   make test-lowest   tests of running and serving, with the oldest versions of packages that pyproject.toml allows
#   make check     linters, types, format and the fast tests
#   make sanitize  the C++ tests under AddressSanitizer, UBSan and ThreadSanitizer
PYTHON ?= python3
VENV ?= .venv
# Where tests/runtime/serving/tritonserver finds a server. A place of its own: its embedded Python needs numpy 1.
TRITON_VENV ?= .venv-triton
TRITON_SPEC ?= nvidia-pytriton==0.7.0
BIN := $(VENV)/bin
# On a machine with the public PyPI, PIP_TORCH_ARGS='--index-url https://download.pytorch.org/whl/cpu' takes the CPU
# build of torch; without it pip takes the one with several GB of CUDA libraries, which works as well.
TORCH_SPEC ?= torch==2.13.0
PIP_TORCH_ARGS ?=
# Two workers; each test file stays on one, so that its fixtures are made once.
PYTEST_ARGS ?= -n 2 --dist loadfile
# What the tests of the other targets need, about 600 MB. GPU_EXTRAS= leaves it out, and those tests are skipped with the reason.
GPU_EXTRAS ?= onnx,gpu,tensorrt-rtx
comma := ,
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
NATIVE := $(shell find runtime plugins -name '*.cc' -o -name '*.h' 2>/dev/null)
TRITON_PIP := $(TRITON_VENV)/bin/python -m pip --disable-pip-version-check
define TRITON_NEEDS
import tomllib
project = tomllib.load(open('pyproject.toml', 'rb'))['project']
print('numpy<2', *project['dependencies'], *project['optional-dependencies']['guided'], sep=chr(10))
endef
export TRITON_NEEDS
# mypy looks for packages in folders, and here they are folders only once installed: show it the same as links.
TYPED := build/typed/tensorwright
ROOMS := engine_format models ir plugins passes builder runtime
CPP_FILES = $(shell git ls-files '*.cc' '*.h')

export TENSORWRIGHT_TRITON_VENV := $(abspath $(TRITON_VENV))

.PHONY: help setup triton-venv triton-serve demo test test-avx2 test-scalar test-lowest check lint fast-tests sanitize clean
help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)/.installed

$(VENV)/.packages: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@echo "== Setting up $(VENV): torch, transformers and the tools (about 1 GB, some minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --disable-pip-version-check install -q --no-deps $(PIP_TORCH_ARGS) $(TORCH_SPEC)
	@$(PIP) scikit-build-core nanobind cmake ninja
	@$(if $(findstring tensorrt-rtx,$(GPU_EXTRAS)),$(PIP) 'tensorrt-rtx-cu13>=1.7$(comma)<2')
	@touch $@

$(VENV)/.installed: $(VENV)/.packages CMakeLists.txt $(NATIVE)
	@echo "== Compiling the runtime and installing tensorwright into $(VENV) (a minute or two)"
	@$(PIP) --no-build-isolation -e '.[build,serve,$(if $(GPU_EXTRAS),$(GPU_EXTRAS)$(comma))dev]'
	@touch $@

triton-venv: $(TRITON_VENV)/.installed

# The wheel cannot be had everywhere: then tests/runtime/serving/tritonserver is skipped with what pip said. The second
# tensorwright is compiled by the first one's tools in the same build folder, so nothing is compiled again.
$(TRITON_VENV)/.installed: $(VENV)/.installed
	@echo "== Setting up $(TRITON_VENV): tritonserver (55 MB) for its tests"
	@test -x $(TRITON_VENV)/bin/python || $(BIN)/python -m venv $(TRITON_VENV)
	@rm -f $(TRITON_VENV)/unavailable
	@$(TRITON_PIP) download -q --no-deps -d $(TRITON_VENV)/wheels $(TRITON_SPEC) 2> $(TRITON_VENV)/pip.log || \
	  { grep ERROR $(TRITON_VENV)/pip.log | tail -n 1 > $(TRITON_VENV)/unavailable; \
	    echo "   its tests will be skipped, no tritonserver: $$(cat $(TRITON_VENV)/unavailable)"; }
	@test -f $(TRITON_VENV)/unavailable || { \
	  grep -v '^numpy==' constraints.txt > $(TRITON_VENV)/constraints.txt && \
	  $(BIN)/python -c "$$TRITON_NEEDS" > $(TRITON_VENV)/requirements.txt && \
	  $(TRITON_PIP) install -q -c $(TRITON_VENV)/constraints.txt -r $(TRITON_VENV)/requirements.txt && \
	  $(BIN)/python -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation --ignore-installed \
	    --prefix $(TRITON_VENV) -e . && \
	  $(TRITON_PIP) install -q --no-deps $(TRITON_VENV)/wheels/*.whl && touch $@; }

ifneq ($(filter triton-serve,$(MAKECMDGOALS)),)
ifeq ($(REPO),)
$(error make triton-serve needs REPO=DIR, a model repository that 'tensorwright triton-repo ENGINE DIR' wrote)
endif
endif
TRITON_ARGS ?=
triton-serve: triton-venv
	@$(BIN)/python -P -m tensorwright.runtime.serving.triton.wheel_server $(TRITON_VENV) '$(REPO)' $(TRITON_ARGS)

demo: setup
	@test -f out/pico/config.json || $(BIN)/build-engine models/pico out/pico
	@echo
	@echo "== tensorwright run out/pico --prompt 'def read_file(' --max-tokens 64"
	@$(BIN)/tensorwright run out/pico --prompt 'def read_file(' --max-tokens 64 --echo --stats
	@echo
	@echo "== Where to go next (first: source $(BIN)/activate)"
	@echo "   tensorwright inspect out/pico             what was built: passes, sizes, accuracy, kernels"
	@echo "   tensorwright run out/pico --prompt '...'  your own prompt; see --help"
	@echo "   build-engine MODEL_DIR out/mine           your own model: any Hugging Face directory"
	@echo "   make test                                 all tests"

test: setup triton-venv
	OMP_NUM_THREADS=1 $(BIN)/pytest -q $(PYTEST_ARGS)

# What runs kernels by way of the dispatch. The pico model would take the scalar kernels minutes.
ISA_TESTS = tests/plugins tests/runtime tests/end_to_end/test_attention_sinks.py tests/end_to_end/test_families.py
test-avx2: ISA_TESTS += $(addprefix tests/end_to_end/test_,$(addsuffix .py,batch_invariance llm_pico parity_bfloat16 \
	parity_float32 quantized))

# As on a processor that has no more than that.
test-avx2: WITHOUT = avx512
test-scalar: WITHOUT = avx2
test-avx2 test-scalar: setup
	TENSORWRIGHT_CPU_WITHOUT=$(WITHOUT) OMP_NUM_THREADS=1 $(BIN)/pytest -q $(PYTEST_ARGS) $(ISA_TESTS) \
		--ignore tests/plugins/test_isa_files.py -m 'not slow' -k 'not 100_prompts and not mutation'

# The oldest versions that pyproject.toml allows, in a place of their own without torch: the engines are built before. The second
# tensorwright is compiled by the first one's tools in the same build folder, so nothing is compiled again.
LOWEST_VENV ?= .venv-lowest
LOWEST_ENGINES := $(abspath build/lowest-engines)
LOWEST_TESTS = tests/models/test_safetensors_file.py tests/runtime/api/test_chat.py tests/runtime/api/test_llm.py \
	tests/runtime/api/test_llm_failures.py tests/runtime/api/test_llm_streaming.py \
	tests/runtime/engine/test_engine_dir.py tests/runtime/engine/test_engine_swap.py \
	tests/runtime/guided/test_decoding.py tests/runtime/guided/test_generation.py \
	tests/runtime/serving/server/api tests/runtime/serving/server/test_app.py \
	tests/runtime/serving/server/test_server_guards.py \
	tests/runtime/text/test_detokenizer.py tests/runtime/text/test_special_tokens.py
LOWEST_TOOLS = pytest pytest-timeout pytest-xdist hypothesis openai jsonschema

$(LOWEST_VENV)/.installed: $(VENV)/.installed tests/support/lowest_versions.py
	@echo "== Setting up $(LOWEST_VENV) for the oldest versions"
	@test -x $(LOWEST_VENV)/bin/python || $(BIN)/python -m venv $(LOWEST_VENV)
	@$(BIN)/python tests/support/lowest_versions.py > $(LOWEST_VENV)/lowest.txt
	@$(BIN)/python tests/support/lowest_versions.py --beside constraints.txt > $(LOWEST_VENV)/constraints.txt
	@$(LOWEST_VENV)/bin/python -m pip --disable-pip-version-check install -q -c $(LOWEST_VENV)/constraints.txt \
	  -r $(LOWEST_VENV)/lowest.txt $(LOWEST_TOOLS)
	@$(BIN)/python -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation --ignore-installed \
	  --prefix $(LOWEST_VENV) -e .
	@touch $@

test-lowest: $(LOWEST_VENV)/.installed
	@for dtype in float32 bfloat16; do test -d $(LOWEST_ENGINES)/pico-$$dtype-auto-cpu || \
	  $(BIN)/build-engine models/pico $(LOWEST_ENGINES)/pico-$$dtype-auto-cpu --dtype $$dtype --accuracy none; done
	TENSORWRIGHT_TEST_ENGINES=$(LOWEST_ENGINES) OMP_NUM_THREADS=1 $(LOWEST_VENV)/bin/python -m pytest -q $(PYTEST_ARGS) \
	  $(LOWEST_TESTS)

check: lint fast-tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p $(TYPED)
	@ln -sfn $(addprefix $(CURDIR)/,$(wildcard src/tensorwright/*.py) src/tensorwright/options $(ROOMS)) $(TYPED)
	cd build/typed && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml -p tensorwright
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)

fast-tests: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -q $(PYTEST_ARGS) -m 'not slow'

# Debug keeps the asserts that Release drops; -O1 keeps it bearable. Threads are only in these tests.
SANITIZED = -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=-O1 \
	-DTENSORWRIGHT_TESTS=ON -DTENSORWRIGHT_PYTHON=OFF
THREADED_TESTS = populate_test scheduler_test engine_test engine_faults_test thread_team_test executor_test token_masks_test \
	guided_engine_test

sanitize: setup
	$(BIN)/cmake -S . -B build/asan $(SANITIZED) -DTENSORWRIGHT_SANITIZE=address,undefined
	$(BIN)/cmake --build build/asan
	$(BIN)/ctest --test-dir build/asan --output-on-failure --no-tests=error
	$(BIN)/cmake -S . -B build/tsan $(SANITIZED) -DTENSORWRIGHT_SANITIZE=thread
	$(BIN)/cmake --build build/tsan --target $(THREADED_TESTS)
	$(BIN)/ctest --test-dir build/tsan --output-on-failure --no-tests=error \
		-R '^($(shell echo $(THREADED_TESTS) | tr ' ' '|'))$$'

clean:
	rm -rf build out $(VENV) $(TRITON_VENV) $(LOWEST_VENV)
