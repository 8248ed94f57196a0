/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of dev.dray.Agent1 that return lists. Modules fill the structs of records, whose fields the schema describes. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/bus/internal.h"
#include "agent/control/directory/directory.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/mooncake/client.h"
#include "agent/control/owner/owner.h"
#include "agent/control/placement.h"
#include "agent/control/rails/rails.h"
#include "agent/control/status/gather.h"
#include "agent/placement/detect/detect.h"
#include "agent/store/store.h"
#include "lib/cleanup.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus_vtable.h"

static int list(sd_bus_message *m, struct bus_conn *c, dictionaries_fn *fill, sd_bus_error *reterr)
{
	struct dictionaries d = { .agent = c->server->agent, .call = m, .reterr = reterr };
	int ret = bus_conn_check_list(c, m, reterr);

	return ret ? ret : list_reply(&d, c, fill);
}

/* Defines the method; the body that follows appends the records. */
#define LIST(name)                                                                      \
	static void name(struct dictionaries *d);                                       \
	int dbus_method_##name(sd_bus_message *m, void *userdata, sd_bus_error *reterr) \
	{                                                                               \
		return list(m, userdata, name, reterr);                                 \
	}                                                                               \
	static void name(struct dictionaries *d)

/* Defines the function that appends a struct dray_dbus_RECORD, which a module passes. */
#define APPEND(record)                                                                 \
	static void record##_append(void *arg, const struct dray_dbus_##record *value) \
	{                                                                              \
		DICTIONARY_KEEP(arg, record, value);                                   \
	}                                                                              \
	struct dray_swallow_semicolon
