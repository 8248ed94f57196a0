/* SPDX-License-Identifier: Apache-2.0 */
/* top: what moves at this moment, in all, by rail and by session. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "ctl/bus/list.h"
#include "ctl/bus/properties.h"
#include "ctl/verbs/watch.h"
#include "lib/cleanup.h"
#include "lib/time.h"

/* One look at the agent. */
struct sample {
	int64_t when_ns;
	struct ctl_properties p;
	struct ctl_rows rails, sessions;
	sd_bus_message *rails_reply, *sessions_reply;
};

struct top {
	struct sample old, now;
	bool some; /* old is there */
};

struct total {
	const char *key, *counter;
};

static const struct total totals[] = {
	{ "transfers", "dray_transfers_done_total" },
	{ "operations", "dray_operations_total" },
	{ "local_bytes", "dray_local_bytes_total" },
	{ "tcp_sent_bytes", "dray_tcp_sent_bytes_total" },
	{ "tcp_received_bytes", "dray_tcp_received_bytes_total" },
	{ "rdma_sent_bytes", "dray_rdma_sent_bytes_total" },
	{ "rdma_received_bytes", "dray_rdma_received_bytes_total" },
};

static void sample_deinit(struct sample *s)
{
	ctl_rows_deinit(&s->rails);
	ctl_rows_deinit(&s->sessions);
	sd_bus_message_unref(s->rails_reply);
	sd_bus_message_unref(s->sessions_reply);
	ctl_properties_deinit(&s->p);
	*s = (struct sample){ .when_ns = 0 };
}

static int sample_take(struct sample *s, struct ctl_bus *b, struct ctl_err *reterr)
{
	*s = (struct sample){ .when_ns = dray_now().ns };
	if (ctl_properties_get(&s->p, b, reterr) < 0 ||
	    ctl_list_get(b, &ctl_list_rails, 0, &s->rails, &s->rails_reply, reterr) < 0 ||
	    ctl_list_get(b, &ctl_list_sessions, 0, &s->sessions, &s->sessions_reply, reterr) < 0) {
		sample_deinit(s);
		return -1;
	}
	return 0;
}

/* By second, of a counter that may have begun anew. */
static double rate(const struct top *t, uint64_t old, uint64_t now)
{
	double seconds = (double)(t->now.when_ns - t->old.when_ns) / (double)DRAY_NS_PER_SEC;

	return !t->some || now < old || seconds <= 0 ? 0 : (double)(now - old) / seconds;
}

static double total_rate(const struct top *t, const char *counter)
{
	return rate(t, t->some ? ctl_properties_counter(&t->old.p, counter) : 0,
		    ctl_properties_counter(&t->now.p, counter));
}

/* The row of `old` that is about the same thing; its key is one field, or two. */
static double row_rate(const struct top *t, const struct ctl_rows *old, const struct ctl_rows *now,
		       size_t row, unsigned key, unsigned key2, unsigned field)
{
	const struct ctl_value *k = ctl_rows_at(now, row, key), *k2 = ctl_rows_at(now, row, key2);

	for (size_t i = 0; t->some && i < old->n; i++) {
		const struct ctl_value *o = ctl_rows_at(old, i, key);

		if (k->s && o->s ? strcmp(k->s, o->s) != 0 : k->n != o->n)
			continue;
		if (ctl_rows_at(old, i, key2)->n == k2->n)
			return rate(t, ctl_rows_at(old, i, field)->n,
				    ctl_rows_at(now, row, field)->n);
	}
	return 0;
}

#define RAIL(name) DRAY_DBUS_RAIL_FIELD_##name
#define SESSION(name) DRAY_DBUS_SESSION_FIELD_##name

static double rail_rate(const struct top *t, size_t row, unsigned field)
{
	return row_rate(t, &t->old.rails, &t->now.rails, row, RAIL(DEVICE), RAIL(PORT), field);
}

static double session_rate(const struct top *t, size_t row, unsigned field)
{
	return row_rate(t, &t->old.sessions, &t->now.sessions, row, SESSION(SESSION),
			SESSION(SESSION), field);
}

static const char *text_of(const struct ctl_value *v)
{
	return v->set ? v->s : "";
}

/* --- renderings --------------------------------------------------------------------------------- */

