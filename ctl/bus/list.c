/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bus/list.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "lib/cleanup.h"
#include "lib/err.h"

const struct ctl_list ctl_list_sessions = {
	DRAY_DBUS_METHOD_LIST_SESSIONS,
	NULL,
	"sessions",
	dray_dbus_session_fields,
	DRAY_DBUS_SESSION_FIELD_N,
	.columns = {
		{ "SESSION", DRAY_DBUS_SESSION_FIELD_SESSION, CTL_CELL_NUMBER },
		{ "NAME", DRAY_DBUS_SESSION_FIELD_NAME, CTL_CELL_TEXT },
		{ "GROUP", DRAY_DBUS_SESSION_FIELD_GROUP, CTL_CELL_TEXT },
		{ "UID", DRAY_DBUS_SESSION_FIELD_UID, CTL_CELL_NUMBER },
		{ "PID", DRAY_DBUS_SESSION_FIELD_PID, CTL_CELL_NUMBER },
		{ "WORKER", DRAY_DBUS_SESSION_FIELD_WORKER, CTL_CELL_NUMBER },
		{ "REGIONS", DRAY_DBUS_SESSION_FIELD_REGIONS, CTL_CELL_NUMBER },
		{ "REMOTES", DRAY_DBUS_SESSION_FIELD_REMOTES, CTL_CELL_NUMBER },
		{ "TOKENS", DRAY_DBUS_SESSION_FIELD_TOKENS, CTL_CELL_NUMBER },
		{ "RING", DRAY_DBUS_SESSION_FIELD_RING, CTL_CELL_YES_NO },
		{ "AGE", DRAY_DBUS_SESSION_FIELD_AGE_NS, CTL_CELL_SPAN },
	},
};

const struct ctl_list ctl_list_regions = {
	DRAY_DBUS_METHOD_LIST_REGIONS,
	NULL,
	"regions",
	dray_dbus_region_fields,
	DRAY_DBUS_REGION_FIELD_N,
	.columns = {
		{ "REGION", DRAY_DBUS_REGION_FIELD_REGION, CTL_CELL_NUMBER },
		{ "NAME", DRAY_DBUS_REGION_FIELD_NAME, CTL_CELL_TEXT },
		{ "SESSION", DRAY_DBUS_REGION_FIELD_SESSION, CTL_CELL_NUMBER },
		{ "KIND", DRAY_DBUS_REGION_FIELD_KIND, CTL_CELL_TEXT },
		{ "ACCESS", DRAY_DBUS_REGION_FIELD_ACCESS, CTL_CELL_TEXT },
		{ "EXTENTS", DRAY_DBUS_REGION_FIELD_EXTENTS, CTL_CELL_NUMBER },
		{ "LENGTH", DRAY_DBUS_REGION_FIELD_LENGTH, CTL_CELL_SIZE },
		{ "TOKENS", DRAY_DBUS_REGION_FIELD_TOKENS, CTL_CELL_NUMBER },
		{ "GRANTS", DRAY_DBUS_REGION_FIELD_GRANTS, CTL_CELL_NUMBER },
		{ "STATE", DRAY_DBUS_REGION_FIELD_STATE, CTL_CELL_STATE },
		{ "GPU", DRAY_DBUS_REGION_FIELD_DEVICE, CTL_CELL_TEXT },
		{ "RDMA", DRAY_DBUS_REGION_FIELD_RDMA, CTL_CELL_TEXT },
	},
};

const struct ctl_list ctl_list_peers = {
	DRAY_DBUS_METHOD_LIST_PEERS,
	NULL,
	"peers",
	dray_dbus_peer_fields,
	DRAY_DBUS_PEER_FIELD_N,
	.columns = {
		{ "SEGMENT", DRAY_DBUS_PEER_FIELD_SEGMENT, CTL_CELL_TEXT },
		{ "AGENT", DRAY_DBUS_PEER_FIELD_AGENT_ID, CTL_CELL_TEXT },
		{ "STATE", DRAY_DBUS_PEER_FIELD_STATE, CTL_CELL_STATE },
		{ "FOR", DRAY_DBUS_PEER_FIELD_SINCE_NS, CTL_CELL_SPAN },
		{ "HEARD", DRAY_DBUS_PEER_FIELD_HEARTBEAT_AGE_NS, CTL_CELL_SPAN },
		{ "PATH", DRAY_DBUS_PEER_FIELD_TRANSPORT, CTL_CELL_TEXT },
		{ "STREAMS", DRAY_DBUS_PEER_FIELD_STREAMS, CTL_CELL_NUMBER },
		{ "RAILS", DRAY_DBUS_PEER_FIELD_RAILS, CTL_CELL_NUMBER },
		{ "GRANTS", DRAY_DBUS_PEER_FIELD_GRANTS, CTL_CELL_NUMBER },
		{ "IMPORTS", DRAY_DBUS_PEER_FIELD_IMPORTS, CTL_CELL_NUMBER },
		{ "REASON", DRAY_DBUS_PEER_FIELD_REASON, CTL_CELL_TEXT },
	},
};

