/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tcp_lab.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/fault.h"
#include "agent/data/gpu_queue/gpu_queue.h"
#include "agent/data/transfer/delegate.h"
#include "agent/data/transport/rdma/rdma.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/workshare.h"
#include "agent/data/transport/gpu/gpu.h"
#include "agent/data/transport/tcp/tcp.h"
#include "lib/memfd.h"
#include "tests/unit/account.h"

uint64_t lab_staging[2];

static struct lab_side *side_of(struct core *c)
{
	return (struct lab_side *)(void *)c;
}

static struct lab_side *other(struct lab_side *s)
{
	return &s->lab->side[!s->index];
}

void lab_fail(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
	abort();
}

static void ids_add(struct lab_ids *ids, uint64_t id)
{
	lab_check(ids->n < LAB_MAX);
	ids->id[ids->n++] = id;
}

static void xfer_ended(struct core *c, struct xfer *x)
{
	struct lab_side *s = side_of(c);

	lab_check(s->n_ended < LAB_ENDED_MAX);
	s->ended[s->n_ended++] = (struct lab_end){ x->request_id, x->bytes_done, x->code };
}

static void notify(struct core *c, struct xfer *x)
{
	lab_fail(__FILE__, __LINE__, "no notifications");
}

static void gpu_event(struct lab_side *s, const struct transport_message *m)
{
	lab_check(m->transport == DMSG_TRANSPORT_GPU && m->id == LAB_GPU);
	lab_check(m->type == GPU_LOST || m->type == GPU_GONE);
	s->gpu.n_lost += m->type == GPU_LOST;
	s->gpu.n_gone += m->type == GPU_GONE;
}

static void stream_lost(struct lab_side *s, const struct event *ev)
{
	lab_check(ev->session == LAB_PEER);
	s->lost.n %= LAB_MAX;
	ids_add(&s->lost, ev->id);
	if (s->index == 0)
		ids_add(&s->lab->resets, ev->id);
}

static void event(struct core *c, const struct event *ev)
{
	struct lab_side *s = side_of(c);

	if (ev->type == EVENT_DROPPED) {
		s->n_dropped++;
	} else if (ev->type == EVENT_SESSION_FAULT) {
		s->n_faults++;
		s->last_fault = ev->session;
	} else if (ev->type == EVENT_STREAM_LOST) {
		stream_lost(s, ev);
	} else if (ev->type == EVENT_STREAM_CLOSED) {
		s->closed.n %= LAB_MAX;
		ids_add(&s->closed, ev->id);
	} else {
		lab_check(ev->type == EVENT_TRANSPORT);
		gpu_event(s, &ev->message);
	}
}

static void peer_gone(struct core *c, dray_handle peer)
{
	side_of(c)->n_gone++;
}

static const struct core_upcalls upcalls = {
	.xfer_ended = xfer_ended,
	.notify = notify,
	.event = event,
	.peer_gone = peer_gone,
	.release_buffers = slice_release_buffers,
	.flush_rdma = gpu_flush_rdma,
};

void lab_stream_adopt(struct lab_side *s, dray_handle peer, int fd, uint64_t id,
		      enum dmsg_class class)
{
	transport_tcp.stream(&s->core, s->tcp,
			     &(struct command){ .type = COMMAND_STREAM_ADOPT,
						.session = peer,
						.id = id,
						.fd = fd,
						.class = (uint8_t) class });
}

void lab_stream_reset(struct lab_side *s, dray_handle peer, uint64_t id)
{
	transport_tcp.stream(
		&s->core, s->tcp,
		&(struct command){ .type = COMMAND_STREAM_RESET, .session = peer, .id = id });
}

void lab_stream_dead(struct lab_side *s, dray_handle peer, uint64_t id)
{
	transport_tcp.stream(
		&s->core, s->tcp,
		&(struct command){ .type = COMMAND_STREAM_DEAD, .session = peer, .id = id });
}

static void stop_remote(struct core *c, struct xfer *x, void *arg)
{
	if (!object_remote(x->remote)->is_local)
		xfer_stop(c, x, *(const uint32_t *)arg, NULL, false);
}

void lab_peer_down(struct lab_side *s, uint32_t code)
{
	xfers_each(&s->core, stop_remote, &code);
	transport_tcp.peer_down(&s->core, s->tcp, LAB_PEER, code);
}

