/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of the handshake: one request, one answer, then the peer closes. The bodies of requests are read and thrown away:
 * that of Metadata is the peer's own descriptor, which only engines that transfer to it need; notifications are declined whatever
 * they say. With mooncake.protocol rdma, a request for queue pairs is read. All must be over within mooncake.stall_timeout.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "agent/config/network.h"
#include "agent/control/mooncake/internal.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "lib/share.h"
#include "lib/time.h"

/* At the same time. An answer has up to MOONCAKE_FRAME_MAX bytes. */
#define HANDSHAKES_MAX 32u
/* Bytes that one turn of a connection reads, at most. */
#define TURN_BYTES (64 << 10)

static const char no_queue_pairs[] =
	"{\"local_gid\":\"\",\"local_lid\":0,\"local_nic_path\":\"\",\"payload\":\"\",\"peer_nic_path\":\"\","
	"\"qp_num\":[],\"reply_msg\":\"this segment is reached over TCP alone\"}\n";
/* An empty message is a refusal. */
static const char no_notifications[] = "{\"name\":\"\",\"notify_msg\":\"\"}\n";
static const char probed[] = "{\"status\":\"success\"}\n";

enum handshake_state {
	HANDSHAKE_HEAD,
	HANDSHAKE_BODY,
	HANDSHAKE_WAIT, /* for queue pairs, or until ranges are registered */
	HANDSHAKE_ANSWER,
	HANDSHAKE_END,
};

struct handshake {
	struct dray_list link;
	struct mooncake_server *server;
	struct dray_addr from;
	int fd;
	sd_event_source *io;
	int64_t began_ns;
	enum handshake_state state;
	size_t head_n;
	struct mooncake_frame request;
	uint64_t body_left;
	char *body;     /* of a request for queue pairs */
	uint64_t guest; /* rails_guest_connect(), 0: none */
	struct rails_guest_request *want;
	uint8_t *answer;
	size_t answer_n, answer_sent;
	uint8_t head[MOONCAKE_FRAME_HEAD];
};

static void close_one(struct handshake *h)
{
	struct mooncake_server *s = h->server;

	if (h->state != HANDSHAKE_END)
		s->totals.handshakes_refused++;
	sd_event_source_disable_unref(h->io);
	dray_close(h->fd);
	dray_list_del(&h->link);
	s->n_handshakes--;
	if (h->guest)
		rails_guest_forget(*s->deps.rails, h->guest);
	free(h->body);
	free(h->want);
	free(h->answer);
	free(h);
}

/* A descriptor that waits for registrations is told before there is no time left to send it. */
static bool waits_for_ranges(const struct handshake *h)
{
	return h->state == HANDSHAKE_WAIT && h->request.type == MOONCAKE_METADATA;
}

/* When something happens to the handshake by itself. */
static int64_t end_of(const struct handshake *h)
{
	int64_t time = h->server->cfg->mooncake.stall_timeout;

	return h->began_ns + (waits_for_ranges(h) ? time / 2 : time);
}

static void limit_arm(struct mooncake_server *s)
{
	int64_t end = INT64_MAX;

	dray_list_for_each(&s->handshakes, h, const struct handshake, link)
		end = dray_min(end, end_of(h));
	sd_event_source_set_time(s->limit, end < INT64_MAX ? (uint64_t)end / 1000 + 1 : UINT64_MAX);
	sd_event_source_set_enabled(s->limit, SD_EVENT_ONESHOT);
}

static void tell_what_is_ready(struct handshake *h);

static int on_limit(sd_event_source *source, uint64_t usec, void *arg)
{
	struct mooncake_server *s = arg;
	int64_t now = dray_now().ns;

	dray_list_for_each(&s->handshakes, h, struct handshake, link) {
		if (end_of(h) > now)
			continue;
		if (waits_for_ranges(h))
			tell_what_is_ready(h);
		else
			close_one(h);
	}
	limit_arm(s);
	return 0;
}

/* 0 or -ENOMEM. */
static int answer_set(struct handshake *h, const char *body, size_t n)
{
	h->answer = malloc(MOONCAKE_FRAME_HEAD + n);
	if (!h->answer)
		return -ENOMEM;
	mooncake_frame_put(h->answer, &(struct mooncake_frame){ h->request.type, n });
	memcpy(h->answer + MOONCAKE_FRAME_HEAD, body, n);
	h->answer_n = MOONCAKE_FRAME_HEAD + n;
	return 0;
}

