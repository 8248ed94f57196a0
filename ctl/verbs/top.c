/* SPDX-License-Identifier: Apache-2.0 */
/* top: the current rates, in total, and for each transport, peer, rail, GPU and session. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/keyboard.h"
#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"
#include "lib/cleanup.h"
#include "lib/time.h"

struct column {
	const char *title;
	/* keys come first; MEAN_SPAN: a sum, divided by how much the column before the means has grown */
	enum { KEY, ATTRIBUTE, STATE, BYTES_RATE, COUNT_RATE, MEAN_SPAN } kind;
	unsigned field;
};

/* A list of the agent, whose rows have counters. */
static const struct part {
	const struct ctl_list *list;
	const char *name; /* in plain output */
	bool returns;     /* a row that comes back goes on counting from where it was */
	struct column columns[7];
} parts[] = {
	{ &ctl_list_times,
	  "transport",
	  false,
	  { { "TRANSPORT", KEY, DRAY_DBUS_TRANSFER_TIME_FIELD_TRANSPORT },
	    { "CLASS", KEY, DRAY_DBUS_TRANSFER_TIME_FIELD_CLASS },
	    { "TRANSFERS/S", COUNT_RATE, DRAY_DBUS_TRANSFER_TIME_FIELD_TRANSFERS },
	    { "IN-QUEUE", MEAN_SPAN, DRAY_DBUS_TRANSFER_TIME_FIELD_QUEUED_NS },
	    { "MOVING", MEAN_SPAN, DRAY_DBUS_TRANSFER_TIME_FIELD_MOVED_NS },
	    { "COMPLETION", MEAN_SPAN, DRAY_DBUS_TRANSFER_TIME_FIELD_COMPLETED_NS } } },
	{ &ctl_list_peers,
	  "peer",
	  false,
	  { { "PEER", KEY, DRAY_DBUS_PEER_FIELD_SEGMENT },
	    { "HANDLE", KEY, DRAY_DBUS_PEER_FIELD_PEER },
	    { "STATE", STATE, DRAY_DBUS_PEER_FIELD_STATE },
	    { "OUT", BYTES_RATE, DRAY_DBUS_PEER_FIELD_SENT_BYTES },
	    { "IN", BYTES_RATE, DRAY_DBUS_PEER_FIELD_RECEIVED_BYTES } } },
	{ &ctl_list_rails,
	  "rail",
	  true,
	  { { "DEVICE", KEY, DRAY_DBUS_RAIL_FIELD_DEVICE },
	    { "PORT", KEY, DRAY_DBUS_RAIL_FIELD_PORT },
	    { "STATE", STATE, DRAY_DBUS_RAIL_FIELD_RAIL_STATE },
	    { "OUT", BYTES_RATE, DRAY_DBUS_RAIL_FIELD_SENT_BYTES },
	    { "IN", BYTES_RATE, DRAY_DBUS_RAIL_FIELD_RECEIVED_BYTES },
	    { "SLICES/S", COUNT_RATE, DRAY_DBUS_RAIL_FIELD_SLICES } } },
	{ &ctl_list_gpus,
	  "gpu",
	  false,
	  { { "GPU", KEY, DRAY_DBUS_GPU_FIELD_INDEX },
	    { "NAME", ATTRIBUTE, DRAY_DBUS_GPU_FIELD_NAME },
	    { "STATE", STATE, DRAY_DBUS_GPU_FIELD_STATE },
	    { "OUT", BYTES_RATE, DRAY_DBUS_GPU_FIELD_READ_BYTES },
	    { "IN", BYTES_RATE, DRAY_DBUS_GPU_FIELD_WRITTEN_BYTES } } },
	{ &ctl_list_sessions,
	  "session",
	  false,
	  { { "SESSION", KEY, DRAY_DBUS_SESSION_FIELD_SESSION },
	    { "NAME", ATTRIBUTE, DRAY_DBUS_SESSION_FIELD_NAME },
	    { "TRANSFERS/S", COUNT_RATE, DRAY_DBUS_SESSION_FIELD_TRANSFERS },
	    { "MOVED", BYTES_RATE, DRAY_DBUS_SESSION_FIELD_BYTES } } },
};

#define PARTS DRAY_ARRAY_SIZE(parts)

struct sample {
	int64_t when_ns;
	struct ctl_properties p;
	struct ctl_rows rows[PARTS];
};

