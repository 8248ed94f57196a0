# SPDX-License-Identifier: Apache-2.0
#
# `make check`: stages, each with a budget in seconds on two cores; together under 20 minutes. scripts/check times them,
# counts what passed, and prints the closing line. Each stage is a target of its own (make check-unit); a stage that fails
# does not stop the later ones. Each of FIRST, UNITS and BESIDE is a group of stages that leave processors idle, so with JOBS
# of 2 or more those of a group run in parallel, and the longest one counts.
#
# `make check-long`: some hours. The models of the rings search more states, each fuzzer searches for a minute, and its corpus
# must reach the lines of the decoders. The virtual machines have two processors and programs with sanitizers, and run every
# variant of every test and 300 reconnects instead of 4; the machine itself is tested, too. Debian packages are installed in a
# clean Debian root, and cross-built for arm64. The library is built in two places and compared, and its unit tests and a
# transfer run for arm64. All tests with real engines run.

FIRST := build lint
UNITS := unit tsan fuzz kube versions
BESIDE := namespaces vm wheel packages engine
$(foreach s,$(FIRST),$(eval BUDGET_$(s) := 110))
$(foreach s,$(UNITS),$(eval BUDGET_$(s) := 280))
$(foreach s,$(BESIDE),$(eval BUDGET_$(s) := 750))
LONG := tsan fuzz packages wheel vm engine
LONG_BUDGET_tsan := 900
LONG_BUDGET_fuzz := 900
LONG_BUDGET_packages := 1200
LONG_BUDGET_wheel := 600
LONG_BUDGET_vm := 5400
LONG_BUDGET_engine := 3600

FUZZ_SECONDS ?= 2
# Variants whose programs the integration tests and the tests in the virtual machine start. Sanitizers would double the
# time of an emulated machine.
TEST_VARIANT ?= asan
VM_VARIANT ?= gcc

PARALLEL = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS))
SUB = -s --no-print-directory $(PARALLEL) WERROR=1
CHECK := $(PYTHON) scripts/check

# Reports of sanitizers are complete, and findings are fatal. gcc's AddressSanitizer has
# detect_stack_use_after_return off by default. PYTHONPYCACHEPREFIX keeps the source tree clean.
export ASAN_OPTIONS ?= abort_on_error=0:detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/build/pycache
# Bytecode of the standard library is looked for there, too: if none were written, each of the thousands of interpreters that tests start
# would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPATH := $(CURDIR)/client/python$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: $(addprefix check-,$(FIRST) $(UNITS) $(BESIDE)) check check-long
# The recipe begins with +, because make does not see there that this runs it.
stages = $(CHECK) stages $(foreach s,$(1),$(s) $(BUDGET_$(s))) -- $(MAKE) $(SUB)
check:
	@scripts/deps check
	@$(CHECK) start
	+@$(call stages,$(FIRST)); $(call stages,$(UNITS)); $(call stages,$(BESIDE)); $(CHECK) finish

check-long: export DRAY_LONG := 1
check-long:
	@scripts/deps check
	@$(CHECK) start
	@$(foreach s,$(LONG),$(CHECK) stages $(s) $(LONG_BUDGET_$(s)) -- $(MAKE) $(SUB) FUZZ_SECONDS=60 VM_VARIANT=asan;) \
	$(CHECK) finish

check-lint:
	@$(CHECK) tap lint -- scripts/lint

# Both compilers, each with a folder of its own: objects of a build without -Werror would hide warnings.
check-build:
	@status=0; \
	$(CHECK) one "gcc, no warnings" -- $(MAKE) $(SUB) VARIANT=gcc all tools || status=1; \
	$(CHECK) one "clang, no warnings" -- $(MAKE) $(SUB) VARIANT=clang all tools || status=1; \
	$(CHECK) one "a second make builds nothing" -- \
		sh -c 'test -z "$$($(MAKE) $(SUB) VARIANT=gcc all tools)"' || status=1; \
	$(CHECK) one "make install" -- $(MAKE) $(SUB) VARIANT=gcc install PREFIX=/usr \
		DESTDIR=$(CURDIR)/build/check/root || status=1; \
	$(CHECK) one "exported names" -- scripts/check-exports build/gcc/libdray.so.0 || status=1; \
	$(if $(PLUGIN),$(CHECK) one "exported name of the CUDA plug-in" -- sh -c \
		'test "$$(nm -D --defined-only build/gcc/dray-cuda.so | cut -d" " -f3)" = gpu_plugin_ops' || status=1;) \
	exit $$status

# With -k, a test program that does not compile is missing and fails alone. The longest programs start first, so that
# none of them runs alone at the end.
UNIT_LONGEST := $(patsubst %,tests/unit/test_%.c,state_kill state_faults gpu_transport tcp_pair)
UNIT_SOURCES := $(UNIT_LONGEST) $(filter-out $(UNIT_LONGEST),$(sort $(wildcard tests/unit/test_*.c)))
check-unit:
	-@$(MAKE) $(SUB) -k VARIANT=asan unit-programs
	@$(CHECK) unit $(patsubst %.c,build/asan/%,$(UNIT_SOURCES))