static void json_print(const struct top *t, FILE *f)
{
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	ctl_json_string(&j, "state", t->now.p.state);
	ctl_json_uint(&j, "interval_ns", t->some ? (uint64_t)(t->now.when_ns - t->old.when_ns) : 0);
	ctl_json_object(&j, "per_second");
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(totals); i++)
		ctl_json_real(&j, totals[i].key, total_rate(t, totals[i].counter));
	ctl_json_end(&j);
	ctl_json_array(&j, "rails");
	for (size_t i = 0; i < t->now.rails.n; i++) {
		ctl_json_object(&j, NULL);
		ctl_json_string(&j, "device", text_of(ctl_rows_at(&t->now.rails, i, RAIL(DEVICE))));
		ctl_json_uint(&j, "port", ctl_rows_at(&t->now.rails, i, RAIL(PORT))->n);
		ctl_json_string(&j, "rail_state",
				text_of(ctl_rows_at(&t->now.rails, i, RAIL(RAIL_STATE))));
		ctl_json_real(&j, "sent_bytes", rail_rate(t, i, RAIL(SENT_BYTES)));
		ctl_json_real(&j, "received_bytes", rail_rate(t, i, RAIL(RECEIVED_BYTES)));
		ctl_json_real(&j, "slices", rail_rate(t, i, RAIL(SLICES)));
		ctl_json_end(&j);
	}
	ctl_json_end(&j);
	ctl_json_array(&j, "sessions");
	for (size_t i = 0; i < t->now.sessions.n; i++) {
		ctl_json_object(&j, NULL);
		ctl_json_uint(&j, "session", ctl_rows_at(&t->now.sessions, i, SESSION(SESSION))->n);
		ctl_json_string(&j, "name",
				text_of(ctl_rows_at(&t->now.sessions, i, SESSION(NAME))));
		ctl_json_real(&j, "transfers", session_rate(t, i, SESSION(TRANSFERS)));
		ctl_json_real(&j, "bytes", session_rate(t, i, SESSION(BYTES)));
		ctl_json_end(&j);
	}
	ctl_json_end(&j);
	ctl_json_end(&j);
}

static void plain_print(const struct top *t, FILE *f)
{
	char text[CTL_CELL_BYTES];

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(totals); i++)
		fprintf(f, "total\t%s\t%.3f\n", totals[i].key, total_rate(t, totals[i].counter));
	for (size_t i = 0; i < t->now.rails.n; i++) {
		const struct ctl_value *device = ctl_rows_at(&t->now.rails, i, RAIL(DEVICE));

		fprintf(f, "rail\t%s/%" PRIu64 "\t%.3f\t%.3f\t%.3f\n",
			ctl_show_text(text_of(device), text, sizeof(text)),
			ctl_rows_at(&t->now.rails, i, RAIL(PORT))->n,
			rail_rate(t, i, RAIL(SENT_BYTES)), rail_rate(t, i, RAIL(RECEIVED_BYTES)),
			rail_rate(t, i, RAIL(SLICES)));
	}
	for (size_t i = 0; i < t->now.sessions.n; i++)
		fprintf(f, "session\t%" PRIu64 "\t%.3f\t%.3f\n",
			ctl_rows_at(&t->now.sessions, i, SESSION(SESSION))->n,
			session_rate(t, i, SESSION(TRANSFERS)), session_rate(t, i, SESSION(BYTES)));
}

static void cells(struct ctl_table *table, const char *const *heads, unsigned numbers_from)
{
	*table = CTL_TABLE_NULL;
	for (; heads[table->columns]; table->columns++) {
		table->right[table->columns] = table->columns >= numbers_from;
		ctl_table_add(table, heads[table->columns], CTL_MOOD_HEAD);
	}
}

static void rate_cell(struct ctl_table *table, double v)
{
	char buf[CTL_HUMAN_BYTES];

	ctl_table_add(table, ctl_show_rate(v, buf), CTL_MOOD_NONE);
}

static void number_cell(struct ctl_table *table, double v)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%.0f", v);
	ctl_table_add(table, buf, CTL_MOOD_NONE);
}

