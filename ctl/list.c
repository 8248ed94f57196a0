/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs that list things. JSON and the plain form have every field of the schema, in its order; the
 * table has those that people look at.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ctl/bus.h"
#include "ctl/ctl.h"
#include "ctl/human.h"
#include "ctl/json.h"
#include "ctl/rows.h"
#include "ctl/table.h"
#include "lib/cleanup.h"
#include "lib/err.h"

/* Longest text in a table or line. */
#define TEXT_MAX 1200

enum kind { TEXT, STATE, NUMBER, SIGNED, SIZE, SPAN, BITS, YES_NO };

struct column {
	const char *title;
	unsigned field;
	enum kind kind;
};

struct list {
	const char *member; /* method */
	const char *what;   /* key in JSON, and the noun */
	const struct dray_dbus_field *fields;
	unsigned n_fields;
	struct column columns[CTL_TABLE_COLUMNS_MAX]; /* up to the first without a title */
};

static const struct list sessions = {
	DRAY_DBUS_METHOD_LIST_SESSIONS,
	"sessions",
	dray_dbus_session_fields,
	DRAY_DBUS_SESSION_FIELD_N,
	{
		{ "SESSION", DRAY_DBUS_SESSION_FIELD_SESSION, NUMBER },
		{ "NAME", DRAY_DBUS_SESSION_FIELD_NAME, TEXT },
		{ "GROUP", DRAY_DBUS_SESSION_FIELD_GROUP, TEXT },
		{ "UID", DRAY_DBUS_SESSION_FIELD_UID, NUMBER },
		{ "PID", DRAY_DBUS_SESSION_FIELD_PID, NUMBER },
		{ "WORKER", DRAY_DBUS_SESSION_FIELD_WORKER, NUMBER },
		{ "REGIONS", DRAY_DBUS_SESSION_FIELD_REGIONS, NUMBER },
		{ "REMOTES", DRAY_DBUS_SESSION_FIELD_REMOTES, NUMBER },
		{ "TOKENS", DRAY_DBUS_SESSION_FIELD_TOKENS, NUMBER },
		{ "RING", DRAY_DBUS_SESSION_FIELD_RING, YES_NO },
		{ "AGE", DRAY_DBUS_SESSION_FIELD_AGE_NS, SPAN },
	},
};

static const struct list regions = {
	DRAY_DBUS_METHOD_LIST_REGIONS,
	"regions",
	dray_dbus_region_fields,
	DRAY_DBUS_REGION_FIELD_N,
	{
		{ "REGION", DRAY_DBUS_REGION_FIELD_REGION, NUMBER },
		{ "NAME", DRAY_DBUS_REGION_FIELD_NAME, TEXT },
		{ "SESSION", DRAY_DBUS_REGION_FIELD_SESSION, NUMBER },
		{ "KIND", DRAY_DBUS_REGION_FIELD_KIND, TEXT },
		{ "ACCESS", DRAY_DBUS_REGION_FIELD_ACCESS, TEXT },
		{ "EXTENTS", DRAY_DBUS_REGION_FIELD_EXTENTS, NUMBER },
		{ "LENGTH", DRAY_DBUS_REGION_FIELD_LENGTH, SIZE },
		{ "TOKENS", DRAY_DBUS_REGION_FIELD_TOKENS, NUMBER },
		{ "GRANTS", DRAY_DBUS_REGION_FIELD_GRANTS, NUMBER },
		{ "STATE", DRAY_DBUS_REGION_FIELD_STATE, STATE },
		{ "RDMA", DRAY_DBUS_REGION_FIELD_RDMA, TEXT },
	},
};

static const struct list peers = {
	DRAY_DBUS_METHOD_LIST_PEERS,
	"peers",
	dray_dbus_peer_fields,
	DRAY_DBUS_PEER_FIELD_N,
	{
		{ "SEGMENT", DRAY_DBUS_PEER_FIELD_SEGMENT, TEXT },
		{ "AGENT", DRAY_DBUS_PEER_FIELD_AGENT_ID, TEXT },
		{ "STATE", DRAY_DBUS_PEER_FIELD_STATE, STATE },
		{ "FOR", DRAY_DBUS_PEER_FIELD_SINCE_NS, SPAN },
		{ "HEARD", DRAY_DBUS_PEER_FIELD_HEARTBEAT_AGE_NS, SPAN },
		{ "PATH", DRAY_DBUS_PEER_FIELD_TRANSPORT, TEXT },
		{ "STREAMS", DRAY_DBUS_PEER_FIELD_STREAMS, NUMBER },
		{ "RAILS", DRAY_DBUS_PEER_FIELD_RAILS, NUMBER },
		{ "GRANTS", DRAY_DBUS_PEER_FIELD_GRANTS, NUMBER },
		{ "IMPORTS", DRAY_DBUS_PEER_FIELD_IMPORTS, NUMBER },
		{ "REASON", DRAY_DBUS_PEER_FIELD_REASON, TEXT },
	},
};

