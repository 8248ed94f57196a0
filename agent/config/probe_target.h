/* SPDX-License-Identifier: Apache-2.0 */
/* Where and how a segment is probed: kinds of probes, and targets as text. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/addr.h"
#include "lib/err.h"

#define PROBE_KINDS(X)          \
	X(TCP, "tcp")           \
	X(DRAY, "dray")         \
	X(MOONCAKE, "mooncake") \
	X(HTTP, "http")

#define PROBE_ENUM_KIND_(name, text) PROBE_##name,
enum probe_kind { PROBE_KINDS(PROBE_ENUM_KIND_) PROBE_KIND_N };

const char *probe_kind_name(enum probe_kind kind);
/* 0 or -EINVAL. */
int probe_kind_parse(const char *name, enum probe_kind *ret);

#define PROBE_PATH_MAX 255
#define PROBE_TARGET_TEXT_MAX (DRAY_HOST_BYTES + PROBE_PATH_MAX + 24)

struct probe_target {
	enum probe_kind kind;
	uint16_t port;
	char host[DRAY_HOST_BYTES];    /* address without brackets, or name */
	char path[PROBE_PATH_MAX + 1]; /* of http, with its query; else "" */
};

/*
 * "tcp://HOST:PORT", "dray://...", "mooncake://...", "http://HOST:PORT[/PATH]". HOST has the form it has in a
 * segment: an IPv4 address, an IPv6 address in brackets, or a name. 0, or -EINVAL with reterr (invalid).
 */
int probe_target_parse(const char *text, struct probe_target *ret, struct dray_err *reterr);

/* The target for a segment HOST:PORT and a kind; path "/" for http. 0, or -EINVAL with reterr (invalid). */
int probe_target_of(const char *segment, enum probe_kind kind, struct probe_target *ret,
		    struct dray_err *reterr);

/* The text that probe_target_parse() reads; buf of PROBE_TARGET_TEXT_MAX. Returns buf. */
const char *probe_target_show(const struct probe_target *t, char *buf, size_t n);

bool probe_target_equal(const struct probe_target *a, const struct probe_target *b);
