/* SPDX-License-Identifier: Apache-2.0 */
/* Transport `mooncake`: operations, and the order of work in a turn. */
#include "agent/data/transport/mooncake/mooncake.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/model/mooncake_message.h"
#include "lib/cleanup.h"

static int mooncake_init(struct core *c, void **ret_state)
{
	struct mooncake *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->c = c;
	m->timer_ns = INT64_MAX;
	dray_list_init(&m->conns);
	dray_list_init(&m->ready);
	dray_list_init(&m->parked);
	dray_list_init(&m->closed);
	dray_list_init(&m->busy);
	dray_list_init(&m->marked);
	m->heads.fd = -1;
	dray_list_init(&m->engines);
	dray_list_init(&m->over);
	for (unsigned i = 0; i < 2; i++) {
		dray_list_init(&m->calling[i]);
		dray_list_init(&m->pulling[i]);
	}
	*ret_state = m;
	return 0;
}

static void free_closed(struct mooncake *m)
{
	struct mooncake_conn *conn;

	while ((conn = dray_list_pop(&m->closed, struct mooncake_conn, link)))
		free(conn);
}

static void close_all(struct mooncake *m)
{
	dray_list_for_each(&m->conns, conn, struct mooncake_conn, link)
		mooncake_conn_close(conn, true);
}

static void mooncake_deinit(struct core *c, void *state)
{
	struct mooncake *m = state;

	/* the objects are still there, and events no longer matter */
	close_all(m);
	free_closed(m);
	mooncake_marks_deinit(m);
	mooncake_engines_deinit(m);
	mooncake_streams_free(m);
	mooncake_exports_deinit(&m->exports);
	free(m);
}

/* Without connections of such engines and to them, which is usual, a turn has nothing to do here. */
static bool is_unused(const struct mooncake *m)
{
	return dray_list_empty(&m->conns) && dray_list_empty(&m->closed) &&
	       dray_list_empty(&m->engines) && dray_list_empty(&m->over);
}

static bool mooncake_progress(struct core *c, void *state)
{
	struct mooncake *m = state;
	int64_t budget = MOONCAKE_TURN_BYTES;
	struct mooncake_conn *conn;

	if (is_unused(m))
		return false;
	free_closed(m);
	while ((conn = dray_list_pop(&m->parked, struct mooncake_conn, ready_link))) {
		conn->parked = false;
		dray_list_add(&m->ready, &conn->ready_link);
	}
	while (budget > 0 && (conn = dray_list_pop(&m->ready, struct mooncake_conn, ready_link))) {
		int64_t share = dray_min(budget, (int64_t)MOONCAKE_STEP_BYTES), before = share;

		mooncake_conn_step(conn, &share);
		budget -= before - share;
		if (conn->fd >= 0 && !conn->parked && mooncake_conn_wants(conn))
			dray_list_move(&m->ready, &conn->ready_link);
	}
	return mooncake_engines_progress(m) || !dray_list_empty(&m->ready) ||
	       !dray_list_empty(&m->parked);
}

static bool is_for_mooncake(const struct object_view *view)
{
	return view->kind == OBJECT_GRANT &&
	       ((const struct grant_view *)view)->peer == MOONCAKE_PEER;
}

static void mooncake_publish(struct core *c, void *state, const struct object_view *view)
{
	struct mooncake *m = state;

	if (is_for_mooncake(view))
		mooncake_exports_add(&m->exports, (const struct grant_view *)view);
}

static void mooncake_drop(struct core *c, void *state, struct object *o)
{
	struct mooncake *m = state;

	if (is_for_mooncake(o->view))
		mooncake_exports_del(&m->exports, (const struct grant_view *)o->view);
	dray_list_for_each(&m->busy, conn, struct mooncake_conn, busy_link)
		if (granted_has(&conn->held, o))
			mooncake_conn_close(conn, true);
}

static int64_t deadline_of(const struct mooncake_conn *conn)
{
	const struct data_config *cfg = &conn->m->c->cfg;

	return conn->since_ns +
	       (mooncake_conn_is_busy(conn) ? cfg->mooncake_stall_ns : cfg->mooncake_idle_ns);
}

static int64_t mooncake_tick(struct core *c, void *state)
{
	struct mooncake *m = state;

	if (is_unused(m))
		return INT64_MAX;
	if (m->stall_ns != c->cfg.mooncake_stall_ns || m->idle_ns != c->cfg.mooncake_idle_ns) {
		m->stall_ns = c->cfg.mooncake_stall_ns;
		m->idle_ns = c->cfg.mooncake_idle_ns;
		m->timer_ns = c->now_ns;
		dray_list_for_each(&m->conns, conn, struct mooncake_conn, link)
			mooncake_conn_configure(conn);
	}
	if (c->now_ns >= m->timer_ns) {
		m->timer_ns = INT64_MAX;
		dray_list_for_each(&m->conns, conn, struct mooncake_conn, link) {
			if (c->now_ns >= deadline_of(conn) && !mooncake_conn_look(conn))
				mooncake_conn_close(conn, true);
			else
				mooncake_timer(m, deadline_of(conn));
		}
		mooncake_engines_tick(m);
	}
	mooncake_marks_tick(m);
	/* closed connections have to be freed, and a step of one may have made it ready, or park it */
	return dray_list_empty(&m->ready) && dray_list_empty(&m->parked) &&
			       dray_list_empty(&m->closed) && mooncake_engines_idle(m) ?
		       m->timer_ns :
		       c->now_ns;
}

static void mooncake_message(struct core *c, void *state, const struct transport_message *msg)
{
	struct mooncake *m = state;

	if (msg->type == MOONCAKE_ENGINE_UP)
		mooncake_engine_up(m, msg);
	else if (msg->type == MOONCAKE_ENGINE_DOWN)
		mooncake_engine_down(m, msg->peer);
	else if (msg->type == MOONCAKE_ADOPT)
		mooncake_conn_adopt(m, msg->id, (int)msg->code);
	else if (!msg->id)
		close_all(m);
	else
		dray_list_for_each(&m->conns, conn, struct mooncake_conn, link)
			if (conn->id == msg->id)
				mooncake_conn_close(conn, true);
}

const struct transport_ops transport_mooncake = {
	.id = TRANSPORT_MOONCAKE,
	.init = mooncake_init,
	.deinit = mooncake_deinit,
	.channel = mooncake_engine_channel,
	.kick = stage_channel_kick,
	.progress = mooncake_progress,
	.stop = mooncake_engine_stop,
	.publish = mooncake_publish,
	.drop = mooncake_drop,
	.tick = mooncake_tick,
	.message = mooncake_message,
};
