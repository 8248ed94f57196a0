# SPDX-License-Identifier: Apache-2.0
#
# The CUDA plug-in, built if a CUDA toolkit is found at CUDA_HOME, at /usr/local/cuda, or by nvcc in the path. The build
# uses only the toolkit's headers and compiler, and links none of its libraries.

CUDA := $(firstword $(foreach d,$(CUDA_HOME) /usr/local/cuda $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null)),\
	$(if $(and $(wildcard $(d)/bin/nvcc),$(wildcard $(d)/include/cuda.h)),$(d))))

.PHONY: cuda-home
cuda-home:
	@echo $(CUDA)

SRC_cuda := $(sort $(wildcard gpu/cuda/*.c))

ifneq ($(CUDA),)
PLUGIN := $(B)/dray-cuda.so

# Machine code for each of these compute capabilities that the toolkit knows (code for x.0 runs on every x.y), and PTX
# for the oldest and the newest, which drivers compile for all other GPUs from the oldest on.
CUDA_ARCHS := $(filter 75 80 90 100,$(patsubst compute_%,%,$(shell $(CUDA)/bin/nvcc --list-gpu-arch 2>/dev/null)))
CUDA_LOWEST := $(firstword $(CUDA_ARCHS))
NVCCFLAGS := -std=c++17 -O3 -I. --fatbin $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
	$(foreach a,$(sort $(CUDA_LOWEST) $(lastword $(CUDA_ARCHS))),-gencode arch=compute_$(a),code=compute_$(a))

# Measures and verifies the plug-in alone, on a machine with GPUs.
CEILING := $(B)/tests/gpu/ceiling_gpu
SRC_ceiling := $(sort $(wildcard tests/gpu/ceiling_*.c))

CUDA_OBJECTS := $(call obj,$(SRC_cuda)) $(O)/gpu/cuda/image.o
$(call obj,$(SRC_cuda) $(SRC_ceiling)): CFLAGS_own := -isystem $(CUDA)/include -DDRAY_CUDA_LOWEST=$(CUDA_LOWEST)

# One for all variants, because they differ only in the CPU's code.
FATBIN := build/cuda/copy.fatbin
$(FATBIN): gpu/cuda/copy.cu gpu/cuda/copy.h mk/cuda.mk
	@mkdir -p $(@D)
	@printf '  %-7s %s\n' NVCC $<
	$(Q)$(CUDA)/bin/nvcc $(NVCCFLAGS) -o $@.$$$$ $< && mv $@.$$$$ $@

$(O)/gpu/cuda/image.o: gpu/cuda/image.S $(FATBIN)
	@mkdir -p $(@D)
	$(Q)$(CC) -c -DIMAGE='"$(FATBIN)"' -o $@ $<

$(PLUGIN): $(CUDA_OBJECTS) $(B)/libbase.a
	$(call link,-shared $(filter %.o %.a,$^) -ldl)

# The simulated driver that the plug-in's own unit test loads.
PLUGIN_DRIVER := $(B)/tests/gpu/plugin/libcuda.so.1
SRC_plugin_driver := $(sort $(wildcard tests/gpu/plugin_driver*.c))
$(call obj,$(SRC_plugin_driver)): CFLAGS_own := -isystem $(CUDA)/include
$(PLUGIN_DRIVER): $(call obj,$(SRC_plugin_driver))
	$(call link,-shared -Wl$(,)-soname$(,)libcuda.so.1 $^)

$(CEILING): $(call obj,$(SRC_ceiling) gpu/cuda/driver.c) $(O)/gpu/cuda/image.o $(B)/libgpu.a $(B)/libbase.a
	$(call link,-pie $(filter %.o %.a,$^) -ldl)

-include $(patsubst %.c,$(O)/%.d,$(SRC_cuda) $(SRC_ceiling) $(SRC_plugin_driver))
.SECONDARY: $(CUDA_OBJECTS) $(call obj,$(SRC_ceiling) $(SRC_plugin_driver))
all: $(PLUGIN)
else
# The stamp file makes the notice appear once and not at every build.
all: $(O)/no-cuda
$(O)/no-cuda:
	@mkdir -p $(@D)
	@printf '  %s\n' 'no CUDA toolkit: dray-cuda.so is not built'
	@touch $@
endif
