/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher's environment: the variables of an engine, its libraries or a node-local owner, by profile. A pure
 * function of facts. A variable without a known value is left out with the reason; that is no error, because an engine
 * also starts without it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/err.h"
#include "netdetect/scan.h"

/* Everything is borrowed during the call. Strings may be NULL, which is the same as "": not known. */
struct env_facts {
	const struct nd_scan *scan; /* NULL: the first scan has not ended yet */
	const char *data_socket;    /* path */
	const char *segment;        /* the agent's own, host:port; "" without a peer listener */
	/* the preferred segment of the empty scope, and the words of the interface for it; name "": none */
	struct {
		const char *name, *preference, *state, *reason;
		bool agent; /* a dray agent, which is no segment of Mooncake's */
	} preferred;
	/* the address or name that others should use, without port and brackets; and why this one */
	const char *host, *host_reason;
	const char *master;                /* of Mooncake, in the form for its clients */
	unsigned owner_segment, owner_rpc; /* ports: mooncake.owner_segment, mooncake.owner_rpc */
	unsigned rnics_per_gpu;            /* rdma.rnics_per_gpu of the scan; 0: all */
};

struct env_variable {
	const char *profile, *name; /* static; the name of an argument has its dashes */
	char *value;                /* NULL: left out; never with a newline */
	char *reason;               /* where the value comes from, or why there is none; one line */
	bool argument;              /* of a command line, NAME=VALUE, instead of a variable */
};

struct env {
	struct env_variable *v;
	size_t n;
};

#define ENV_NULL ((struct env){ NULL, 0 })

/*
 * The variables of the profiles, in their order; a profile that is named twice comes once. Two profiles may have the same
 * variable, with the same value. The caller calls env_deinit(). 0; -EINVAL for an unknown profile, with reterr naming the
 * known ones; -ENOMEM. Any thread.
 */
int env_make(const struct env_facts *facts, const char *const *profiles, size_t n, struct env *ret,
	     struct dray_err *reterr);
void env_deinit(struct env *e);

/*
 * A dotenv file: a line NAME=VALUE for each variable, each name once, quoted as in lib/quote.h; arguments and variables
 * that are left out are comments. The caller frees *ret. 0 or -ENOMEM.
 */
int env_text(const struct env *e, char **ret);

/* For ENV_GET: lines NAME=VALUE without quotes, and lines "NAME: why it is left out". The caller frees both. 0 or -ENOMEM. */
int env_lines(const struct env *e, char **ret_variables, char **ret_notes);
