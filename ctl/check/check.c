/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agents check the ways to each other (CheckPeer). Then this process, as a client of its agent, writes to and reads from
 * memory that the other agent lends, for a second each, and the counters of the paths show what each rail has moved.
 */
#include "ctl/check/check.h"

#include <stdlib.h>
#include <string.h>

#include "ctl/bench/bench.h"
#include "ctl/bus/list.h"
#include "ctl/render/human.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "schema/gen/data.h"

/* Both agents wait for each other, and the one that is asked checks its way back meanwhile. */
#define CHECK_NS (60 * DRAY_NS_PER_SEC)
#define TRIAL_NS (1 * DRAY_NS_PER_SEC)
/* Each rail registers the memory of a trial by itself, and a busy one later than others. */
#define LONGEST_TRIAL_NS (4 * DRAY_NS_PER_SEC)
#define OPERATION_BYTES (1u << 20)
#define IN_FLIGHT 4
#define MEMORY_BYTES (4u << 20)
/* The owner's RDMA devices register lent memory in the background. */
#define RDMA_TRIES 15
#define RDMA_PAUSE_NS (200 * DRAY_NS_PER_MS)

struct check {
	struct ctl *ctl;
	struct nd_findings *found;
	const char *segment;
	char there[80], back[80], to[80]; /* in findings: of steps, and of trials */
	struct dray_token token;
	bool has_token;
	bool explained;   /* a finding says why nothing is lent */
	char lender[256]; /* the segment of that agent, by which the agent here knows its paths */
};

static int add(struct check *k, enum nd_severity severity, const char *name, const char *about,
	       const char *fix, const char *text, int64_t ns)
{
	char shown[240];

	ctl_show_text(text, shown, sizeof(shown));
	if (!nd_findings_add(k->found, severity, name, about, fix, "%s (%s)", shown,
			     ctl_span(dray_span(ns))))
		return ctl_no_memory(k->ctl);
	return 0;
}

static enum nd_severity severity_of(const char *result)
{
	return !strcmp(result, "ok") ? ND_OK : !strcmp(result, "warning") ? ND_WARNING : ND_ERROR;
}

static int steps_add(struct check *k, const struct ctl_rows *r)
{
	for (size_t i = 0; i < r->n; i++) {
		bool back = ctl_rows_at(r, i, DRAY_DBUS_CHECK_STEP_FIELD_BACK)->n;
		uint64_t ns = ctl_rows_at(r, i, DRAY_DBUS_CHECK_STEP_FIELD_TOOK_NS)->n;
		const char *step = ctl_rows_text(r, i, DRAY_DBUS_CHECK_STEP_FIELD_STEP);
		enum nd_severity severity =
			severity_of(ctl_rows_text(r, i, DRAY_DBUS_CHECK_STEP_FIELD_RESULT));

		/* a warning about the features: the release there lends nothing */
		k->explained |= severity == ND_ERROR ||
				(severity == ND_WARNING && !strcmp(step, "features"));
		if (add(k, severity, step, back ? k->back : k->there,
			ctl_rows_text(r, i, DRAY_DBUS_CHECK_STEP_FIELD_REMEDY),
			ctl_rows_text(r, i, DRAY_DBUS_CHECK_STEP_FIELD_TEXT), (int64_t)ns) < 0)
			return -1;
	}
	return 0;
}

static int agents_check(struct check *k)
{
	struct ctl_rows rows ctl_auto_rows = CTL_ROWS_NULL;
	const char *lender = NULL;
	const void *bytes = NULL;
	size_t n = 0;
	int ret;

	if (ctl_bus_open(k->ctl, CHECK_NS) < 0 ||
	    ctl_bus_call(k->ctl, DRAY_DBUS_METHOD_CHECK_PEER, &rows.reply, "s", k->segment) < 0)
		return -1;
	ret = ctl_rows_read(&rows, dray_dbus_check_step_fields, DRAY_DBUS_CHECK_STEP_FIELD_N);
	if (ret >= 0)
		ret = sd_bus_message_read_array(rows.reply, 'y', &bytes, &n);
	if (ret >= 0)
		ret = sd_bus_message_read(rows.reply, "s", &lender);
	if (ret < 0)
		return ctl_bus_bad_reply(k->ctl, DRAY_DBUS_METHOD_CHECK_PEER, ret);
	snprintf(k->lender, sizeof(k->lender), "%s", lender);
	k->has_token = n && !dray_token_from_bytes(bytes, n, &k->token);
	return steps_add(k, &rows);
}

/* --- trials --------------------------------------------------------------------------------------- */

static const char *trial_name(enum dray_direction direction)
{
	return direction == DRAY_DIRECTION_WRITE ? "write" : "read";
}

