/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks after all sources are read: the form of values that schema/config.yaml does not describe, and combinations of
 * keys. A contradiction is an error, a value without effect a warning.
 */
#include "agent/config/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/directory_url.h"
#include "agent/config/env_profile.h"
#include "agent/config/http_url.h"
#include "agent/config/network.h"
#include "agent/config/segment_rules.h"
#include "agent/config/store_space.h"
#include "agent/config/tenant.h"
#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/map.h"
#include "lib/units.h"

#define KEY(name) DRAY_CONFIG_KEY_##name
#define MOONCAKE_ALLOW_MAX 256
/* With them, the keys of most names fit into a request. */
#define MOONCAKE_METADATA_PATH_MAX 200u
#define MOONCAKE_CLUSTER_MAX 64
#define DIRECTORY_AGENTS_MAX 64
#define COPY_MEMORY_MIN (8 << 20)

/* --- forms --------------------------------------------------------------------------------------- */

static int node_address_check(const char *word, struct dray_err *reterr)
{
	struct in6_addr any;

	if (inet_pton(AF_INET, word, &any) == 1 || inet_pton(AF_INET6, word, &any) == 1)
		return 0;
	return config_invalid(
		reterr, "\"%s\" is not an address: write numbers such as 10.0.0.1 or 2001:db8::1",
		word);
}

static int numa_node_check(const char *word, struct dray_err *reterr)
{
	if (numa_node_parse(word) >= 0)
		return 0;
	return config_invalid(
		reterr, "\"%s\" is not a NUMA node: write numbers such as 0, 1, or none alone",
		word);
}

static int network_check(const char *word, struct dray_err *reterr)
{
	return network_parse(word, &(struct network){ .bits = 0 }, reterr);
}

static int tenant_check(const char *word, struct dray_err *reterr)
{
	return tenant_parse(word, &(struct tenant){ .path = NULL }, reterr);
}

#define RULE_CHECK(rule)                                                   \
	static int rule##_check(const char *word, struct dray_err *reterr) \
	{                                                                  \
		return rule##_parse(word, &(struct rule){ 0 }, reterr);    \
	}
RULE_CHECK(known_rule)
RULE_CHECK(local_rule)
RULE_CHECK(port_rule)

static const struct {
	enum dray_config_key_id key;
	int (*check)(const char *word, struct dray_err *reterr);
	unsigned max; /* words; 0: any number */
	bool none;    /* "none" is allowed, alone */
	bool unique;  /* two words may not begin alike, up to a blank */
} lists[] = {
	{ KEY(AGENT_NUMA_NODES), numa_node_check, .none = true },
	{ KEY(DATA_TENANTS), tenant_check, .max = TENANTS_MAX },
	{ KEY(NODE_ADDRESSES), node_address_check, .max = 0 },
	{ KEY(SEGMENT_KNOWN), known_rule_check, .unique = true },
	{ KEY(SEGMENT_LOCAL), local_rule_check, .max = 0 },
	{ KEY(SEGMENT_PORTS), port_rule_check, .none = true },
	{ KEY(MOONCAKE_ALLOW), network_check, .max = MOONCAKE_ALLOW_MAX, .unique = true },
	{ KEY(MOONCAKE_MASTERS), master_check, .max = MASTERS_MAX, .none = true },
	{ KEY(ENV_PROFILES), env_profile_check, .max = 0 },
	{ KEY(STORE_SPACES), store_space_word_check, .max = 0 },
	{ KEY(STORE_DIRECTORY_AGENTS), network_check, .max = DIRECTORY_AGENTS_MAX, .unique = true },
	{ KEY(STORE_PEERS), segment_word_check, .max = STORE_PEERS_MAX, .unique = true },
	{ KEY(READY_REQUIRE), ready_word_check, .max = READY_REQUIRE_MAX, .unique = true },
};

/* Refuses two words that begin alike, up to their first blank. */
static int unique_check(const struct dray_strv *words, struct dray_err *reterr)
{
	dray_auto_free struct dray_map_node *nodes = calloc(words->n + 1, sizeof(*nodes));
	struct dray_map seen;
	int r = 0;

	if (!nodes)
		return config_no_memory(reterr);
	dray_map_init(&seen);
	for (size_t i = 0; i < words->n && !r; i++) {
		const char *word = words->v[i];
		size_t n = strcspn(word, WORD_BLANKS);

		if (dray_map_find(&seen, word, n))
			r = config_invalid(reterr, "\"%.100s\" is there twice", word);
		dray_map_add(&seen, &nodes[i], word, n);
	}
	dray_map_deinit(&seen);
	return r;
}

