# SPDX-License-Identifier: Apache-2.0
#
# `make site`: the documentation as static pages with search, in build/site/html, whose links are checked.
# `make release`: everything that a release consists of, in build/release/: sources, Debian packages, wheels, images with their SBOMs, site and
# notes, with their checksums in SHA256SUMS. SOURCE_DATE_EPOCH and VERSION determine the bytes, as for each of its parts.
# `make release-notes`: the notes alone, from CHANGELOG.md: of a commit with the tag vVERSION its section, else what is not released yet.

RELEASE := build/release
RELEASE_NAME = dray-$(VERSION)

.PHONY: site release release-notes
site release: export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),1686355200)
site:
	@scripts/deps site
	@$(PYTHON) packaging/site/build.py build/site

release-notes:
	@scripts/release-notes $(VERSION)

# What is not committed would be in the packages, and not in the sources.
# The notes come first: a tagged release without them stops here.
release:
	@git diff --quiet HEAD || { echo "release: there are uncommitted changes: commit them, or git stash" >&2; exit 1; }
	@rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	@scripts/release-notes $(VERSION) >$(RELEASE)/$(RELEASE_NAME)-notes.md
	@$(MAKE) --no-print-directory $(PARALLEL) deb wheel image site
	@git -c tar.umask=0022 archive --prefix=$(RELEASE_NAME)/ --output=$(RELEASE)/$(RELEASE_NAME).tar HEAD
	@cp $(DEB)/*.deb $(WHEEL)/*.whl $(IMAGE)/*.* $(RELEASE)/
	@tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime=@$$SOURCE_DATE_EPOCH \
		--transform='s,^html,$(RELEASE_NAME)-site,' --directory=build/site --file=$(RELEASE)/$(RELEASE_NAME)-site.tar html
	@gzip -n9 $(RELEASE)/$(RELEASE_NAME).tar $(RELEASE)/$(RELEASE_NAME)-site.tar
	@cd $(RELEASE) && LC_ALL=C && sha256sum * >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS && sha256sum --quiet --check SHA256SUMS && cat SHA256SUMS
