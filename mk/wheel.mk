# SPDX-License-Identifier: Apache-2.0
#
# `make wheel`: the distributions for pip, in build/wheel/. VERSION and SOURCE_DATE_EPOCH determine their bytes.
#
# dray-client: the Python package with libdray, for each of WHEEL_MACHINES. zig's compiler has the headers and symbol
# versions of old releases of glibc, and compiles for both machines, so that the wheel installs wherever manylinux_2_28 does.
# dray-agent: the programs of this build with the libraries that they load, except those of glibc, for this machine.

WHEEL := build/wheel
WHEEL_MACHINES := x86_64 aarch64
WHEEL_GLIBC := 2.28
WHEEL_TOOLS := build/tools

.PHONY: wheel
# the time of the last commit; without one, the earliest time of a zip file
wheel: export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),315532800)
wheel:
	@scripts/deps wheel
	@$(MAKE) --no-print-directory $(PARALLEL) all $(WHEEL_TOOLS)/complete
	@$(foreach m,$(WHEEL_MACHINES),$(MAKE) --no-print-directory $(PARALLEL) VARIANT=wheel-$m build/wheel-$m/libdray.so.0 &&) true
	@rm -f $(WHEEL)/*.whl
	@$(foreach m,$(WHEEL_MACHINES),$(WHEEL_BUILD) client $(VERSION) $m $(WHEEL_GLIBC) build/wheel-$m/libdray.so.0 &&) true
	@$(WHEEL_BUILD) agent $(VERSION) $(WHEEL_TOOLS)/bin/auditwheel $(PROGRAMS) $(PLUGIN) $(MAN)
	@ls $(WHEEL)/*.whl

WHEEL_BUILD = $(PYTHON) packaging/wheel/build.py $(WHEEL)

# The compiler and auditwheel, of fixed releases, from PyPI.
$(WHEEL_TOOLS)/complete: packaging/wheel/tools.txt
	@printf '  %-7s %s\n' PIP $(WHEEL_TOOLS)
	$(Q)rm -rf $(WHEEL_TOOLS) && $(PYTHON) -m venv $(WHEEL_TOOLS) && \
		$(WHEEL_TOOLS)/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	$(Q)touch $@

# Unit tests of lib/ and libdray for arm64, which qemu-user runs. What the library of the wheel exports comes from there.
ARM64 := build/arm64
ARM64_UNIT := $(patsubst %.c,build/wheel-aarch64/%,$(filter-out %_agent.c %_cuda.c %_cuda_region.c,$(wildcard tests/unit/test_client_*.c)) \
	$(wildcard tests/unit/test_lib_*.c))
ARM64_OBJECTS := $(patsubst %,build/wheel-aarch64/obj/tests/unit/%.o,client_fake client_rig cm)
