# SPDX-License-Identifier: Apache-2.0
#
# The CUDA plug-in, built if a CUDA toolkit is found at CUDA_HOME, at /usr/local/cuda, or by nvcc in the path. The build
# uses the toolkit's headers, its compiler and the static library of its runtime, which is in lib64/ of NVIDIA's packages, in lib/ of
# those of Python, and in targets/ of both. They are for the processor of this machine, so a cross compiler builds no plug-in.

CUDA := $(firstword $(foreach d,$(CUDA_HOME) /usr/local/cuda $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null)),\
	$(if $(and $(wildcard $(d)/bin/nvcc),$(wildcard $(d)/include/cuda.h)),$(d))))
CUDA_MACHINE := $(shell uname -m)
CUDA_NATIVE := $(filter $(CUDA_MACHINE),$(firstword $(subst -, ,$(shell $(CC) -dumpmachine))))
CUDA_RUNTIME := $(if $(and $(CUDA),$(CUDA_NATIVE)),$(firstword $(wildcard $(patsubst %,$(CUDA)/%/libcudart_static.a,\
	lib64 lib targets/$(CUDA_MACHINE)-linux/lib $(if $(filter aarch64,$(CUDA_MACHINE)),targets/sbsa-linux/lib)))))

.PHONY: cuda-home
cuda-home:
	@echo $(if $(CUDA_RUNTIME),$(CUDA))

SRC_cuda := $(sort $(wildcard gpu/cuda/*.c))

ifneq ($(CUDA_RUNTIME),)
PLUGIN := $(B)/dray-cuda.so

# Machine code for each of these compute capabilities that the toolkit knows (code for x.0 runs on every x.y), and PTX
# for the oldest and the newest, which drivers compile for all other GPUs from the oldest on.
CUDA_ARCHS := $(filter 75 80 90 100,$(patsubst compute_%,%,$(shell $(CUDA)/bin/nvcc --list-gpu-arch 2>/dev/null)))
CUDA_LOWEST := $(firstword $(CUDA_ARCHS))
NVCCFLAGS := -std=c++17 -O3 -I. $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
	$(foreach a,$(sort $(CUDA_LOWEST) $(lastword $(CUDA_ARCHS))),-gencode arch=compute_$(a),code=compute_$(a)) \
	-Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics

# Measures and verifies the plug-in alone, on a machine with GPUs.
CEILING := $(B)/tests/gpu/ceiling_gpu
SRC_ceiling := $(sort $(wildcard tests/gpu/ceiling_*.c))
SRC_plugin_driver := $(sort $(wildcard tests/gpu/plugin_driver*.c))

CUDA_OBJECTS := $(call obj,$(SRC_cuda))
$(call obj,$(SRC_cuda) $(SRC_ceiling)): CFLAGS_own := -isystem $(CUDA)/include -DDRAY_CUDA_LOWEST=$(CUDA_LOWEST)

# What the plug-in is built with, so that no part of it is of another toolkit than the rest.
build/cuda/toolkit: TEXT = $(CUDA) $(realpath $(CUDA_RUNTIME)) $(CUDA_ARCHS)
build/cuda/toolkit: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(TEXT)' | cmp -s - $@ || printf '%s\n' '$(TEXT)' >$@

$(call obj,$(SRC_cuda) $(SRC_ceiling) $(SRC_plugin_driver)): build/cuda/toolkit

# One for all variants, because they differ only in the code of C. nvcc records the temporary file's name; strip removes it, so
# that builds are reproducible.
KERNEL := build/cuda/copy.o
$(KERNEL): gpu/cuda/copy.cu gpu/cuda/copy.h mk/cuda.mk build/cuda/toolkit
	@mkdir -p $(@D)
	@printf '  %-7s %s\n' NVCC $<
	$(Q)$(CUDA)/bin/nvcc $(NVCCFLAGS) -c -o $@.$$$$ $< && strip --strip-unneeded $@.$$$$ && mv $@.$$$$ $@

# What the runtime needs besides the C library itself, which has all of it since glibc 2.34.
CUDA_LIBS := -Wl,--exclude-libs,ALL -ldl -lpthread -lrt

$(PLUGIN): $(CUDA_OBJECTS) $(KERNEL) $(B)/libbase.a $(CUDA_RUNTIME)
	$(call link,-shared $(filter %.o %.a,$^) $(CUDA_LIBS))

# The plug-in over a simulated runtime and driver, for its own unit test.
PLUGIN_TEST := $(B)/tests/gpu/dray-cuda-test.so
$(call obj,$(SRC_plugin_driver)): CFLAGS_own := -isystem $(CUDA)/include
$(PLUGIN_TEST): $(CUDA_OBJECTS) $(call obj,$(SRC_plugin_driver)) $(B)/libbase.a
	$(call link,-shared $^ -ldl)
$(B)/tests/unit/test_cuda_plugin: | $(PLUGIN_TEST)

$(CEILING): $(call obj,$(SRC_ceiling) gpu/cuda/driver.c gpu/cuda/error.c) $(KERNEL) $(B)/libgpu.a $(B)/libbase.a $(CUDA_RUNTIME)
	$(call link,-pie $(filter %.o %.a,$^) $(CUDA_LIBS))

-include $(patsubst %.c,$(O)/%.d,$(SRC_cuda) $(SRC_ceiling) $(SRC_plugin_driver))
.SECONDARY: $(CUDA_OBJECTS) $(call obj,$(SRC_ceiling) $(SRC_plugin_driver))
all: $(PLUGIN)
else
# The stamp file makes the notice appear once and not at every build.
all: $(O)/no-cuda
$(O)/no-cuda:
	@mkdir -p $(@D)
	@printf '  %s\n' '$(if $(CUDA),$(if $(CUDA_NATIVE),$(CUDA) has no libcudart_static.a (package cuda-cudart-dev),$(CC) compiles for another machine),no CUDA toolkit): dray-cuda.so is not built'
	@touch $@
endif