const struct ctl_list ctl_list_rails = {
	DRAY_DBUS_METHOD_LIST_RAILS,
	NULL,
	"rails",
	dray_dbus_rail_fields,
	DRAY_DBUS_RAIL_FIELD_N,
	.columns = {
		{ "DEVICE", DRAY_DBUS_RAIL_FIELD_DEVICE, CTL_CELL_TEXT },
		{ "PORT", DRAY_DBUS_RAIL_FIELD_PORT, CTL_CELL_NUMBER },
		{ "LINK", DRAY_DBUS_RAIL_FIELD_STATE, CTL_CELL_STATE },
		{ "RAIL", DRAY_DBUS_RAIL_FIELD_RAIL, CTL_CELL_SIGNED },
		{ "STATE", DRAY_DBUS_RAIL_FIELD_RAIL_STATE, CTL_CELL_STATE },
		{ "RATE", DRAY_DBUS_RAIL_FIELD_RATE, CTL_CELL_BITS },
		{ "MTU", DRAY_DBUS_RAIL_FIELD_MTU, CTL_CELL_NUMBER },
		{ "NETDEV", DRAY_DBUS_RAIL_FIELD_NETDEV, CTL_CELL_TEXT },
		{ "NUMA", DRAY_DBUS_RAIL_FIELD_NUMA, CTL_CELL_SIGNED },
		{ "INDEX", DRAY_DBUS_RAIL_FIELD_GID_INDEX, CTL_CELL_SIGNED },
		{ "GID", DRAY_DBUS_RAIL_FIELD_GID, CTL_CELL_TEXT },
		{ "REASON", DRAY_DBUS_RAIL_FIELD_REASON, CTL_CELL_TEXT },
	},
};

const struct ctl_list ctl_list_paths = {
	DRAY_DBUS_METHOD_LIST_PATHS,
	NULL,
	"paths",
	dray_dbus_path_fields,
	DRAY_DBUS_PATH_FIELD_N,
	.columns = {
		{ "SEGMENT", DRAY_DBUS_PATH_FIELD_SEGMENT, CTL_CELL_TEXT },
		{ "DEVICE", DRAY_DBUS_PATH_FIELD_DEVICE, CTL_CELL_TEXT },
		{ "PORT", DRAY_DBUS_PATH_FIELD_PORT, CTL_CELL_NUMBER },
		{ "GID", DRAY_DBUS_PATH_FIELD_GID, CTL_CELL_TEXT },
		{ "TO GID", DRAY_DBUS_PATH_FIELD_TO_GID, CTL_CELL_TEXT },
		{ "MTU", DRAY_DBUS_PATH_FIELD_MTU, CTL_CELL_NUMBER },
		{ "STATE", DRAY_DBUS_PATH_FIELD_STATE, CTL_CELL_STATE },
		{ "QPS", DRAY_DBUS_PATH_FIELD_QUEUE_PAIRS, CTL_CELL_NUMBER },
		{ "SENT", DRAY_DBUS_PATH_FIELD_SENT_BYTES, CTL_CELL_SIZE },
		{ "RECEIVED", DRAY_DBUS_PATH_FIELD_RECEIVED_BYTES, CTL_CELL_SIZE },
		{ "RETRIES", DRAY_DBUS_PATH_FIELD_RETRIES, CTL_CELL_NUMBER },
		{ "REASON", DRAY_DBUS_PATH_FIELD_REASON, CTL_CELL_TEXT },
	},
};