/* Makes the answer to a request that needs no queue pairs. 0 or -ENOMEM. */
static int answer_make(struct handshake *h)
{
	const char *body = h->request.type == MOONCAKE_NOTIFY ? no_notifications :
			   h->request.type == MOONCAKE_PROBE  ? probed :
								no_queue_pairs;
	size_t n = strlen(body);

	if (h->request.type == MOONCAKE_METADATA) {
		body = descriptor_text(h->server, &n);
		if (!body)
			return -ENOMEM;
	}
	return answer_set(h, body, n);
}

/* 1: go on; 0: the socket is not ready; -errno: the connection is over. */
static int receive(struct handshake *h, void *p, size_t n, size_t *ret_n)
{
	ssize_t got = recv(h->fd, p, n, MSG_DONTWAIT);

	if (got < 0)
		return errno == EAGAIN ? 0 : errno == EINTR ? 1 : -errno;
	*ret_n = (size_t)got;
	return got ? 1 : -ECONNRESET;
}

static int step_head(struct handshake *h)
{
	size_t n = 0;
	int r = receive(h, h->head + h->head_n, MOONCAKE_FRAME_HEAD - h->head_n, &n);

	h->head_n += n;
	if (r <= 0 || h->head_n < MOONCAKE_FRAME_HEAD)
		return r;
	r = mooncake_frame_get(h->head, &h->request);
	if (r < 0)
		return r;
	h->body_left = h->request.body;
	h->state = HANDSHAKE_BODY;
	if (!h->server->rdma || h->request.type != MOONCAKE_CONNECTION)
		return 1;
	if (h->request.body > MOONCAKE_CONNECTION_MAX)
		return -EPROTO;
	h->body = malloc((size_t)h->request.body + 1);
	return h->body ? 1 : -ENOMEM;
}

/* Throws away what the peer sends: the body, or anything behind the request. */
static int discard(struct handshake *h, uint64_t max, size_t *ret_n)
{
	static uint8_t sink[TURN_BYTES];

	return receive(h, sink, (size_t)dray_min(max, (uint64_t)sizeof(sink)), ret_n);
}

static int answer_begin(struct handshake *h)
{
	int r;

	h->state = HANDSHAKE_ANSWER;
	r = sd_event_source_set_io_events(h->io, EPOLLOUT);
	return r < 0 ? r : 1;
}

static int wait_begin(struct handshake *h)
{
	int r;

	h->state = HANDSHAKE_WAIT;
	/* an end of the connection is reported all the same */
	r = sd_event_source_set_io_events(h->io, EPOLLRDHUP);
	limit_arm(h->server);
	return r < 0 ? r : 0;
}

/* Continues the handshake without an event of its socket. */
static void resume(struct handshake *h, int r)
{
	struct mooncake_server *s = h->server;

	if (r >= 0)
		r = answer_begin(h);
	if (r >= 0)
		return;
	close_one(h);
	limit_arm(s);
}

/* Some ranges are still being registered. */
static void tell_what_is_ready(struct handshake *h)
{
	log_limited(DRAY_LOG_NOTICE, AREA,
		    "an engine is told the buffers that are registered, without others whose "
		    "registration takes longer than half of mooncake.stall_timeout");
	resume(h, answer_make(h));
}

/* Makes the answer that refuses queue pairs, or has them. 0 or -ENOMEM. */
static int answer_connection(struct handshake *h, const struct rails_guest_reply *reply)
{
	size_t n = 0;
	dray_auto_free char *text = connection_answer(h->server->name, h->want, reply, &n);

	if (reply->refused)
		log_limited(DRAY_LOG_NOTICE, AREA, "refusing queue pairs: %s", reply->refused);
	return text ? answer_set(h, text, n) : -ENOMEM;
}

static void connected(void *arg, const struct rails_guest_reply *reply)
{
	struct handshake *h = arg;
	bool waits = h->state == HANDSHAKE_WAIT;
	int r = answer_connection(h, reply);

	h->guest = 0;
	/* else step_connection() has not returned */
	if (waits)
		resume(h, r);
}

static int step_connection(struct handshake *h)
{
	struct mooncake_server *s = h->server;
	const char *why;
	uint64_t id;

	h->want = calloc(1, sizeof(*h->want));
	if (!h->want)
		return -ENOMEM;
	h->want->from = h->from;
	why = connection_parse(h->body, (size_t)h->request.body, s->name, h->want);
	free(dray_take(h->body));
	if (!why && !mooncake_guest_allowed(s, h->want))
		why = "mooncake.allow does not have the address of this GID";
	if (why) {
		int r = answer_connection(h, &(struct rails_guest_reply){ .refused = why });

		return r < 0 ? r : answer_begin(h);
	}
	id = rails_guest_connect(*s->deps.rails, h->want, connected, h);
	if (h->answer)
		return answer_begin(h);
	if (!id)
		return -ENOMEM;
	h->guest = id;
	return wait_begin(h);
}