static int list_check(const struct dray_strv *words, size_t list, struct dray_err *reterr)
{
	if (lists[list].none && list_is_none(words))
		return 0;
	if (lists[list].max && words->n > lists[list].max)
		return config_invalid(reterr, "%zu are too many, %u are allowed", words->n,
				      lists[list].max);
	for (size_t i = 0; i < words->n; i++)
		if (lists[list].check(words->v[i], reterr) < 0)
			return -EINVAL;
	return lists[list].unique ? unique_check(words, reterr) : 0;
}

/* The values of enum ibv_mtu, and 0 for the MTU of the ports. */
static int mtu_check(int64_t mtu, struct dray_err *reterr)
{
	if (mtu == 0 || (mtu >= 256 && (mtu & (mtu - 1)) == 0))
		return 0;
	return config_invalid(reterr, "%lld is not a path MTU: use 256, 512, 1024, 2048, 4096 or 0",
			      (long long)mtu);
}

/* Staged copies overlap in eight parts, and a part of less than 1 MiB is not worth its kernel. */
static int copy_memory_check(int64_t bytes, struct dray_err *reterr)
{
	if (bytes == 0 || bytes >= COPY_MEMORY_MIN)
		return 0;
	return config_invalid(reterr,
			      "%lld bytes are too little for staged copies: use 8MiB or more, or 0 "
			      "for none",
			      (long long)bytes);
}

/* Names and paths differ from each other, and from those of the other sockets. */
static int tenants_check(const struct dray_config *cfg, struct dray_err *reterr)
{
	const struct dray_strv *words = &cfg->data.tenants;

	for (size_t i = 0; i < words->n; i++) {
		struct tenant t, other = { .path = cfg->data.socket };

		snprintf(other.name, sizeof(other.name), "%s", cfg->data.tenant);
		tenant_parse(words->v[i], &t, NULL);
		for (size_t k = 0; k <= i; k++) {
			if (!strcmp(t.name, other.name))
				return config_invalid(
					reterr, "there are two data sockets of tenant %s", t.name);
			if (!strcmp(t.path, other.path) || !strcmp(t.path, cfg->control.socket))
				return config_invalid(reterr, "there are two sockets at %.100s",
						      t.path);
			tenant_parse(words->v[k], &other, NULL);
		}
	}
	return 0;
}

static int mooncake_listen_check(const char *text, struct dray_err *reterr)
{
	struct dray_addr a;

	if (!text || !*text || dray_addr_parse(text, &a) == 0)
		return 0;
	return config_invalid(reterr,
			      "\"%.80s\" is not an address and port: write 10.0.0.1:15000 or "
			      "[2001:db8::1]:15000",
			      text);
}

static int mooncake_advertise_check(const char *text, struct dray_err *reterr)
{
	if (!text || !*text || dray_endpoint_valid(text))
		return 0;
	return config_invalid(reterr, "\"%.80s\" is not a HOST:PORT that other hosts can use",
			      text);
}

static int mooncake_master_rpc_check(const char *text, struct dray_err *reterr)
{
	return text && *text ? master_rpc_check(text, reterr) : 0;
}

/* Keys are appended to it. */
static int mooncake_metadata_check(const char *text, struct dray_err *reterr)
{
	struct http_url url;

	if (!text || !*text)
		return 0;
	if (http_url_parse(text, &url, reterr) < 0)
		return -EINVAL;
	if (strchr(url.target, '?') || strlen(url.target) > MOONCAKE_METADATA_PATH_MAX)
		return config_invalid(
			reterr,
			"\"%.100s\" is no URL of a metadata server, which has a path of at "
			"most %u bytes and no query, such as http://10.0.0.9:8080/metadata",
			text, MOONCAKE_METADATA_PATH_MAX);
	return 0;
}

static int mooncake_cluster_check(const char *text, struct dray_err *reterr)
{
	for (const char *p = text; p && *p; p++)
		if (*p <= ' ' || *p > '~' || p - text >= MOONCAKE_CLUSTER_MAX)
			return config_invalid(
				reterr,
				"a cluster is named by at most %d characters of ASCII "
				"without blanks",
				MOONCAKE_CLUSTER_MAX);
	return 0;
}