/* A list of all records that the function of a module passes. */
#define LIST_EACH(name, record, each, module)               \
	APPEND(record);                                     \
	LIST(name)                                          \
	{                                                   \
		each(d->agent->module, record##_append, d); \
	}                                                   \
	struct dray_swallow_semicolon

LIST_EACH(list_sessions, session, sessions_each, sessions);
LIST_EACH(list_mailboxes, mailbox, mailboxes_each, mailboxes);
static void quota_append(void *arg, const struct dray_dbus_quota *quota)
{
	struct dictionaries *d = arg;
	const struct dray_config *cfg = &d->agent->config->v;
	struct dray_dbus_quota q = *quota;

	/* hints outlive the sessions that put them, so the owner does not count them */
	if (!strcmp(q.resource, resource_name(RESOURCE_HINTS))) {
		q.used = hints_count_of(d->agent->hints, &(struct hint_owner){ q.tenant, q.uid });
		q.agent_used = hints_count(d->agent->hints);
		q.limit = budget_share(q.agent_limit, q.agent_used - q.used,
				       (uint64_t)cfg->limits.hints_per_owner);
	}
	DICTIONARY_KEEP(d, quota, &q);
}

LIST(list_quotas)
{
	owners_each_quota(d->agent->owners, quota_append, d);
}

struct store_list {
	struct dictionaries *d;
	const char *disk_state, *directory_state;
	uint64_t read_rate, write_rate;
};

static void store_space_append(void *arg, const struct store_space_info *i)
{
	struct store_list *l = arg;
	struct dray_dbus_store_space record = {
		.space = i->name,
		.tenant = i->tenant,
		.uid = i->uid,
		.objects = i->objects,
		.bytes = i->bytes,
		.memory = i->memory,
		.segments = i->segments,
		.disk_objects = i->disk_objects,
		.disk_bytes = i->disk_bytes,
		.disk_state = l->disk_state,
		.disk_read_rate = l->read_rate,
		.disk_write_rate = l->write_rate,
		.directory_state = l->directory_state,
		.hits = i->hits,
		.misses = i->misses,
		.remote_hits = i->remote_hits,
		.remote_bytes = i->remote_bytes,
		.puts = i->puts,
		.kept = i->kept,
		.forwarded = i->forwarded,
		.evictions = i->evictions,
	};

	DICTIONARY_KEEP(l->d, store_space, &record);
}

LIST(list_store)
{
	struct store_totals t = store_totals(d->agent->store);
	struct directory *directory = d->agent->directory;
	struct store_list l = { d, t.has_disk ? disk_state_name(t.disk.state) : "none",
				directory ?
					directory_state_name(directory_totals(directory).state) :
					"none",
				t.disk.read_rate, t.disk.write_rate };

	store_each(d->agent->store, store_space_append, &l);
}

LIST_EACH(list_paths, path, rails_each_path, rails);
LIST_EACH(list_gpus, gpu, gpus_each, gpus);
LIST_EACH(list_segments, segment, segments_each, segments);

static void region_append(void *arg, const struct dray_dbus_region *region)
{
	struct dictionaries *d = arg;
	struct dray_dbus_region r = *region;
	char rdma[BUS_TEXT_BYTES];

	r.rdma = rails_region_text(d->agent->rails, r.region, rdma, sizeof(rdma));
	DICTIONARY_KEEP(d, region, &r);
}

LIST(list_regions)
{
	regions_each(d->agent->regions, region_append, d);
}

static void peer_append(void *arg, const struct dray_dbus_peer *peer)
{
	struct dictionaries *d = arg;
	struct rails_traffic rdma = rails_peer_traffic(d->agent->rails, peer->peer);
	struct dray_dbus_peer p = *peer;

	p.sent_bytes += rdma.sent;
	p.received_bytes += rdma.received;
	p.rails = rails_peer_count(d->agent->rails, p.peer, &p.queue_pairs);
	p.transport = p.queue_pairs ? dmsg_transport_name(DMSG_TRANSPORT_RDMA) :
		      p.streams     ? dmsg_transport_name(DMSG_TRANSPORT_TCP) :
				      "";
	DICTIONARY_KEEP(d, peer, &p);
}

static void engine_append(void *arg, const struct dray_dbus_peer *engine)
{
	struct dictionaries *d = arg;

	DICTIONARY_KEEP(d, peer, engine);
}

LIST(list_peers)
{
	peers_each(d->agent->peers, peer_append, d);
	mooncake_client_each(d->agent->mooncake_client, engine_append, d);
}

static void rail_append(struct dictionaries *d, const struct nd_device *device,
			const struct nd_port *p)
{
	const struct nd_gid *g = nd_gids_best(&p->gids);
	char gid[INET6_ADDRSTRLEN], why[ND_REASON_MAX];
	struct dray_dbus_rail r = {
		.device = device->name,
		.port = p->number,
		.state = nd_port_state_name(p->state),
		.usable = p->state == ND_PORT_ACTIVE && g,
		.layer = nd_link_layer_name(p->layer),
		.rate = p->rate,
		.mtu = p->active_mtu,
		.netdev = p->netdev,
		.numa = device->numa,
		.gid_index = g ? (int32_t)g->index : -1,
		.gid = g ? nd_gid_text(&g->gid, gid) : "",
		.reason = nd_port_why(p, why),
		.rail = -1,
	};

	rails_describe(d->agent->rails, &r);
	DICTIONARY_KEEP(d, rail, &r);
}

APPEND(transfer_time);

LIST(list_transfer_times)
{
	agent_each_transfer_time(d->agent, transfer_time_append, d);
}

LIST(list_rails)
{
	const struct nd_scan *scan = detect_scan(d->agent->detect);

	for (size_t i = 0; scan && i < scan->devices.n; i++)
		for (size_t k = 0; k < scan->devices.v[i].n_ports; k++)
			rail_append(d, &scan->devices.v[i], &scan->devices.v[i].ports[k]);
}

APPEND(event);

LIST(list_events)
{
	uint64_t after = 0;

	if (d->ret >= 0)
		d->ret = sd_bus_message_read(d->call, "t", &after);
	history_each(d->agent->history, after, event_append, d);
}

LIST(dump_config)
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		enum dray_config_key_id id = (enum dray_config_key_id)i;
		dray_auto_free char *value = config_value_text(&d->agent->config->v, id);
		const struct dray_dbus_setting record = {
			.key = dray_config_keys[i].path,
			.value = value,
			.origin = config_origin(d->agent->config, id),
			.reload = dray_config_keys[i].reload,
		};

		if (!value)
			d->ret = -ENOMEM;
		DICTIONARY_KEEP(d, setting, &record);
	}
}

APPEND(candidate);

LIST(list_candidates)
{
	const char *scope = "";

	if (d->ret >= 0)
		d->ret = sd_bus_message_read(d->call, "s", &scope);
	if (d->ret >= 0)
		d->ret = segments_explain(d->agent->segments, scope, candidate_append, d);
}

LIST(list_environment)
{
	struct dray_strv profiles = DRAY_STRV_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct env env = ENV_NULL;

	d->ret = sd_bus_message_read_strv(d->call, &profiles.v);
	while (profiles.v && profiles.v[profiles.n])
		profiles.n++;
	if (d->ret >= 0)
		d->ret = agent_environment(d->agent, &profiles, &env, &err);
	if (d->ret == -EINVAL && err.code)
		d->ret = sd_bus_error_set(d->reterr, SD_BUS_ERROR_INVALID_ARGS, err.msg);
	for (size_t i = 0; i < env.n; i++) {
		const struct env_variable *e = &env.v[i];
		const struct dray_dbus_variable record = {
			.profile = e->profile,
			.name = e->name,
			.value = e->value,
			.left_out = !e->value,
			.argument = e->argument,
			.reason = e->reason,
		};

		DICTIONARY_KEEP(d, variable, &record);
	}
	env_deinit(&env);
	dray_strv_clear(&profiles);
}
