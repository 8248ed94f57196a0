/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases of this client's regions. A lease lives until the agent reports its end, or, after the loss of the session, until there is
 * proof that nothing accesses memory on behalf of that session any more (see proof.h). Either ends it with one event.
 */
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"

#define DEFAULT_EXPIRY_MS 30000

_Static_assert(sizeof(struct dray_range) == DMSG_RANGE_SIZE, "ranges are copied as one");
_Static_assert(DRAY_LEASE_RANGES_MAX == DMSG_LEASE_RANGES_MAX,
	       "the public limit is the protocol's");

static struct lease *find(struct dray *d, dray_lease handle)
{
	return dray_handles_get(&d->leases, handle.id);
}

static void lease_free(struct dray *d, struct lease *l)
{
	dray_handles_del(&d->leases, l->handle.id);
	free(l);
}

int dc_lease_made(struct dray *d, struct request *r, const struct dmsg_lease_reply *m)
{
	struct lease *l = calloc(1, sizeof(*l));

	if (!m->lease) {
		free(l);
		return dc_session_defect(d, "the agent made a lease without a handle");
	}
	/* without memory the lease has no owner, so it expires, or ends with the session */
	if (!l || dray_handles_add(&d->leases, l, &l->handle.id) < 0) {
		free(l);
		return -DRAY_E_NO_MEMORY;
	}
	l->agent = m->lease;
	r->lease = l->handle;
	r->bytes = m->granted;
	return dc_token_take(d, r, m->token, m->lease);
}

void dc_lease_request_ended(struct dray *d, struct request *r)
{
	struct lease *l = find(d, r->lease);
	struct request *end;

	/* a lease that no caller will see ends */
	if (!l || r->type != DMSG_LEASE || (!r->abandoned && !r->status) || !l->agent)
		return;
	end = dc_request_internal(d, DMSG_LEASE_END, NO_REGION, NO_REMOTE, 0);
	if (end)
		end->lease = l->handle;
}

/* Ends the lease with an event. */
static void lease_ended(struct dray *d, struct lease *l, unsigned int outcome, uint32_t acquired,
			int code, struct dray_str text)
{
	struct dray_event *e = dc_event_add(d, DRAY_EVENT_LEASE_ENDED, code, text);

	if (e) {
		e->lease = l->handle;
		e->outcome = outcome;
		e->acquired = acquired;
	}
	lease_free(d, l);
}

void dc_lease_ended(struct dray *d, const struct dmsg_lease_ended *m)
{
	uint32_t cursor = 0;
	struct lease *l;

	while ((l = dray_handles_next(&d->leases, &cursor, NULL)))
		if (l->agent == m->lease) {
			lease_ended(d, l, m->outcome, m->acquired, 0, NO_TEXT);
			return;
		}
}

void dc_leases_lost(struct dray *d)
{
	uint32_t cursor = 0;
	struct lease *l;

	while ((l = dray_handles_next(&d->leases, &cursor, NULL))) {
		if (!l->agent)
			continue;
		l->agent = 0;
		l->lost = d->proof.agent;
		l->lost->uses++;
	}
}

void dc_leases_proven(struct dray *d, const struct agent *a)
{
	uint32_t cursor = 0;
	struct lease *l;

	while ((l = dray_handles_next(&d->leases, &cursor, NULL))) {
		if (l->lost != a)
			continue;
		l->lost->uses--;
		lease_ended(d, l, DRAY_LEASE_AGENT_LOST, 0, a->lost_code, dc_text(a->why));
	}
}

void dc_leases_free(struct dray *d)
{
	uint32_t cursor = 0;
	struct lease *l;

	while ((l = dray_handles_next(&d->leases, &cursor, NULL)))
		lease_free(d, l);
	dray_handles_deinit(&d->leases);
}

int dc_lease_encode(struct dray *d, const struct request *r, const struct region *g)
{
	union dmsg_body m;

	memcpy(&m.lease, r->data, sizeof(m.lease));
	m.lease.region = g->agent;
	m.lease.ranges.p = (const uint8_t *)r->data + sizeof(m.lease);
	return dmsg_body_encode(DMSG_LEASE, d->out, DMSG_MESSAGE_MAX, r->id, &m);
}

int dc_lease_encode_end(struct dray *d, const struct request *r)
{
	const struct lease *l = find(d, r->lease);

	/* it has ended meanwhile */
	if (!l || !l->agent)
		return 0;
	return dmsg_body_encode(DMSG_LEASE_END, d->out, DMSG_MESSAGE_MAX, r->id,
				&(union dmsg_body){ .lease_end = { l->agent } });
}

