/* SPDX-License-Identifier: Apache-2.0 */
/* libdray: leases. What is sent, how they end, and what happens to them when the session is lost. A child process stands for the agent's. */
#include <stdio.h>
#include <string.h>

#include "lib/assert.h"
#include "tests/unit/client_rig.h"
#include "tests/unit/cm.h"

#define LEASE 0x7000000000001ull
#define REMOTE 0x2000000000005ull

/* What the agent has seen, and what it does. */
static struct dmsg_lease seen;
static struct dmsg_range seen_range;
static uint32_t seen_renew_ms;
static char seen_label[DRAY_LEASE_LABEL_MAX + 1];
static uint64_t lease_handle;
static bool silent;          /* does not answer LEASE */
static uint64_t unanswered;  /* the request that it did not answer */
static uint32_t end_refused; /* code that LEASE_END is refused with; 0: it succeeds after an event */

static struct dray *d;
static struct dray_memory m;
static dray_region region;

static int reply_leased(uint8_t *buf, size_t cap, uint64_t id)
{
	struct dmsg_lease_reply r = { .lease = lease_handle,
				      .granted = seen.flags ? seen.holders : 0,
				      .token = { (const uint8_t *)"token", 5 } };

	return dmsg_lease_reply_encode(buf, cap, id, &r);
}

static int ended(uint8_t *buf, size_t cap, enum dmsg_lease_outcome outcome)
{
	return dmsg_lease_ended_encode(buf, cap, 0,
				       &(struct dmsg_lease_ended){ .lease = lease_handle,
								   .outcome = outcome,
								   .acquired = 1 });
}

static bool agent(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		  struct dray_fds *fds)
{
	uint8_t buf[1024];
	union dmsg_body b;

	if (h->type < DMSG_LEASE || h->type > DMSG_LEASE_END)
		return false;
	dray_assert(dmsg_body_decode(h->type, body, h->length, &b, NULL) == 0);
	switch (h->type) {
	case DMSG_LEASE:
		seen = b.lease;
		dmsg_range_get(b.lease.ranges.p, &seen_range);
		if (silent)
			unanswered = h->request_id;
		else
			fake_send(f, reply_leased(buf, sizeof(buf), h->request_id), buf);
		break;
	case DMSG_LEASE_ACQUIRE:
		snprintf(seen_label, sizeof(seen_label), "%.*s", (int)b.lease_acquire.label.n,
			 b.lease_acquire.label.p);
		fake_send(f,
			  dmsg_lease_acquire_reply_encode(buf, sizeof(buf), h->request_id,
							  &(struct dmsg_lease_acquire_reply){
								  REMOTE, 1 << 20, DMSG_ACCESS_READ,
								  DMSG_TRANSPORT_TCP, 700 }),
			  buf);
		break;
	case DMSG_LEASE_RENEW:
		seen_renew_ms = b.lease_renew.expiry_ms;
		fake_send(f,
			  dmsg_lease_renew_reply_encode(buf, sizeof(buf), h->request_id,
							&(struct dmsg_lease_renew_reply){ 800 }),
			  buf);
		break;
	default:
		dray_assert(b.lease_end.lease == lease_handle);
		if (end_refused) {
			fake_send_error(f, h->request_id, end_refused, "no");
			break;
		}
		fake_send(f, ended(buf, sizeof(buf), DMSG_LEASE_OUTCOME_ENDED), buf);
		fake_send(f,
			  dmsg_lease_end_reply_encode(buf, sizeof(buf), h->request_id,
						      &(struct dmsg_lease_end_reply){}),
			  buf);
	}
	return true;
}

static void send_used(struct fake *f, void *arg)
{
	uint8_t buf[256];

	fake_send(f, ended(buf, sizeof(buf), DMSG_LEASE_OUTCOME_USED), buf);
}

static int setup(void **state)
{
	client_setup(state);
	client_fake.hook = agent;
	lease_handle = LEASE;
	silent = false;
	end_refused = 0;
	d = NULL;
	return 0;
}

static int teardown(void **state)
{
	dray_disconnect(d);
	dray_memory_free(&m);
	client_teardown(state);
	fake_end_process(&client_fake);
	return 0;
}

static void begin(unsigned int flags)
{
	d = client_connect(flags);
	client_region(d, &region, &m);
}

static const struct dray_range one = { 16, 8, 32, 3 };

static dray_lease lease(void)
{
	struct dray_lease_spec what = { .ranges = &one, .ranges_n = 1 };
	struct dray_token token;
	dray_lease l;

	assert_int_equal(dray_region_lease(d, region, &what, &l, &token), 0);
	assert_memory_equal(token.data, "token", 5);
	return l;
}