/* Empty: there is no directory. */
static int directory_check(const char *url, struct dray_err *reterr)
{
	return *url ? directory_url_parse(url, &(struct directory_url){ .n_hosts = 0 }, reterr) : 0;
}

/* "": a hint may name one. */
static bool names_agent(const char *put_at)
{
	return *put_at && strcmp(put_at, STORE_PUT_AT_LOCAL) != 0;
}

static int put_at_check(const char *text, struct dray_err *reterr)
{
	if (!names_agent(text) || dray_endpoint_valid(text))
		return 0;
	return config_invalid(
		reterr,
		"\"%.100s\" is not an agent: write HOST:PORT as in store.peers, or %s, "
		"or leave it out",
		text, STORE_PUT_AT_LOCAL);
}

int config_check_forms(const struct dray_config *cfg, enum dray_config_key_id key,
		       struct dray_err *reterr)
{
	const char *preferred = preferred_of_config(cfg);

	if (key == KEY(RDMA_MTU))
		return mtu_check(cfg->rdma.mtu, reterr);
	if (key == KEY(GPU_COPY_MEMORY))
		return copy_memory_check(cfg->gpu.copy_memory, reterr);
	if (key == KEY(MOONCAKE_LISTEN))
		return mooncake_listen_check(cfg->mooncake.listen, reterr);
	if (key == KEY(MOONCAKE_DATA_LISTEN))
		return mooncake_listen_check(cfg->mooncake.data_listen, reterr);
	if (key == KEY(MOONCAKE_ADVERTISE))
		return mooncake_advertise_check(cfg->mooncake.advertise, reterr);
	if (key == KEY(MOONCAKE_METADATA))
		return mooncake_metadata_check(cfg->mooncake.metadata, reterr);
	if (key == KEY(MOONCAKE_METADATA_CLUSTER))
		return mooncake_cluster_check(cfg->mooncake.metadata_cluster, reterr);
	if (key == KEY(MOONCAKE_MASTER_RPC))
		return mooncake_master_rpc_check(cfg->mooncake.master_rpc, reterr);
	if (key == KEY(DATA_TENANT))
		return tenant_name_check(cfg->data.tenant, reterr);
	if (key == KEY(STORE_DIRECTORY))
		return directory_check(cfg->store.directory, reterr);
	if (key == KEY(STORE_DIRECTORY_PREFIX))
		return directory_prefix_check(cfg->store.directory_prefix, reterr);
	if (key == KEY(STORE_PUT_AT))
		return put_at_check(cfg->store.put_at, reterr);
	if (key == KEY(SEGMENT_PREFERRED))
		return preferred ? preferred_check(preferred, reterr) : 0;
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(lists); i++)
		if (lists[i].key == key && list_check(config_member(cfg, key), i, reterr) < 0)
			return -EINVAL;
	return key == KEY(DATA_TENANTS) ? tenants_check(cfg, reterr) : 0;
}

static int form_check(struct config *c, enum dray_config_key_id key, config_check check,
		      struct dray_err *reterr)
{
	struct dray_err why = DRAY_ERR_NULL, whole = DRAY_ERR_NULL;
	int r;

	if (c->refused[key] || check(&c->v, key, &why) >= 0)
		return 0;
	c->refused[key] = true;
	r = config_refuse(&whole, config_origin(c, key), "%s: %s", dray_config_keys[key].path,
			  why.msg);
	return config_collect(c, r, &whole, reterr);
}

static int forms_check(struct config *c, config_check above, struct dray_err *reterr)
{
	int r = 0;

	for (int i = 0; i < DRAY_CONFIG_KEY_N && !r; i++) {
		enum dray_config_key_id key = (enum dray_config_key_id)i;

		r = form_check(c, key, config_check_forms, reterr);
		if (!r && above)
			r = form_check(c, key, above, reterr);
	}
	return r;
}

/* --- combinations -------------------------------------------------------------------------------- */

static int64_t number_of(const struct config *c, enum dray_config_key_id id)
{
	return *(const int64_t *)config_member(&c->v, id);
}

/* The origin of the one of two contradicting keys that was set later. */
static const char *later_origin(const struct config *c, enum dray_config_key_id a,
				enum dray_config_key_id b)
{
	return config_origin(c, c->origin[a].source >= c->origin[b].source ? a : b);
}