static int trial_failed(struct check *k, enum dray_direction direction)
{
	struct ctl_failure f = k->ctl->failure;
	bool local = f.exit == CTL_EXIT_UNREACHABLE;

	k->ctl->failure = CTL_FAILURE_NULL;
	return add(k, ND_ERROR, trial_name(direction), k->to,
		   local ? "name the data socket of this agent with --socket" :
			   "the logs of both agents have the reason",
		   f.msg, 0);
}

/*
 * count: of transfers; 0: as many as end in duration_ns. A failed trial is a finding, and no failure of this program. 0; 1 with such
 * a finding; or -1.
 */
static int trial(struct check *k, enum dray_direction direction, uint64_t count,
		 int64_t duration_ns, struct bench_result *ret)
{
	const char *socket = k->ctl->values[CTL_OPTION_SOCKET];
	struct bench_plan plan = {
		.ctl = k->ctl,
		.timeout_ns = k->ctl->numbers[CTL_OPTION_TIMEOUT],
		.socket = socket ? socket : k->ctl->env->socket,
		.size = OPERATION_BYTES,
		.ops = 1,
		.batch = IN_FLIGHT,
		.sessions = 1,
		.count = count,
		.duration_ns = duration_ns,
		.memory = MEMORY_BYTES,
		.wait = CTL_WAIT_METHOD_ADAPTIVE,
		.direction = direction,
		.priority = DRAY_PRIORITY_BULK,
		.token = k->token.text,
	};

	*ret = (struct bench_result){ .transport = 0 };
	if (bench_run(&plan, ret) >= 0)
		return 0;
	return trial_failed(k, direction) < 0 ? -1 : 1;
}

static bool is_of_lender(const struct check *k, const struct ctl_rows *paths, size_t i)
{
	return !strcmp(ctl_rows_text(paths, i, DRAY_DBUS_PATH_FIELD_SEGMENT), k->lender);
}

static int paths_get(struct check *k, struct ctl_rows *rows)
{
	if (ctl_bus_call(k->ctl, DRAY_DBUS_METHOD_LIST_PATHS, &rows->reply, NULL) < 0)
		return -1;
	if (ctl_rows_read(rows, dray_dbus_path_fields, DRAY_DBUS_PATH_FIELD_N) < 0)
		return ctl_bus_bad_reply(k->ctl, DRAY_DBUS_METHOD_LIST_PATHS, -EBADMSG);
	return 0;
}

static uint64_t moved(const struct ctl_rows *r, size_t i)
{
	return ctl_rows_at(r, i, DRAY_DBUS_PATH_FIELD_SENT_BYTES)->n;
}

/* What this path had written before; 0 for a new one. */
static uint64_t moved_before(const struct ctl_rows *before, const struct ctl_rows *now, size_t i)
{
	for (size_t j = 0; j < before->n; j++) {
		bool same = true;

		for (unsigned f = DRAY_DBUS_PATH_FIELD_SEGMENT; f <= DRAY_DBUS_PATH_FIELD_TO_GID;
		     f++)
			same &= ctl_rows_at(before, j, f)->n == ctl_rows_at(now, i, f)->n &&
				!strcmp(ctl_rows_text(before, j, f), ctl_rows_text(now, i, f));
		if (same)
			return moved(before, j);
	}
	return 0;
}

static int rail_add(struct check *k, const struct ctl_rows *before, const struct ctl_rows *now,
		    size_t i, int64_t ns)
{
	uint64_t bytes = moved(now, i) - moved_before(before, now, i);
	const char *state = ctl_rows_text(now, i, DRAY_DBUS_PATH_FIELD_STATE);
	char name[80], text[240];

	snprintf(name, sizeof(name), "%s port %u to their rail %u",
		 ctl_rows_text(now, i, DRAY_DBUS_PATH_FIELD_DEVICE),
		 (unsigned)ctl_rows_at(now, i, DRAY_DBUS_PATH_FIELD_PORT)->n,
		 (unsigned)ctl_rows_at(now, i, DRAY_DBUS_PATH_FIELD_TO_RAIL)->n);
	if (bytes)
		snprintf(text, sizeof(text), "RDMA has written %s", ctl_size(bytes));
	else
		snprintf(text, sizeof(text), "RDMA has written nothing; the path is %s: %s", state,
			 ctl_rows_text(now, i, DRAY_DBUS_PATH_FIELD_REASON));
	return add(k, bytes ? ND_OK : ND_ERROR, "rail", name,
		   bytes ? "" : "drayctl rails and drayctl paths, at both agents, say more", text,
		   ns);
}

