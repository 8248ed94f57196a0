/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of several keys: a contradiction is an error, a value without effect a warning. */
#include "agent/config/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/env_profile.h"
#include "agent/config/ready_words.h"
#include "agent/config/segment_rules.h"
#include "agent/config/words.h"
#include "lib/addr.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define KEY(name) DRAY_CONFIG_KEY_##name

static int64_t number_of(const struct config *c, enum dray_config_key_id id)
{
	return *(const int64_t *)config_member(&c->v, id);
}

/* Of two contradicting keys, the one from the later source; its place goes into the error. */
static enum dray_config_key_id later_key(const struct config *c, enum dray_config_key_id a,
					 enum dray_config_key_id b)
{
	return c->origin[a].source >= c->origin[b].source ? a : b;
}

static int order_check(struct config *c, enum dray_config_key_id less, enum dray_config_key_id more,
		       bool equal_ok, struct dray_err *reterr)
{
	dray_auto_free char *less_text = NULL;
	dray_auto_free char *more_text = NULL;
	char place[CONFIG_CLIP_BYTES];

	if (number_of(c, less) < number_of(c, more) ||
	    (equal_ok && number_of(c, less) == number_of(c, more)))
		return 0;
	less_text = config_value_text(&c->v, less);
	more_text = config_value_text(&c->v, more);
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "%s: %s (%s) must %s %s (%s)",
			    config_clip(config_origin(c, later_key(c, less, more)), place),
			    dray_config_keys[more].path, more_text ? more_text : "?",
			    equal_ok ? "not be below" : "be above", dray_config_keys[less].path,
			    less_text ? less_text : "?");
}

/* Without a key, listeners must be on loopback unless peer.allow_insecure is set. */
static int listen_check(struct config *c, struct dray_err *reterr)
{
	const struct dray_strv *listen = &c->v.peer.listen;
	char place[CONFIG_CLIP_BYTES];

	if (*c->v.peer.key_file || c->v.peer.allow_insecure)
		return 0;
	for (size_t i = 0; i < listen->n; i++) {
		struct dray_addr addr;

		if (dray_addr_parse(listen->v[i], &addr) < 0 || dray_addr_is_loopback(&addr))
			continue;
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "%s: peer.listen: \"%s\" is beyond loopback and needs "
				    "peer.key_file (or peer.allow_insecure = true)",
				    config_clip(config_origin(c, KEY(PEER_LISTEN)), place),
				    listen->v[i]);
	}
	return 0;
}

/* A limit above an outer limit has no effect. Warned of only if it was set. */
static const struct {
	enum dray_config_key_id inner, outer;
} nested[] = {
	{ KEY(LIMITS_SESSIONS_PER_UID), KEY(LIMITS_SESSIONS) },
	{ KEY(LIMITS_REGIONS_PER_SESSION), KEY(LIMITS_REGIONS_PER_GROUP) },
	{ KEY(LIMITS_REGIONS_PER_GROUP), KEY(LIMITS_REGIONS) },
	{ KEY(LIMITS_BYTES_PER_SESSION), KEY(LIMITS_BYTES_PER_GROUP) },
	{ KEY(LIMITS_TRANSFERS_PER_SESSION), KEY(LIMITS_TRANSFERS_PER_GROUP) },
	{ KEY(LIMITS_TRANSFERS_PER_GROUP), KEY(LIMITS_TRANSFERS) },
};

static int nested_check(struct config *c)
{
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(nested); i++) {
		enum dray_config_key_id in = nested[i].inner, out = nested[i].outer;
		dray_auto_free char *in_text = NULL;
		dray_auto_free char *out_text = NULL;
		char place[CONFIG_CLIP_BYTES];

		if (number_of(c, in) <= number_of(c, out) || c->origin[in].source == CONFIG_DEFAULT)
			continue;
		in_text = config_value_text(&c->v, in);
		out_text = config_value_text(&c->v, out);
		if (config_warn(c, "%s: %s (%s) is over %s (%s), which is the effective limit",
				config_clip(config_origin(c, in), place), dray_config_keys[in].path,
				in_text ? in_text : "?", dray_config_keys[out].path,
				out_text ? out_text : "?") < 0)
			return -ENOMEM;
	}
	return 0;
}

/* r, err: result of a check of the form of a value. */
static int form_check(struct config *c, enum dray_config_key_id id, int r,
		      const struct dray_err *err, struct dray_err *reterr)
{
	char place[CONFIG_CLIP_BYTES];

	if (r >= 0)
		return 0;
	return dray_err_set(reterr, r, DRAY_E_INVALID, "%s: %s: %s",
			    config_clip(config_origin(c, id), place), dray_config_keys[id].path,
			    err->msg);
}

