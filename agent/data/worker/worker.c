/* SPDX-License-Identifier: Apache-2.0 */
/* The control thread's side of a worker: start, stop, and the two rings between them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transport/gpu/gpu.h"
#include "agent/data/transport/local/local.h"
#include "agent/data/transport/mooncake/mooncake.h"
#include "agent/data/transport/rdma/rdma.h"
#include "agent/data/transport/stage/stage.h"
#include "agent/data/transport/tcp/tcp.h"
#include "agent/data/worker/internal.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"
#include "lib/fds.h"
#include "lib/thread.h"
#include "lib/timeout.h"

#define COMMANDS 1024
#define EVENTS 4096

void worker_release(struct worker *w)
{
	struct core *c = &w->core;

	transports_each(c, i, deinit)
		c->transports[i]->deinit(c, c->transport_state[i]);
	readings_check(w, true);
	dray_map_deinit(&w->lingering);
	stage_deinit(c);
	xfers_deinit(c);
	objects_deinit(c);
	loop_deinit(&c->loop);
	dray_spsc_deinit(&w->commands);
	dray_spsc_deinit(&w->events);
	dray_close(w->command_fd);
	dray_close(w->event_fd);
	free(w->buffer);
	free(w->store_scratch);
	packet_free(w->unneeded);
	dray_slots_deinit(&w->sessions);
	dray_slots_deinit(&w->keep_sessions);
	free(w);
}

static int worker_setup(struct worker *w, uint32_t max_transfers)
{
	static const struct transport_ops *const all[] = { &transport_gpu, &transport_local,
							   &transport_rdma, &transport_tcp,
							   &transport_mooncake };
	struct core *c = &w->core;
	int ret;

	dray_list_init(&w->begins);
	dray_list_init(&w->asking);
	dray_list_init(&w->directs);
	dray_list_init(&w->watched);
	dray_list_init(&w->steps);
	dray_list_init(&w->readings);
	dray_map_init(&w->lingering);
	dray_list_init(&w->keeps);
	dray_list_init(&w->kept);
	w->buffer = malloc(DMSG_MESSAGE_MAX);
	w->command_fd = dray_wake_new();
	w->event_fd = dray_wake_new();
	if (w->command_fd < 0 || w->event_fd < 0)
		return dray_min(w->command_fd, w->event_fd);
	if (!w->buffer || dray_spsc_init(&w->commands, COMMANDS, sizeof(struct command)) < 0 ||
	    dray_spsc_init(&w->events, EVENTS, sizeof(struct event)) < 0)
		return -ENOMEM;
	ret = loop_init(&c->loop);
	if (ret >= 0)
		ret = objects_init(c);
	if (ret >= 0)
		ret = xfers_init(c, max_transfers);
	if (ret >= 0)
		ret = loop_add(&c->loop, &w->command_source, w->command_fd, EPOLLIN,
			       worker_command_ready);
	for (unsigned i = 0; ret >= 0 && i < DRAY_ARRAY_SIZE(all); i++) {
		ret = all[i]->init(c, &c->transport_state[c->n_transports]);
		if (ret >= 0)
			c->transports[c->n_transports++] = all[i];
	}
	return ret;
}

int worker_make(struct worker **ret_worker, unsigned index, const struct data_config *cfg,
		uint32_t max_transfers, struct dray_err *reterr)
{
	struct worker *w = calloc(1, sizeof(*w));
	int ret;

	if (!w)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a worker");
	w->core.index = index;
	w->core.cfg = *cfg;
	w->core.up = &worker_upcalls;
	w->core.counters = &w->counters;
	w->core.loop.epoll_fd = -1;
	w->core.now_ns = dray_now().ns;
	dray_linger_limit(&w->linger, cfg->poll_time_ns, cfg->poll_time_ns);
	dray_list_init(&w->completed);
	dray_list_init(&w->again);
	dray_list_init(&w->core.free_slices);
	ret = worker_setup(w, max_transfers);
	if (ret < 0) {
		worker_release(w);
		return dray_err_set(reterr, ret,
				    dray_lacks_fds(ret) ? DRAY_E_NO_FDS : DRAY_E_NO_MEMORY,
				    "worker %u cannot start: %s", index, dray_errno_text(ret));
	}
	*ret_worker = w;
	return 0;
}

int worker_start(struct worker *w, struct dray_err *reterr)
{
	char name[16];
	int ret;

	snprintf(name, sizeof(name), "dray-worker-%u", w->core.index % 10);
	ret = dray_thread_start(&w->thread, name, 0, worker_main, w);
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY,
				    "cannot start the thread of worker %u: %s", w->core.index,
				    dray_errno_text(ret));
	w->started = true;
	return 0;
}

bool worker_stop(struct worker *w)
{
	struct dray_timeout timeout = dray_timeout_start(WORKER_QUIT_LIMIT_NS);
	struct event ev;

	if (!w->started)
		return true;
	worker_post(w, &(struct command){ .type = COMMAND_QUIT });
	/* keeps both rings moving until EVENT_QUIT, so that neither side waits for the other */
	for (bool quit = false; !quit;) {
		if (!worker_next_event(w, &ev)) {
			struct timespec pause = { .tv_nsec = 1000000 };

			if (dray_timeout_passed(&timeout, dray_now().ns))
				return false;
			nanosleep(&pause, NULL);
			continue;
		}
		quit = ev.type == EVENT_QUIT;
		if (ev.type == EVENT_REQUEST || ev.type == EVENT_NOTIFY || ev.type == EVENT_FDS ||
		    ev.type == EVENT_SESSION_EOF)
			packet_free(ev.packet);
		if (ev.type == EVENT_SESSION_GONE)
			dray_close(ev.fd);
		if (ev.type == EVENT_REPORT)
			free(ev.report);
		if (ev.type == EVENT_STORE_REPORT)
			free(ev.store_report);
		if (ev.type == EVENT_STORE_ASK)
			store_ask_free(ev.ask);
	}
	pthread_join(w->thread, NULL);
	return true;
}