static void ends(dray_lease l, enum dray_lease_outcome outcome, int code)
{
	struct dray_event e = client_event(d, DRAY_EVENT_LEASE_ENDED);

	assert_int_equal(e.lease.id, l.id);
	assert_int_equal(e.outcome, outcome);
	assert_int_equal(e.code, code);
	assert_int_equal(dray_lease_end(d, l), -DRAY_E_NOT_FOUND);
}

static void what_is_sent(void **state)
{
	struct dray_lease_spec what = { .ranges = &one,
					.ranges_n = 1,
					.access = DRAY_WRITE,
					.holders = 3,
					.expiry_ms = 77,
					.audience = { 5 },
					.grant = 1 };
	struct dray_remote_info info;
	struct dray_completion c;
	struct dray_token token;
	dray_remote remote;
	unsigned int ms;
	uint64_t id;
	dray_lease l;

	begin(0);
	l = lease();
	assert_int_equal(seen.region, agent_region(d, region));
	assert_int_equal(seen.access, DRAY_READ | DRAY_WRITE);
	assert_int_equal(seen.holders, 1);
	assert_int_equal(seen.expiry_ms, 30000);
	assert_int_equal(seen.flags, 0);
	assert_int_equal(seen_range.offset, 16);
	assert_int_equal(seen_range.length, 8);
	assert_int_equal(seen_range.stride, 32);
	assert_int_equal(seen_range.count, 3);
	fake_do(&client_fake, send_used, NULL);
	ends(l, DRAY_LEASE_USED, 0);

	assert_int_equal(dray_region_lease_start(d, region, &what, &what, &id), 0);
	assert_int_equal(dray_wait(d, id, 10000, &c), 0);
	assert_int_equal(c.request, DRAY_REQUEST_LEASE);
	assert_int_equal(c.bytes, 3);
	assert_ptr_equal(c.arg, &what);
	assert_int_not_equal(c.lease.id, l.id);
	token = *c.token;
	assert_int_equal(seen.access, DRAY_WRITE);
	assert_int_equal(seen.holders, 3);
	assert_int_equal(seen.expiry_ms, 77);
	assert_int_equal(seen.flags, DMSG_LEASE_FLAG_GRANT);
	assert_int_equal(seen.audience[0], 5);
	l = c.lease;
	assert_int_equal(dray_lease_end(d, l), 0);
	ends(l, DRAY_LEASE_ENDED, 0);

	assert_int_equal(dray_lease_acquire(d, &token, "request 7", 0, &remote), 0);
	assert_string_equal(seen_label, "request 7");
	assert_int_equal(dray_remote_get_info(d, remote, &info), 0);
	assert_int_equal(info.length, 1 << 20);
	assert_int_equal(dray_lease_renew(d, remote, 500, &ms), 0);
	assert_int_equal(seen_renew_ms, 500);
	assert_int_equal(ms, 800);
	assert_int_equal(dray_remote_release(d, remote), 0);
	assert_int_equal(dray_lease_renew(d, remote, 500, &ms), -DRAY_E_NOT_FOUND);
}

static void refusals(void **state)
{
	static struct dray_range many[DRAY_LEASE_RANGES_MAX + 1];
	struct dray_lease_spec what = { .ranges = many };
	char label[DRAY_LEASE_LABEL_MAX + 2] = "";
	struct dray_token token;
	dray_remote remote;
	dray_lease l;

	begin(0);
	assert_int_equal(dray_region_lease(d, region, &what, &l, &token), -DRAY_E_INVALID);
	what.ranges_n = DRAY_LEASE_RANGES_MAX + 1;
	assert_int_equal(dray_region_lease(d, region, &what, &l, &token), -DRAY_E_TOO_LARGE);
	what.ranges_n--;
	assert_int_equal(dray_region_lease(d, (dray_region){ 0 }, &what, &l, &token),
			 -DRAY_E_NOT_FOUND);
	/* the longest message fits */
	assert_int_equal(dray_region_lease(d, region, &what, &l, &token), 0);
	/* handles of other kinds */
	assert_int_equal(dray_lease_end(d, (dray_lease){ region.id }), -DRAY_E_INVALID);
	assert_int_equal(dray_region_remove(d, (dray_region){ l.id }), -DRAY_E_INVALID);
	/* it has ended by itself, and the event is on its way */
	end_refused = DRAY_E_NOT_FOUND;
	assert_int_equal(dray_lease_end(d, l), 0);
	end_refused = DRAY_E_NO_MEMORY;
	assert_int_equal(dray_lease_end(d, l), -DRAY_E_NO_MEMORY);
	memset(label, 'x', sizeof(label) - 1);
	assert_int_equal(dray_lease_acquire(d, &token, label, 0, &remote), -DRAY_E_TOO_LARGE);
	label[DRAY_LEASE_LABEL_MAX] = 0;
	assert_int_equal(dray_lease_acquire(d, &token, label, 0, &remote), 0);
	assert_string_equal(seen_label, label);
}