static const struct list rails = {
	DRAY_DBUS_METHOD_LIST_RAILS,
	"rails",
	dray_dbus_rail_fields,
	DRAY_DBUS_RAIL_FIELD_N,
	{
		{ "DEVICE", DRAY_DBUS_RAIL_FIELD_DEVICE, TEXT },
		{ "PORT", DRAY_DBUS_RAIL_FIELD_PORT, NUMBER },
		{ "LINK", DRAY_DBUS_RAIL_FIELD_STATE, STATE },
		{ "RAIL", DRAY_DBUS_RAIL_FIELD_RAIL, SIGNED },
		{ "STATE", DRAY_DBUS_RAIL_FIELD_RAIL_STATE, STATE },
		{ "RATE", DRAY_DBUS_RAIL_FIELD_RATE, BITS },
		{ "MTU", DRAY_DBUS_RAIL_FIELD_MTU, NUMBER },
		{ "NETDEV", DRAY_DBUS_RAIL_FIELD_NETDEV, TEXT },
		{ "NUMA", DRAY_DBUS_RAIL_FIELD_NUMA, SIGNED },
		{ "INDEX", DRAY_DBUS_RAIL_FIELD_GID_INDEX, SIGNED },
		{ "GID", DRAY_DBUS_RAIL_FIELD_GID, TEXT },
		{ "REASON", DRAY_DBUS_RAIL_FIELD_REASON, TEXT },
	},
};

static const struct list paths = {
	DRAY_DBUS_METHOD_LIST_PATHS,
	"paths",
	dray_dbus_path_fields,
	DRAY_DBUS_PATH_FIELD_N,
	{
		{ "SEGMENT", DRAY_DBUS_PATH_FIELD_SEGMENT, TEXT },
		{ "DEVICE", DRAY_DBUS_PATH_FIELD_DEVICE, TEXT },
		{ "PORT", DRAY_DBUS_PATH_FIELD_PORT, NUMBER },
		{ "GID", DRAY_DBUS_PATH_FIELD_GID, TEXT },
		{ "TO GID", DRAY_DBUS_PATH_FIELD_TO_GID, TEXT },
		{ "MTU", DRAY_DBUS_PATH_FIELD_MTU, NUMBER },
		{ "STATE", DRAY_DBUS_PATH_FIELD_STATE, STATE },
		{ "QPS", DRAY_DBUS_PATH_FIELD_QUEUE_PAIRS, NUMBER },
		{ "SENT", DRAY_DBUS_PATH_FIELD_SENT_BYTES, SIZE },
		{ "RECEIVED", DRAY_DBUS_PATH_FIELD_RECEIVED_BYTES, SIZE },
		{ "RETRIES", DRAY_DBUS_PATH_FIELD_RETRIES, NUMBER },
		{ "REASON", DRAY_DBUS_PATH_FIELD_REASON, TEXT },
	},
};

static const struct list transfers = {
	DRAY_DBUS_METHOD_LIST_TRANSFERS,
	"transfers",
	dray_dbus_transfer_fields,
	DRAY_DBUS_TRANSFER_FIELD_N,
	{
		{ "SESSION", DRAY_DBUS_TRANSFER_FIELD_SESSION, NUMBER },
		{ "REQUEST", DRAY_DBUS_TRANSFER_FIELD_REQUEST, NUMBER },
		{ "WAY", DRAY_DBUS_TRANSFER_FIELD_DIRECTION, TEXT },
		{ "CLASS", DRAY_DBUS_TRANSFER_FIELD_CLASS, TEXT },
		{ "PATH", DRAY_DBUS_TRANSFER_FIELD_TRANSPORT, TEXT },
		{ "STATE", DRAY_DBUS_TRANSFER_FIELD_STATE, STATE },
		{ "OPS", DRAY_DBUS_TRANSFER_FIELD_OPERATIONS, NUMBER },
		{ "BYTES", DRAY_DBUS_TRANSFER_FIELD_BYTES, SIZE },
		{ "DONE", DRAY_DBUS_TRANSFER_FIELD_BYTES_DONE, SIZE },
		{ "SLICES", DRAY_DBUS_TRANSFER_FIELD_SLICES, NUMBER },
		{ "AGE", DRAY_DBUS_TRANSFER_FIELD_AGE_NS, SPAN },
		{ "LEFT", DRAY_DBUS_TRANSFER_FIELD_LEFT_NS, SPAN },
	},
};