void lab_reset_lost(struct lab *l)
{
	for (unsigned i = 0; i < l->resets.n; i++) {
		unsigned n = l->side[1].closed.n;

		if (!l->side[1].down)
			lab_stream_reset(&l->side[1], LAB_PEER, l->resets.id[i]);
		lab_check(l->side[1].down || l->side[1].closed.n == n + 1);
		l->side[1].closed.n = n;
		lab_stream_dead(&l->side[0], LAB_PEER, l->resets.id[i]);
	}
	l->resets.n = 0;
}

void lab_no_delay(int fd)
{
	int one = 1;

	lab_check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
}

/* Answers a complete hello; false while it is incomplete. */
static bool welcome(struct lab_side *s, int fd)
{
	uint8_t wire[PMSG_STREAM_HELLO_SIZE], answer[PMSG_STREAM_WELCOME_SIZE], mac[32];
	struct pmsg_stream_welcome w = { .magic = PMSG_MAGIC_STREAM };
	struct pmsg_stream_hello hello;
	struct lab *l = s->lab;
	bool gone; /* the side that connected: it may have stopped using the peer */

	if (recv(fd, wire, sizeof(wire), MSG_PEEK | MSG_DONTWAIT) != (ssize_t)sizeof(wire))
		return false;
	lab_check(recv(fd, wire, sizeof(wire), 0) == sizeof(wire));
	pmsg_stream_hello_get(wire, &hello);
	lab_check(hello.magic == PMSG_MAGIC_STREAM);
	lab_check(hello.major == PMSG_MAJOR);
	lab_check(!memcmp(hello.agent_id, s->link.peer_agent_id, 16));
	lab_check(!memcmp(hello.to_agent_id, s->link.agent_id, 16));
	lab_check(hello.incarnation == s->link.peer_incarnation);
	lab_check(hello.to_incarnation == s->link.incarnation);
	lab_check(hello.stream_id >> 32 == other(s)->core.index ||
		  (l->delegates && hello.stream_id >> 32 == l->helper.core.index));
	lab_check(stream_hello_mac(s->link.stream_key, wire, mac) == 0);
	lab_check(!memcmp(mac, hello.mac, 32));
	w.stream_id = hello.stream_id;
	w.status = l->welcome_status;
	pmsg_stream_welcome_put(answer, &w);
	lab_check(stream_welcome_mac(s->link.stream_key, answer, mac, w.mac) == 0);
	w.mac[31] ^= l->bad_mac;
	pmsg_stream_welcome_put(answer, &w);
	/* in two pieces, as it may arrive */
	gone = send(fd, answer, 5, MSG_NOSIGNAL) < 0;
	lab_side_turn(other(s));
	gone |= send(fd, answer + 5, sizeof(answer) - 5, MSG_NOSIGNAL) < 0;
	lab_check(!gone || errno == EPIPE || errno == ECONNRESET);
	if (gone || l->welcome_status || l->bad_mac) {
		close(fd);
	} else if (l->raw) {
		lab_check(l->n_raw < LAB_MAX);
		l->raw_id[l->n_raw] = hello.stream_id;
		l->raw_fd[l->n_raw++] = fd;
	} else if (s->down) {
		close(fd);
	} else {
		lab_stream_adopt(s, LAB_PEER, fd, hello.stream_id, (enum dmsg_class)hello.class);
	}
	return true;
}

