# SPDX-License-Identifier: Apache-2.0
#
# How C is compiled: language, warnings (each with its reason), hardening, and what the variants add.
# Sets CFLAGS_all, LDFLAGS_all and FUZZLINK for the current CC and VARIANT.

# The variants gcc, clang, fuzz and coverage determine the compiler.
ifneq ($(filter gcc clang,$(VARIANT)),)
override CC := $(VARIANT)
else ifneq ($(filter fuzz coverage,$(VARIANT)$(findstring clang,$(CC))),)
override CC := clang
# Libraries for the wheels (mk/wheel.mk): wheel-x86_64, wheel-aarch64. zig's compiler is clang.
else ifneq ($(filter wheel-%,$(VARIANT)),)
override CC := $(WHEEL_TOOLS)/bin/python -m ziglang cc -target $(VARIANT:wheel-%=%)-linux-gnu.$(WHEEL_GLIBC)
export ZIG_GLOBAL_CACHE_DIR := $(CURDIR)/$(WHEEL)/cache
export ZIG_LOCAL_CACHE_DIR := $(ZIG_GLOBAL_CACHE_DIR)
endif
CC_IS_CLANG := $(or $(findstring clang,$(CC)),$(findstring ziglang,$(CC)))

# --- language ---------------------------------------------------------------------------------
# PIC for every object, not PIE for programs and PIC for the library: with hidden visibility both
# give the same code on the supported architectures, so each source is compiled once.
LANGUAGE := -std=gnu11 -D_GNU_SOURCE -I. -DDRAY_VERSION=\"$(VERSION)\" \
	-fPIC -fvisibility=hidden -fno-common -pthread -ffunction-sections -fdata-sections \
	-ffile-prefix-map=$(CURDIR)=.

# --- warnings ---------------------------------------------------------------------------------
WARN := -Wall -Wextra
WARN += -Wshadow                 # readers mistake an inner name for the outer one that it hides
WARN += -Wundef                  # a misspelt macro in #if is silently 0
WARN += -Wformat=2               # formats are checked, and are literals
WARN += -Wstrict-prototypes      # f() accepts any arguments, f(void) none
WARN += -Wold-style-definition   # the same, for definitions
WARN += -Wmissing-prototypes     # a function is static or declared in a header
WARN += -Wredundant-decls        # one declaration, in one header
WARN += -Wnested-externs         # no declaration inside a function
WARN += -Wwrite-strings          # string literals are const
WARN += -Wcast-qual              # no cast drops const
WARN += -Wpointer-arith          # no arithmetic on void *
WARN += -Wswitch-enum            # every switch must handle a new enum value
WARN += -Wvla                    # input must not determine the stack use
WARN += -Wdate-time              # builds are reproducible
WARN += -Wimplicit-fallthrough   # falling through a case is marked
WARN += -Wnull-dereference       # no path dereferences a pointer that is known to be NULL
WARN += -Wdouble-promotion       # no silent float to double
WARN += -Wno-unused-parameter    # a callback has all parameters of its type, used or not
ifdef CC_IS_CLANG
WARN += -Wconditional-uninitialized  # what gcc calls maybe-uninitialized
WARN += -Wassign-enum                # an enum holds only its own values
WARN += -Wcomma                      # a comma that should be a semicolon
else
WARN += -Wlogical-op             # && where & was meant
WARN += -Wduplicated-cond        # the same condition twice in an if chain
WARN += -Wduplicated-branches    # both branches do the same
WARN += -Wjump-misses-init       # goto over the start of a cleanup variable
WARN += -Walloca                 # see -Wvla
endif
WARN += $(if $(WERROR),-Werror)

# --- hardening --------------------------------------------------------------------------------
HARDEN := -fstack-protector-strong -fstack-clash-protection
HARDEN_LD := -Wl,-z,relro,-z,now,-z,noexecstack,--as-needed
# Parts of lib/ and schema/ that a program does not use are not linked into it.
SPARE_LD := -Wl,--gc-sections
HARDEN_LD += $(if $(filter release gcc clang wheel-%,$(VARIANT)),$(SPARE_LD))