# Lock-free code: its test programs under ThreadSanitizer, and its models in Spin.
check-tsan:
	-@$(MAKE) $(SUB) -k VARIANT=tsan unit-programs
	@status=0; $(CHECK) unit $(patsubst %.c,build/tsan/%,$(sort $(wildcard tests/unit/tsan_*.c))) || \
		status=1; $(CHECK) tap model -- tests/model/run || status=1; exit $$status

check-fuzz:
	-@$(MAKE) $(SUB) -k VARIANT=fuzz fuzz-programs
	@status=0; $(CHECK) fuzz $(FUZZ_SECONDS) $(patsubst %.c,build/fuzz/%,$(sort $(wildcard tests/fuzz/fuzz_*.c))) || status=1; \
	$(if $(DRAY_LONG),$(CHECK) one "coverage of the decoders" -- $(MAKE) $(SUB) fuzz-coverage || status=1;) exit $$status

# All fuzzers, JOBS at once, each for SECONDS: those in C, then random sessions and random peers against agents. A table has
# executions, coverage and findings; new inputs are kept in build/fuzz/found.
SECONDS ?= 60
fuzz-long:
	@$(MAKE) $(SUB) VARIANT=fuzz fuzz-programs
	@$(MAKE) $(SUB) VARIANT=asan all
	@$(MAKE) $(SUB) VARIANT=gcc $(PLAIN)
	@scripts/fuzz long $(SECONDS) $(JOBS)

# The lines of the decoders that the checked-in corpora reach.
fuzz-coverage:
	@scripts/deps check
	@$(MAKE) $(SUB) VARIANT=coverage fuzz-programs
	@scripts/fuzz coverage

# These stages run in parallel; the lock lets only one of them build at a time.
LOCKED := mkdir -p build/check && flock build/check/building
# Without a sanitizer: the libdray of the Python package, which an interpreter loads that has none, and the drayctl that tests use to poll.
PLAIN := build/gcc/libdray.so.0 build/gcc/drayctl
check-namespaces:
	@$(LOCKED) $(MAKE) $(SUB) VARIANT=$(TEST_VARIANT) all tools
	@$(LOCKED) $(MAKE) $(SUB) VARIANT=gcc all build/gcc/tests/faults/no_memory.so build/gcc/tests/faults/disk.so
	@DRAY_BUILD=build/$(TEST_VARIANT) $(CHECK) pytest tests/integration

check-vm:
	@$(LOCKED) $(MAKE) $(SUB) VARIANT=$(VM_VARIANT) all tools
	@$(LOCKED) $(MAKE) $(SUB) VARIANT=gcc $(PLAIN)
	@DRAY_BUILD=build/$(VM_VARIANT) $(CHECK) vm tests/vm

# Where Debian's packages for arm64 cannot be fetched, the tests that need them are skipped.
check-wheel:
	@$(LOCKED) $(MAKE) $(SUB) VARIANT=$(VM_VARIANT) all
	@$(MAKE) $(SUB) VARIANT=$(VM_VARIANT) wheel
	-@tests/wheel/arm64 $(if $(DRAY_LONG),&& $(MAKE) $(SUB) -k VARIANT=wheel-aarch64 arm64-programs)
	@DRAY_BUILD=build/$(VM_VARIANT) $(CHECK) pytest tests/wheel

# vLLM for the CPU is installed into an environment of its own of 6 GB, which is kept between runs (scripts/engine-env). `make
# check` runs the tests that drive its scheduler and the connector without a model; `make check-long` starts engines, too.
check-engine:
	@$(LOCKED) $(MAKE) $(SUB) VARIANT=$(VM_VARIANT) all tools
	@DRAY_BUILD=build/$(VM_VARIANT) $(CHECK) engine tests/engine

check-packages:
	@$(LOCKED) $(MAKE) $(SUB) VARIANT=$(VM_VARIANT) all
	@$(MAKE) $(SUB) VARIANT=$(VM_VARIANT) deb image site
	@DRAY_BUILD=build/$(VM_VARIANT) $(CHECK) pytest tests/packages

# Helm, kubectl, schemas and CEL are installed into a folder of their own, which is kept between runs (scripts/kube-tools).
check-kube:
	@$(LOCKED) $(MAKE) $(SUB) VARIANT=$(VM_VARIANT) all
	@DRAY_BUILD=build/$(VM_VARIANT) $(CHECK) pytest tests/kube

# The previous release is built once for each commit that stands for it (scripts/previous); where the clone does not have it, the tests are
# skipped.
check-versions:
	@$(LOCKED) $(MAKE) $(SUB) VARIANT=$(VM_VARIANT) all
	-@$(LOCKED) scripts/previous >/dev/null
	@DRAY_BUILD=build/$(VM_VARIANT) $(CHECK) pytest tests/versions

.PHONY: unit-programs fuzz-programs arm64-programs fuzz-long fuzz-coverage
# Some unit programs start the agent of the same variant.
unit-programs: $(UNIT) $(if $(filter tsan,$(VARIANT)),,$(B)/drayd $(FAKE_LIBCUDA) $(PLUGIN) $(PLUGIN_TEST))
fuzz-programs: $(FUZZ)
arm64-programs: $(ARM64_UNIT)
