/* SPDX-License-Identifier: Apache-2.0 */
/* The values of the records in lists, by field. Keys and types come from the schema. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/bus/internal.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/rails/rails.h"
#include "agent/control/status/gather.h"
#include "agent/control/status/transfer_log.h"
#include "agent/placement/detect/detect.h"
#include "gpu/peers.h"
#include "lib/cleanup.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus.h"
#include "schema/gen/errors.h"

static void session_append(void *arg, const struct session_info *i)
{
	const union value v[DRAY_DBUS_SESSION_FIELD_N] = {
		[DRAY_DBUS_SESSION_FIELD_SESSION] = { .n = i->session },
		[DRAY_DBUS_SESSION_FIELD_NAME] = { .s = i->name },
		[DRAY_DBUS_SESSION_FIELD_GROUP] = { .s = i->group },
		[DRAY_DBUS_SESSION_FIELD_UID] = { .n = i->uid },
		[DRAY_DBUS_SESSION_FIELD_GID] = { .n = i->gid },
		[DRAY_DBUS_SESSION_FIELD_PID] = { .n = i->pid },
		[DRAY_DBUS_SESSION_FIELD_WORKER] = { .n = i->worker },
		[DRAY_DBUS_SESSION_FIELD_REGIONS] = { .n = i->regions },
		[DRAY_DBUS_SESSION_FIELD_REMOTES] = { .n = i->remotes },
		[DRAY_DBUS_SESSION_FIELD_TOKENS] = { .n = i->tokens },
		[DRAY_DBUS_SESSION_FIELD_RING] = { .n = i->ring },
		[DRAY_DBUS_SESSION_FIELD_AGE_NS] = { .n = dictionary_duration(i->age_ns) },
		[DRAY_DBUS_SESSION_FIELD_TRANSFERS] = { .n = i->transfers },
		[DRAY_DBUS_SESSION_FIELD_BYTES] = { .n = i->bytes },
	};

	dictionary_append(arg, dray_dbus_session_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_sessions(struct dictionaries *d)
{
	sessions_each(d->agent->sessions, session_append, d);
}

struct wanted {
	unsigned index;
	const char *uuid;
};

static void gpu_match(void *arg, const struct gpu_info *i)
{
	struct wanted *w = arg;

	if (i->index == w->index)
		w->uuid = i->device->uuid;
}

/* UUID of the device; "" if there is none, or the index is below 0. Valid as long as the plug-in. */
static const char *gpu_uuid_of(struct agent *a, int index)
{
	struct wanted w = { .index = (unsigned)index, .uuid = "" };

	if (index >= 0)
		gpus_each(a->gpus, gpu_match, &w);
	return w.uuid;
}

static const char *access_text(uint16_t access)
{
	switch (access & DMSG_ACCESS_ALL) {
	case DMSG_ACCESS_READ:
		return "r";
	case DMSG_ACCESS_WRITE:
		return "w";
	case DMSG_ACCESS_ALL:
		return "rw";
	default:
		return "";
	}
}

