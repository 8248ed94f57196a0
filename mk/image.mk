# SPDX-License-Identifier: Apache-2.0
#
# `make image`: OCI images of the programs of this build, in build/image/: dray, and with the CUDA plug-in dray-cuda. Their bytes are
# determined by the sources, VERSION, SOURCE_DATE_EPOCH and the Debian packages of this machine, from which the libraries come. No daemon and
# no base image is needed.

IMAGE := build/image
IMAGE_BUILD = $(PYTHON) packaging/image/build.py $(IMAGE) $(1) $(VERSION) "$(IMAGE_REVISION)" $(PROGRAMS)
IMAGE_REVISION = $(shell git describe --always --abbrev=40 --dirty --exclude='*' 2>/dev/null)

.PHONY: image
image: export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),1686355200)
image:
	@scripts/deps image
	@$(MAKE) --no-print-directory $(PARALLEL) all
	@rm -rf $(IMAGE)
	@$(call IMAGE_BUILD,dray)
	@$(if $(PLUGIN),$(call IMAGE_BUILD,dray-cuda) $(PLUGIN))
