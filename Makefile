# SPDX-License-Identifier: Apache-2.0
#
#   make              build/drayd, build/drayctl (manual, completion), build/libdray.so.0, build/libdray.a, and
#                     build/dray-cuda.so if a CUDA toolkit is found
#   make demo         two agents move a KV cache (installs missing packages, builds, runs)
#   make check        every test, with a time budget for each stage (installs missing packages)
#   make check-unit   one stage of it: check-lint -build -unit -tsan -fuzz -namespaces -vm -wheel -packages -kube -engine -versions
#   make check-long   longer fuzzing, packages in a clean Debian root, the virtual machine's tests with sanitizers and in all variants,
#                     all tests with real vLLM engines
#   make fuzz-long    every fuzzer for SECONDS=60, JOBS at once; fuzz-coverage: what their corpora reach of the decoders
#   make bench        measure figures and their ceilings; writes build/bench/*.json, docs/benchmarks.md and its plots
#   make store-sim    what each eviction policy of the store saves on traces: table and plot in build/bench/store-sim.*;
#                     TRACES="--share 0.1 FILE..." takes recorded ones (tests/unit/store_traces.h has the format)
#   make ec-sim       what DrayEncoderCacheManager saves on traces of encoder outputs: table in build/bench/ec-sim.md
#   make bench-vm     the same for RDMA, over Soft-RoCE in the virtual machine; PARTS="rdma_idle ..." selects
#   make bench-engine what DrayConnector costs vLLM engines on the CPU, which takes 6 GB; PART="push" selects (bench_vllm.py lists them)
#   make wheel        build/wheel/*.whl: dray-client (Python package with libdray) and dray-agent (drayd, drayctl) for pip
#   make deb          build/deb/*.deb: Debian packages of this build; deb-arm64 cross-builds them into build/deb-arm64/
#   make image        build/image/*.tar: OCI images of the agent, without and with the CUDA plug-in, and their SBOMs
#   make site         build/site/html: the documentation as static pages with search; checks their links
#   make release      build/release/: sources, packages, wheels, images, site and notes, with checksums; release-notes: the notes alone
#   make install      DESTDIR= PREFIX=/usr/local; install-client: libdray alone, with its headers and manual pages
#   make deps         install the packages that demo and check need
#   make fmt lint gen format the C sources; check the rules; run the schema's generator
#   make hooks        refuse commits of C files that are not formatted
#   make compile_commands.json   for clangd
#   make clean        remove what was built; distclean also removes the fetched kernel
#
# Settings: CC=gcc|clang, WERROR=1, V=1 (show commands), CFLAGS, LDFLAGS (added to ours), JOBS.
#
# One run of this file builds one VARIANT into one folder: release into build/; asan, tsan, fuzz, and
# gcc and clang (release builds for the checks) into build/VARIANT. A target that needs another
# variant runs make again. Sources are found by folder; a new file needs no change here.

# The Python package has it too when it runs from these sources.
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' client/python/dray/__init__.py)

ifeq ($(origin CC),default)
CC := gcc
endif
VARIANT ?= release
PREFIX ?= /usr/local
# Debian's own interpreter, because Debian's packages install their Python modules only for it.
PYTHON ?= /usr/bin/python3
JOBS ?= 2
OBJCOPY ?= objcopy
Q := $(if $(V),,@)

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all
FORCE:

B := $(if $(filter release,$(VARIANT)),build,build/$(VARIANT))
O := $(B)/obj

include mk/wheel.mk
include mk/flags.mk

