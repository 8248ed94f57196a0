/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bench/bench.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "schema/gen/data.h"

/* Registration touches every page, which takes about 0.3 s for a GiB. */
#define REQUEST_MS_MIN 60000
/* The defaults of libdray. */
#define RING_ENTRIES_MIN 256
#define ARENA_BYTES_MIN (4u << 20)
/* Each list in the arena has its own cache lines. */
#define LIST_UNIT 64

static enum ctl_exit exit_of(int code)
{
	switch (code) {
	case DRAY_E_DENIED:
	case DRAY_E_QUOTA:
	case DRAY_E_DRAINING:
	case DRAY_E_VERSION:
	case DRAY_E_TOKEN_INVALID:
	case DRAY_E_TOKEN_EXPIRED:
	case DRAY_E_TOKEN_USED:
	case DRAY_E_TOKEN_AUDIENCE:
	case DRAY_E_INCARNATION:
	case DRAY_E_REVOKED:
	case DRAY_E_PEER_DENIED:
		return CTL_EXIT_REFUSED;
	default:
		return CTL_EXIT_FAILED;
	}
}

int bench_failed(struct ctl *c, const struct dray *d, const char *what, int ret)
{
	const char *why = d ? dray_last_error(d) : "";

	return ctl_fail(c, exit_of(-ret), "%s failed: %s (%s)", what,
			*why ? why : dray_strerror(ret), dray_strerrorname(ret));
}

uint64_t bench_list_bytes(const struct bench_plan *p)
{
	uint64_t bytes = p->ops > 1 ? p->ops * DMSG_OP_SIZE : 0;

	return (bytes + LIST_UNIT - 1) / LIST_UNIT * LIST_UNIT;
}

/*
 * The end that submits needs rings and an arena for all transfers in flight; other ends need neither. Only a serving end
 * reconnects, because a restart of the agent makes a measurement void.
 */
static void options_of_role(const struct bench_plan *p, enum bench_role role,
			    struct dray_options *o)
{
	if (role != BENCH_SUBMITS) {
		o->flags = DRAY_OPTION_NO_RING |
			   (role == BENCH_OWNS ? DRAY_OPTION_NO_RECONNECT : 0);
		return;
	}
	o->socket = p->socket;
	o->flags = DRAY_OPTION_NO_RECONNECT |
		   (p->wait == CTL_WAIT_METHOD_SLEEP ? DRAY_OPTION_NO_SPIN : 0);
	o->ring_entries = RING_ENTRIES_MIN;
	while (o->ring_entries < p->batch)
		o->ring_entries *= 2;
	o->arena_bytes = dray_max((uint64_t)ARENA_BYTES_MIN, bench_list_bytes(p) * p->batch);
}

static int session_open(struct bench_end *e, const struct bench_plan *p, enum bench_role role)
{
	unsigned ms = (unsigned)(p->timeout_ns / DRAY_NS_PER_MS);
	struct dray_options options = { .socket = p->owner ? p->owner : p->socket,
					.name = "drayctl bench",
					.connect_ms = dray_max(ms, 1u),
					.request_ms = dray_max(ms, (unsigned)REQUEST_MS_MIN) };
	char why[240] = "";
	int ret;

	options_of_role(p, role, &options);
	ret = dray_connect(&options, &e->d, why, sizeof(why));
	if (!ret)
		return 0;
	if (ret == -DRAY_E_PEER_UNREACHABLE || ret == -DRAY_E_TIMEOUT)
		return ctl_fail(p->ctl, CTL_EXIT_UNREACHABLE, "%s",
				*why ? why : dray_strerror(ret));
	return ctl_fail(p->ctl, exit_of(-ret), "%s (%s)", *why ? why : dray_strerror(ret),
			dray_strerrorname(ret));
}

int bench_end_open(struct bench_end *e, const struct bench_plan *p, enum bench_role role,
		   uint64_t memory)
{
	int ret;

	*e = (struct bench_end){ .d = NULL };
	if (session_open(e, p, role) < 0)
		return -1;
	ret = dray_memory_alloc(memory, 0, &e->memory);
	if (ret)
		return bench_failed(p->ctl, NULL, "allocating memory", ret);
	ret = dray_region_add_memory(e->d, &e->memory, DRAY_READ | DRAY_WRITE, &e->region);
	return ret ? bench_failed(p->ctl, e->d, "registering memory", ret) : 0;
}

void bench_end_close(struct bench_end *e)
{
	/* The agent releases everything with the session, and no transfer uses this memory again. */
	dray_disconnect(e->d);
	dray_memory_free(&e->memory);
	*e = (struct bench_end){ .d = NULL };
}