static void old_agent(void **state)
{
	struct dray_lease_spec what = { .ranges = &one, .ranges_n = 1 };
	struct dray_token token = { .length = 5 };
	dray_remote remote;
	dray_lease l;

	client_fake.no_gpu = true;
	begin(0);
	assert_int_equal(dray_region_lease(d, region, &what, &l, &token), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(dray_last_error(d), "leases"));
	assert_int_equal(dray_lease_acquire(d, &token, NULL, 0, &remote), -DRAY_E_UNSUPPORTED);
	client_remote(d, &remote);
	assert_int_equal(dray_lease_renew(d, remote, 0, NULL), -DRAY_E_UNSUPPORTED);
}

/* After the loss of the session, the ranges are lent until the agent's process is dead. */
static void the_agent_dies(void **state)
{
	struct dray_completion c;
	struct dray_event e;
	dray_lease l, other;
	uint64_t id;

	fake_do(&client_fake, fake_new_process, NULL);
	begin(DRAY_OPTION_NO_RECONNECT);
	l = lease();
	lease_handle++;
	other = lease();
	fake_do(&client_fake, client_hang_up, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_CLOSED);
	assert_int_equal(dray_next_event(d, &e), 0);
	/* an end that is requested now waits for the same proof */
	assert_int_equal(dray_lease_end_start(d, l, NULL, &id), 0);
	assert_int_equal(dray_wait(d, id, 20, &c), -DRAY_E_TIMEOUT);
	fake_end_process(&client_fake);
	assert_int_equal(dray_wait(d, id, 10000, &c), 0);
	assert_int_equal(c.status, 0);
	e = client_event(d, DRAY_EVENT_LEASE_ENDED);
	assert_int_equal(e.outcome, DRAY_LEASE_AGENT_LOST);
	assert_int_equal(e.lease.id, l.id);
	assert_int_equal(e.code, -DRAY_E_AGENT_RESTARTED);
	ends(other, DRAY_LEASE_AGENT_LOST, -DRAY_E_AGENT_RESTARTED);
}

/* An agent that closes the session itself has proven that when it answers again. */
static void the_agent_closes_the_session(void **state)
{
	dray_lease l;

	fake_do(&client_fake, fake_new_process, NULL);
	begin(0);
	l = lease();
	fake_do(&client_fake, client_close_with_error, NULL);
	client_event(d, DRAY_EVENT_LOST);
	ends(l, DRAY_LEASE_AGENT_LOST, -DRAY_E_SESSION_CLOSED);
	client_event(d, DRAY_EVENT_RESTORED);
}

static void send_late(struct fake *f, void *arg)
{
	uint8_t buf[512];

	fake_send(f, reply_leased(buf, sizeof(buf), unanswered), buf);
}

/* A lease that the caller has given up ends. */
static void given_up(void **state)
{
	struct dray_lease_spec what = { .ranges = &one, .ranges_n = 1 };
	struct dray_options o = client_options();
	struct dray_token token;
	char why[200];
	dray_lease l;

	o.request_ms = 20;
	assert_int_equal(dray_connect(&o, &d, why, sizeof(why)), 0);
	client_region(d, &region, &m);
	silent = true;
	assert_int_equal(dray_region_lease(d, region, &what, &l, &token), -DRAY_E_TIMEOUT);
	fake_do(&client_fake, send_late, NULL);
	client_event(d, DRAY_EVENT_LEASE_ENDED);
	assert_int_equal(fake_count(&client_fake, DMSG_LEASE_END), 1);
}

static void send_unknown(struct fake *f, void *arg)
{
	lease_handle += 100;
	send_used(f, NULL);
	lease_handle -= 100;
}

static void defects_of_the_agent(void **state)
{
	struct dray_lease_spec what = { .ranges = &one, .ranges_n = 1 };
	struct dray_token token;
	struct dray_event e;
	dray_lease l;

	begin(DRAY_OPTION_NO_RECONNECT);
	l = lease();
	/* of a lease that nobody has */
	fake_do(&client_fake, send_unknown, NULL);
	fake_do(&client_fake, send_used, NULL);
	ends(l, DRAY_LEASE_USED, 0);
	assert_int_equal(dray_next_event(d, &e), 0);
	lease_handle = 0;
	assert_int_equal(dray_region_lease(d, region, &what, &l, &token), -DRAY_E_PROTOCOL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(what_is_sent),         T(refusals), T(old_agent),
		T(the_agent_dies),       T(given_up), T(the_agent_closes_the_session),
		T(defects_of_the_agent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