/* Orders of rows, as the words of --sort. Their first letters are keys. */
static const struct order {
	const char *word;
	int kind; /* of the columns whose sum decides, the largest first; KEY: as the agent lists them */
} orders[] = {
	{ "none", KEY },
	{ "bytes", BYTES_RATE },
	{ "transfers", COUNT_RATE },
	{ "latency", MEAN_SPAN },
};

struct rank {
	double value;
	size_t row;
};

struct top {
	struct sample old, now;
	struct rank *ranks[PARTS]; /* of the rows of `now`, in the order in which they are printed */
	int64_t order;             /* index in orders */
	bool some;                 /* old is valid */
	bool away;                 /* the agent did not answer the last time */
};

static const struct {
	const char *key, *counter;
} totals[] = {
	{ "transfers", "dray_transfers_done_total" },
	{ "operations", "dray_operations_total" },
	{ "local_bytes", "dray_local_bytes_total" },
	{ "gpu_bytes", "dray_gpu_bytes_total" },
	{ "tcp_sent_bytes", "dray_tcp_sent_bytes_total" },
	{ "tcp_received_bytes", "dray_tcp_received_bytes_total" },
	{ "rdma_sent_bytes", "dray_rdma_sent_bytes_total" },
	{ "rdma_received_bytes", "dray_rdma_received_bytes_total" },
};

static void sample_deinit(struct sample *s)
{
	for (size_t i = 0; i < PARTS; i++)
		ctl_rows_deinit(&s->rows[i]);
	ctl_properties_deinit(&s->p);
	*s = (struct sample){ .when_ns = 0 };
}

static int sample_take(struct ctl *c, struct sample *s)
{
	int ret;

	*s = (struct sample){ .when_ns = dray_now().ns };
	ret = ctl_properties_get(c, &s->p);
	if (!ret)
		ret = ctl_counters_get(c, &s->p);
	for (size_t i = 0; !ret && i < PARTS; i++)
		ret = ctl_list_get(c, parts[i].list, &s->rows[i], NULL);
	return ret;
}

/* The rate of a counter, which may have started again from 0. */
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

static bool same_keys(const struct part *part, const struct ctl_rows *old, size_t i,
		      const struct ctl_rows *now, size_t row)
{
	for (const struct column *col = part->columns; col->kind == KEY; col++)
		if (ctl_rows_at(old, i, col->field)->n != ctl_rows_at(now, row, col->field)->n ||
		    strcmp(ctl_rows_text(old, i, col->field), ctl_rows_text(now, row, col->field)))
			return false;
	return true;
}

/* How much a counter has grown. One that is new, or has started again, has grown from 0; what one did that was away is not known. */
static uint64_t grown(const struct top *t, size_t part, size_t row, unsigned field)
{
	const struct ctl_rows *old = &t->old.rows[part], *now = &t->now.rows[part];
	uint64_t n = ctl_rows_at(now, row, field)->n;

	if (!t->some)
		return 0;
	/* rows that come and go are few: begins where the row most likely was */
	for (size_t k = 0, i = row; k < old->n; k++, i++) {
		i = i < old->n ? i : 0;
		if (same_keys(&parts[part], old, i, now, row) && ctl_rows_at(old, i, field)->n <= n)
			return n - ctl_rows_at(old, i, field)->n;
	}
	return parts[part].returns ? 0 : n;
}

/* What a column of numbers shows. */
static double row_number(const struct top *t, size_t part, size_t row, const struct column *col)
{
	uint64_t by = grown(t, part, row, col->field);

	if (col->kind != MEAN_SPAN)
		return rate(t, 0, by);
	while (col->kind == MEAN_SPAN)
		col--;
	return (double)by / (double)dray_max(grown(t, part, row, col->field), (uint64_t)1);
}

/* The sum of the columns that the order names. */
static double row_value(const struct top *t, size_t part, size_t row)
{
	double sum = 0;

	for (const struct column *col = parts[part].columns; col->title; col++)
		if (col->kind != KEY && (int)col->kind == orders[t->order].kind)
			sum += row_number(t, part, row, col);
	return sum;
}

static int rank_compare(const void *a, const void *b)
{
	const struct rank *x = a, *y = b;

	if (x->value > y->value || x->value < y->value)
		return x->value > y->value ? -1 : 1;
	return x->row < y->row ? -1 : x->row > y->row;
}

static void ranks_deinit(struct top *t)
{
	for (size_t i = 0; i < PARTS; i++) {
		free(t->ranks[i]);
		t->ranks[i] = NULL;
	}
}