/* --- renderings --------------------------------------------------------------------------------- */

static void json_print(const struct list *l, const struct ctl_rows *r, FILE *f)
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
	char text[TEXT_MAX];

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

static void cell_add(struct ctl_table *t, enum kind kind, const struct ctl_value *v)
{
	enum ctl_mood mood = CTL_MOOD_NONE;
	const char *text = "-";
	char buf[TEXT_MAX];

	switch (kind) {
	case STATE:
		mood = v->set ? ctl_mood_of(v->s) : mood;
		__attribute__((fallthrough));
	case TEXT:
		if (v->set && *v->s)
			text = ctl_show_text(v->s, buf, sizeof(buf));
		break;
	case NUMBER:
		snprintf(buf, sizeof(buf), "%" PRIu64, v->n);
		text = v->set ? buf : text;
		break;
	case SIGNED:
		/* below 0: not known, or none */
		snprintf(buf, sizeof(buf), "%" PRId64, (int64_t)v->n);
		text = v->set && (int64_t)v->n >= 0 ? buf : text;
		break;
	case BITS:
		snprintf(buf, sizeof(buf), "%" PRIu64 " Gb/s", v->n / 1000000000);
		text = v->set && v->n ? buf : text;
		break;
	case SIZE:
		text = v->set ? ctl_show_size(v->n, buf) : text;
		break;
	case SPAN:
		text = v->set ? ctl_show_span(v->n, buf) : text;
		break;
	case YES_NO:
		text = v->set && v->n ? "yes" : "no";
		break;
	}
	ctl_table_add(t, text, mood);
}

static int table_print(const struct list *l, const struct ctl_rows *r, FILE *f, bool color)
{
	struct ctl_table t = CTL_TABLE_NULL;
	int ret;

	if (!r->n) {
		fprintf(f, "no %s\n", l->what);
		return 0;
	}
	for (const struct column *c = l->columns; c->title; c++) {
		t.right[t.columns++] = c->kind != TEXT && c->kind != STATE && c->kind != YES_NO;
		ctl_table_add(&t, c->title, CTL_MOOD_HEAD);
	}
	for (size_t row = 0; row < r->n; row++)
		for (unsigned i = 0; i < t.columns; i++)
			cell_add(&t, l->columns[i].kind, ctl_rows_at(r, row, l->columns[i].field));
	ret = ctl_table_print(&t, f, color);
	ctl_table_deinit(&t);
	return ret;
}

/* --- verbs -------------------------------------------------------------------------------------- */

static int reply_print(struct ctl *c, const struct list *l, sd_bus_message *reply,
		       struct ctl_err *reterr)
{
	struct ctl_rows rows;
	int ret = ctl_rows_read(&rows, reply, l->fields, l->n_fields);

	if (ret < 0)
		return ctl_bus_bad_reply(reterr, l->member, ret);
	if (c->format == CTL_JSON)
		json_print(l, &rows, c->out);
	else if (c->format == CTL_PLAIN)
		plain_print(&rows, c->out);
	else
		ret = table_print(l, &rows, c->out, c->color);
	ctl_rows_deinit(&rows);
	return ret < 0 ? ctl_err_set(reterr, CTL_EXIT_FAILED, "%s", dray_errno_text(ret)) : 0;
}

static int list_run(struct ctl *c, const struct list *l)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	sd_bus_message *reply = NULL;
	int ret;

	ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = ctl_bus_ask(&bus, l->member, &reply, &err);
	if (!ret)
		ret = reply_print(c, l, reply, &err);
	sd_bus_message_unref(reply);
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}

int ctl_sessions(struct ctl *c)
{
	return list_run(c, &sessions);
}

int ctl_regions(struct ctl *c)
{
	return list_run(c, &regions);
}

int ctl_peers(struct ctl *c)
{
	return list_run(c, &peers);
}

int ctl_rails(struct ctl *c)
{
	return list_run(c, &rails);
}

int ctl_paths(struct ctl *c)
{
	return list_run(c, &paths);
}

int ctl_transfers(struct ctl *c)
{
	return list_run(c, &transfers);
}