static void pump(struct lab_side *s)
{
	int fd;

	while (!s->lab->no_accept && (fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		lab_check(s->n_half < LAB_MAX);
		lab_no_delay(fd);
		s->half_fd[s->n_half++] = fd;
	}
	for (unsigned i = 0; i < s->n_half && !s->lab->no_welcome; i++)
		if (welcome(s, s->half_fd[i]))
			s->half_fd[i--] = s->half_fd[--s->n_half];
}

void lab_side_turn(struct lab_side *s)
{
	struct core *c = &s->core;

	c->now_ns = dray_now().ns + s->lab->skew_ns;
	lab_check(loop_turn(&c->loop, 0) >= 0);
	s->more = false;
	for (unsigned i = 0; i < c->n_transports; i++)
		s->more |= c->transports[i]->progress(c, c->transport_state[i]);
	xfers_tick(c);
	for (unsigned i = 0; i < c->n_transports; i++)
		c->transports[i]->tick(c, c->transport_state[i]);
}

void lab_turn(struct lab *l)
{
	lab_side_turn(&l->side[0]);
	if (l->delegates && !l->helper_pauses)
		lab_side_turn(&l->helper);
	pump(&l->side[1]);
	lab_side_turn(&l->side[1]);
	pump(&l->side[0]);
	if (!l->hold_resets)
		lab_reset_lost(l);
}

void lab_settle(struct lab *l)
{
	for (unsigned i = 0; i < 50; i++)
		lab_turn(l);
}

void lab_advance(struct lab *l, int64_t ms)
{
	l->skew_ns += ms * DRAY_NS_PER_MS;
}

int lab_listen(struct dray_addr *ret)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	lab_check(fd >= 0);
	ret->in = (struct sockaddr_in){ .sin_family = AF_INET,
					.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	ret->len = sizeof(ret->in);
	lab_check(bind(fd, &ret->sa, ret->len) == 0);
	lab_check(listen(fd, 64) == 0);
	lab_check(getsockname(fd, &ret->sa, &ret->len) == 0);
	return fd;
}

static void core_init(struct lab *l, struct lab_side *s, unsigned index)
{
	struct core *c = &s->core;

	s->lab = l;
	c->up = &upcalls;
	c->counters = &s->counters;
	c->index = index;
	c->now_ns = dray_now().ns;
	c->cfg = (struct data_config){
		.slice_size = 1 << 20,
		.slice_timeout_ns = 5 * DRAY_NS_PER_SEC,
		.deadline_ns = 60 * DRAY_NS_PER_SEC,
		.slices_per_session = 64,
		.tcp_streams = 2,
		.tcp_latency_streams = 1,
		.tcp_slices_in_flight = 8,
		.connect_timeout_ns = 5 * DRAY_NS_PER_SEC,
		.backoff_min_ns = 50 * DRAY_NS_PER_MS,
		.backoff_max_ns = 5 * DRAY_NS_PER_SEC,
	};
	lab_check(fault_init() == 0);
	lab_check(loop_init(&c->loop) == 0);
	lab_check(objects_init(c) == 0);
	lab_check(xfers_init(c, LAB_ENDED_MAX) == 0);
}

static void side_init(struct lab *l, unsigned i)
{
	struct lab_side *s = &l->side[i];

	s->index = i;
	core_init(l, s, 7 + i);
	s->link.peer = LAB_PEER;
	memset(s->link.agent_id, 'a' + (int)i, 16);
	memset(s->link.peer_agent_id, 'a' + (int)!i, 16);
	s->link.incarnation = 100 + i;
	s->link.peer_incarnation = 100 + !i;
	memset(s->link.stream_key, 'k', sizeof(s->link.stream_key));
	s->listen_fd = lab_listen(&l->side[!i].link.addr);
}

static void session_init(struct lab_side *s)
{
	s->group_quota.transfers_max = LAB_ENDED_MAX;
	s->shared.session = LAB_SESSION;
	s->shared.group = LAB_GROUP;
	s->shared.own.transfers_max = LAB_ENDED_MAX;
	s->shared.group_quota = &s->group_quota;
	s->shared.account = account_without_limits();
	s->shared.ops_max = 1 << 20;
	lab_check(xfer_session_init(&s->core, &s->session, LAB_SESSION, &s->shared) == 0);
}

/*
 * Extents are in the memfd in reverse order of their offsets, so that no two neighbours are contiguous in
 * memory.
 */
static void region_init(struct lab_side *s, uint64_t bytes, uint32_t n)
{
	struct lab_region *g = &s->region;
	uint64_t piece = bytes / n;

	lab_check(piece * n == bytes);
	g->bytes = bytes;
	g->fd = dray_memfd_new(s->gpu_staging ? "fake-gpu-0" : "lab", bytes, false);
	lab_check(g->fd >= 0);
	g->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
	g->agent_memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
	lab_check(g->memory != MAP_FAILED && g->agent_memory != MAP_FAILED);
	memset(g->memory, 0, bytes);
	g->view = calloc(1, sizeof(*g->view) + n * sizeof(struct extent_view));
	lab_check(g->view);
	g->view->o = (struct object_view){ OBJECT_REGION, LAB_REGION, LAB_GROUP,
					   LAB_SESSION,   bytes,      DMSG_ACCESS_ALL };
	g->view->fault_guarded = fault_guard_memory(g->agent_memory, bytes);
	g->view->n_extents = n;
	for (uint32_t i = 0; i < n; i++)
		g->view->extents[i] =
			(struct extent_view){ .start = i * piece,
					      .length = piece,
					      .base = g->agent_memory + (n - 1 - i) * piece,
					      .node = -1 };
	object_publish(&s->core, &g->view->o);
}

static void region_deinit(struct lab_region *g)
{
	munmap(g->agent_memory, g->bytes);
	munmap(g->memory, g->bytes);
	close(g->fd);
	free(g->view);
}

void lab_prepare(struct lab *l)
{
	memset(l, 0, sizeof(*l));
	for (unsigned i = 0; i < 2; i++) {
		side_init(l, i);
		l->side[i].gpu_staging = lab_staging[i];
	}
}

void lab_start(struct lab *l, uint64_t bytes, uint32_t extents)
{
	for (unsigned i = 0; i < 2; i++) {
		struct lab_side *s = &l->side[i];
		struct core *c = &s->core;

		if (s->gpu_staging) {
			lab_check(transport_gpu.init(c, &s->gpu.state) == 0);
			c->transports[0] = &transport_gpu;
			c->transport_state[c->n_transports++] = s->gpu.state;
		}
		lab_check(transport_tcp.init(c, &s->tcp) == 0);
		c->transports[c->n_transports] = &transport_tcp;
		c->transport_state[c->n_transports++] = s->tcp;
		transport_tcp.peer_up(c, s->tcp, &s->link);
		session_init(s);
		region_init(s, bytes, extents);
		if (s->gpu_staging)
			lab_gpu_start(s);
		s->remote = calloc(1, sizeof(*s->remote));
		s->grant = calloc(1, sizeof(*s->grant));
		lab_check(s->remote && s->grant);
		s->remote->o = (struct object_view){ OBJECT_REMOTE, LAB_REMOTE, LAB_GROUP,
						     LAB_SESSION,   bytes,      DMSG_ACCESS_ALL };
		s->remote->peer = LAB_PEER;
		s->remote->grant = LAB_GRANT;
		object_publish(c, &s->remote->o);
		s->grant->o = (struct object_view){ OBJECT_GRANT, LAB_GRANT,      0, 0,
						    bytes,        DMSG_ACCESS_ALL };
		s->grant->peer = LAB_PEER;
		s->grant->region = LAB_REGION;
		object_publish(c, &s->grant->o);
	}
}

void lab_init(struct lab *l, uint64_t bytes, uint32_t extents)
{
	lab_prepare(l);
	lab_start(l, bytes, extents);
}

#define WORKERS 8
#define HELPER 0
_Static_assert(WORKERS <= WORKSHARE_MAX, "a worker without a seat");

void lab_helper_start(struct lab *l)
{
	struct lab_side *s = &l->helper;
	struct core *c = &s->core;
	struct core *cores[] = { c, &l->side[0].core };

	/* a side that is none of the two */
	s->index = 2;
	core_init(l, s, HELPER);
	lab_check(l->side[0].core.index < WORKERS);
	lab_check(workshare_new(&l->workshare, WORKERS, 1) == 0);
	lab_check(delegates_new(&l->delegates, WORKERS) == 0);
	core_count(&l->others, DRAY_METRIC_TRANSFERS_IN_FLIGHT, 1);
	for (unsigned i = 0; i < WORKERS; i++)
		delegates_join(l->delegates, i, &l->others);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cores); i++) {
		cores[i]->workshare = l->workshare;
		cores[i]->delegates = l->delegates;
		delegates_join(l->delegates, cores[i]->index, cores[i]->counters);
	}
	s->link = l->side[0].link;
	lab_check(transport_tcp.init(c, &s->tcp) == 0);
	c->transports[0] = &transport_tcp;
	c->transport_state[c->n_transports++] = s->tcp;
	transport_tcp.peer_up(c, s->tcp, &s->link);
}

