# Everything here sets up its own virtual environment first. Needs Python 3.11 with venv and headers, g++ and make.
#   make demo      build the bundled model's engine and generate text with it
#   make check     linters, types, the tests that answer fastest, one build and one generation: about 3 minutes on 2 cores
#   make test      all tests; sets up a real tritonserver for them too, in .venv-triton
#   make test-avx2, test-scalar   the tests that compute, as on a processor that has no more than that
#   make test-wheel    tests of running and serving against the wheel, from another folder, in .venv-wheel
#   make test-lowest   the same tests, with the oldest versions of packages that pyproject.toml allows, in .venv-lowest
#   make test-clients  libraries of clients that do not go with constraints.txt, against the server
#   make test-oldest-build   every family with the oldest torch and transformers that pyproject.toml allows
#   make soak      a server under thousands of requests of every kind and under faults: half an hour; SOAK_ARGS are its options
#   make sanitize  the C++ tests under AddressSanitizer, UBSan and ThreadSanitizer
#   make test-arm64   the C++ core as compiled for aarch64, in qemu-aarch64; ARM64_ARGS='-k kernels' is the short part
#   make wheel     what a release publishes, in dist/: a wheel for each of WHEEL_PYTHONS, the sources, an SBOM, checksums
#   make wheel-arm64   wheels for aarch64 by a cross-compiler, in dist/: for each of WHEEL_ARM64_PYTHONS
#   make try-wheels    installs the wheels of dist/ elsewhere, runs and serves pico, links C; those of aarch64 in an emulator
#   make site      the pages of docs/ as a site, with the reference of the Python API, in build/site
#   make image     the image of `tensorwright serve` from the wheel in dist/, without Docker, in build/image
#   make lint      linters, types and format alone
#   make triton-serve REPO=DIR   that tritonserver, on the model repository DIR; TRITON_ARGS='...' are its own options
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
# Three workers for two cores, since some tests wait for processes and clocks. Each test file stays on one worker, so that its
# fixtures are made once (tests/conftest.py has the order).
PYTEST_ARGS ?= -n 3 --dist loadfile
DURATIONS ?= --durations=30 --durations-min=2
# What the tests of the other targets need, about 600 MB. GPU_EXTRAS= leaves it out, and those tests are skipped with the reason.
GPU_EXTRAS ?= onnx,gpu,tensorrt-rtx
comma := ,
# pip compiles all modules to bytecode: where PYTHONDONTWRITEBYTECODE is set nobody else would, and each process that imports
# torch would take seconds more.
INSTALL := --disable-pip-version-check install -q --compile
PIP := $(BIN)/python -m pip $(INSTALL) -c constraints.txt
NATIVE := $(shell find runtime plugins -name '*.cc' -o -name '*.h' -o -name '*.hpp' -o -name '*.map' -o -name CMakeLists.txt 2>/dev/null)
TRITON_PIP := $(TRITON_VENV)/bin/python -m pip --disable-pip-version-check
define TRITON_NEEDS
import tomllib
project = tomllib.load(open('pyproject.toml', 'rb'))['project']
print('numpy<2', *project['dependencies'], *project['optional-dependencies']['guided'], sep=chr(10))
endef
export TRITON_NEEDS
# mypy looks for packages in folders, and here they are folders only once installed: show it the same as links.
TYPED := build/typed/tensorwright
ROOMS := engine_format models ir plugins passes builder runtime insight
CPP_FILES = $(shell git ls-files '*.cc' '*.h' '*.hpp' 'docs/examples/*.c' 'docs/examples/*.cpp')

export TENSORWRIGHT_TRITON_VENV := $(abspath $(TRITON_VENV))
# Sources keep their bytecode too, and tests what pytest makes of their asserts: each worker and each process that a test starts
# would compile them again, a third of the time that a worker needs until its first test.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help tools setup triton-venv triton-serve demo test test-avx2 test-scalar test-lowest test-oldest-build test-clients test-wheel test-arm64 \
	check lint typed fast-tests one-build soak sanitize wheel wheel-arm64 try-wheels image site clean FORCE