/* Puts the rows of all parts in order. 0, or -1: no memory. */
static int ranks_make(struct top *t)
{
	ranks_deinit(t);
	for (size_t i = 0; i < PARTS; i++) {
		size_t n = t->now.rows[i].n;

		t->ranks[i] = calloc(n ? n : 1, sizeof(*t->ranks[i]));
		if (!t->ranks[i])
			return -1;
		for (size_t row = 0; row < n; row++)
			t->ranks[i][row] = (struct rank){ row_value(t, i, row), row };
		qsort(t->ranks[i], n, sizeof(*t->ranks[i]), rank_compare);
	}
	return 0;
}

static void row_json(struct ctl_json *j, const struct top *t, size_t part, size_t row)
{
	const struct ctl_rows *r = &t->now.rows[part];

	ctl_json_object(j, NULL);
	for (const struct column *col = parts[part].columns; col->title; col++) {
		const struct dray_dbus_field *field = &r->fields[col->field];

		if (col->kind >= BYTES_RATE)
			ctl_json_add(j, J_REAL(field->key, row_number(t, part, row, col)));
		else if (*field->type == 's')
			ctl_json_add(j, J_TEXT(field->key, ctl_rows_text(r, row, col->field)));
		else
			ctl_json_add(j, J_UINT(field->key, ctl_rows_at(r, row, col->field)->n));
	}
	ctl_json_end(j);
}

static void json_print(const struct top *t, FILE *f)
{
	int64_t interval_ns = t->some ? t->now.when_ns - t->old.when_ns : 0;
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	ctl_json_add(&j, J_TEXT("state", t->now.p.v.state),
		     J_UINT("interval_ns", (uint64_t)interval_ns));
	ctl_json_object(&j, "per_second");
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(totals); i++)
		ctl_json_add(&j, J_REAL(totals[i].key, total_rate(t, totals[i].counter)));
	ctl_json_end(&j);
	for (size_t i = 0; i < PARTS; i++) {
		ctl_json_array(&j, parts[i].list->what);
		for (size_t row = 0; row < t->now.rows[i].n; row++)
			row_json(&j, t, i, t->ranks[i][row].row);
		ctl_json_end(&j);
	}
	ctl_json_end(&j);
}

static void row_plain(const struct top *t, size_t part, size_t row, FILE *f)
{
	const struct ctl_rows *r = &t->now.rows[part];
	char text[CTL_CELL_BYTES];

	fputs(parts[part].name, f);
	for (const struct column *col = parts[part].columns; col->title; col++) {
		if (col->kind == KEY)
			fprintf(f, "%c%s", col == parts[part].columns ? '\t' : '/',
				ctl_cell_text(&r->fields[col->field],
					      ctl_rows_at(r, row, col->field), text));
		else if (col->kind >= BYTES_RATE)
			fprintf(f, "\t%.3f", row_number(t, part, row, col));
	}
	fputc('\n', f);
}

static void plain_print(const struct top *t, FILE *f)
{
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(totals); i++)
		fprintf(f, "total\t%s\t%.3f\n", totals[i].key, total_rate(t, totals[i].counter));
	for (size_t i = 0; i < PARTS; i++)
		for (size_t row = 0; row < t->now.rows[i].n; row++)
			row_plain(t, i, t->ranks[i][row].row, f);
}

static void cell_add(struct ctl_table *table, const struct top *t, size_t part, size_t row,
		     const struct column *col)
{
	const struct ctl_rows *r = &t->now.rows[part];
	char text[CTL_CELL_BYTES];
	const char *shown = text;

	if (col->kind == BYTES_RATE)
		ctl_show_rate(row_number(t, part, row, col), text);
	else if (col->kind == COUNT_RATE)
		snprintf(text, sizeof(text), "%.0f", row_number(t, part, row, col));
	else if (col->kind == MEAN_SPAN)
		ctl_show_span((uint64_t)row_number(t, part, row, col), text);
	else
		shown = ctl_cell_text(&r->fields[col->field], ctl_rows_at(r, row, col->field),
				      text);
	ctl_table_add(table, shown, col->kind == STATE ? ctl_mood_of(shown) : CTL_MOOD_NONE);
}

