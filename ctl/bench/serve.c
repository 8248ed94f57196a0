/* SPDX-License-Identifier: Apache-2.0 */
/* bench --serve: the other end, with memory and its token on standard output. */
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "ctl/bench/bench.h"
#include "ctl/render/json.h"
#include "lib/err.h"

static int token_print(struct ctl *c, const struct bench_end *e)
{
	struct ctl_json j = CTL_JSON(c->out);
	struct dray_token token;
	int ret = dray_region_export(e->d, e->region, NULL, &token);

	if (ret)
		return bench_failed(c, e->d, "exporting the memory", ret);
	if (c->format == CTL_JSON)
		ctl_json_record(&j, NULL, J_TEXT("token", token.text), J_UINT("length", e->length));
	else
		fprintf(c->out, "%s\n", token.text);
	/* A reader of a pipe waits for the token. */
	return ctl_flush(c);
}

static int events_take(struct ctl *c, const struct bench_end *e)
{
	struct dray_event ev;

	while (dray_next_event(e->d, &ev) > 0) {
		switch (ev.type) {
		case DRAY_EVENT_RESTORED:
			/* The old token became invalid with the old session. */
			if (token_print(c, e) < 0)
				return -1;
			break;
		case DRAY_EVENT_CLOSED:
		case DRAY_EVENT_REGION_LOST:
			return ctl_failed(c, "the session has ended: %s",
					  ev.message && *ev.message ? ev.message :
								      dray_strerror(ev.code));
		case DRAY_EVENT_DRAINING:
			fputs("drayctl: the agent is draining\n", c->err);
			break;
		case DRAY_EVENT_LOST:
			fputs("drayctl: the agent has ended; waiting for its restart, which gives a "
			      "new token\n",
			      c->err);
			break;
		case DRAY_EVENT_NOTIFICATION:
		case DRAY_EVENT_REMOTE_LOST:
		case DRAY_EVENT_SEGMENT:
		case DRAY_EVENT_CONNECTED:
		case DRAY_EVENT_CONFIRMED:
		case DRAY_EVENT_LEASE_ENDED:
		case DRAY_EVENT_LETTER:
		case DRAY_EVENT_MAILBOX_LOST:
		case DRAY_EVENT_DROPPED:
			break;
		}
	}
	return 0;
}

/* Reads standard input if poll() reports it; true at the end of file. */
static bool input_ended(int fd, short revents)
{
	char drop[256];

	return revents && read(fd, drop, sizeof(drop)) <= 0 && errno != EINTR && errno != EAGAIN;
}

static int serve(struct ctl *c, const struct bench_end *e)
{
	struct pollfd p[] = {
		{ .fd = c->env->in, .events = POLLIN },
		{ .fd = dray_fd(e->d), .events = POLLIN },
	};

	for (;;) {
		/* Also handles what came during the export of the token. */
		int ret = dray_process(e->d, 0);

		if (ret < 0)
			return bench_failed(c, e->d, "the session has ended", ret);
		if (events_take(c, e) < 0)
			return -1;
		errno = 0;
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return ctl_failed(c, "poll failed: %s", dray_errno_text(errno));
		errno = 0;
		if (input_ended(p[0].fd, p[0].revents))
			return 0;
	}
}

int bench_serve(struct ctl *c, const struct bench_plan *p)
{
	struct bench_end end;
	int ret = bench_end_open(&end, p, BENCH_SERVES, p->memory);

	if (!ret)
		ret = token_print(c, &end);
	if (!ret)
		ret = serve(c, &end);
	bench_end_close(&end);
	return ret;
}