static int node_addresses_check(const struct dray_config *cfg, struct dray_err *reterr)
{
	const struct dray_strv *l = &cfg->node.addresses;
	struct in6_addr any;

	for (size_t i = 0; i < l->n; i++)
		if (inet_pton(AF_INET, l->v[i], &any) != 1 &&
		    inet_pton(AF_INET6, l->v[i], &any) != 1)
			return dray_err_set(
				reterr, -EINVAL, DRAY_E_INVALID,
				"\"%s\" is no address: write numbers such as 10.0.0.1 or 2001:db8::1",
				l->v[i]);
	return 0;
}

/* The values of enum ibv_mtu, and 0 for the MTU of the ports. */
static int mtu_check(const struct dray_config *cfg, struct dray_err *reterr)
{
	int64_t mtu = cfg->rdma.mtu;

	if (mtu == 0 || (mtu >= 256 && (mtu & (mtu - 1)) == 0))
		return 0;
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
			    "%lld is no path MTU: use 256, 512, 1024, 2048, 4096 or 0",
			    (long long)mtu);
}

static int numa_nodes_check(const struct dray_config *cfg, struct dray_err *reterr)
{
	const struct dray_strv *l = &cfg->agent.numa_nodes;

	for (size_t i = 0; !list_is_none(l) && i < l->n; i++)
		if (numa_node_parse(l->v[i]) < 0)
			return dray_err_set(
				reterr, -EINVAL, DRAY_E_INVALID,
				"\"%s\" is no NUMA node: write numbers such as 0, 1, or none alone",
				l->v[i]);
	return 0;
}

static int node_check(struct config *c, struct dray_err *reterr)
{
	struct dray_err err = DRAY_ERR_NULL;
	int r;

	r = form_check(c, KEY(RDMA_MTU), mtu_check(&c->v, &err), &err, reterr);
	if (!r)
		r = form_check(c, KEY(AGENT_NUMA_NODES), numa_nodes_check(&c->v, &err), &err,
			       reterr);
	if (!r)
		r = form_check(c, KEY(NODE_ADDRESSES), node_addresses_check(&c->v, &err), &err,
			       reterr);
	return r;
}

static int placement_check(struct config *c, struct dray_err *reterr)
{
	const struct dray_strv *profiles = &c->v.env.profiles;
	const char *preferred = preferred_of_config(&c->v);
	enum dray_config_key_id key = KEY(SEGMENT_KNOWN);
	struct dray_err err = DRAY_ERR_NULL;
	int r = rules_check_config(&c->v, &key, &err);

	r = form_check(c, key, r, &err, reterr);
	if (!r)
		r = form_check(c, KEY(SEGMENT_PREFERRED),
			       preferred ? preferred_check(preferred, &err) : 0, &err, reterr);
	if (!r)
		r = form_check(c, KEY(ENV_PROFILES),
			       env_profiles_check((const char *const *)profiles->v, profiles->n,
						  &err),
			       &err, reterr);
	return r;
}

static int form_check_above(struct config *c, config_check above, struct dray_err *reterr)
{
	enum dray_config_key_id key = KEY(AGENT_STATE_DIR);
	struct dray_err err = DRAY_ERR_NULL;
	int r = above(&c->v, &key, &err);

	return form_check(c, key, r, &err, reterr);
}

int config_cross_check(struct config *c, config_check above, struct dray_err *reterr)
{
	struct dray_err err = DRAY_ERR_NULL;
	int r;

	r = order_check(c, KEY(PEER_HEARTBEAT), KEY(PEER_HEARTBEAT_LIMIT), false, reterr);
	if (!r)
		r = order_check(c, KEY(PEER_BACKOFF_MIN), KEY(PEER_BACKOFF_MAX), true, reterr);
	if (!r)
		r = listen_check(c, reterr);
	if (!r)
		r = node_check(c, reterr);
	if (!r)
		r = order_check(c, KEY(PROBE_BACKOFF_MIN), KEY(PROBE_BACKOFF_MAX), true, reterr);
	if (!r)
		r = placement_check(c, reterr);
	if (!r)
		r = form_check(c, KEY(READY_REQUIRE), ready_check_words(&c->v.ready.require, &err),
			       &err, reterr);
	if (!r && !strcmp(c->v.data.socket, c->v.control.socket)) {
		char place[CONFIG_CLIP_BYTES];

		r = dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				 "%s: data.socket and control.socket must be two paths",
				 config_clip(config_origin(c, later_key(c, KEY(DATA_SOCKET),
									KEY(CONTROL_SOCKET))),
					     place));
	}
	if (!r && above)
		r = form_check_above(c, above, reterr);
	if (!r && nested_check(c) < 0)
		r = config_no_memory(reterr);
	return r;
}