static void region_append(void *arg, const struct region_info *i)
{
	struct dictionaries *d = arg;
	char rdma[BUS_TEXT_BYTES];
	const union value v[DRAY_DBUS_REGION_FIELD_N] = {
		[DRAY_DBUS_REGION_FIELD_REGION] = { .n = i->region },
		[DRAY_DBUS_REGION_FIELD_NAME] = { .s = i->name },
		[DRAY_DBUS_REGION_FIELD_SESSION] = { .n = i->session },
		[DRAY_DBUS_REGION_FIELD_KIND] = { .s = i->kind },
		[DRAY_DBUS_REGION_FIELD_ACCESS] = { .s = access_text(i->access) },
		[DRAY_DBUS_REGION_FIELD_EXTENTS] = { .n = i->extents },
		[DRAY_DBUS_REGION_FIELD_LENGTH] = { .n = i->length },
		[DRAY_DBUS_REGION_FIELD_TOKENS] = { .n = i->tokens },
		[DRAY_DBUS_REGION_FIELD_GRANTS] = { .n = i->grants },
		[DRAY_DBUS_REGION_FIELD_STATE] = { .s = i->state },
		[DRAY_DBUS_REGION_FIELD_RDMA] = { .s = rails_region_text(d->agent->rails, i->region,
									 rdma, sizeof(rdma)) },
		[DRAY_DBUS_REGION_FIELD_DEVICE] = { .s = gpu_uuid_of(d->agent, i->gpu) },
	};

	dictionary_append(d, dray_dbus_region_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_regions(struct dictionaries *d)
{
	regions_each(d->agent->regions, region_append, d);
}

static void peer_append(void *arg, const struct peer_info *i)
{
	struct dictionaries *d = arg;
	char id[IDENTITY_TEXT_BYTES];
	uint32_t queue_pairs, rails = rails_peer_count(d->agent->rails, i->peer, &queue_pairs);
	enum dmsg_transport path = queue_pairs ? DMSG_TRANSPORT_RDMA :
				   i->streams  ? DMSG_TRANSPORT_TCP :
						 DMSG_TRANSPORT_NONE;
	const union value v[DRAY_DBUS_PEER_FIELD_N] = {
		[DRAY_DBUS_PEER_FIELD_PEER] = { .n = i->peer },
		[DRAY_DBUS_PEER_FIELD_AGENT_ID] = { .s = i->known ? identity_show(i->agent_id, id) :
								    "" },
		[DRAY_DBUS_PEER_FIELD_INCARNATION] = { .n = i->known ? i->incarnation : 0 },
		[DRAY_DBUS_PEER_FIELD_SEGMENT] = { .s = i->segment },
		[DRAY_DBUS_PEER_FIELD_STATE] = { .s = i->state },
		[DRAY_DBUS_PEER_FIELD_REASON] = { .s = i->reason },
		[DRAY_DBUS_PEER_FIELD_SINCE_NS] = { .n = dictionary_duration(i->since_ns) },
		[DRAY_DBUS_PEER_FIELD_INITIATOR] = { .n = i->initiator },
		[DRAY_DBUS_PEER_FIELD_GRANTS] = { .n = i->grants },
		[DRAY_DBUS_PEER_FIELD_IMPORTS] = { .n = i->imports },
		[DRAY_DBUS_PEER_FIELD_STREAMS] = { .n = i->streams },
		[DRAY_DBUS_PEER_FIELD_HEARTBEAT_AGE_NS] = { .n = dictionary_duration(i->heard_ns) },
		[DRAY_DBUS_PEER_FIELD_TRANSPORT] = { .s = path ? dmsg_transport_name(path) : "" },
		[DRAY_DBUS_PEER_FIELD_RAILS] = { .n = rails },
		[DRAY_DBUS_PEER_FIELD_QUEUE_PAIRS] = { .n = queue_pairs },
	};

	dictionary_append(d, dray_dbus_peer_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_peers(struct dictionaries *d)
{
	peers_each(d->agent->peers, peer_append, d);
}

static void rail_append(struct dictionaries *d, const struct nd_device *device,
			const struct nd_port *p)
{
	const struct nd_gid *g = nd_gids_best(&p->gids);
	struct rail_info i = { .number = -1, .state = "", .reason = "" };
	bool used = rails_port_info(d->agent->rails, device->name, p->number, &i);
	char gid[INET6_ADDRSTRLEN];
	const union value v[DRAY_DBUS_RAIL_FIELD_N] = {
		[DRAY_DBUS_RAIL_FIELD_DEVICE] = { .s = device->name },
		[DRAY_DBUS_RAIL_FIELD_PORT] = { .n = p->number },
		[DRAY_DBUS_RAIL_FIELD_STATE] = { .s = nd_port_state_name(p->state) },
		[DRAY_DBUS_RAIL_FIELD_USABLE] = { .n = p->state == ND_PORT_ACTIVE && g },
		[DRAY_DBUS_RAIL_FIELD_LAYER] = { .s = nd_link_layer_name(p->layer) },
		[DRAY_DBUS_RAIL_FIELD_RATE] = { .n = p->rate },
		[DRAY_DBUS_RAIL_FIELD_MTU] = { .n = p->active_mtu },
		[DRAY_DBUS_RAIL_FIELD_NETDEV] = { .s = p->netdev },
		[DRAY_DBUS_RAIL_FIELD_NUMA] = { .n = (uint64_t)device->numa },
		[DRAY_DBUS_RAIL_FIELD_GID_INDEX] = { .n = g ? g->index : UINT64_MAX },
		[DRAY_DBUS_RAIL_FIELD_GID] = { .s = g ? nd_gid_text(&g->gid, gid) : "" },
		[DRAY_DBUS_RAIL_FIELD_REASON] = { .s = g ? g->reason : "no GID is usable" },
		[DRAY_DBUS_RAIL_FIELD_RAIL] = { .n = used ? (uint64_t)i.number : UINT64_MAX },
		[DRAY_DBUS_RAIL_FIELD_RAIL_STATE] = { .s = i.state },
		[DRAY_DBUS_RAIL_FIELD_RAIL_REASON] = { .s = i.reason },
		[DRAY_DBUS_RAIL_FIELD_QUEUE_PAIRS] = { .n = i.traffic.queue_pairs },
		[DRAY_DBUS_RAIL_FIELD_SERVING] = { .n = i.serving },
		[DRAY_DBUS_RAIL_FIELD_SENT_BYTES] = { .n = i.traffic.sent },
		[DRAY_DBUS_RAIL_FIELD_RECEIVED_BYTES] = { .n = i.traffic.received },
		[DRAY_DBUS_RAIL_FIELD_SLICES] = { .n = i.traffic.slices },
		[DRAY_DBUS_RAIL_FIELD_RETRIES] = { .n = i.traffic.retries },
		[DRAY_DBUS_RAIL_FIELD_FAILOVERS] = { .n = i.traffic.failovers },
	};

	dictionary_append(d, dray_dbus_rail_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_rails(struct dictionaries *d)
{
	const struct nd_scan *scan = detect_scan(d->agent->detect);
	for (size_t i = 0; scan && i < scan->devices.n; i++)
		for (size_t k = 0; k < scan->devices.v[i].n_ports; k++)
			rail_append(d, &scan->devices.v[i], &scan->devices.v[i].ports[k]);
}

static void path_append(void *arg, const struct path_info *i)
{
	struct dictionaries *d = arg;
	char gid[INET6_ADDRSTRLEN], to_gid[INET6_ADDRSTRLEN];
	const union value v[DRAY_DBUS_PATH_FIELD_N] = {
		[DRAY_DBUS_PATH_FIELD_PEER] = { .n = i->peer },
		[DRAY_DBUS_PATH_FIELD_SEGMENT] = { .s = peers_segment_of(d->agent->peers,
									 i->peer) },
		[DRAY_DBUS_PATH_FIELD_DEVICE] = { .s = i->device },
		[DRAY_DBUS_PATH_FIELD_PORT] = { .n = i->port },
		[DRAY_DBUS_PATH_FIELD_GID] = { .s = nd_gid_text(i->gid, gid) },
		[DRAY_DBUS_PATH_FIELD_TO_RAIL] = { .n = i->to_rail },
		[DRAY_DBUS_PATH_FIELD_TO_GID] = { .s = nd_gid_text(i->to_gid, to_gid) },
		[DRAY_DBUS_PATH_FIELD_MTU] = { .n = i->mtu },
		[DRAY_DBUS_PATH_FIELD_STATE] = { .s = i->state },
		[DRAY_DBUS_PATH_FIELD_REASON] = { .s = i->reason },
		[DRAY_DBUS_PATH_FIELD_QUEUE_PAIRS] = { .n = i->traffic.queue_pairs },
		[DRAY_DBUS_PATH_FIELD_SENT_BYTES] = { .n = i->traffic.sent },
		[DRAY_DBUS_PATH_FIELD_RECEIVED_BYTES] = { .n = i->traffic.received },
		[DRAY_DBUS_PATH_FIELD_SLICES] = { .n = i->traffic.slices },
		[DRAY_DBUS_PATH_FIELD_RETRIES] = { .n = i->traffic.retries },
		[DRAY_DBUS_PATH_FIELD_FAILOVERS] = { .n = i->traffic.failovers },
	};

	dictionary_append(d, dray_dbus_path_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_paths(struct dictionaries *d)
{
	rails_each_path(d->agent->rails, path_append, d);
}

static void gpu_append(void *arg, const struct gpu_info *i)
{
	const struct gpu_device_info *d = i->device;
	char peers[GPU_PEERS_BYTES];
	const union value v[DRAY_DBUS_GPU_FIELD_N] = {
		[DRAY_DBUS_GPU_FIELD_INDEX] = { .n = i->index },
		[DRAY_DBUS_GPU_FIELD_NAME] = { .s = d->name },
		[DRAY_DBUS_GPU_FIELD_UUID] = { .s = d->uuid },
		[DRAY_DBUS_GPU_FIELD_BDF] = { .s = d->bdf },
		[DRAY_DBUS_GPU_FIELD_STATE] = { .s = i->state },
		[DRAY_DBUS_GPU_FIELD_REASON] = { .s = i->reason },
		[DRAY_DBUS_GPU_FIELD_MEMORY] = { .n = d->memory },
		[DRAY_DBUS_GPU_FIELD_CONTEXT_BYTES] = { .n = i->context_bytes },
		[DRAY_DBUS_GPU_FIELD_REGIONS] = { .n = i->regions },
		[DRAY_DBUS_GPU_FIELD_BYTES] = { .n = i->bytes },
		[DRAY_DBUS_GPU_FIELD_MULTIPROCESSORS] = { .n = d->multiprocessors },
		[DRAY_DBUS_GPU_FIELD_DMABUF] = { .n = d->dmabuf },
		[DRAY_DBUS_GPU_FIELD_PEERS] = { .s = gpu_peers_text(d, i->index, peers) },
	};

	dictionary_append(arg, dray_dbus_gpu_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_gpus(struct dictionaries *d)
{
	gpus_each(d->agent->gpus, gpu_append, d);
}

void fill_conditions(struct dictionaries *d)
{
	struct ready ready;

	agent_ready(d->agent, &ready);
	for (size_t i = 0; i < ready.n; i++) {
		const struct ready_condition *c = &ready.conditions[i];
		const union value v[DRAY_DBUS_CONDITION_FIELD_N] = {
			[DRAY_DBUS_CONDITION_FIELD_NAME] = { .s = c->name },
			[DRAY_DBUS_CONDITION_FIELD_OK] = { .n = c->ok },
			[DRAY_DBUS_CONDITION_FIELD_REQUIRED] = { .n = c->required },
			[DRAY_DBUS_CONDITION_FIELD_REASON] = { .s = c->reason },
		};

		dictionary_append(d, dray_dbus_condition_fields, v, DRAY_ARRAY_SIZE(v));
	}
}

static const char *state_text(uint8_t state)
{
	static const char *const names[XFER_STATE_N] = {
		[XFER_WAITING] = "waiting",
		[XFER_RUNNING] = "running",
		[XFER_STOPPING] = "stopping",
		[XFER_NOTIFYING] = "notifying",
	};

	return state < XFER_STATE_N ? names[state] : "";
}

static void transfer_append(struct dictionaries *d, const struct transfer_info *i)
{
	char rails[BUS_TEXT_BYTES];
	const union value v[DRAY_DBUS_TRANSFER_FIELD_N] = {
		[DRAY_DBUS_TRANSFER_FIELD_SESSION] = { .n = i->session },
		[DRAY_DBUS_TRANSFER_FIELD_REQUEST] = { .n = i->request },
		[DRAY_DBUS_TRANSFER_FIELD_DIRECTION] = { .s = dmsg_direction_name(i->direction) },
		[DRAY_DBUS_TRANSFER_FIELD_CLASS] = { .s = dmsg_class_name(i->class) },
		[DRAY_DBUS_TRANSFER_FIELD_TRANSPORT] = { .s = dmsg_transport_name(i->transport) },
		[DRAY_DBUS_TRANSFER_FIELD_GPU_PATH] = { .s = dmsg_gpu_path_name(i->gpu_path) },
		[DRAY_DBUS_TRANSFER_FIELD_RAILS] = { .s = report_rails(i->rails, rails,
								       sizeof(rails)) },
		[DRAY_DBUS_TRANSFER_FIELD_STATE] = { .s = state_text(i->state) },
		[DRAY_DBUS_TRANSFER_FIELD_OPERATIONS] = { .n = i->operations },
		[DRAY_DBUS_TRANSFER_FIELD_BYTES] = { .n = i->bytes },
		[DRAY_DBUS_TRANSFER_FIELD_BYTES_DONE] = { .n = i->bytes_done },
		[DRAY_DBUS_TRANSFER_FIELD_SLICES] = { .n = i->slices },
		[DRAY_DBUS_TRANSFER_FIELD_AGE_NS] = { .n = dictionary_duration(i->age_ns) },
		[DRAY_DBUS_TRANSFER_FIELD_LEFT_NS] = { .n = dictionary_duration(i->left_ns) },
	};

	dictionary_append(d, dray_dbus_transfer_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_transfers(struct dictionaries *d)
{
	for (unsigned i = 0; i < d->n_snapshots; i++)
		for (uint32_t j = 0; j < d->snapshots[i]->n; j++)
			transfer_append(d, &d->snapshots[i]->transfers[j]);
}

static void ended_append(struct dictionaries *d, const struct transfer_record *t, int64_t now)
{
	const char *direction = dmsg_direction_name(t->direction);
	const char *transport = dmsg_transport_name(t->transport);
	const char *segment = t->peer ? peers_segment_of(d->agent->peers, t->peer) : "";
	uint64_t duration = dictionary_duration(record_duration(t));
	uint64_t ago = dictionary_duration(now - t->ended_ns), phases[XFER_PHASE_N];
	char rails[BUS_TEXT_BYTES];

	report_rails(t->rails, rails, sizeof(rails));
	for (unsigned i = 0; i < XFER_PHASE_N; i++)
		phases[i] = dictionary_duration(t->phase_ns[i]);
	const union value v[DRAY_DBUS_ENDED_TRANSFER_FIELD_N] = {
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_SESSION] = { .n = t->session },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_REQUEST] = { .n = t->request },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_SEGMENT] = { .s = segment },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_DIRECTION] = { .s = direction },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_CLASS] = { .s = dmsg_class_name(t->class) },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_TRANSPORT] = { .s = transport },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_GPU_PATH] = { .s = dmsg_gpu_path_name(t->gpu_path) },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_RAILS] = { .s = rails },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_STATUS] = { .s = dray_error_name(t->code) },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_OPERATIONS] = { .n = t->operations },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_BYTES] = { .n = t->bytes },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_BYTES_DONE] = { .n = t->bytes_done },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_SLICES] = { .n = t->slices },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_RESENT] = { .n = t->resent },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_DURATION_NS] = { .n = duration },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_WAITED_NS] = { .n = phases[XFER_PHASE_WAIT] },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_QUEUED_NS] = { .n = phases[XFER_PHASE_QUEUE] },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_MOVED_NS] = { .n = phases[XFER_PHASE_MOVE] },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_NOTIFIED_NS] = { .n = phases[XFER_PHASE_NOTIFY] },
		[DRAY_DBUS_ENDED_TRANSFER_FIELD_AGO_NS] = { .n = ago },
	};

	dictionary_append(d, dray_dbus_ended_transfer_fields, v, DRAY_ARRAY_SIZE(v));
}

