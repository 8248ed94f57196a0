/* SPDX-License-Identifier: Apache-2.0 */
/* A probe in progress. Only for probe.c and the files of the kinds. */
#pragma once

#include <jansson.h>

#include "agent/placement/net/resolver.h"
#include "agent/placement/probe/probe.h"
#include "lib/addr.h"

struct http_call;
struct peer_probe;

/*
 * A kind has either `run`, which makes the whole probe, or `try_address`, which begins an attempt at one address.
 * A kind that calls probe_connect() has `ready`: the socket is connected (first call), or there is something to read.
 * Each of them may end the attempt by probe_succeed() or probe_fail_address(), after which the probe may be gone.
 */
struct probe_ops {
	int (*run)(struct probe *p, struct dray_err *reterr);
	int (*try_address)(struct probe *p, const struct dray_addr *addr, struct dray_err *reterr);
	void (*ready)(struct probe *p, bool connected);
	/* Releases what the attempt holds beside the socket; may be NULL. */
	void (*stop)(struct probe *p);
};

struct probe {
	struct probe_deps deps;
	struct probe_target target;
	const struct probe_ops *ops;
	probe_fn fn;
	void *arg;
	int64_t start_ns, end_ns; /* of the probe */
	const char *awaited;      /* for "no ... within 5 ms": "connection", "reply" */
	sd_event_source *timer, *io;
	int fd; /* of the attempt; -1: none */
	bool connected;
	struct resolver_query *query;
	struct dray_addr addrs[RESOLVER_ADDRS_MAX];
	unsigned n_addrs, next_addr;
	struct probe_result result;
	union {
		struct peer_probe *dray;
		struct http_call *http;
		struct {
			uint8_t *buf;
			size_t n, cap;
		} in; /* mooncake */
	};
};

extern const struct probe_ops probe_tcp_ops, probe_dray_ops, probe_mooncake_ops, probe_http_ops;

/* Begins to connect a socket to the address. 0 or -errno with reterr. */
int probe_connect(struct probe *p, const struct dray_addr *addr, struct dray_err *reterr);

/* Calls fn with the result and frees the probe. */
void probe_finish(struct probe *p, bool ok, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
#define probe_succeed(p, ...) probe_finish(p, true, __VA_ARGS__)
#define probe_fail(p, ...) probe_finish(p, false, __VA_ARGS__)

/* This address failed: tries the next one, or ends as probe_fail() does. */
void probe_fail_address(struct probe *p, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * Parses one value of any type from n bytes and ignores what follows it. Integers become reals, because addresses and keys
 * may need all 64 bits and are not used. The cost is bounded, not only the size of the text. 0 with a reference, or
 * -EPROTO with why (n_why bytes): the text is not JSON, or has more values than such a text should have.
 */
int probe_json_parse(const char *text, size_t n, json_t **ret, char *why, size_t n_why);