# --- sources ----------------------------------------------------------------------------------
# Each folder becomes one static archive, so that a test program links only the objects that it uses.
# Programs add their main; main.c is in no archive.
SRC_base := $(sort $(wildcard lib/*.c schema/gen/*.c))
SRC_gpu := $(sort $(wildcard gpu/*.c))
SRC_netdetect := $(sort $(wildcard netdetect/*.c netdetect/*/*.c))
SRC_agent := $(filter-out agent/main.c,$(sort $(shell find agent -name '*.c')))
SRC_client := $(sort $(wildcard client/*.c))
SRC_ctl := $(filter-out ctl/main.c,$(sort $(shell find ctl -name '*.c')))

SRC_test_main := $(sort $(wildcard $(foreach p,unit/test_ unit/tsan_ fuzz/fuzz_,tests/$(p)*.c) \
	$(foreach d,bench integration demo,tests/$(d)/*.c)))
SRC_gpu_engine := $(patsubst %,tests/gpu/%.c,engine engine_gpu engine_run engine_words memory driver)
SRC_fake_gpu := $(patsubst %,tests/gpu/%.c,fake fake_memory fake_queue)
SRC_test := $(filter-out $(SRC_test_main),$(sort $(wildcard tests/unit/*.c tests/fuzz/*.c))) $(SRC_fake_gpu)

SRC := $(SRC_base) $(SRC_gpu) $(SRC_netdetect) $(SRC_agent) $(SRC_client) $(SRC_ctl) $(SRC_test) \
	$(SRC_test_main) $(SRC_gpu_engine) tests/gpu/simulated_driver.c $(wildcard agent/main.c ctl/main.c)
obj = $(patsubst %.c,$(O)/%.o,$(1))

MAINS := $(wildcard agent/main.c ctl/main.c)
PROGRAMS := $(if $(filter agent/main.c,$(MAINS)),$(B)/drayd) \
	$(if $(filter ctl/main.c,$(MAINS)),$(B)/drayctl)
LIBRARIES := $(if $(SRC_client),$(B)/libdray.so.0 $(B)/libdray.so $(B)/libdray.a)
GENERATED := $(addprefix $(B)/,drayctl.1 drayctl.bash _drayctl)
ARCHIVES := $(foreach a,test agent ctl client netdetect gpu base,$(B)/lib$(a).a)

LIBS_netdetect := -lmnl -ldl
LIBS_agent := -lconfig -lsystemd -lmicrohttpd -lhttp_parser -lcares -lhiredis -ljansson -lsqlite3 -lssl -lcrypto -lnettle -lseccomp -lcap -lm $(LIBS_netdetect)
LIBS_ctl := -lsystemd -ljansson -lyaml $(LIBS_netdetect)
LIBS_test := -lcmocka

.PHONY: all demo check bench bench-vm bench-engine store-sim ec-sim install install-client deps fmt hooks lint gen clean distclean tools help
all: $(PROGRAMS) $(LIBRARIES) $(GENERATED)

help:
	@sed -n 's/^#   //p' Makefile

# --- compile and link ---------------------------------------------------------------------------
# A stamp file is rewritten only when its text changes. Objects depend on the flags, archives on the list of sources.
$(B)/flags: TEXT = $(CC) $(CFLAGS_all) : $(LDFLAGS_all) $(PIE)
$(B)/sources: TEXT = $(SRC)
$(B)/flags $(B)/sources: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(TEXT)' | cmp -s - $@ || printf '%s\n' '$(TEXT)' >$@

$(O)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	@printf '  %-7s %s\n' CC $<
	$(Q)$(CC) $(CFLAGS_all) $(CFLAGS_own) -MMD -MP -c -o $@ $<

define archive
$(B)/lib$(1).a: $(call obj,$(SRC_$(1))) $(B)/sources
	$$(Q)rm -f $$@ && $(AR) rcs $$@ $$(filter %.o,$$^)
endef
$(foreach a,base gpu netdetect agent client ctl test,$(eval $(call archive,$(a))))

define link
	@mkdir -p $(@D)
	@printf '  %-7s %s\n' LD $@
	$(Q)$(CC) $(LDFLAGS_all) -o $@ $(1)
endef

$(B)/drayd: $(call obj,agent/main.c) $(B)/libagent.a $(B)/libnetdetect.a $(B)/libgpu.a $(B)/libbase.a
	$(call link,$(PIE) $(filter %.o %.a,$^) $(LIBS_agent))

$(B)/drayctl: $(call obj,ctl/main.c) $(B)/libctl.a $(B)/libclient.a $(B)/libnetdetect.a $(B)/libgpu.a $(B)/libbase.a
	$(call link,$(PIE) $(filter %.o %.a,$^) $(LIBS_ctl))

# Manual and completion; schema/drayctl.yaml is their source.
$(B)/drayctl.1: schema/gen/drayctl.1
	$(Q)sed 's|@VERSION@|$(VERSION)|' $< >$@

# The generated tables, followed by the shell functions that read them.
$(B)/drayctl.bash: schema/gen/drayctl.bash ctl/completion/drayctl.bash
	$(Q)cat $^ >$@

$(B)/_drayctl: schema/gen/drayctl.zsh ctl/completion/drayctl.zsh
	$(Q)cat $^ >$@

# The shared library exports the names in its map, and nothing of lib/ and schema/. It is never unloaded, because threads
# free the results of their last calls when they end.
MAP := $(wildcard client/libdray.map)
$(B)/libdray.so.0: $(call obj,$(SRC_client)) $(B)/libbase.a $(MAP)
	$(call link,-shared -Wl$(,)-soname$(,)libdray.so.0 -Wl$(,)-z$(,)nodelete \
		$(addprefix -Wl$(,)--version-script=,$(MAP)) \
		$(filter %.o %.a,$^))
, := ,

$(B)/libdray.so: $(B)/libdray.so.0
	$(Q)ln -sf $(<F) $@

# The static library is one object whose hidden symbols are made local, for the same reason.
$(B)/libdray.a: $(call obj,$(SRC_client)) $(B)/libbase.a
	$(Q)$(LD) -r -o $(O)/dray.o $(filter %.o %.a,$^)
	$(Q)$(OBJCOPY) --localize-hidden $(O)/dray.o
	$(Q)rm -f $@ && $(AR) rcs $@ $(O)/dray.o

include mk/cuda.mk

# Tools of the benchmarks, the demo and the integration tests do not link cmocka.
define tool
$(B)/tests/$(1)/%: $(O)/tests/$(1)/%.o $(filter-out $(B)/libtest.a,$(ARCHIVES))
	$$(call link,$(PIE) $$(FUZZLINK) $$(filter %.o,$$^) -Wl$$(,)--start-group $$(filter %.a,$$^) \
		-Wl$$(,)--end-group $$(LIBS_agent))
endef
$(foreach d,bench demo integration,$(eval $(call tool,$(d))))
$(B)/tests/bench/bench_tcp_transport: $(patsubst %,$(O)/tests/unit/%.o,tcp_lab tcp_lab_gpu tcp_lab_io) $(call obj,$(SRC_fake_gpu))
$(B)/tests/bench/one_thread: $(O)/tests/unit/client_fake.o
$(B)/tests/bench/store_sim: $(patsubst %,$(O)/tests/unit/%.o,store_replay store_traces)
$(B)/tests/bench/ceiling_tcp: $(O)/tests/unit/tcp_loop.o
# Its option --uring exists only if liburing is installed.
$(B)/tests/bench/ceiling_tcp: LIBS_agent += $(shell pkg-config --silence-errors --libs liburing)
$(B)/tests/integration/schema_recode: $(O)/tests/unit/schema_vectors.o

# A GPU plug-in that needs no GPU, for agents under test.
FAKE_GPU := $(B)/tests/gpu/dray-fake-gpu.so
$(FAKE_GPU): $(call obj,$(SRC_fake_gpu)) $(B)/libbase.a
	$(call link,-shared $(filter %.o %.a,$^))

# A CUDA driver that needs no GPU, for programs that load libcuda.so.1 at run time. Python loads it too, so it is built
# without sanitizers.
FAKE_LIBCUDA := $(B)/tests/gpu/libcuda.so.1
$(FAKE_LIBCUDA): tests/gpu/fake_libcuda.c tests/gpu/fake_libcuda.h client/cuda_driver.h $(B)/flags
	@mkdir -p $(@D)
	@printf '  %-7s %s\n' LD $@
	$(Q)$(CC) $(LANGUAGE) $(WARN) -g -O1 -shared -Wl,-soname,$(@F) -o $@ $<

# For LD_PRELOAD, as the agent under test is built without sanitizers then.
PRELOADED := $(patsubst %.c,$(B)/%.so,$(wildcard tests/faults/*.c))
$(PRELOADED): $(B)/%.so: %.c $(B)/flags
	@mkdir -p $(@D)
	@printf '  %-7s %s\n' LD $@
	$(Q)$(CC) $(LANGUAGE) $(WARN) -fno-builtin -fvisibility=default -fPIC -g -O1 -shared -o $@ $<

# The test engine with GPU memory needs no CUDA toolkit at build time and no GPU to start. Its driver is loaded by Python, too.
GPU_ENGINE := $(B)/tests/gpu/engine
$(GPU_ENGINE): $(call obj,$(SRC_gpu_engine)) $(B)/libclient.a $(B)/libbase.a
	$(call link,$(PIE) $(filter %.o %.a,$^) -ldl)
SIMULATED_DRIVER := $(B)/tests/gpu/simulated/libcuda.so.1
$(SIMULATED_DRIVER): tests/gpu/simulated_driver.c tests/gpu/driver.h $(B)/flags
	@mkdir -p $(@D)
	@printf '  %-7s %s\n' LD $@
	$(Q)$(CC) $(LANGUAGE) $(WARN) -g -O1 -shared -pthread -Wl,-soname,$(@F) -o $@ $<

# A test that gets no memory may crash: it uses what it allocates without a check.
$(O)/tests/unit/%.o: CFLAGS_own := -Wno-null-dereference
# It has no memory for rules of the filter at times.
$(B)/tests/unit/test_sandbox: LIBS_test += -Wl,--wrap=seccomp_init,--wrap=seccomp_rule_add_array
# It has no memory for a request at times.
$(B)/tests/unit/test_master: LIBS_test += -Wl,--wrap=http_start
# Its agent dies behind a look at the descriptors at times.
$(B)/tests/unit/test_client_proof: LIBS_test += -Wl,--wrap=epoll_wait
# Its file system does not know RENAME_NOREPLACE at times.
$(B)/tests/unit/test_state: LIBS_test += -Wl,--wrap=renameat2
# It has no memory for timers at times.
$(B)/tests/unit/test_resolver: LIBS_test += -Wl,--wrap=sd_event_add_time_relative
# Its sockets have a certain port at times.
$(B)/tests/unit/test_http_client: LIBS_test += -Wl,--wrap=socket
# It has no memory for packets at times.
$(B)/tests/unit/test_worker: LIBS_test += -Wl,--wrap=packet_new
# It counts what is ranked, and the segments that are asked whether they may go.
$(B)/tests/unit/test_segments: LIBS_test += -Wl,--wrap=preferred_rank,--wrap=segment_may_go
# It has no memory for commands at times.
$(B)/tests/unit/test_directory: LIBS_test += -Wl,--wrap=batch_new
# It has no memory for policies at times.
$(B)/tests/unit/test_store_tier: LIBS_test += -Wl,--wrap=policy_move
# It has no DMA-BUF, and maps a file as one.
$(B)/tests/unit/test_region: LIBS_test += -Wl,--wrap=extents_map
# It counts the remotes that are dropped.
$(B)/tests/unit/test_session_region: LIBS_test += -Wl,--wrap=pool_drop,--wrap=pool_retire
# Its dumps are interrupted at times.
$(B)/tests/unit/test_nd_monitor: LIBS_test += -Wl,--wrap=mnl_socket_recvfrom
# It has scans in which a device fails.
$(B)/tests/unit/test_detect: LIBS_test += -Wl,--wrap=nd_scan_run
# It has an RDMA device of its own.
$(B)/tests/unit/test_nd_verbs: LIBS_test += $(addprefix -Wl$(,)--wrap=,ibv_get_device_list ibv_free_device_list ibv_get_device_name \
	ibv_open_device ibv_close_device ibv_query_port ibv_query_pkey _ibv_query_gid_table ibv_alloc_pd ibv_dealloc_pd ibv_create_ah \
	ibv_destroy_ah)
# It counts the regions that are looked at, and its devices have events.
$(B)/tests/unit/test_rails $(B)/tests/unit/tsan_rails: LIBS_test += -Wl,--wrap=rail_regions_check,--wrap=ibv_get_async_event,--wrap=ibv_ack_async_event
# Any other program of tests/: tests/unit/test_rings.c becomes build/asan/tests/unit/test_rings.
# Fuzzers use neither drayctl nor libdray, and TSan programs do not use drayctl, so these variants do not build them.
TEST_ARCHIVES := $(filter-out $(if $(filter tsan fuzz coverage,$(VARIANT)),$(B)/libctl.a) $(if $(filter fuzz coverage,$(VARIANT)),$(B)/libclient.a),$(ARCHIVES))
$(B)/tests/%: $(O)/tests/%.o $(TEST_ARCHIVES)
	$(call link,$(PIE) $(FUZZLINK) $< -Wl$(,)--start-group $(TEST_ARCHIVES) -Wl$(,)--end-group \
		$(if $(filter unit/%,$*),$(LIBS_test)) $(LIBS_agent) $(LIBS_ctl))

# For arm64, without the archives of the agent, whose libraries are not there.
ifeq ($(VARIANT),wheel-aarch64)
$(ARM64_OBJECTS) $(ARM64_UNIT:build/wheel-aarch64/%=$(O)/%.o): CFLAGS_own := -isystem $(ARM64)/usr/include
$(ARM64_UNIT): $(B)/%: $(O)/%.o $(ARM64_OBJECTS) $(B)/libdray.so.0 $(B)/libclient.a $(B)/libbase.a
	$(call link,$(PIE) $^ $(ARM64)/usr/lib/aarch64-linux-gnu/libcmocka.so.0)
endif

.SECONDARY: $(call obj,$(SRC))
-include $(patsubst %.c,$(O)/%.d,$(SRC))

# --- tests --------------------------------------------------------------------------------------
program = $(patsubst %.c,$(B)/%,$(wildcard $(1)))
UNIT := $(call program,tests/unit/$(if $(filter tsan,$(VARIANT)),tsan,test)_*.c)
FUZZ := $(call program,tests/fuzz/fuzz_*.c)
TOOLS := $(call program,tests/bench/*.c tests/integration/*.c tests/demo/*.c) $(CEILING) $(PRELOADED)

include mk/deb.mk
include mk/image.mk
include mk/release.mk
include mk/check.mk

# --- the rest -----------------------------------------------------------------------------------
deps:
	@scripts/deps check

demo:
	@scripts/deps build
	@$(MAKE) --no-print-directory $(PARALLEL) all tools
	@DRAY_BUILD=$(B) $(PYTHON) tests/demo/demo.py

bench:
	@scripts/deps bench
	@$(MAKE) --no-print-directory $(PARALLEL) all tools
	@mkdir -p build/bench
	@set -e; for f in $(filter-out %/bench_vllm.py,$(sort $(wildcard tests/bench/bench_*.py))); do \
		echo "== $$f"; DRAY_BUILD=$(B) DRAY_BENCH_OUT=build/bench $(PYTHON) $$f; done

bench-engine:
	@scripts/deps bench
	@$(MAKE) --no-print-directory $(PARALLEL) all tools
	@mkdir -p build/bench
	@DRAY_BUILD=$(B) DRAY_BENCH_OUT=build/bench $(PYTHON) tests/bench/bench_vllm.py $(addprefix --only ,$(PART))

store-sim: $(B)/tests/bench/store_sim
	@DRAY_BUILD=$(B) $(PYTHON) tests/bench/store_sim.py build/bench $(TRACES)

ec-sim:
	@$(PYTHON) tests/bench/ec_sim.py

# All RDMA benchmarks in one run of the virtual machine; their records go into build/bench too.
bench-vm:
	@scripts/deps bench
	@$(MAKE) --no-print-directory $(PARALLEL) all tools
	@tests/vm/run --timeout=2400 --mem=4096 --share=build/bench --env=DRAY_BUILD=$(B) \
		--env=DRAY_BENCH_OUT=build/bench $(DRAY_BENCH_PAIRS:%=--env=DRAY_BENCH_PAIRS=%) -- \
		$(PYTHON) tests/bench/vm/bench_rdma.py $(PARTS)
	@$(PYTHON) tests/bench/report.py

tools: $(TOOLS) $(FAKE_GPU) $(FAKE_LIBCUDA) $(GPU_ENGINE) $(SIMULATED_DRIVER)

gen:
	$(PYTHON) schema/generate.py
	$(PYTHON) scripts/python-reference
	$(PYTHON) scripts/c-reference
	$(PYTHON) scripts/library-symbols

FORMATTED = $(shell find lib agent gpu netdetect client ctl tests schema examples -name '*.[ch]' \
	-not -path 'schema/gen/*' -not -name dray_errors.h 2>/dev/null)
fmt:
	$(if $(FORMATTED),clang-format -i $(FORMATTED))
	clang-format -i gpu/cuda/copy.cu

# Makes git check the format at each commit in this clone.
hooks:
	git config core.hooksPath scripts/hooks

# For clangd and other tools that need the compiler's command line of each file. clang has no strategies for memset().
compile_commands.json: $(B)/flags $(B)/sources
	$(Q)scripts/compile-commands '$(CC) $(filter-out -mmem%,$(CFLAGS_all)) $(if $(CUDA),-isystem $(CUDA)/include)' $(SRC) $(SRC_cuda) >$@

lint: check-lint

MAN_client := $(wildcard client/man/*.3)
MAN := $(B)/drayctl.1 $(wildcard agent/man/*.8 agent/man/*.5 agent/man/*.7)
PYTHONDIR ?= $(if $(filter /usr,$(PREFIX)),/usr/lib/python3,$(PREFIX)/lib/$(shell $(PYTHON) -c \
	'import sys; print("python%d.%d" % sys.version_info[:2])'))/dist-packages
# Where libraries and systemd's units go; Debian has other folders for both (packaging/debian/rules).
LIBDIR ?= $(PREFIX)/lib
UNITDIR ?= $(PREFIX)/lib/systemd/system
D = $(DESTDIR)$(PREFIX)

install_man = $(foreach m,$(1),install -D -m 644 $(m) $(D)/share/man/man$(subst .,,$(suffix $(m)))/$(notdir $(m))$(NL))

install: all install-client
	install -D -m 755 $(B)/drayd $(D)/sbin/drayd
	install -D -m 755 $(B)/drayctl $(D)/bin/drayctl
	$(if $(PLUGIN),install -D -m 755 $(PLUGIN) $(D)/lib/dray/dray-cuda.so)
	$(call install_man,$(MAN))
	install -D -m 644 $(B)/drayctl.bash $(D)/share/bash-completion/completions/drayctl
	install -D -m 644 $(B)/_drayctl $(D)/share/zsh/site-functions/_drayctl
	install -D -m 644 -t $(DESTDIR)$(UNITDIR) packaging/systemd/*.socket
	sed 's|@PREFIX@|$(PREFIX)|' packaging/systemd/drayd.service.in >$(DESTDIR)$(UNITDIR)/drayd.service
	install -D -m 644 packaging/systemd/dray.sysusers $(D)/lib/sysusers.d/dray.conf
	install -D -m 644 packaging/systemd/dray.tmpfiles $(D)/lib/tmpfiles.d/dray.conf
	mkdir -p $(DESTDIR)$(PYTHONDIR)
	cd client/python && find dray \( -name '*.py' -o -name py.typed \) -exec install -D -m 644 {} $(DESTDIR)$(PYTHONDIR)/{} \;

install-client: $(LIBRARIES)
	install -D -m 644 client/dray.h $(D)/include/dray/dray.h
	install -D -m 644 client/dray_errors.h $(D)/include/dray/dray_errors.h
	install -D -m 644 $(B)/libdray.a $(DESTDIR)$(LIBDIR)/libdray.a
	install -D -m 755 $(B)/libdray.so.0 $(DESTDIR)$(LIBDIR)/libdray.so.0
	ln -sf libdray.so.0 $(DESTDIR)$(LIBDIR)/libdray.so
	mkdir -p $(DESTDIR)$(LIBDIR)/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' mk/dray.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/dray.pc
	$(call install_man,$(MAN_client))

define NL


endef

# Clean keeps what was fetched: the virtual machine's kernel, the wheels' compiler, tools for Kubernetes, and programs for arm64; and what was built of the previous release.
clean:
	$(if $(wildcard build),find build -mindepth 1 -maxdepth 1 -not -name vm -not -name 'tools*' -not -name arm64 -not -name previous -exec rm -rf {} +)

distclean:
	rm -rf build