static int order_check(struct config *c, enum dray_config_key_id less, enum dray_config_key_id more,
		       bool equal_ok, struct dray_err *reterr)
{
	dray_auto_free char *less_text = NULL;
	dray_auto_free char *more_text = NULL;

	if (c->refused[less] || c->refused[more] || number_of(c, less) < number_of(c, more) ||
	    (equal_ok && number_of(c, less) == number_of(c, more)))
		return 0;
	less_text = config_value_text(&c->v, less);
	more_text = config_value_text(&c->v, more);
	return config_refuse(reterr, later_origin(c, less, more), "%s (%s) must %s %s (%s)",
			     dray_config_keys[more].path, more_text ? more_text : "?",
			     equal_ok ? "not be below" : "be above", dray_config_keys[less].path,
			     less_text ? less_text : "?");
}

static int heartbeat_check(struct config *c, struct dray_err *reterr)
{
	return order_check(c, KEY(PEER_HEARTBEAT), KEY(PEER_HEARTBEAT_LIMIT), false, reterr);
}

static int peer_backoff_check(struct config *c, struct dray_err *reterr)
{
	return order_check(c, KEY(PEER_BACKOFF_MIN), KEY(PEER_BACKOFF_MAX), true, reterr);
}

static int probe_backoff_check(struct config *c, struct dray_err *reterr)
{
	return order_check(c, KEY(PROBE_BACKOFF_MIN), KEY(PROBE_BACKOFF_MAX), true, reterr);
}

/* Without a key, listeners must be on loopback unless peer.allow_insecure is set. */
static int listen_check(struct config *c, struct dray_err *reterr)
{
	const struct dray_strv *listen = &c->v.peer.listen;

	if (*c->v.peer.key_file || c->v.peer.allow_insecure || c->refused[KEY(PEER_KEY_FILE)] ||
	    c->refused[KEY(PEER_ALLOW_INSECURE)])
		return 0;
	for (size_t i = 0; i < listen->n; i++) {
		struct dray_addr addr;

		if (dray_addr_parse(listen->v[i], &addr) < 0 || dray_addr_is_loopback(&addr))
			continue;
		return config_refuse(reterr, config_origin(c, KEY(PEER_LISTEN)),
				     "peer.listen: \"%s\" is beyond loopback and needs "
				     "peer.key_file (or peer.allow_insecure = true)",
				     listen->v[i]);
	}
	return 0;
}

static int accepted_key_check(struct config *c, struct dray_err *reterr)
{
	if (!*c->v.peer.accept_key_file || *c->v.peer.key_file || c->refused[KEY(PEER_KEY_FILE)])
		return 0;
	return config_refuse(
		reterr, config_origin(c, KEY(PEER_ACCEPT_KEY_FILE)),
		"peer.accept_key_file needs peer.key_file, the key that this agent proves; set it too");
}

/* A certificate and its key are of use together alone. */
static int directory_key_check(struct config *c, struct dray_err *reterr)
{
	bool cert = *c->v.store.directory_cert_file, key = *c->v.store.directory_key_file;

	if (cert == key || c->refused[KEY(STORE_DIRECTORY_CERT_FILE)] ||
	    c->refused[KEY(STORE_DIRECTORY_KEY_FILE)])
		return 0;
	if (cert)
		return config_refuse(reterr, config_origin(c, KEY(STORE_DIRECTORY_CERT_FILE)),
				     "store.directory_cert_file needs store.directory_key_file, "
				     "the private key of that certificate; set it too");
	return config_refuse(reterr, config_origin(c, KEY(STORE_DIRECTORY_KEY_FILE)),
			     "store.directory_key_file needs store.directory_cert_file, the "
			     "certificate of that key; set it too");
}

/* Others read the objects from here, and only agents of the list are asked to. */
static int replicas_check(struct config *c, struct dray_err *reterr)
{
	if (c->v.store.replicas < 2 || (c->v.store.peers.n && c->v.store.lend) ||
	    c->refused[KEY(STORE_PEERS)] || c->refused[KEY(STORE_LEND)])
		return 0;
	return config_refuse(
		reterr, config_origin(c, KEY(STORE_REPLICAS)),
		"store.replicas = 2 needs store.peers and store.lend = true; set both");
}