const struct ctl_list ctl_list_transfers = {
	DRAY_DBUS_METHOD_LIST_TRANSFERS,
	NULL,
	"transfers",
	dray_dbus_transfer_fields,
	DRAY_DBUS_TRANSFER_FIELD_N,
	.columns = {
		{ "SESSION", DRAY_DBUS_TRANSFER_FIELD_SESSION, CTL_CELL_NUMBER },
		{ "REQUEST", DRAY_DBUS_TRANSFER_FIELD_REQUEST, CTL_CELL_NUMBER },
		{ "WAY", DRAY_DBUS_TRANSFER_FIELD_DIRECTION, CTL_CELL_TEXT },
		{ "CLASS", DRAY_DBUS_TRANSFER_FIELD_CLASS, CTL_CELL_TEXT },
		{ "PATH", DRAY_DBUS_TRANSFER_FIELD_TRANSPORT, CTL_CELL_TEXT },
		{ "GPU", DRAY_DBUS_TRANSFER_FIELD_GPU_PATH, CTL_CELL_TEXT },
		{ "STATE", DRAY_DBUS_TRANSFER_FIELD_STATE, CTL_CELL_STATE },
		{ "OPS", DRAY_DBUS_TRANSFER_FIELD_OPERATIONS, CTL_CELL_NUMBER },
		{ "BYTES", DRAY_DBUS_TRANSFER_FIELD_BYTES, CTL_CELL_SIZE },
		{ "DONE", DRAY_DBUS_TRANSFER_FIELD_BYTES_DONE, CTL_CELL_SIZE },
		{ "SLICES", DRAY_DBUS_TRANSFER_FIELD_SLICES, CTL_CELL_NUMBER },
		{ "AGE", DRAY_DBUS_TRANSFER_FIELD_AGE_NS, CTL_CELL_SPAN },
		{ "LEFT", DRAY_DBUS_TRANSFER_FIELD_LEFT_NS, CTL_CELL_SPAN },
	},
};

const struct ctl_list ctl_list_ended = {
	DRAY_DBUS_METHOD_LIST_ENDED_TRANSFERS,
	NULL,
	"ended_transfers",
	dray_dbus_ended_transfer_fields,
	DRAY_DBUS_ENDED_TRANSFER_FIELD_N,
	.columns = {
		{ "AGO", DRAY_DBUS_ENDED_TRANSFER_FIELD_AGO_NS, CTL_CELL_SPAN },
		{ "SESSION", DRAY_DBUS_ENDED_TRANSFER_FIELD_SESSION, CTL_CELL_NUMBER },
		{ "REQUEST", DRAY_DBUS_ENDED_TRANSFER_FIELD_REQUEST, CTL_CELL_NUMBER },
		{ "SEGMENT", DRAY_DBUS_ENDED_TRANSFER_FIELD_SEGMENT, CTL_CELL_TEXT },
		{ "WAY", DRAY_DBUS_ENDED_TRANSFER_FIELD_DIRECTION, CTL_CELL_TEXT },
		{ "PATH", DRAY_DBUS_ENDED_TRANSFER_FIELD_TRANSPORT, CTL_CELL_TEXT },
		{ "GPU", DRAY_DBUS_ENDED_TRANSFER_FIELD_GPU_PATH, CTL_CELL_TEXT },
		{ "STATUS", DRAY_DBUS_ENDED_TRANSFER_FIELD_STATUS, CTL_CELL_STATE },
		{ "OPS", DRAY_DBUS_ENDED_TRANSFER_FIELD_OPERATIONS, CTL_CELL_NUMBER },
		{ "BYTES", DRAY_DBUS_ENDED_TRANSFER_FIELD_BYTES, CTL_CELL_SIZE },
		{ "TOOK", DRAY_DBUS_ENDED_TRANSFER_FIELD_DURATION_NS, CTL_CELL_SPAN },
		{ "QUEUED", DRAY_DBUS_ENDED_TRANSFER_FIELD_QUEUED_NS, CTL_CELL_SPAN },
		{ "MOVED", DRAY_DBUS_ENDED_TRANSFER_FIELD_MOVED_NS, CTL_CELL_SPAN },
	},
};

const struct ctl_list ctl_list_events = {
	DRAY_DBUS_METHOD_LIST_EVENTS,
	"t",
	"events",
	dray_dbus_event_fields,
	DRAY_DBUS_EVENT_FIELD_N,
	.columns = {
		{ "TIME", DRAY_DBUS_EVENT_FIELD_TIME_NS, CTL_CELL_TIME },
		{ "KIND", DRAY_DBUS_EVENT_FIELD_KIND, CTL_CELL_TEXT },
		{ "SUBJECT", DRAY_DBUS_EVENT_FIELD_SUBJECT, CTL_CELL_TEXT },
		{ "FROM", DRAY_DBUS_EVENT_FIELD_OLD, CTL_CELL_STATE },
		{ "TO", DRAY_DBUS_EVENT_FIELD_NEW, CTL_CELL_STATE },
		{ "REASON", DRAY_DBUS_EVENT_FIELD_REASON, CTL_CELL_TEXT },
	},
};