static int part_table(const struct top *t, size_t part, FILE *f, bool color)
{
	struct ctl_table table = CTL_TABLE_NULL;

	if (!t->now.rows[part].n)
		return 0;
	fputc('\n', f);
	for (const struct column *col = parts[part].columns; col->title; col++)
		ctl_table_column(&table, col->title, col->kind >= BYTES_RATE);
	for (size_t row = 0; row < t->now.rows[part].n; row++)
		for (const struct column *col = parts[part].columns; col->title; col++)
			cell_add(&table, t, part, t->ranks[part][row].row, col);
	return ctl_table_finish(&table, f, color);
}

/* What keys do, and which order is chosen. */
static void keys_print(const struct top *t, FILE *f)
{
	fprintf(f, "sorted by %s (keys:", orders[t->order].word);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(orders); i++)
		fprintf(f, " %c %s,", *orders[i].word, orders[i].word);
	fputs(" q quit)\n", f);
}

static int text_print(const struct top *t, FILE *f, bool color, bool keys)
{
	int ret = 0;

	ctl_mood_print(f, t->now.p.v.state, ctl_mood_of(t->now.p.v.state), color);
	fprintf(f, ", up %s, %" PRIu64 " transfers in flight, %.0f/s done\n",
		ctl_span(t->now.p.v.uptime_ns),
		ctl_properties_counter(&t->now.p, "dray_transfers_in_flight"),
		total_rate(t, "dray_transfers_done_total"));
	if (keys)
		keys_print(t, f);
	fprintf(f, "local  %s\n", ctl_rate(total_rate(t, "dray_local_bytes_total")));
	fprintf(f, "gpu    %s\n", ctl_rate(total_rate(t, "dray_gpu_bytes_total")));
	fprintf(f, "tcp    %s out, %s in\n", ctl_rate(total_rate(t, "dray_tcp_sent_bytes_total")),
		ctl_rate(total_rate(t, "dray_tcp_received_bytes_total")));
	fprintf(f, "rdma   %s out, %s in\n", ctl_rate(total_rate(t, "dray_rdma_sent_bytes_total")),
		ctl_rate(total_rate(t, "dray_rdma_received_bytes_total")));
	for (size_t i = 0; !ret && i < PARTS; i++)
		ret = part_table(t, i, f, color);
	return ret;
}

/*
 * The agent has ended, or does not answer: says so, once where outputs follow each other, and forgets what was known of it. 1, or
 * -1 if that is no reason to go on.
 */
static int agent_away(struct ctl *c, struct top *t)
{
	bool screen = c->env->terminal && c->format == CTL_TEXT;

	if (c->failure.exit != CTL_EXIT_UNREACHABLE || !(t->old.when_ns || t->away))
		return -1;
	if (screen || !t->away)
		fprintf(screen ? c->out : c->err, "drayctl: %s; waiting for it\n", c->failure.msg);
	c->failure = CTL_FAILURE_NULL;
	ctl_bus_close(c);
	sample_deinit(&t->now);
	sample_deinit(&t->old);
	t->away = true;
	return 1;
}

/* Prints the last sample. 0 or -1. */
static int again(struct ctl *c, void *arg)
{
	struct top *t = arg;

	if (ranks_make(t) < 0)
		return ctl_no_memory(c);
	if (c->format == CTL_JSON)
		json_print(t, c->out);
	else if (c->format == CTL_PLAIN)
		plain_print(t, c->out);
	else if (text_print(t, c->out, c->color, ctl_keyboard_usable(c)) < 0)
		return ctl_no_memory(c);
	return 0;
}

static int print(struct ctl *c, void *arg)
{
	struct top *t = arg;

	sample_deinit(&t->old);
	t->old = t->now;
	t->now = (struct sample){ .when_ns = 0 };
	if (sample_take(c, &t->now) < 0)
		return agent_away(c, t);
	t->away = false;
	/* one that was restarted counts from 0 */
	t->some = t->old.when_ns && t->now.p.v.incarnation == t->old.p.v.incarnation;
	return again(c, t);
}

/* Chooses an order. Not while the agent is away, because there is nothing to print. */
static bool key(void *arg, char pressed)
{
	struct top *t = arg;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(orders); i++)
		if (pressed == *orders[i].word) {
			t->order = (int64_t)i;
			return !t->away;
		}
	return false;
}

int ctl_top(struct ctl *c)
{
	static const struct ctl_watched watched = { .print = print, .key = key, .again = again };
	struct top t = { .order = c->numbers[CTL_OPTION_SORT] };
	int ret = ctl_watch(c, &watched, &t);

	ranks_deinit(&t);
	sample_deinit(&t.old);
	sample_deinit(&t.now);
	return ret;
}