static void helper_end(struct lab *l)
{
	struct lab_side *s = &l->helper;

	if (!l->delegates)
		return;
	transport_tcp.deinit(&s->core, s->tcp);
	xfers_deinit(&s->core);
	objects_deinit(&s->core);
	loop_deinit(&s->core.loop);
	l->delegates = delegates_free(l->delegates);
	l->workshare = workshare_free(l->workshare);
}

void lab_deinit(struct lab *l)
{
	for (unsigned i = 0; i < 2; i++) {
		struct lab_side *s = &l->side[i];
		struct core *c = &s->core;

		if (!s->down && !l->forced_end) {
			lab_peer_down(s, DRAY_E_PEER_LOST);
			lab_check(s->n_gone == 1);
		}
		s->down = true;
		/* Nothing may be left behind. */
		lab_check(s->session.slices[0] == 0 && s->session.slices[1] == 0);
		lab_check(dray_list_empty(&s->session.xfers));
		lab_check(l->forced_end || lab_counter(s, DRAY_METRIC_TCP_STREAMS) == 0);
		lab_check(l->forced_end || atomic_load(&s->link.streams) == 0);
		lab_check(atomic_load(&s->link.started) == atomic_load(&s->link.ended));
		transport_tcp.deinit(c, s->tcp);
		if (s->gpu_staging) {
			lab_gpu_stop(s);
			transport_gpu.deinit(c, s->gpu.state);
			stage_deinit(c);
		}
		xfer_session_deinit(&s->session);
		close(s->listen_fd);
		for (unsigned k = 0; k < s->n_half; k++)
			close(s->half_fd[k]);
		xfers_deinit(c);
		objects_deinit(c);
		loop_deinit(&c->loop);
		region_deinit(&s->region);
		free(s->remote);
		free(s->grant);
	}
	helper_end(l);
	if (l->side[0].gpu_staging || l->side[1].gpu_staging)
		lab_gpu_all_stopped();
	for (unsigned k = 0; k < l->n_raw; k++)
		if (l->raw_fd[k] >= 0)
			close(l->raw_fd[k]);
}