/* The message without the agent's handle of the region, then the ranges. */
static int start(struct dray *d, struct request *r, const struct region *g,
		 const struct dray_lease_spec *what, uint64_t *ret_id)
{
	struct dmsg_lease m = {
		.access = (uint16_t)(what->access ? what->access : g->access),
		.flags = what->grant ? DMSG_LEASE_FLAG_GRANT : 0,
		.holders = what->holders ? what->holders : 1,
		.expiry_ms = what->expiry_ms ? what->expiry_ms : DEFAULT_EXPIRY_MS,
		.ranges = { .n = (uint32_t)what->ranges_n },
	};
	uint8_t *data;
	size_t bytes;

	if (!what->ranges_n || what->ranges_n > DRAY_LEASE_RANGES_MAX)
		return dc_request_refuse(d, r, what->ranges_n ? DRAY_E_TOO_LARGE : DRAY_E_INVALID,
					 "%zu ranges; a lease has 1 to %d", what->ranges_n,
					 DRAY_LEASE_RANGES_MAX);
	bytes = what->ranges_n * sizeof(*what->ranges);
	memcpy(m.audience, what->audience, sizeof(m.audience));
	r->data = data = malloc(sizeof(m) + bytes);
	if (!data)
		return dc_request_refuse(d, r, DRAY_E_NO_MEMORY, "no memory for another request");
	memcpy(data, &m, sizeof(m));
	for (size_t i = 0; i < what->ranges_n; i++) {
		const struct dray_range *x = &what->ranges[i];

		dmsg_range_put(data + sizeof(m) + i * DMSG_RANGE_SIZE,
			       &(struct dmsg_range){ x->offset, x->length, x->stride, x->count });
	}
	return dc_request_go(d, r, ret_id);
}

int dray_region_lease_start(struct dray *d, dray_region region, const struct dray_lease_spec *what,
			    void *arg, uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct region *g;
	struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dc_region_request(d, DMSG_LEASE, region, arg, &g);
	return r ? start(d, r, g, what, ret_id) : dc_failed();
}

int dray_region_lease(struct dray *d, dray_region region, const struct dray_lease_spec *what,
		      dray_lease *ret, struct dray_token *ret_token)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct dray_completion c;
	uint64_t id;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = dc_request_wait(d, dray_region_lease_start(d, region, what, NULL, &id), &id, 0, &c);
	if (error)
		return error;
	*ret = c.lease;
	*ret_token = *c.token;
	return 0;
}

int dray_lease_end_start(struct dray *d, dray_lease lease, void *arg, uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct lease *l;
	struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	l = find(d, lease);
	if (!l)
		return dc_no_such(d, lease.id, DMSG_HANDLE_KIND_LEASE);
	r = dc_request_start(d, DMSG_LEASE_END, arg);
	if (!r)
		return dc_failed();
	r->lease = lease;
	if (l->agent)
		return dc_request_go(d, r, ret_id);
	/* its session is lost: the proof ends it */
	if (d->state == SESSION_CLOSED && l->lost->pidfd < 0)
		dc_request_end(d, r, l->lost->lost_code, dc_text(l->lost->why));
	else
		dc_proof_hold_for(d, r, l->lost);
	return dc_request_started(r, ret_id);
}

int dray_lease_end(struct dray *d, dray_lease lease)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	return dc_request_wait(d, dray_lease_end_start(d, lease, NULL, &id), &id, 0, NULL);
}

int dray_lease_renew_start(struct dray *d, dray_remote remote, unsigned int ms, void *arg,
			   uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct remote *m;
	struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dc_remote_request(d, DMSG_LEASE_RENEW, remote, arg, &m);
	if (!r)
		return dc_failed();
	if (m->lost)
		return dc_request_refuse(d, r, -m->lost, "the remote is lost: %s",
					 dray_strerror(m->lost));
	r->expiry_ms = ms;
	return dc_request_go(d, r, ret_id);
}

int dray_lease_renew(struct dray *d, dray_remote remote, unsigned int ms, unsigned int *ret_ms)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct dray_completion c;
	uint64_t id;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = dc_request_wait(d, dray_lease_renew_start(d, remote, ms, NULL, &id), &id, 0, &c);
	if (!error && ret_ms)
		*ret_ms = c.expiry_ms;
	return error;
}
