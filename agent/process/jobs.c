/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/process/jobs.h"

#include <sys/epoll.h>

#define STACK_BYTES (256ul << 10)

static int handle_done(sd_event_source *source, int fd, uint32_t events, void *arg)
{
	dray_jobs_deliver(arg);
	return 0;
}

int jobs_new_with(struct dray_jobs **ret, sd_event *event, const char *name, size_t stack,
		  void (*begin)(void))
{
	sd_event_source *source = NULL;
	struct dray_jobs *js;
	int r = dray_jobs_new(&js, name, stack ? stack : STACK_BYTES, begin);

	if (r < 0)
		return r;
	r = sd_event_add_io(event, &source, js->done_fd, EPOLLIN, handle_done, js);
	if (r < 0) {
		dray_jobs_free(js);
		return r;
	}
	js->watch = source;
	*ret = js;
	return 0;
}

int jobs_new(struct dray_jobs **ret, sd_event *event, const char *name, size_t stack)
{
	return jobs_new_with(ret, event, name, stack, NULL);
}

bool jobs_free(struct dray_jobs *js)
{
	if (js)
		sd_event_source_disable_unref(js->watch);
	return dray_jobs_free(js);
}

void jobs_leave(struct dray_jobs *js)
{
	if (js)
		sd_event_source_disable_unref(js->watch);
	dray_jobs_leave(js);
}