const struct ctl_list ctl_list_settings = {
	DRAY_DBUS_METHOD_DUMP_CONFIG,
	NULL,
	"settings",
	dray_dbus_setting_fields,
	DRAY_DBUS_SETTING_FIELD_N,
	.columns = {
		{ "KEY", DRAY_DBUS_SETTING_FIELD_KEY, CTL_CELL_TEXT },
		{ "VALUE", DRAY_DBUS_SETTING_FIELD_VALUE, CTL_CELL_TEXT },
	},
};

const struct ctl_list ctl_list_origins = {
	DRAY_DBUS_METHOD_DUMP_CONFIG,
	NULL,
	"settings",
	dray_dbus_setting_fields,
	DRAY_DBUS_SETTING_FIELD_N,
	.columns = {
		{ "KEY", DRAY_DBUS_SETTING_FIELD_KEY, CTL_CELL_TEXT },
		{ "VALUE", DRAY_DBUS_SETTING_FIELD_VALUE, CTL_CELL_TEXT },
		{ "RELOADS", DRAY_DBUS_SETTING_FIELD_RELOAD, CTL_CELL_YES_NO },
		{ "ORIGIN", DRAY_DBUS_SETTING_FIELD_ORIGIN, CTL_CELL_TEXT },
	},
};

/* --- renderings --------------------------------------------------------------------------------- */

static void json_print(const struct ctl_list *l, const struct ctl_rows *r, FILE *f)
{
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	ctl_json_array(&j, l->what);
	for (size_t row = 0; row < r->n; row++) {
		ctl_json_object(&j, NULL);
		for (unsigned i = 0; i < r->n_fields; i++) {
			const struct ctl_value *v = ctl_rows_at(r, row, i);
			const struct dray_dbus_field *field = &r->fields[i];

			if (!v->set)
				ctl_json_null(&j, field->key);
			else if (*field->type == 's')
				ctl_json_string(&j, field->key, v->s);
			else if (*field->type == 'b')
				ctl_json_bool(&j, field->key, v->n);
			else if (*field->type == 'i')
				ctl_json_int(&j, field->key, (int64_t)v->n);
			else
				ctl_json_uint(&j, field->key, v->n);
		}
		ctl_json_end(&j);
	}
	ctl_json_end(&j);
	ctl_json_end(&j);
}

static void plain_print(const struct ctl_rows *r, FILE *f)
{
	char text[CTL_CELL_BYTES];

	for (size_t row = 0; row < r->n; row++)
		for (unsigned i = 0; i < r->n_fields; i++) {
			const struct ctl_value *v = ctl_rows_at(r, row, i);

			if (v->set && *r->fields[i].type == 's')
				fputs(ctl_show_text(v->s, text, sizeof(text)), f);
			else if (v->set && *r->fields[i].type == 'i')
				fprintf(f, "%" PRId64, (int64_t)v->n);
			else if (v->set)
				fprintf(f, "%" PRIu64, v->n);
			fputc(i + 1 < r->n_fields ? '\t' : '\n', f);
		}
}

static const char *time_text(uint64_t ns, char buf[CTL_CELL_BYTES])
{
	time_t seconds = (time_t)(ns / 1000000000);
	struct tm tm;
	size_t n;

	if (!localtime_r(&seconds, &tm))
		return "-";
	n = strftime(buf, CTL_CELL_BYTES, "%Y-%m-%d %H:%M:%S", &tm);
	snprintf(buf + n, CTL_CELL_BYTES - n, ".%03u", (unsigned)(ns / 1000000 % 1000));
	return buf;
}

const char *ctl_cell_text(enum ctl_cell_kind kind, const struct ctl_value *v,
			  char buf[CTL_CELL_BYTES])
{
	if (!v->set)
		return "-";
	switch (kind) {
	case CTL_CELL_STATE:
	case CTL_CELL_TEXT:
		return *v->s ? ctl_show_text(v->s, buf, CTL_CELL_BYTES) : "-";
	case CTL_CELL_NUMBER:
		snprintf(buf, CTL_CELL_BYTES, "%" PRIu64, v->n);
		return buf;
	case CTL_CELL_SIGNED:
		snprintf(buf, CTL_CELL_BYTES, "%" PRId64, (int64_t)v->n);
		return (int64_t)v->n >= 0 ? buf : "-";
	case CTL_CELL_BITS:
		snprintf(buf, CTL_CELL_BYTES, "%" PRIu64 " Gb/s", v->n / 1000000000);
		return v->n ? buf : "-";
	case CTL_CELL_SIZE:
		return ctl_show_size(v->n, buf);
	case CTL_CELL_SPAN:
		return ctl_show_span(v->n, buf);
	case CTL_CELL_YES_NO:
		return v->n ? "yes" : "no";
	case CTL_CELL_TIME:
		return time_text(v->n, buf);
	}
	return "-";
}