help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)/.installed

# What compiles C++ comes first, and alone: .ci/run compiles for the sanitizers while pip installs the rest.
tools: $(VENV)/.tools

$(VENV)/.tools: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@echo "== Setting up $(VENV): what compiles C++"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) scikit-build-core nanobind nlohmann-json cmake ninja
	@touch $@

$(VENV)/.packages: $(VENV)/.tools
	@echo "== Setting up $(VENV): torch, transformers and the tools (about 1 GB, some minutes the first time)"
	@$(BIN)/python -m pip $(INSTALL) --no-deps $(PIP_TORCH_ARGS) $(TORCH_SPEC)
	@$(if $(findstring tensorrt-rtx,$(GPU_EXTRAS)),$(PIP) 'tensorrt-rtx-cu13>=1.7$(comma)<2')
	@touch $@

# An install from this folder knows the modules that there were, and what was compiled: a new or moved module, or changed
# C++, needs another. The list is written anew only when it differs; two makes may look at once.
MODULES := build/modules.txt
$(MODULES): FORCE
	@mkdir -p build
	@new=$@.$$$$; find src $(ROOMS) -name '*.py' | sort > $$new; \
	  if cmp -s $$new $@; then rm $$new; else mv $$new $@; fi

$(VENV)/.installed: $(VENV)/.packages CMakeLists.txt $(NATIVE) $(MODULES)
	@echo "== Compiling the runtime and installing tensorwright into $(VENV) (a minute or two)"
	@$(PIP) --no-build-isolation -e '.[build,serve,ray,otel,report,$(if $(GPU_EXTRAS),$(GPU_EXTRAS)$(comma))dev]'
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
	  $(TRITON_VENV)/bin/python -m pip $(INSTALL) -c $(TRITON_VENV)/constraints.txt -r $(TRITON_VENV)/requirements.txt && \
	  $(BIN)/python -m pip $(INSTALL) --no-deps --no-build-isolation --ignore-installed \
	    --prefix $(TRITON_VENV) -e . && \
	  $(TRITON_VENV)/bin/python -m pip $(INSTALL) --no-deps $(TRITON_VENV)/wheels/*.whl && touch $@; }

ifneq ($(filter triton-serve,$(MAKECMDGOALS)),)
ifeq ($(REPO),)
$(error make triton-serve needs REPO=DIR, a model repository that 'tensorwright triton-repo ENGINE DIR' wrote)
endif
endif
TRITON_ARGS ?=
triton-serve: triton-venv
	@$(BIN)/python -P -m tensorwright.runtime.serving.triton.wheel_server $(TRITON_VENV) '$(REPO)' $(TRITON_ARGS)

SOAK_ARGS ?= --requests 20000
soak: setup
	$(BIN)/python benchmarks/soak.py $(SOAK_ARGS)

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
	OMP_NUM_THREADS=1 $(BIN)/pytest -q $(PYTEST_ARGS) $(DURATIONS) --junitxml=build/test.xml -o junit_family=xunit1

# As on a processor that has no more than that. The pico model would take the scalar kernels minutes.
test-avx2: WITHOUT = avx512
test-avx2: COMPUTES = computes
test-scalar: WITHOUT = avx2
test-scalar: COMPUTES = computes and not computes(least="avx2")
test-avx2 test-scalar: setup
	TENSORWRIGHT_CPU_WITHOUT=$(WITHOUT) OMP_NUM_THREADS=1 $(BIN)/pytest -q $(PYTEST_ARGS) $(DURATIONS) -m '$(COMPUTES)'

# Running and serving alone: what an environment without the builder's packages can do, with engines that were built before.
RUNNING_ENGINES := $(abspath build/running-engines)
RUNNING_TESTS = tests/models/test_safetensors_file.py tests/runtime/api/test_chat.py tests/runtime/api/test_llm.py \
	tests/runtime/api/test_llm_failures.py tests/runtime/api/test_llm_streaming.py \
	tests/runtime/engine/test_engine_dir.py tests/runtime/engine/test_engine_swap.py \
	tests/runtime/guided/test_decoding.py tests/runtime/guided/test_generation.py \
	tests/runtime/serving/server/api tests/runtime/serving/server/test_app.py \
	tests/runtime/serving/server/test_server_guards.py \
	tests/runtime/text/test_detokenizer.py tests/runtime/text/test_special_tokens.py
RUN_TESTS = TENSORWRIGHT_TEST_ENGINES=$(RUNNING_ENGINES) OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -q $(PYTEST_ARGS) \
	$(addprefix $(CURDIR)/,$(RUNNING_TESTS))

PYTHON_FILES := $(shell find src $(ROOMS) -name '*.py' 2>/dev/null)

$(RUNNING_ENGINES)/.made: $(VENV)/.installed $(PYTHON_FILES)
	@for dtype in float32 bfloat16; do $(BIN)/build-engine models/pico $(RUNNING_ENGINES)/pico-$$dtype-auto-cpu \
	  --force --dtype $$dtype --accuracy none; done
	@touch $@

# The wheel in an environment of its own, which finds all other packages in the first one's; the wheel's come first. The tests
# run in a folder where nothing but the wheel can be imported as tensorwright.
WHEEL_VENV ?= .venv-wheel
$(WHEEL_VENV)/.installed: $(VENV)/.installed $(PYTHON_FILES)
	@echo "== Making the wheel, and $(WHEEL_VENV) for it"
	@test -x $(WHEEL_VENV)/bin/python || $(BIN)/python -m venv $(WHEEL_VENV)
	@rm -rf build/wheel && $(BIN)/python -m pip --disable-pip-version-check wheel -q --no-deps --no-build-isolation \
	  -w build/wheel .
	@$(WHEEL_VENV)/bin/python -m pip $(INSTALL) --no-deps --force-reinstall build/wheel/*.whl
	@$(BIN)/python -c 'import sys; print(*(path for path in sys.path if "site-packages" in path), sep="\n")' > \
	  $$($(WHEEL_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/packages-of-the-first.pth
	@touch $@

# Python 3.12 makes the wheel of 3.12 and later: WHEEL_PYTHONS='python3.11 python3.12'.
WHEEL_PYTHONS ?= $(PYTHON)
wheel:
	$(PYTHON) deploy/wheel/make_wheels.py $(addprefix --python ,$(WHEEL_PYTHONS))

# Python 3.13 makes the wheel of 3.12 and later, for Debian has no 3.12: WHEEL_ARM64_PYTHONS='python3.11 python3.13'.
WHEEL_ARM64_PYTHONS ?= $(PYTHON)
wheel-arm64:
	$(PYTHON) deploy/wheel/make_wheels.py --arm64 --wheels-only $(addprefix --python ,$(WHEEL_ARM64_PYTHONS))

# WHEELS are tried in the order in which they stand; the engine is built by the environment of this folder.
WHEELS ?= $(wildcard dist/*.whl)
TRIED_ENGINE := build/tried-engine
try-wheels: setup
	$(BIN)/build-engine models/pico $(TRIED_ENGINE) --force --quantize int4 --dtype float32 --accuracy none
	$(PYTHON) deploy/wheel/try_wheels.py --engine $(TRIED_ENGINE) $(addprefix --python ,$(WHEEL_PYTHONS)) $(WHEELS)

# Of the wheels in dist/ the one for Python 3.11 and this processor. Where there is none, the program says how to make it.
IMAGE_WHEEL = dist/tensorwright-*-cp311-*_$(shell uname -m).whl
image:
	$(PYTHON) deploy/image/make_image.py $(or $(wildcard $(IMAGE_WHEEL)),'$(IMAGE_WHEEL)')

# MkDocs in an environment of its own: nothing else needs it. A broken link or anchor is an error.
SITE_VENV ?= .venv-site
$(SITE_VENV)/.installed: deploy/site/requirements.txt
	@test -x $(SITE_VENV)/bin/python || $(PYTHON) -m venv $(SITE_VENV)
	@$(SITE_VENV)/bin/python -m pip $(INSTALL) -r deploy/site/requirements.txt
	@touch $@

site: $(SITE_VENV)/.installed typed
	$(SITE_VENV)/bin/mkdocs build -q -f deploy/site/mkdocs.yml

test-wheel: $(WHEEL_VENV)/.installed $(RUNNING_ENGINES)/.made
	@mkdir -p build/elsewhere
	cd build/elsewhere && $(call RUN_TESTS,$(abspath $(WHEEL_VENV))) --rootdir $(CURDIR) -c $(CURDIR)/pyproject.toml

# The oldest versions that pyproject.toml allows, in a place of their own without torch: the engines are built before. The second
# tensorwright is compiled by the first one's tools in the same build folder, so nothing is compiled again.
LOWEST_VENV ?= .venv-lowest
LOWEST_TOOLS = pytest pytest-timeout pytest-xdist hypothesis openai jsonschema

$(LOWEST_VENV)/.installed: $(VENV)/.installed tests/support/lowest_versions.py
	@echo "== Setting up $(LOWEST_VENV) for the oldest versions"
	@test -x $(LOWEST_VENV)/bin/python || $(BIN)/python -m venv $(LOWEST_VENV)
	@$(BIN)/python tests/support/lowest_versions.py > $(LOWEST_VENV)/lowest.txt
	@$(BIN)/python tests/support/lowest_versions.py --beside constraints.txt > $(LOWEST_VENV)/constraints.txt
	@$(LOWEST_VENV)/bin/python -m pip $(INSTALL) -c $(LOWEST_VENV)/constraints.txt \
	  -r $(LOWEST_VENV)/lowest.txt $(LOWEST_TOOLS)
	@$(BIN)/python -m pip $(INSTALL) --no-deps --no-build-isolation --ignore-installed \
	  --prefix $(LOWEST_VENV) -e .
	@touch $@

test-lowest: $(LOWEST_VENV)/.installed $(RUNNING_ENGINES)/.made
	$(call RUN_TESTS,$(LOWEST_VENV))

# The oldest torch and transformers, in a folder that Python finds before those of the environment. From the public PyPI, torch
# comes with several GB of CUDA libraries; PIP_TORCH_ARGS is above.
OLDEST_BUILD ?= build/oldest-build
LOWEST_OF_BUILD = $(BIN)/python tests/support/lowest_versions.py --of-build

# The folder is made anew when a bound moves or a download broke off.
$(OLDEST_BUILD)/.installed: pyproject.toml | $(VENV)/.installed
	@rm -rf $(OLDEST_BUILD)
	@$(BIN)/python -m pip $(INSTALL) $(PIP_TORCH_ARGS) --target $(OLDEST_BUILD) "$$($(LOWEST_OF_BUILD) torch)"
	@$(BIN)/python -m pip $(INSTALL) --no-deps --target $(OLDEST_BUILD) "$$($(LOWEST_OF_BUILD) transformers)"
	@touch $@

test-oldest-build: setup $(OLDEST_BUILD)/.installed
	PYTHONPATH=$(abspath $(OLDEST_BUILD)) OMP_NUM_THREADS=1 $(BIN)/pytest -q $(PYTEST_ARGS) \
	  tests/end_to_end/test_families.py tests/builder/test_constants.py -k 'not mutation'

# Libraries of clients that want older versions of some packages, in a folder that Python finds before those of the environment.
CLIENTS ?= build/clients
OLDER_FOR_CLIENTS = ^(openai|jiter|rich)==

$(CLIENTS)/.installed: pyproject.toml | $(VENV)/.installed
	@rm -rf $(CLIENTS)
	@mkdir -p $(CLIENTS)
	@grep -vE '$(OLDER_FOR_CLIENTS)' constraints.txt > $(CLIENTS)/constraints.txt
	@$(BIN)/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*project["optional-dependencies"]["clients"], sep="\n")' > $(CLIENTS)/clients.txt
	@$(BIN)/python -m pip $(INSTALL) --target $(CLIENTS) -c $(CLIENTS)/constraints.txt -r $(CLIENTS)/clients.txt
	@touch $@

test-clients: setup $(CLIENTS)/.installed
	PYTHONPATH=$(abspath $(CLIENTS)) $(BIN)/python -m pytest -q $(PYTEST_ARGS) \
	  tests/runtime/serving/server/api/test_client_libraries.py -k 'instructor or llama_index'

check: lint fast-tests one-build

typed:
	@mkdir -p $(TYPED)
	@ln -sfn $(addprefix $(CURDIR)/,$(wildcard src/tensorwright/*.py) src/tensorwright/options $(ROOMS)) $(TYPED)

lint: setup typed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd build/typed && $(abspath $(BIN))/mypy --num-workers 2 --config-file $(CURDIR)/pyproject.toml -p tensorwright
	@echo '$(BIN)/clang-format --dry-run -Werror: all C++ files'
	@$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)

fast-tests: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -q $(PYTEST_ARGS) -m 'not slow'

# The whole way once: a checkpoint becomes an engine, and the engine answers.
one-build: setup
	$(BIN)/build-engine models/pico build/one-engine --force --accuracy none
	$(BIN)/tensorwright run build/one-engine --prompt 'def read_file(' --max-tokens 16 --echo

# Debug keeps the asserts that Release drops. -Og keeps the tests bearable and takes the compiler as long as -O0 does, where -O1
# takes it two fifths longer. Kernels that cannot run here are not compiled: those of AVX-512 under AddressSanitizer take a processor
# that has it. Only some tests have threads.
SANITIZED = -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=-Og \
	-DTENSORWRIGHT_TESTS=ON -DTENSORWRIGHT_PYTHON=OFF -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	$(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

sanitize: tools
	$(BIN)/cmake -S . -B build/asan $(SANITIZED) -DTENSORWRIGHT_SANITIZE=address,undefined -DTENSORWRIGHT_OWN_KERNELS=ON
	$(BIN)/cmake --build build/asan --target cpp_tests
	$(BIN)/ctest --test-dir build/asan --output-on-failure --no-tests=error -j $(shell nproc)
	$(BIN)/cmake -S . -B build/tsan $(SANITIZED) -DTENSORWRIGHT_SANITIZE=thread -DTENSORWRIGHT_SCALAR_KERNELS=ON
	$(BIN)/cmake --build build/tsan --target threaded_cpp_tests
	$(BIN)/ctest --test-dir build/tsan --output-on-failure --no-tests=error -L threads

# The C++ programs and kernels, compiled for aarch64 by Debian's g++-aarch64-linux-gnu, in qemu-aarch64 (qemu-user).
ARM64_ARGS ?=
test-arm64: setup
	@command -v qemu-aarch64 > /dev/null || { echo "test-arm64 needs qemu-aarch64: apt-get install qemu-user"; exit 1; }
	$(BIN)/cmake -S . -B build/arm64 -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		--toolchain deploy/arm64/toolchain.cmake -DTENSORWRIGHT_PYTHON=OFF -DTENSORWRIGHT_TESTS=ON \
		-DPython_EXECUTABLE=$(abspath $(BIN))/python \
		$(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
	$(BIN)/pytest -q tests/plugins/test_isa_files.py -k arm_
	OMP_NUM_THREADS=1 $(BIN)/pytest -q $(DURATIONS) tests/cpp/test_arm64.py $(ARM64_ARGS)

clean:
	rm -rf build out $(VENV) $(TRITON_VENV) $(LOWEST_VENV) $(WHEEL_VENV)
