/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forms of the keys segment.known, segment.local, segment.ports, segment.preferred and mooncake.masters.
 * Pure. Errors name the word and what it could be.
 */
#pragma once

#include <stdbool.h>

#include "agent/config/probe_target.h"
#include "lib/addr.h"
#include "lib/err.h"
#include "lib/strv.h"
#include "schema/gen/config.h"

#define SEGMENT_NAME_BYTES 257
#define MASTERS_MAX 8 /* in mooncake.masters */

/* A word of segment.known. */
struct known_rule {
	char segment[SEGMENT_NAME_BYTES];
	struct probe_target target;
};

/* A word of segment.local. */
struct local_rule {
	char host[DRAY_HOST_BYTES]; /* as it stands there, without brackets */
	struct dray_addr addr;      /* its number; len 0: a name */
	unsigned port;              /* 0: any */
};

/* A word of segment.ports. */
struct port_rule {
	unsigned first, last;
	unsigned segment_port; /* 0: the listener's own */
	enum probe_kind kind;
};

/* 0, or -EINVAL with reterr. */
int known_rule_parse(const char *word, struct known_rule *ret, struct dray_err *reterr);
int local_rule_parse(const char *word, struct local_rule *ret, struct dray_err *reterr);
int port_rule_parse(const char *word, struct port_rule *ret, struct dray_err *reterr);

/* A word of mooncake.masters. 0, or -EINVAL with reterr. */
int master_check(const char *text, struct dray_err *reterr);

/* The address of a master for its clients, which is passed on as it is. 0, or -EINVAL with reterr. */
int master_rpc_check(const char *text, struct dray_err *reterr);

/* segment.preferred; NULL where that is auto. */
const char *preferred_of_config(const struct dray_config *cfg);

/* local, self or own: this node's own segment. */
bool preferred_is_own(const char *text);

/* May this be the preferred segment: a segment, or a word for this node's own? 0 or -EINVAL with reterr. */
int preferred_check(const char *text, struct dray_err *reterr);

/*
 * MOONCAKE_PREFERRED_SEGMENT, MOONCAKE_MASTER_METRICS_URL and MOONCAKE_MASTER belong to other programs, so a wrong value counts as unset
 * and never stops the agent. `value` NULL: unset. Returns the value; or NULL, with the reason in reterr if it is wrong.
 */
const char *rules_preferred_variable(const char *value, struct dray_err *reterr);
const char *rules_master_variable(const char *value, struct dray_err *reterr);
const char *rules_master_rpc_variable(const char *value, struct dray_err *reterr);
