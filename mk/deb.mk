# SPDX-License-Identifier: Apache-2.0
#
# `make deb`: Debian packages of this build, in build/deb/. VERSION and SOURCE_DATE_EPOCH determine their bytes.
# `make deb-arm64`: packages for arm64, cross-built in a Debian root made for that, in build/deb-arm64/.
#
# dpkg-buildpackage runs in a folder of its own, which has only debian/, because debhelper writes there. packaging/debian/rules builds
# and installs from this tree.

DEB := build/deb
DEB_TREE := $(DEB)/dray
# a later version of the same sources, such as 0.1.0+1
# another architecture, whose packages of libraries are installed
DEB_HOST ?=

.PHONY: deb deb-arm64
# the time of the last commit; without one, the day of Debian 12
deb deb-arm64: export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),1686355200)
deb:
	@$(if $(DEB_HOST),,scripts/deps deb && $(MAKE) --no-print-directory $(PARALLEL) all)
	@rm -rf $(DEB) && mkdir -p $(DEB_TREE) && cp -r packaging/debian $(DEB_TREE)/debian
	@printf 'dray (%s) unstable; urgency=medium\n\n  * CHANGELOG.md of drayd has the changes.\n\n -- %s  %s\n' '$(VERSION)' \
		"$$(sed -n 's/^Maintainer: //p' packaging/debian/control)" "$$(date -R -u -d @$$SOURCE_DATE_EPOCH)" >$(DEB_TREE)/debian/changelog
	@cd $(DEB_TREE) && export MAKEFLAGS='$(filter-out -j% --jobserver%,$(MAKEFLAGS))' DRAY_TOP='$(CURDIR)' && \
		dpkg-buildpackage --build=binary --no-sign --no-pre-clean $(if $(DEB_HOST),--host-arch=$(DEB_HOST)) \
		--build-profiles=$(if $(DEB_HOST),cross,$(if $(PLUGIN),pkg.dray.cuda)) >../log 2>&1 || { cat ../log; exit 1; }
	@ls $(DEB)/*.deb

deb-arm64:
	@scripts/deps deb
	@packaging/cross-deb arm64
