/* SPDX-License-Identifier: Apache-2.0 */
#include "client/proof.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "client/internal.h"
#include "lib/cleanup.h"

void dc_proof_init(struct proof *p)
{
	dray_list_init(&p->agents);
	dray_list_init(&p->held);
}

static void agent_free(struct dray *d, struct agent *a)
{
	if (a->pidfd >= 0)
		epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, a->pidfd, NULL);
	dray_close(a->pidfd);
	dray_list_del(&a->link);
	free(a);
}

/* Frees an agent of the past whom no request needs. */
static void agent_drop(struct dray *d, struct agent *a)
{
	if (!a->uses && a != d->proof.agent)
		agent_free(d, a);
}

void dc_proof_deinit(struct dray *d)
{
	/* without a change to epoll, which a child shares with its parent */
	dray_list_for_each(&d->proof.agents, a, struct agent, link) {
		dray_close(a->pidfd);
		free(a);
	}
	dray_heap_deinit(&d->proof.deadlines);
}

bool dc_proof_lends(const struct request *r)
{
	return r->type == DMSG_TRANSFER || r->type == DMSG_STORE_PUT || r->type == DMSG_STORE_GET;
}

static void use(struct request *r, struct agent *a)
{
	if (r->agent || !a)
		return;
	r->agent = a;
	a->uses++;
}

static void set_unconfirmed(struct dray *d, struct request *r, bool on)
{
	uint32_t change = on ? 1 : (uint32_t)-1;

	if (r->unconfirmed == on)
		return;
	r->unconfirmed = on;
	d->proof.unconfirmed += change;
	/* the agent answers the parts of a whole, and no requests of earlier sessions */
	if (!r->split && r->epoch == d->epoch)
		d->proof.answerable += change;
}

void dc_proof_forget(struct dray *d, struct request *r)
{
	struct agent *a = r->agent;

	dray_heap_del(&d->proof.deadlines, &r->deadline);
	set_unconfirmed(d, r, false);
	r->agent = NULL;
	if (!a)
		return;
	a->uses--;
	agent_drop(d, a);
}

/* The requests about memory that wait for proof: those that end so, and those of the caller. */
static void end_requests_for_proof(struct dray *d, const struct agent *a, int status)
{
	dray_list_for_each(&d->requests.held, r, struct request, link)
		if (r->agent == a)
			dc_request_end(d, r, status, dc_text(a->why));
}

/* Nothing accesses the memory any more on behalf of the agent's lost session. */
static void settle(struct dray *d, struct agent *a, bool died)
{
	int code = a->lost_code;
	uint32_t cursor = 0;
	struct request *r;

	a->uses++;
	dc_leases_proven(d, a);
	end_requests_for_proof(d, a, died ? 0 : code);
	dray_list_for_each(&d->proof.held, held, struct request, link)
		if (held->agent == a)
			dc_request_end(d, held, code, dc_text(a->why));
	if (d->proof.unconfirmed)
		while ((r = dray_handles_next(&d->requests.table, &cursor, NULL)))
			if (r->unconfirmed && r->agent == a)
				dc_proof_answered(d, r, code, dc_text(a->why));
	a->uses--;
	agent_drop(d, a);
}

static bool pidfd_is_readable(const struct agent *a)
{
	struct pollfd p = { .fd = a->pidfd, .events = POLLIN };

	return a->pidfd >= 0 && poll(&p, 1, 0) > 0;
}

void dc_proof_check(struct dray *d)
{
	dray_list_for_each(&d->proof.agents, a, struct agent, link) {
		if (a->dead || !pidfd_is_readable(a))
			continue;
		a->dead = true;
		epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, a->pidfd, NULL);
		if (a->lost_code)
			settle(d, a, true);
		else
			/* a child that the agent forked keeps the socket open */
			dc_session_break(d, DRAY_E_AGENT_RESTARTED, "the agent is gone");
	}
}

/* What a new session, with the agent of m, proves about an earlier agent. */
static void learn(struct dray *d, struct agent *a, const struct dmsg_hello_reply *m)
{
	bool same_id = memcmp(a->id, m->agent_id, sizeof(a->id)) == 0;
	bool same = same_id && a->incarnation == m->incarnation;

	if (a->dead)
		settle(d, a, true);
	else if (same && a->closed)
		settle(d, a, false);
	else if (same)
		end_requests_for_proof(d, a, a->lost_code);
	else if (a->pidfd >= 0)
		return; /* which tells in time */
	else if (a->incarnation != m->incarnation &&
		 (same_id || a->lost_code == -DRAY_E_AGENT_RESTARTED))
		settle(d, a, true); /* only one process can hold the state directory of an id */
	else
		end_requests_for_proof(d, a, a->lost_code);
}

int dc_proof_agent(struct dray *d, const struct dmsg_hello_reply *m, int pidfd)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = ENGINE_AGENT };
	struct agent *a = calloc(1, sizeof(*a));

	if (!a) {
		dray_close(pidfd);
		return -ENOMEM;
	}
	a->pidfd = pidfd;
	a->incarnation = m->incarnation;
	memcpy(a->id, m->agent_id, sizeof(a->id));
	/* without a place in epoll, death is still seen at the next loss or session */
	if (pidfd >= 0)
		epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, pidfd, &ev);
	d->proof.agent = a;
	dc_proof_check(d);
	dray_list_for_each(&d->proof.agents, former, struct agent, link)
		if (former->uses)
			learn(d, former, m);
		else
			agent_drop(d, former);
	dray_list_add(&d->proof.agents, &a->link);
	return 0;
}