static int put_at_use_check(struct config *c, struct dray_err *reterr)
{
	const char *origin = config_origin(c, KEY(STORE_PUT_AT));

	if (!names_agent(c->v.store.put_at) || c->refused[KEY(STORE_PEERS)] ||
	    c->refused[KEY(STORE_LEND)] || c->refused[KEY(STORE_REPLICAS)])
		return 0;
	if (!c->v.store.peers.n || !c->v.store.lend)
		return config_refuse(
			reterr, origin,
			"store.put_at needs store.peers and store.lend = true; set both");
	if (c->v.store.replicas > 1)
		return config_refuse(reterr, origin,
				     "store.put_at and store.replicas = 2 exclude each other: "
				     "leave one out");
	return 0;
}

static int disk_check(struct config *c, struct dray_err *reterr)
{
	if (!*c->v.store.disk_dir || !c->v.limits.store_bytes || c->v.limits.store_disk_bytes ||
	    c->refused[KEY(LIMITS_STORE_BYTES)] || c->refused[KEY(LIMITS_STORE_DISK_BYTES)])
		return 0;
	return config_refuse(
		reterr, config_origin(c, KEY(STORE_DISK_DIR)),
		"store.disk_dir is set and limits.store_disk_bytes is 0; set the bytes that the "
		"disk tier may use");
}

static int sockets_check(struct config *c, struct dray_err *reterr)
{
	if (strcmp(c->v.data.socket, c->v.control.socket) != 0)
		return 0;
	return config_refuse(reterr, later_origin(c, KEY(DATA_SOCKET), KEY(CONTROL_SOCKET)),
			     "data.socket and control.socket must be two paths");
}

/* A limit above an outer limit has no effect. Warned of only if it was set. */
static const struct {
	enum dray_config_key_id inner, outer;
} nested[] = {
	{ KEY(LIMITS_SESSIONS_PER_OWNER), KEY(LIMITS_SESSIONS) },
	{ KEY(LIMITS_REGIONS_PER_SESSION), KEY(LIMITS_REGIONS_PER_GROUP) },
	{ KEY(LIMITS_REGIONS_PER_GROUP), KEY(LIMITS_REGIONS) },
	{ KEY(LIMITS_BYTES_PER_SESSION), KEY(LIMITS_BYTES_PER_GROUP) },
	{ KEY(LIMITS_TRANSFERS_PER_SESSION), KEY(LIMITS_TRANSFERS_PER_GROUP) },
	{ KEY(LIMITS_TRANSFERS_PER_GROUP), KEY(LIMITS_TRANSFERS) },
	{ KEY(LIMITS_STORE_BYTES_PER_OWNER), KEY(LIMITS_STORE_BYTES) },
	{ KEY(LIMITS_STORE_DISK_BYTES_PER_OWNER), KEY(LIMITS_STORE_DISK_BYTES) },
	{ KEY(LIMITS_STORE_OBJECTS_PER_OWNER), KEY(LIMITS_STORE_OBJECTS) },
	{ KEY(LIMITS_STORE_HELD_BYTES_PER_OWNER), KEY(LIMITS_STORE_HELD_BYTES) },
	{ KEY(LIMITS_STORE_HOLDS_PER_OWNER), KEY(LIMITS_STORE_HOLDS) },
	{ KEY(STORE_SEGMENT_SIZE), KEY(LIMITS_STORE_BYTES) },
};

static int nested_check(struct config *c)
{
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(nested); i++) {
		enum dray_config_key_id in = nested[i].inner, out = nested[i].outer;
		dray_auto_free char *in_text = NULL;
		dray_auto_free char *out_text = NULL;

		/* 0: what it limits is off */
		if (number_of(c, in) <= number_of(c, out) || !number_of(c, out) ||
		    c->origin[in].source == CONFIG_DEFAULT)
			continue;
		in_text = config_value_text(&c->v, in);
		out_text = config_value_text(&c->v, out);
		if (config_warn(c, "%s: %s (%s) is over %s (%s), which is the effective limit",
				config_clip(config_origin(c, in)), dray_config_keys[in].path,
				in_text ? in_text : "?", dray_config_keys[out].path,
				out_text ? out_text : "?") < 0)
			return -ENOMEM;
	}
	return 0;
}

static int warn_unused(struct config *c, enum dray_config_key_id key, const char *without)
{
	return config_warn(c, "%s: %s has no effect without %s", config_clip(config_origin(c, key)),
			   dray_config_keys[key].path, without);
}

static int metadata_use_check(struct config *c)
{
	if (!*c->v.mooncake.metadata || *c->v.mooncake.listen || c->v.mooncake.import)
		return 0;
	return warn_unused(c, KEY(MOONCAKE_METADATA), "mooncake.listen or mooncake.import");
}