static int rails_add(struct check *k, const struct ctl_rows *before, int64_t ns)
{
	struct ctl_rows now ctl_auto_rows = CTL_ROWS_NULL;
	int ret = paths_get(k, &now);

	for (size_t i = 0; ret == 0 && i < now.n; i++)
		if (is_of_lender(k, &now, i) &&
		    strcmp(ctl_rows_text(&now, i, DRAY_DBUS_PATH_FIELD_STATE), "gone"))
			ret = rail_add(k, before, &now, i, ns);
	return ret;
}

static int result_add(struct check *k, enum dray_direction direction, const struct bench_result *r)
{
	char text[160];

	snprintf(text, sizeof(text), "%s over %s",
		 ctl_rate(bench_per_second(r->bytes, r->duration_ns)),
		 dmsg_transport_name(r->transport));
	return add(k, ND_OK, trial_name(direction), k->to, "", text, r->duration_ns);
}

/* Until RDMA moves the bytes, where it can: there are paths to that agent. As trial(). */
static int warm_up(struct check *k, struct bench_result *r)
{
	for (unsigned i = 0;; i++) {
		struct ctl_rows paths ctl_auto_rows = CTL_ROWS_NULL;
		bool some = false;
		int ret = trial(k, DRAY_DIRECTION_WRITE, IN_FLIGHT, 0, r);

		if (ret == 0)
			ret = paths_get(k, &paths);
		if (ret != 0)
			return ret;
		for (size_t j = 0; j < paths.n; j++)
			some |= is_of_lender(k, &paths, j);
		if (!some || r->transport == DMSG_TRANSPORT_RDMA || i == RDMA_TRIES)
			return 0;
		ret = ctl_interrupt_wait(k->ctl, -1, RDMA_PAUSE_NS);
		if (ret != CTL_WAKE_TIME)
			return ret < 0 ? -1 : ctl_failed(k->ctl, "interrupted");
	}
}

/* A path to that agent has written nothing, and has not failed. 0, 1 or -1. */
static int some_are_late(struct check *k, const struct ctl_rows *before)
{
	struct ctl_rows now ctl_auto_rows = CTL_ROWS_NULL;
	int ret = paths_get(k, &now);

	for (size_t i = 0; ret == 0 && i < now.n; i++) {
		const char *state = ctl_rows_text(&now, i, DRAY_DBUS_PATH_FIELD_STATE);

		ret = is_of_lender(k, &now, i) && strcmp(state, "failed") &&
		      strcmp(state, "gone") && moved(&now, i) == moved_before(before, &now, i);
	}
	return ret;
}

/* Until each path that has not failed has written, or for the longest time. As trial(). */
static int write_trial(struct check *k, const struct ctl_rows *before, struct bench_result *r)
{
	for (int64_t ns = TRIAL_NS;; ns *= 2) {
		int ret = trial(k, DRAY_DIRECTION_WRITE, 0, ns, r);

		if (ret != 0 || ns >= LONGEST_TRIAL_NS)
			return ret;
		ret = some_are_late(k, before);
		if (ret <= 0)
			return ret;
	}
}

/* As trial(). */
static int trials(struct check *k)
{
	int ret;
	struct ctl_rows before ctl_auto_rows = CTL_ROWS_NULL;
	struct bench_result *r dray_auto_free = calloc(1, sizeof(*r));

	if (!r)
		return ctl_no_memory(k->ctl);
	ret = paths_get(k, &before);
	if (ret == 0)
		ret = warm_up(k, r);
	if (ret == 0)
		ret = write_trial(k, &before, r);
	if (ret == 0)
		ret = rails_add(k, &before, r->duration_ns);
	if (ret == 0)
		ret = result_add(k, DRAY_DIRECTION_WRITE, r);
	if (ret == 0)
		ret = trial(k, DRAY_DIRECTION_READ, 0, TRIAL_NS, r);
	return ret == 0 ? result_add(k, DRAY_DIRECTION_READ, r) : ret;
}

static int nothing_lent(struct check *k)
{
	if (k->explained)
		return 0;
	return add(k, ND_WARNING, trial_name(DRAY_DIRECTION_WRITE), k->there,
		   "try again in half a minute; its log has the reason",
		   "the agent there lends no memory now, so no bytes were tried", 0);
}

int ctl_check_peer(struct ctl *c, const char *segment, struct nd_findings *f)
{
	struct check k = { .ctl = c, .found = f, .segment = segment };

	snprintf(k.there, sizeof(k.there), "to %.70s", segment);
	snprintf(k.back, sizeof(k.back), "from %.70s", segment);
	if (agents_check(&k) < 0)
		return -1;
	if (!k.has_token)
		return nothing_lent(&k);
	snprintf(k.to, sizeof(k.to), "to %.70s", k.lender);
	return trials(&k) < 0 ? -1 : 0;
}
