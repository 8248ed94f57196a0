/* SPDX-License-Identifier: Apache-2.0 */
/* store --trace: writes the requests that clients make of the store to a file, which tests/bench/store_sim.py replays. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/verbs/verbs.h"
#include "lib/err.h"
#include "lib/map.h"
#include "lib/time.h"

/* The agent keeps what comes in so much time, and more. */
#define PAUSE_NS (50 * DRAY_NS_PER_MS)
/* Answers to which all that the agent keeps belongs, at least. */
#define LAST_CALLS_MAX 32u
#define HEAD                     \
	"# dray store trace 1\n" \
	"# time_us space operation key bytes cost_us result tier\n"

/* A key of the trace. The file has its number, so that nothing in it depends on what the key is. */
struct key {
	struct dray_map_node by_hash;
	uint64_t hash, number;
};

struct trace {
	FILE *f;
	struct dray_map keys;
	uint64_t n_keys, requests, lost;
	int more;
};

/* 0: no memory. */
static uint64_t number_of(struct trace *t, uint64_t hash)
{
	struct key *k =
		dray_map_entry(dray_map_find(&t->keys, &hash, sizeof(hash)), struct key, by_hash);

	if (k)
		return k->number;
	k = calloc(1, sizeof(*k));
	if (!k)
		return 0;
	k->hash = hash;
	k->number = ++t->n_keys;
	dray_map_add(&t->keys, &k->by_hash, &k->hash, sizeof(k->hash));
	return k->number;
}

/* > 0: there was one, 0: no more, or -errno. */
static int record_write(struct trace *t, sd_bus_message *m)
{
	const char *operation, *status, *tier;
	uint64_t ns, hash, bytes, number;
	uint32_t space, cost;
	int ret = sd_bus_message_read(m, "(tusttuss)", &ns, &space, &operation, &hash, &bytes,
				      &cost, &status, &tier);

	if (ret <= 0)
		return ret;
	number = number_of(t, hash);
	if (!number)
		return -ENOMEM;
	t->requests++;
	fprintf(t->f, "%" PRIu64 " %u %s %" PRIu64 " %" PRIu64 " %u %s %s\n", ns / 1000, space,
		operation, number, bytes, cost, status, tier);
	return 1;
}

/* 0 or -errno. */
static int records_write(struct trace *t, sd_bus_message *m)
{
	uint64_t lost = 0;
	int ret = sd_bus_message_enter_container(m, 'a', "(tusttuss)");

	while (ret > 0)
		ret = record_write(t, m);
	if (ret >= 0)
		ret = sd_bus_message_exit_container(m);
	if (ret >= 0)
		ret = sd_bus_message_read(m, "tb", &lost, &t->more);
	if (ret <= 0)
		return ret ? ret : -ENXIO;
	if (lost != t->lost)
		fprintf(t->f, "# lost %" PRIu64 "\n", lost - t->lost);
	t->lost = lost;
	return 0;
}

/* Asks for what has come since the last call. The first one begins the recording. 0 or -1. */
static int ask(struct ctl *c, sd_bus_message **ret)
{
	return ctl_bus_call(c, DRAY_DBUS_METHOD_TRACE_STORE, ret, NULL);
}

/* 0 or -1. */
static int answer_write(struct ctl *c, struct trace *t, sd_bus_message *answer)
{
	int ret = records_write(t, answer);

	if (ret == -ENOMEM)
		return ctl_no_memory(c);
	if (ret < 0)
		return ctl_bus_bad_reply(c, DRAY_DBUS_METHOD_TRACE_STORE, ret);
	/* of a write that failed earlier the reason is not known any more */
	errno = EIO;
	if (fflush(t->f) || ferror(t->f))
		return ctl_failed(c, "cannot write %.200s: %s", c->values[CTL_OPTION_TRACE],
				  dray_errno_text(errno));
	return 0;
}

/* 0 or -1. */
static int take(struct ctl *c, struct trace *t)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *answer = NULL;

	return ask(c, &answer) < 0 ? -1 : answer_write(c, t, answer);
}

/* Until the time is over or a signal comes, and then what the agent still has. 0 or -1. */
static int record(struct ctl *c, struct trace *t, sd_bus_message *first)
{
	int64_t limit_ns = c->numbers[CTL_OPTION_TRACE_TIME], now_ns = dray_now().ns;
	int64_t end_ns = c->values[CTL_OPTION_TRACE_TIME] ? now_ns + limit_ns : INT64_MAX;
	unsigned calls = 0; /* since the end */
	int ret, wake = CTL_WAKE_TIME;

	fputs(HEAD, t->f);
	for (ret = answer_write(c, t, first); !ret; ret = take(c, t)) {
		now_ns = dray_now().ns;
		if (wake == CTL_WAKE_END || now_ns >= end_ns) {
			if (!t->more || ++calls == LAST_CALLS_MAX)
				return 0;
			continue;
		}
		wake = ctl_interrupt_wait(c, -1, t->more ? 0 : dray_min(PAUSE_NS, end_ns - now_ns));
		if (wake < 0)
			return -1;
	}
	return -1;
}

static void print(struct ctl *c, const struct trace *t, FILE *f)
{
	struct ctl_json j = CTL_JSON(c->out);

	if (c->format == CTL_JSON)
		ctl_json_record(&j, NULL, J_UINT("requests", t->requests),
				J_UINT("keys", t->n_keys), J_UINT("lost", t->lost));
	else if (c->format == CTL_PLAIN)
		fprintf(c->out, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\n", t->requests, t->n_keys,
			t->lost);
	else
		fprintf(f, "%" PRIu64 " requests for %" PRIu64 " keys recorded, %" PRIu64 " lost\n",
			t->requests, t->n_keys, t->lost);
}

int ctl_store_trace(struct ctl *c)
{
	const char *path = c->values[CTL_OPTION_TRACE];
	dray_auto(sd_bus_message_unref) sd_bus_message *first = NULL;
	bool to_out = !strcmp(path, "-");
	struct trace t = { .f = c->out };
	sigset_t former;
	int ret;

	if (to_out && c->format != CTL_TEXT)
		return ctl_misuse(c, "--trace - and --json or --plain are both for standard "
				     "output; give a file");
	/* an agent that does not record leaves an earlier file as it is */
	if (ask(c, &first) < 0)
		return -1;
	if (!to_out)
		t.f = fopen(path, "we");
	if (!t.f)
		return ctl_failed(c, "cannot write %.200s: %s", path, dray_errno_text(errno));
	dray_map_init(&t.keys);
	/* a reader of standard output may have stopped */
	if (!to_out)
		ctl_interrupt_hold(&former);
	ret = record(c, &t, first);
	if (!to_out && fclose(t.f) && !ret)
		ret = ctl_failed(c, "cannot write %.200s: %s", path, dray_errno_text(errno));
	if (!ret)
		print(c, &t, to_out ? c->err : c->out);
	if (!to_out)
		ctl_interrupt_release(&former);
	dray_map_for_each(&t.keys, k, struct key, by_hash) {
		dray_map_del(&t.keys, &k->by_hash);
		free(k);
	}
	dray_map_deinit(&t.keys);
	return ret;
}