# --- variants ---------------------------------------------------------------------------------
# DRAY_TEST=1 marks builds for tests only; they contain fault injection sites.
# Reports need only line numbers; CFLAGS=-g adds variables for a debugger.
SANITIZED := -g1 -fno-omit-frame-pointer -DDRAY_TEST=1
ifndef CC_IS_CLANG
# Instrumentation gives these warnings false positives, as gcc's manual says; the plain build has them.
SANITIZED += -Wno-null-dereference -Wno-maybe-uninitialized -Wno-stringop-overflow
endif

OPT_release := -g -O2 -D_FORTIFY_SOURCE=2
# On x86-64 gcc clears structures of 100 bytes and more by `rep stos`, which takes 9 ns for any of them; memset() takes 2 for 200 bytes.
ifndef CC_IS_CLANG
OPT_release += $(if $(filter x86_64-%,$(shell $(CC) -dumpmachine)),-mmemset-strategy=libcall:-1:noalign -mmemcpy-strategy=libcall:-1:noalign)
endif
OPT_gcc := $(OPT_release)
# Unlike gcc, clang finds its warnings without optimising. No program of this variant is run or debugged.
OPT_clang := -O0
# -Og compiles in less than half the time of -O1, and the tests run as fast.
OPT_asan := -Og $(SANITIZED) -fsanitize=address,undefined -fno-sanitize-recover=all
OPT_tsan := -Og $(SANITIZED) -fsanitize=thread
# A search of some seconds gains less time from -O1 than compiling with -O1 takes.
OPT_fuzz := -O0 $(SANITIZED) -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
# Fuzzers that count the lines that their inputs reach.
OPT_coverage := -O0 -g1 -DDRAY_TEST=1 -fsanitize=fuzzer-no-link -fprofile-instr-generate -fcoverage-mapping

OPT_$(filter wheel-%,$(VARIANT)) := -O2 -D_FORTIFY_SOURCE=2

# Relative relocations take a fifteenth of drayd in the older format. The compact one needs glibc 2.36, which wheels cannot rely on.
LD_release := -Wl,-z,defs,-z,pack-relative-relocs
LD_gcc := $(LD_release)
LD_clang := $(LD_release)
LD_$(filter wheel-%,$(VARIANT)) := -Wl,-z,defs -s
# gold links a test program in a third of the time of ld, and there are more than a hundred programs.
LD_fast := $(if $(filter asan tsan,$(VARIANT)),$(if $(shell command -v ld.gold),-fuse-ld=gold))
LD_asan := $(LD_fast) -fsanitize=address,undefined
LD_tsan := $(LD_fast) -fsanitize=thread
LD_fuzz := -fsanitize=address,undefined
LD_coverage := -fprofile-instr-generate
FUZZLINK := $(if $(filter fuzz coverage,$(VARIANT)),-fsanitize=fuzzer)

ifeq ($(OPT_$(VARIANT)),)
$(error VARIANT=$(VARIANT) is not one of release, gcc, clang, asan, tsan, fuzz, coverage, wheel-x86_64, wheel-aarch64)
endif

# A program of a sanitizer has hundreds of thousands of pointers in the tables of its checks. Linked for one address, it is two thirds as
# large, links in half the time, and starts without relocating them; thousands of such programs are started by tests.
PIE := $(if $(filter asan tsan fuzz coverage,$(VARIANT)),-no-pie,-pie)

CFLAGS_all := $(strip $(LANGUAGE) $(WARN) $(HARDEN) $(OPT_$(VARIANT)) $(CFLAGS))
LDFLAGS_all := $(strip -pthread $(HARDEN_LD) $(LD_$(VARIANT)) $(LDFLAGS))