static int by_end(const void *a, const void *b)
{
	const struct transfer_record *const *x = a, *const *y = b;

	return ((*x)->ended_ns > (*y)->ended_ns) - ((*x)->ended_ns < (*y)->ended_ns);
}

void fill_ended(struct dictionaries *d)
{
	dray_auto_free const struct transfer_record **all = NULL;
	int64_t now = dray_now().ns;
	size_t total = 0, at = 0;

	for (unsigned i = 0; i < d->n_snapshots; i++)
		total += d->snapshots[i]->n;
	all = calloc(total + 1, sizeof(*all));
	if (!all) {
		d->ret = -ENOMEM;
		return;
	}
	for (unsigned i = 0; i < d->n_snapshots; i++)
		for (uint32_t j = 0; j < d->snapshots[i]->n; j++)
			all[at++] = &d->snapshots[i]->records[j];
	qsort(all, total, sizeof(*all), by_end);
	for (size_t i = total > RECORDS_MAX ? total - RECORDS_MAX : 0; i < total; i++)
		ended_append(d, all[i], now);
}

static void event_append(void *arg, const struct history_event *e)
{
	const union value v[DRAY_DBUS_EVENT_FIELD_N] = {
		[DRAY_DBUS_EVENT_FIELD_NUMBER] = { .n = e->number },
		[DRAY_DBUS_EVENT_FIELD_TIME_NS] = { .n = (uint64_t)e->time_ns },
		[DRAY_DBUS_EVENT_FIELD_KIND] = { .s = history_kind_name(e->kind) },
		[DRAY_DBUS_EVENT_FIELD_SUBJECT] = { .s = e->subject },
		[DRAY_DBUS_EVENT_FIELD_OLD] = { .s = e->before },
		[DRAY_DBUS_EVENT_FIELD_NEW] = { .s = e->after },
		[DRAY_DBUS_EVENT_FIELD_REASON] = { .s = e->reason },
	};

	dictionary_append(arg, dray_dbus_event_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_events(struct dictionaries *d)
{
	uint64_t after = 0;

	if (d->ret >= 0)
		d->ret = sd_bus_message_read(d->call, "t", &after);
	history_each(d->agent->history, after, event_append, d);
}

void fill_settings(struct dictionaries *d)
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		enum dray_config_key_id id = (enum dray_config_key_id)i;
		dray_auto_free char *value = config_value_text(&d->agent->config->v, id);
		const union value v[DRAY_DBUS_SETTING_FIELD_N] = {
			[DRAY_DBUS_SETTING_FIELD_KEY] = { .s = dray_config_keys[i].path },
			[DRAY_DBUS_SETTING_FIELD_VALUE] = { .s = value },
			[DRAY_DBUS_SETTING_FIELD_ORIGIN] = { .s = config_origin(d->agent->config,
										id) },
			[DRAY_DBUS_SETTING_FIELD_RELOAD] = { .n = dray_config_keys[i].reload },
		};

		if (!value)
			d->ret = -ENOMEM;
		dictionary_append(d, dray_dbus_setting_fields, v, DRAY_ARRAY_SIZE(v));
	}
}
