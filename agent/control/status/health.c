/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/status/health.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/control/agent.h"
#include "agent/control/status/transfer_log.h"
#include "lib/time.h"

/* Below that of the workers' events: an answer that has arrived in time must not count as missing. */
#define TIMER_PRIORITY (SD_EVENT_PRIORITY_NORMAL + 5)

struct health {
	struct agent *agent;
	sd_event_source *timer;
	struct dray_list checks;
	struct transfers_query query;
	int64_t asked_ns; /* begin of the query */
};

static const struct dray_config *config_of(const struct health *h)
{
	return &h->agent->config->v;
}

static double seconds(int64_t ns)
{
	return (double)ns / (double)DRAY_NS_PER_SEC;
}

static void check_deadlines(const struct health *h, struct snapshot *const *snapshots, unsigned n,
			    char fault[DRAY_ERR_MSG_MAX])
{
	const struct dray_config *cfg = config_of(h);
	int64_t late = cfg->transfer.slice_timeout + cfg->peer.heartbeat_limit;

	*fault = '\0';
	for (unsigned i = 0; i < n; i++) {
		const struct transfer_info *t = &snapshots[i]->first_due;

		if (!snapshots[i]->in_flight || -t->left_ns <= late)
			continue;
		late = -t->left_ns;
		snprintf(fault, DRAY_ERR_MSG_MAX,
			 "transfer %" PRIu64 " of session %" PRIu64
			 " in worker %u has not ended %.1f s after its deadline",
			 t->record.request, t->record.session, i, seconds(late));
	}
}

static bool is_asking(const struct health *h)
{
	return !dray_list_empty(&h->query.link);
}

static void report_silence(const struct health *h, int64_t now, char fault[DRAY_ERR_MSG_MAX])
{
	uint32_t missing = is_asking(h) ? h->agent->listings[LISTING_HEALTH].missing : 0;
	char workers[4 * WORKERS_MAX];

	if (missing)
		snprintf(fault, DRAY_ERR_MSG_MAX, "worker %s has not answered for %.1f s",
			 numbers_text(missing, workers, sizeof(workers)),
			 seconds(now - h->asked_ns));
	else
		snprintf(fault, DRAY_ERR_MSG_MAX, "out of memory: the workers cannot be checked");
}

static void timer_arm(struct health *h)
{
	const struct health_check *first = dray_list_first(&h->checks, struct health_check, link);

	sd_event_source_set_time(h->timer, first ? (uint64_t)first->end_ns / 1000 + 1 : UINT64_MAX);
	sd_event_source_set_enabled(h->timer, SD_EVENT_ONESHOT);
}

/* Removes the check first, because its callback may free it. */
static void answer(struct health_check *c, const char *fault)
{
	dray_list_del(&c->link);
	c->fn(c, fault);
}

static void listed(struct transfers_query *q, struct snapshot *const *snapshots, unsigned n)
{
	struct dray_list checks = DRAY_LIST_INIT(checks);
	struct health *h = dray_container_of(q, struct health, query);
	char fault[DRAY_ERR_MSG_MAX];
	struct health_check *c;

	/* without memory the timer answers, because this may be inside health_ask() */
	if (!n) {
		dray_list_for_each(&h->checks, failed, struct health_check, link)
			failed->end_ns = h->asked_ns;
		timer_arm(h);
		return;
	}
	check_deadlines(h, snapshots, n, fault);
	/* a callback may start another check */
	dray_list_splice(&checks, &h->checks);
	while ((c = dray_list_first(&checks, struct health_check, link)))
		answer(c, fault);
	timer_arm(h);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *arg)
{
	struct health *h = arg;
	int64_t now = dray_now().ns;
	char fault[DRAY_ERR_MSG_MAX];
	struct health_check *c;

	report_silence(h, now, fault);
	while ((c = dray_list_first(&h->checks, struct health_check, link)) && c->end_ns <= now)
		answer(c, fault);
	timer_arm(h);
	return 0;
}

void health_ask(struct health *h, struct health_check *c)
{
	int64_t now = dray_now().ns;

	c->end_ns = now + config_of(h)->health.worker_limit;
	/* a reload may have shortened the limit; the list is ordered by end */
	dray_list_for_each(&h->checks, other, struct health_check, link)
		other->end_ns = dray_min(other->end_ns, c->end_ns);
	dray_list_add(&h->checks, &c->link);
	if (!is_asking(h)) {
		h->asked_ns = now;
		agent_list_transfers(h->agent, LISTING_HEALTH, &h->query);
	}
	timer_arm(h);
}

void health_cancel(struct health_check *c)
{
	dray_list_del(&c->link);
}

int health_new(struct health **ret, struct agent *a)
{
	struct health *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	h->agent = a;
	h->query.fn = listed;
	dray_list_init(&h->query.link);
	dray_list_init(&h->checks);
	r = sd_event_add_time(a->event, &h->timer, CLOCK_MONOTONIC, UINT64_MAX, 1000, on_timer, h);
	if (r >= 0)
		r = sd_event_source_set_priority(h->timer, TIMER_PRIORITY);
	if (r < 0) {
		health_free(h);
		return r;
	}
	*ret = h;
	return 0;
}

struct health *health_free(struct health *h)
{
	if (!h)
		return NULL;
	dray_list_del(&h->query.link);
	dray_list_for_each(&h->checks, c, struct health_check, link)
		dray_list_del(&c->link);
	sd_event_source_disable_unref(h->timer);
	free(h);
	return NULL;
}