static int store_use_check(struct config *c)
{
	if (*c->v.store.directory && !c->v.limits.store_bytes &&
	    warn_unused(c, KEY(STORE_DIRECTORY), "limits.store_bytes, the memory of the store") < 0)
		return -ENOMEM;
	if (*c->v.store.disk_dir && !c->v.limits.store_bytes)
		return warn_unused(c, KEY(STORE_DISK_DIR),
				   "limits.store_bytes, the memory of the store");
	if (!*c->v.store.disk_dir && c->v.limits.store_disk_bytes)
		return warn_unused(c, KEY(LIMITS_STORE_DISK_BYTES), "store.disk_dir");
	return 0;
}

/* Of a limit of the agent, as long as no other owner uses anything. */
static int64_t owner_share(const struct config *c, enum dray_config_key_id all,
			   enum dray_config_key_id own)
{
	int64_t most = number_of(c, all), set = number_of(c, own);

	return set ? dray_min(set, most) : most / 2 + most % 2;
}

/* Limits that the largest object which fits into its owner's memory may exceed. */
static const struct {
	enum dray_config_key_id all, own;
	const char *what;
} object_limits[] = {
	{ KEY(LIMITS_STORE_DISK_BYTES), KEY(LIMITS_STORE_DISK_BYTES_PER_OWNER),
	  "are never written to disk" },
	{ KEY(LIMITS_STORE_HELD_BYTES), KEY(LIMITS_STORE_HELD_BYTES_PER_OWNER),
	  "can never be pinned or read in place" },
};

static int largest_object_check(struct config *c)
{
	int64_t largest =
		owner_share(c, KEY(LIMITS_STORE_BYTES), KEY(LIMITS_STORE_BYTES_PER_OWNER));

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(object_limits); i++) {
		enum dray_config_key_id all = object_limits[i].all, own = object_limits[i].own;
		int64_t share = owner_share(c, all, own);
		char most[32], fits[32];

		/* 0: none is wanted */
		if (!share || share >= largest ||
		    (all == KEY(LIMITS_STORE_DISK_BYTES) && !*c->v.store.disk_dir))
			continue;
		if (config_warn(
			    c,
			    "%s: %s lets one owner have %s, and its objects in memory may have "
			    "%s: larger ones %s",
			    config_clip(config_origin(c, number_of(c, own) ? own : all)),
			    dray_config_keys[all].path, dray_size_show(share, most, sizeof(most)),
			    dray_size_show(largest, fits, sizeof(fits)), object_limits[i].what) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int put_at_peer_check(struct config *c)
{
	const char *put_at = c->v.store.put_at;

	if (!names_agent(put_at) || dray_strv_has(&c->v.store.peers, put_at))
		return 0;
	return config_warn(c,
			   "%s: store.put_at is %.100s, which is not in store.peers: PUTs stay "
			   "here, unless one of store.peers has this address, too",
			   config_clip(config_origin(c, KEY(STORE_PUT_AT))), put_at);
}

static int contradictions_check(struct config *c, struct dray_err *reterr)
{
	static int (*const checks[])(struct config * c, struct dray_err * reterr) = {
		heartbeat_check,    peer_backoff_check, probe_backoff_check, listen_check,
		accepted_key_check, sockets_check,      directory_key_check, replicas_check,
		put_at_use_check,   disk_check,
	};
	int r = 0;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(checks) && !r; i++) {
		struct dray_err why = DRAY_ERR_NULL;

		r = config_collect(c, checks[i](c, &why), &why, reterr);
	}
	return r;
}

static int effects_check(struct config *c, struct dray_err *reterr)
{
	if (nested_check(c) < 0 || metadata_use_check(c) < 0 || put_at_peer_check(c) < 0 ||
	    store_use_check(c) < 0 || largest_object_check(c) < 0)
		return config_no_memory(reterr);
	return 0;
}

int config_combinations_check(struct config *c, struct dray_err *reterr)
{
	int r = contradictions_check(c, reterr);

	return r ? r : effects_check(c, reterr);
}

int config_cross_check(struct config *c, config_check above, struct dray_err *reterr)
{
	int r = contradictions_check(c, reterr);

	if (!r)
		r = forms_check(c, above, reterr);
	return r ? r : effects_check(c, reterr);
}
