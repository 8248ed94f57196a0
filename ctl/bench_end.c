/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bench.h"
#include "lib/cleanup.h"
#include "lib/time.h"

/* Registering touches every page: about 0.3 s a GiB. */
#define REQUEST_MS_MIN 60000

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

int bench_failed(struct ctl_err *reterr, const struct dray *d, const char *what, int ret)
{
	const char *why = d ? dray_last_error(d) : "";

	return ctl_err_set(reterr, exit_of(-ret), "%s: %s (%s)", what,
			   *why ? why : dray_strerror(ret), dray_strerrorname(ret));
}

static int session_open(struct bench_end *e, const struct bench_plan *p, struct ctl_err *reterr)
{
	unsigned ms = (unsigned)(p->timeout_ns / DRAY_NS_PER_MS);
	struct dray_options options = { .socket = p->socket,
					.name = "drayctl bench",
					.connect_ms = dray_max(ms, 1u),
					.request_ms = dray_max(ms, (unsigned)REQUEST_MS_MIN) };
	char why[240] = "";
	int ret = dray_connect(&options, &e->d, why, sizeof(why));

	if (!ret)
		return 0;
	if (ret == -DRAY_E_PEER_UNREACHABLE || ret == -DRAY_E_TIMEOUT)
		return ctl_err_set(reterr, CTL_EXIT_UNREACHABLE, "%s",
				   *why ? why : dray_strerror(ret));
	return ctl_err_set(reterr, exit_of(-ret), "%s (%s)", *why ? why : dray_strerror(ret),
			   dray_strerrorname(ret));
}

int bench_end_open(struct bench_end *e, const struct bench_plan *p, struct ctl_err *reterr)
{
	int ret;

	*e = BENCH_END_NULL;
	if (session_open(e, p, reterr) < 0)
		return -1;
	ret = dray_memory_alloc(p->memory, 0, &e->memory);
	if (ret)
		return bench_failed(reterr, NULL, "memory", ret);
	ret = dray_region_add_memory(e->d, &e->memory, DRAY_READ | DRAY_WRITE, &e->region);
	return ret ? bench_failed(reterr, e->d, "registering memory", ret) : 0;
}

void bench_end_close(struct bench_end *e)
{
	/* the agent lets go of everything by itself, and nobody uses this memory again */
	dray_disconnect(e->d);
	dray_memory_free(&e->memory);
	*e = BENCH_END_NULL;
}
