# Short commands for developers; CMake does the work.
BUILD ?= build
TYPE ?= Release
PREFIX ?= /usr/local
PYTHON ?= python3
CMAKE_FLAGS ?=
PEER ?=
SECONDS ?= 60
TARGET ?=
TESTS ?=
JOBS ?= $(shell nproc)
# Tests wait for files and for messages: three tests per core keep it busy.
TEST_JOBS ?= $(shell expr 3 \* $(JOBS))

# A new build directory builds the program alone. These targets also need tests, simulators and benchmarks; once they are enabled in a
# build directory, `make` keeps them up to date.
test series bench soak interop: export WITH_TESTS = yes
tests_option = $(if $(WITH_TESTS),-DWEFT_TESTS=ON,$(if $(wildcard $(BUILD)/CMakeCache.txt),,-DWEFT_TESTS=OFF))

.PHONY: all build setup demo test series fuzz bench interop soak plan-cases cluster mpich mpi5 install format format-check clean help

all: build

build:
	@tools/setup.sh --check build
	@mkdir -p $(BUILD)
	@cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=$(TYPE) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(tests_option) $(CMAKE_FLAGS) >$(BUILD)/configure.log 2>&1 \
	    || { cat $(BUILD)/configure.log; exit 1; }
	@cmake --build $(BUILD) -j $(JOBS)

setup: ## installs what is missing (apt)
	@tools/setup.sh build test demo

demo: ## text in, trained model out, in minutes
	@tools/setup.sh build demo
	@$(MAKE) --no-print-directory build
	@BUILD=$(BUILD) tools/demo.sh

test: ## all tests; TESTS=regex for some
	@tools/setup.sh build test
	@$(MAKE) --no-print-directory build
	@ctest --test-dir $(BUILD) -j $(TEST_JOBS) --output-on-failure $(if $(TESTS),-R '$(TESTS)')

series: build ## all tests ten times, with each kind of kernel, alongside busy loops
	@BUILD=$(BUILD) JOBS=$(TEST_JOBS) tools/series.sh

fuzz: ## libFuzzer over every parser (clang); SECONDS=60 each, TARGET=name for one
	@tools/setup.sh build ci
	@tools/fuzz.sh $(SECONDS) $(TARGET)

bench: build ## bench/results.json, and rows of docs/lab/performance.md; PEER=torch adds PyTorch, PAIRS=3 runs each three times
	@BUILD=$(BUILD) PYTHON=$(PYTHON) tools/bench.sh $(PEER)

interop: ## tests with other projects' programs: Python packages, in a venv, and Chromium
	@tools/setup.sh build test interop
	@$(MAKE) --no-print-directory build
	@BUILD=$(BUILD) PYTHON=$(PYTHON) tools/interop.sh

soak: build ## 100 kills while training, 100 while reading data, 30 faults on many ranks, hangs in each phase, all meshes and schedules: the same bits
	@WEFT=$(CURDIR)/$(BUILD)/weft FAULTS=$${FAULTS:-30} tests/ranks/test_faults.sh
	@WEFT=$(CURDIR)/$(BUILD)/weft HANGS=full tests/ranks/test_hangs.sh
	@WEFT=$(CURDIR)/$(BUILD)/weft KILLS=$${KILLS:-100} tests/program/test_kills.sh
	@WEFT=$(CURDIR)/$(BUILD)/weft WEFT_SOURCE_DIR=$(CURDIR) KILLS=$${KILLS:-100} tests/program/test_data_kills.sh
	@WEFT=$(CURDIR)/$(BUILD)/weft WEFT_BINARY_DIR=$(CURDIR)/$(BUILD) CURVE=full tests/ranks/test_curve.sh
	@WEFT=$(CURDIR)/$(BUILD)/weft WEFT_BINARY_DIR=$(CURDIR)/$(BUILD) CURVE=full tests/ranks/test_tensor.sh
	@WEFT=$(CURDIR)/$(BUILD)/weft WEFT_BINARY_DIR=$(CURDIR)/$(BUILD) CURVE=full tests/ranks/test_context.sh
	@WEFT=$(CURDIR)/$(BUILD)/weft RUNS=$${RUNS:-300} tests/ranks/test_random.sh
	@WEFT=$(CURDIR)/$(BUILD)/weft CUDA_SIM=$$(ls $(CURDIR)/$(BUILD)/weft-cuda-sim.so 2>/dev/null) MESHES=full \
	    tests/ranks/test_cuda_meshes.sh || [ $$? -eq 77 ]

plan-cases: build ## published runs of other trainers compared with weft's plans for them (docs/lab/published-runs.md)
	@WEFT=$(BUILD)/weft tools/plan_cases.sh

cluster: build ## several simulated hosts and a private Slurm on this machine; as root; docs/use/cluster.md
	@tools/setup.sh cluster
	@WEFT=$(CURDIR)/$(BUILD)/weft tests/cluster/hosts.sh || [ $$? -eq 77 ]
	@WEFT=$(CURDIR)/$(BUILD)/weft tests/cluster/slurm.sh || [ $$? -eq 77 ]

mpich: ## the tests that start ranks, with MPICH in place of Open MPI, in build-mpich; TESTS=regex for some
	@tools/setup.sh build test mpich
	@mkdir -p build-mpich
	@cmake --preset mpich $(CMAKE_FLAGS) >build-mpich/configure.log 2>&1 || { cat build-mpich/configure.log; exit 1; }
	@cmake --build build-mpich -j $(JOBS)
	@OVER_MPI=1 ctest --preset mpich -j $(TEST_JOBS) $(if $(TESTS),-R '$(TESTS)')

mpi5: ## the same tests with Open MPI 5 from PyPI, by a weft built with the system's Open MPI; TESTS=regex for some
	@PYTHON=$(PYTHON) tools/setup.sh build test ulfm
	@mkdir -p build-mpi5
	@cmake --preset mpi5 $(CMAKE_FLAGS) >build-mpi5/configure.log 2>&1 || { cat build-mpi5/configure.log; exit 1; }
	@cmake --build build-mpi5 -j $(JOBS)
	@OVER_MPI=1 ctest --preset mpi5 -j $(TEST_JOBS) $(if $(TESTS),-R '$(TESTS)')

install: build ## program, man page, completion, configurations, docs; honours DESTDIR and PREFIX
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix $(PREFIX)

format: ## rewrites the sources with clang-format
	@tools/format.sh

format-check:
	@tools/format.sh --check

clean:
	@rm -rf $(BUILD)

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24