/* Moves commands that found no room before into the ring. */
static void commands_flush(struct worker *w)
{
	if (w->commands.n_late) {
		bool all = dray_spsc_flush(&w->commands);

		if (!all) {
			atomic_store_explicit(&w->want_room, true, memory_order_seq_cst);
			/* the worker may have made room before it could see the request */
			all = dray_spsc_flush(&w->commands);
		}
		/* release: the worker that sees false finds them in the ring */
		atomic_store_explicit(&w->core.commands_late, !all, memory_order_release);
	}
	dray_wake(w->command_fd);
}

void worker_post(struct worker *w, const struct command *cmd)
{
	dray_spsc_send(&w->commands, cmd);
	commands_flush(w);
}

void worker_leave(struct worker *w, const struct command *cmd)
{
	dray_spsc_send(&w->commands, cmd);
	/* the worker has to make room */
	if (w->commands.n_late)
		commands_flush(w);
}

void pool_store(struct worker_pool *p, struct store *s)
{
	for (unsigned i = 0; s && i < p->n; i++) {
		struct worker *w = p->workers[i];

		w->store = s;
		object_init(&w->store_region, &store_region(s)->o);
		object_init(&w->store_remote, &store_remote(s)->o);
	}
}

int worker_event_fd(struct worker *w)
{
	return w->event_fd;
}

bool worker_next_event(struct worker *w, struct event *ret)
{
	if (w->commands.n_late)
		commands_flush(w);
	if (dray_spsc_pop(&w->events, ret))
		return true;
	/* looks once more after clearing, so that an event that came in between is not lost */
	dray_wake_clear(w->event_fd);
	if (!dray_spsc_pop(&w->events, ret))
		return false;
	/* others may have come with it, and the caller may stop here */
	dray_wake(w->event_fd);
	return true;
}

const struct data_counters *worker_counters(struct worker *w)
{
	return &w->counters;
}

const struct turn_meter *worker_turns(struct worker *w)
{
	return &w->turns;
}