static void cell_add(struct ctl_table *t, enum ctl_cell_kind kind, const struct ctl_value *v)
{
	char buf[CTL_CELL_BYTES];

	ctl_table_add(t, ctl_cell_text(kind, v, buf),
		      kind == CTL_CELL_STATE && v->set ? ctl_mood_of(v->s) : CTL_MOOD_NONE);
}

static bool is_number(enum ctl_cell_kind kind)
{
	return kind != CTL_CELL_TEXT && kind != CTL_CELL_STATE && kind != CTL_CELL_YES_NO &&
	       kind != CTL_CELL_TIME;
}

static int table_print(const struct ctl_list *l, const struct ctl_rows *r, FILE *f, bool color)
{
	struct ctl_table t = CTL_TABLE_NULL;
	int ret;

	if (!r->n) {
		fputs("no ", f);
		for (const char *p = l->what; *p; p++)
			fputc(*p == '_' ? ' ' : *p, f);
		fputc('\n', f);
		return 0;
	}
	for (const struct ctl_column *c = l->columns; c->title; c++) {
		t.right[t.columns++] = is_number(c->kind);
		ctl_table_add(&t, c->title, CTL_MOOD_HEAD);
	}
	for (size_t row = 0; row < r->n; row++)
		for (unsigned i = 0; i < t.columns; i++)
			cell_add(&t, l->columns[i].kind, ctl_rows_at(r, row, l->columns[i].field));
	ret = ctl_table_print(&t, f, color);
	ctl_table_deinit(&t);
	return ret;
}

int ctl_list_print(struct ctl *c, const struct ctl_list *l, const struct ctl_rows *rows,
		   struct ctl_err *reterr)
{
	int ret = 0;

	if (c->format == CTL_JSON)
		json_print(l, rows, c->out);
	else if (c->format == CTL_PLAIN)
		plain_print(rows, c->out);
	else
		ret = table_print(l, rows, c->out, c->color);
	return ret < 0 ? ctl_err_set(reterr, CTL_EXIT_FAILED, "%s", dray_errno_text(ret)) : 0;
}

/* --- asking ------------------------------------------------------------------------------------- */

int ctl_list_read(const struct ctl_list *l, struct ctl_rows *rows, sd_bus_message *reply,
		  struct ctl_err *reterr)
{
	int ret = ctl_rows_read(rows, reply, l->fields, l->n_fields);

	return ret < 0 ? ctl_bus_bad_reply(reterr, l->member, ret) : 0;
}

int ctl_list_get(struct ctl_bus *b, const struct ctl_list *l, uint64_t after, struct ctl_rows *rows,
		 sd_bus_message **reply, struct ctl_err *reterr)
{
	if (ctl_bus_ask(b, l->member, reply, reterr, l->takes, after) < 0)
		return -1;
	return ctl_list_read(l, rows, *reply, reterr);
}

int ctl_list_run(struct ctl *c, const struct ctl_list *l)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	struct ctl_rows rows = CTL_ROWS_NULL;
	sd_bus_message *reply = NULL;
	int ret;

	ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = ctl_list_get(&bus, l, 0, &rows, &reply, &err);
	if (!ret && l->empty && !rows.n && c->format == CTL_TEXT)
		ret = l->empty(c, &bus, &err);
	else if (!ret)
		ret = ctl_list_print(c, l, &rows, &err);
	ctl_rows_deinit(&rows);
	sd_bus_message_unref(reply);
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}

/* --- verbs -------------------------------------------------------------------------------------- */

int ctl_sessions(struct ctl *c)
{
	return ctl_list_run(c, &ctl_list_sessions);
}

int ctl_regions(struct ctl *c)
{
	return ctl_list_run(c, &ctl_list_regions);
}

int ctl_peers(struct ctl *c)
{
	return ctl_list_run(c, &ctl_list_peers);
}

int ctl_paths(struct ctl *c)
{
	return ctl_list_run(c, &ctl_list_paths);
}

int ctl_config(struct ctl *c)
{
	return ctl_list_run(c,
			    c->values[CTL_OPTION_ORIGIN] ? &ctl_list_origins : &ctl_list_settings);
}