static int rails_table(const struct top *t, FILE *f, bool color)
{
	static const char *const heads[] = { "DEVICE", "PORT",     "STATE", "OUT",
					     "IN",     "SLICES/S", NULL };
	struct ctl_table table;
	char text[CTL_CELL_BYTES];
	int ret;

	cells(&table, heads, 3);
	for (size_t i = 0; i < t->now.rails.n; i++) {
		const char *state = text_of(ctl_rows_at(&t->now.rails, i, RAIL(RAIL_STATE)));

		ctl_table_add(&table,
			      ctl_show_text(text_of(ctl_rows_at(&t->now.rails, i, RAIL(DEVICE))),
					    text, sizeof(text)),
			      CTL_MOOD_NONE);
		snprintf(text, sizeof(text), "%" PRIu64,
			 ctl_rows_at(&t->now.rails, i, RAIL(PORT))->n);
		ctl_table_add(&table, text, CTL_MOOD_NONE);
		ctl_table_add(&table, *state ? state : "-", ctl_mood_of(state));
		rate_cell(&table, rail_rate(t, i, RAIL(SENT_BYTES)));
		rate_cell(&table, rail_rate(t, i, RAIL(RECEIVED_BYTES)));
		number_cell(&table, rail_rate(t, i, RAIL(SLICES)));
	}
	fputc('\n', f);
	ret = ctl_table_print(&table, f, color);
	ctl_table_deinit(&table);
	return ret;
}

static int sessions_table(const struct top *t, FILE *f, bool color)
{
	static const char *const heads[] = { "NAME", "SESSION", "TRANSFERS/S", "MOVED", NULL };
	struct ctl_table table;
	char text[CTL_CELL_BYTES];
	int ret;

	cells(&table, heads, 1);
	for (size_t i = 0; i < t->now.sessions.n; i++) {
		const char *name = text_of(ctl_rows_at(&t->now.sessions, i, SESSION(NAME)));

		ctl_table_add(&table, *name ? ctl_show_text(name, text, sizeof(text)) : "-",
			      CTL_MOOD_NONE);
		snprintf(text, sizeof(text), "%" PRIu64,
			 ctl_rows_at(&t->now.sessions, i, SESSION(SESSION))->n);
		ctl_table_add(&table, text, CTL_MOOD_NONE);
		number_cell(&table, session_rate(t, i, SESSION(TRANSFERS)));
		rate_cell(&table, session_rate(t, i, SESSION(BYTES)));
	}
	fputc('\n', f);
	ret = ctl_table_print(&table, f, color);
	ctl_table_deinit(&table);
	return ret;
}

static int text_print(const struct top *t, FILE *f, bool color)
{
	char a[CTL_HUMAN_BYTES], b[CTL_HUMAN_BYTES];
	int ret = 0;

	ctl_mood_print(f, t->now.p.state, ctl_mood_of(t->now.p.state), color);
	fprintf(f, ", up %s, %" PRIu64 " transfers in flight, %.0f/s done\n",
		ctl_show_span(t->now.p.uptime_ns, a),
		ctl_properties_counter(&t->now.p, "dray_transfers_in_flight"),
		total_rate(t, "dray_transfers_done_total"));
	fprintf(f, "local  %s\n", ctl_show_rate(total_rate(t, "dray_local_bytes_total"), a));
	fprintf(f, "tcp    %s out, %s in\n",
		ctl_show_rate(total_rate(t, "dray_tcp_sent_bytes_total"), a),
		ctl_show_rate(total_rate(t, "dray_tcp_received_bytes_total"), b));
	fprintf(f, "rdma   %s out, %s in\n",
		ctl_show_rate(total_rate(t, "dray_rdma_sent_bytes_total"), a),
		ctl_show_rate(total_rate(t, "dray_rdma_received_bytes_total"), b));
	if (t->now.rails.n)
		ret = rails_table(t, f, color);
	if (!ret && t->now.sessions.n)
		ret = sessions_table(t, f, color);
	return ret;
}

static int look(struct ctl *c, struct ctl_bus *b, void *arg, struct ctl_err *reterr)
{
	struct top *t = arg;
	int ret = 0;

	if (sample_take(&t->now, b, reterr) < 0)
		return -1;
	if (c->format == CTL_JSON)
		json_print(t, c->out);
	else if (c->format == CTL_PLAIN)
		plain_print(t, c->out);
	else
		ret = text_print(t, c->out, c->color);
	sample_deinit(&t->old);
	t->old = t->now;
	t->now = (struct sample){ .when_ns = 0 };
	t->some = true;
	return ret < 0 ? ctl_err_set(reterr, CTL_EXIT_FAILED, "out of memory") : 0;
}

int ctl_top(struct ctl *c)
{
	struct top t = { .some = false };
	int status = ctl_watch(c, look, &t);

	sample_deinit(&t.old);
	return status;
}