uint64_t lab_counter(const struct lab_side *s, enum dray_metric m)
{
	return atomic_load(&s->counters.v[m]);
}

void lab_transfer(struct lab_side *s, uint64_t id, enum dmsg_direction d, enum dmsg_class class,
		  const uint64_t (*ops)[3], uint32_t n)
{
	struct xfer_request r = { .request_id = id,
				  .spec.direction = (uint8_t)d,
				  .spec.class = (uint8_t) class,
				  .spec.local = LAB_REGION,
				  .spec.remote = LAB_REMOTE };
	struct dray_err err = DRAY_ERR_NULL;
	uint8_t *wire = malloc((size_t)n * DMSG_OP_SIZE);

	lab_check(wire);
	for (uint32_t i = 0; i < n; i++)
		dmsg_op_put(wire + (size_t)i * DMSG_OP_SIZE,
			    &(struct dmsg_op){ ops[i][0], ops[i][1], ops[i][2] });
	r.ops = wire;
	r.n_ops = n;
	if (xfer_start(&s->core, &s->session, &r, &err) < 0)
		lab_fail(__FILE__, __LINE__, err.msg);
	while (s->session.read)
		xfer_read(&s->core, &s->session);
	free(wire);
}

void lab_transfer1(struct lab_side *s, uint64_t id, enum dmsg_direction d, uint64_t local,
		   uint64_t remote, uint64_t length)
{
	const uint64_t op[1][3] = { { local, remote, length } };

	lab_transfer(s, id, d, DMSG_CLASS_BULK, op, 1);
}

const struct lab_end *lab_end(const struct lab_side *s, uint64_t id)
{
	for (unsigned i = 0; i < s->n_ended; i++)
		if (s->ended[i].request_id == id)
			return &s->ended[i];
	return NULL;
}

struct xfer *lab_xfer(struct lab_side *s, uint64_t id)
{
	dray_list_for_each(&s->session.xfers, x, struct xfer, session_link)
		if (x->request_id == id)
			return x;
	lab_fail(__FILE__, __LINE__, "the transfer is under way");
}