static int step_body(struct handshake *h)
{
	struct mooncake_server *s = h->server;
	size_t n = 0;
	int r;

	if (!h->body_left)
		r = 1;
	else if (h->body)
		r = receive(h, h->body + (h->request.body - h->body_left), (size_t)h->body_left,
			    &n);
	else
		r = discard(h, h->body_left, &n);
	h->body_left -= n;
	if (r <= 0 || h->body_left)
		return r;
	if (h->body)
		return step_connection(h);
	if (s->rdma && h->request.type == MOONCAKE_METADATA && !rails_guest_ready(*s->deps.rails))
		return wait_begin(h);
	r = answer_make(h);
	return r < 0 ? r : answer_begin(h);
}

/* Nothing but the end of the connection wakes one that waits. */
static int step_wait(struct handshake *h)
{
	return -ECONNRESET;
}

void handshakes_resume(struct mooncake_server *s)
{
	if (rails_guest_ready(*s->deps.rails))
		dray_list_for_each(&s->handshakes, h, struct handshake, link)
			if (h->state == HANDSHAKE_WAIT && h->request.type == MOONCAKE_METADATA)
				resume(h, answer_make(h));
}

static int step_answer(struct handshake *h)
{
	ssize_t n = send(h->fd, h->answer + h->answer_sent, h->answer_n - h->answer_sent,
			 MSG_DONTWAIT | MSG_NOSIGNAL);
	int r;

	if (n < 0)
		return errno == EAGAIN ? 0 : errno == EINTR ? 1 : -errno;
	h->answer_sent += (size_t)n;
	if (h->answer_sent < h->answer_n)
		return 1;
	h->server->totals.handshakes++;
	h->state = HANDSHAKE_END;
	free(dray_take(h->answer));
	shutdown(h->fd, SHUT_WR);
	r = sd_event_source_set_io_events(h->io, EPOLLIN);
	return r < 0 ? r : 1;
}

/* The peer closes first: an early close here could destroy the answer on its way. */
static int step_end(struct handshake *h)
{
	size_t n;

	return discard(h, TURN_BYTES, &n);
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	static int (*const steps[])(struct handshake * h) = {
		[HANDSHAKE_HEAD] = step_head, [HANDSHAKE_BODY] = step_body,
		[HANDSHAKE_WAIT] = step_wait, [HANDSHAKE_ANSWER] = step_answer,
		[HANDSHAKE_END] = step_end,
	};
	struct handshake *h = arg;
	struct mooncake_server *s = h->server;
	int r = 1;

	/* a few steps for each event, so that a peer that sends fast does not hold up others */
	for (unsigned i = 0; r > 0 && i < 4; i++)
		r = steps[h->state](h);
	if (r < 0) {
		close_one(h);
		limit_arm(s);
	}
	return 0;
}

void handshake_add(struct mooncake_server *s, int fd, const struct dray_addr *from)
{
	dray_auto_free struct handshake *h = NULL;
	unsigned held = 0;

	dray_list_for_each(&s->handshakes, other, const struct handshake, link)
		held += dray_addr_same_host(&other->from, from);
	if (!dray_share_fits(HANDSHAKES_MAX - s->n_handshakes, held, 1)) {
		log_limited(DRAY_LOG_WARNING, AREA,
			    "closing a handshake: %u others are under way, %u of this address",
			    s->n_handshakes, held);
		s->totals.connections_refused++;
		mooncake_refuse(s, fd);
		return;
	}
	h = calloc(1, sizeof(*h));
	if (!h || sd_event_add_io(s->deps.event, &h->io, fd, EPOLLIN, on_io, h) < 0) {
		s->totals.handshakes_refused++;
		dray_close(fd);
		return;
	}
	h->server = s;
	h->from = *from;
	h->fd = fd;
	h->began_ns = dray_now().ns;
	dray_list_add(&s->handshakes, &h->link);
	s->n_handshakes++;
	h = NULL;
	limit_arm(s);
}

void handshakes_close(struct mooncake_server *s, bool all)
{
	dray_list_for_each(&s->handshakes, h, struct handshake, link)
		if (all || !networks_have(&s->cfg->mooncake.allow, &h->from))
			close_one(h);
	limit_arm(s);
}

int handshakes_init(struct mooncake_server *s)
{
	dray_list_init(&s->handshakes);
	return sd_event_add_time(s->deps.event, &s->limit, CLOCK_MONOTONIC, UINT64_MAX, 0, on_limit,
				 s);
}

void handshakes_deinit(struct mooncake_server *s)
{
	dray_list_for_each(&s->handshakes, h, struct handshake, link)
		close_one(h);
	s->limit = sd_event_source_disable_unref(s->limit);
}