void dc_proof_lost(struct dray *d, const struct dray_err *why, bool closed)
{
	struct agent *a = d->proof.agent;

	d->proof.answerable = 0;
	if (!a || a->lost_code)
		return;
	a->lost_code = -why->code;
	memcpy(a->why, why->msg, sizeof(a->why));
	a->closed = closed;
	if (!a->dead && !pidfd_is_readable(a))
		return;
	a->dead = true;
	settle(d, a, true);
}

void dc_proof_hold(struct dray *d, struct request *r)
{
	dc_proof_hold_for(d, r, d->proof.agent);
}

void dc_proof_hold_for(struct dray *d, struct request *r, struct agent *a)
{
	dc_request_hold(d, r);
	use(r, a);
	if (dc_proof_lends(r)) {
		dray_heap_del(&d->proof.deadlines, &r->deadline);
		r->deadline.key = dray_now().ns + d->proof.loss_ns;
		dray_list_move(&d->proof.held, &r->link);
	}
	if (a && a->dead)
		dc_request_end(d, r, dc_proof_lends(r) ? a->lost_code : 0, dc_text(a->why));
}

int dc_proof_deadline(struct dray *d, struct request *r, unsigned int deadline_ms)
{
	if (!deadline_ms)
		return 0;
	return dray_heap_set(&d->proof.deadlines, &r->deadline,
			     dray_now().ns + deadline_ms * DRAY_NS_PER_MS + d->proof.confirm_ns);
}

static void unconfirm(struct dray *d, struct request *r)
{
	use(r, d->proof.agent);
	set_unconfirmed(d, r, true);
	dc_engine_read(d);
	dc_request_end_unconfirmed(d, r);
}

void dc_proof_closed(struct dray *d)
{
	dray_list_for_each(&d->requests.held, r, struct request, link)
		dc_request_end(d, r, r->agent->lost_code, dc_text(r->agent->why));
}

bool dc_proof_keeps(struct dray *d, struct request *r)
{
	if (!r->unconfirmed)
		return false;
	dc_request_lend(d, r);
	return true;
}

void dc_proof_answered(struct dray *d, struct request *r, int status, struct dray_str text)
{
	struct dray_event *e;

	set_unconfirmed(d, r, false);
	dc_transfer_ended(d, r);
	if (r->state == REQUEST_LENT) {
		e = r->abandoned || r->internal ?
			    NULL :
			    dc_event_add(d, DRAY_EVENT_CONFIRMED, status, text);
		if (e)
			e->id = r->id;
		if (r->whole)
			dc_split_part_answered(d, r, status);
		dc_request_free(d, r);
	} else {
		/* the caller has not taken the completion, which now has the true end */
		r->status = status;
		if (status && text.n)
			r->message = strndup(text.p, text.n);
	}
}

bool dc_proof_removed(struct dray *d, struct request *remove)
{
	uint32_t cursor = 0;
	struct request *r;

	if (!d->proof.unconfirmed && dray_list_empty(&d->proof.held))
		return true;
	while ((r = dray_handles_next(&d->requests.table, &cursor, NULL))) {
		if (!dc_proof_lends(r) || r->region.id != remove->region.id || !r->agent ||
		    !r->agent->lost_code)
			continue;
		use(remove, r->agent);
		dc_request_hold(d, remove);
		return false;
	}
	return true;
}

bool dc_proof_may_come(const struct dray *d)
{
	if (!dray_list_empty(&d->proof.held))
		return true;
	if (!d->proof.unconfirmed && !d->leases.count)
		return false;
	dray_list_for_each(&d->proof.agents, a, const struct agent, link)
		if (a->uses && a->pidfd >= 0)
			return true;
	return false;
}

void dc_proof_tick(struct dray *d, int64_t now)
{
	struct dray_heap_node *first;
	struct request *r;

	if (dc_proof_next_tick(d) > now)
		return;
	/* an agent can die while this thread, after its last look at the pidfds, waits for a processor */
	dc_proof_check(d);
	while ((first = dray_heap_first(&d->proof.deadlines)) && first->key <= now) {
		dray_heap_del(&d->proof.deadlines, first);
		r = dray_container_of(first, struct request, deadline);
		if (r->split)
			dc_split_stop(d, r, -DRAY_E_DEADLINE, NO_TEXT);
		else
			unconfirm(d, r);
	}
	while ((r = dray_list_first(&d->proof.held, struct request, link)) &&
	       r->deadline.key <= now)
		unconfirm(d, r);
}

int64_t dc_proof_next_tick(const struct dray *d)
{
	const struct dray_heap_node *first = dray_heap_first(&d->proof.deadlines);
	const struct request *r = dray_list_first(&d->proof.held, struct request, link);
	int64_t next = first ? first->key : INT64_MAX;

	return r ? dray_min(next, r->deadline.key) : next;
}
