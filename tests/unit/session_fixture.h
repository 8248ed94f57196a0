/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions with real regions, workers and sockets, in one thread with their clients: waiting for a
 * message runs the loop. Peers are faked: their functions are defined here, so that the real ones
 * are not linked. For one source file of a program.
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/config/config.h"
#include "lib/fault.h"
#include "agent/control/mailbox/mailbox.h"
#include "agent/control/session/session.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "lib/memfd.h"
#include "lib/seqpacket.h"
#include "lib/time.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/no_devices.h"

#define PAGE 4096ull
#define LAB_WORKERS 2
#define LIMIT_NS (10 * DRAY_NS_PER_SEC)
#define LAB_PEER 0x700000001ull

struct peers {
	unsigned imports, cancelled, notifies;
	struct pmsg_token token;
	char segment[256];
	int64_t timeout_ns;
	peer_import_fn import_fn;
	void *import_arg;
	uint64_t released[16], acked[16], rekeyed;
	unsigned n_released, n_acked, n_rekeyed;
	uint64_t notify_grant, notify_id, notify_tag;
	uint8_t notify_payload[64];
	uint32_t notify_length;
	peer_reply_fn notify_fn;
	void *notify_arg;
	unsigned posts;
	struct peer_post post; /* the last one; its texts are in post_name and post_payload */
	char post_name[DMSG_MAILBOX_NAME_MAX + 1], post_payload[64];
	int post_code;   /* error with which posts are refused */
	int import_code; /* error with which imports are refused */
};

struct lab {
	struct config config;
	struct dray_config *cfg;
	sd_event *event;
	struct worker_pool pool;
	sd_event_source *sources[LAB_WORKERS];
	struct gpus *gpus; /* set by tests that use GPUs */
	struct owners *owners;
	struct regions *regions;
	struct peers peers;
	struct mailboxes *mailboxes;
	struct sessions *sessions;
	/* set by tests that use the environment */
	int (*env_get)(void *arg, const char *profiles, char **ret_variables, char **ret_notes,
		       struct dray_err *reterr);
	char dir[CM_DIR_BYTES], path[100];
	unsigned stopped;
	int fds; /* descriptors open at the start */
};

static pid_t agent_process; /* clients get pidfds of it; 0: none */

static inline int open_pidfd(void)
{
	return agent_process ? (int)syscall(SYS_pidfd_open, agent_process, 0) : -ENOSYS;
}

static const uint8_t lab_id[16] = { 0xaa, 0xbb };
static const uint8_t other_id[16] = { 0xcc, 0xdd };

/* --- peers ------------------------------------------------------------------------------------ */

const char *peers_segment(struct peers *p)
{
	return "127.0.0.1:7411";
}

const char *peers_segment_of(struct peers *p, dray_handle peer)
{
	return NULL;
}

const uint8_t *peers_agent_id(struct peers *p, dray_handle peer)
{
	static const uint8_t id[16];

	return id;
}

struct peers_log peers_log_of_agent(struct peers *p, const uint8_t agent_id[16])
{
	static struct dray_log_limit limit;

	return (struct peers_log){ &limit, UINT32_MAX, "about an agent" };
}

int peer_import(struct peers *p, const struct pmsg_token *token, bool is_lease, const char *segment,
		const struct peer_client *client, int64_t timeout_ns, peer_import_fn fn, void *arg,
		uint64_t *ret_id, struct dray_err *reterr)
{
	if (p->import_code)
		return dray_err_set(reterr, -EPERM, p->import_code, "refused by the test");
	p->token = *token;
	snprintf(p->segment, sizeof(p->segment), "%s", segment);
	p->timeout_ns = timeout_ns;
	p->import_fn = fn;
	p->import_arg = arg;
	*ret_id = ++p->imports;
	return 0;
}

void peer_import_cancel(struct peers *p, uint64_t id)
{
	p->cancelled++;
}

void peer_release(struct peers *p, dray_handle peer, uint64_t grant, enum pmsg_release_how how)
{
	p->released[p->n_released++ % DRAY_ARRAY_SIZE(p->released)] = grant;
}

uint32_t peers_lease_grant(struct peers *p, const struct pmsg_token *token, uint32_t n)
{
	return 0;
}

int peers_request(struct peers *p, dray_handle peer, uint16_t type, const union pmsg_body *body,
		  peer_reply_fn fn, void *arg)
{
	return -ENOTCONN;
}

void peers_fence_ack(struct peers *p, dray_handle peer, uint64_t grant)
{
	p->acked[p->n_acked++] = grant;
}

void peers_send(struct peers *p, dray_handle peer, uint16_t type, uint64_t request_id,
		const union pmsg_body *body)
{
	assert_int_equal(type, PMSG_REKEY_REPLY);
	p->n_rekeyed++;
	p->rekeyed = request_id;
}

void peers_refuse(struct peers *p, dray_handle peer, uint64_t request_id, uint32_t code,
		  const char *why)
{
	fail_msg("%s", why);
}

int peer_notify(struct peers *p, dray_handle peer, const struct pmsg_notify *m, peer_reply_fn fn,
		void *arg, struct dray_err *reterr)
{
	p->notifies++;
	p->notify_grant = m->grant;
	p->notify_id = m->id;
	p->notify_tag = m->tag;
	p->notify_length = m->payload.n;
	memcpy(p->notify_payload, m->payload.p,
	       dray_min((size_t)m->payload.n, sizeof(p->notify_payload)));
	p->notify_fn = fn;
	p->notify_arg = arg;
	return 0;
}

int peer_post(struct peers *p, const struct peer_post *post, struct dray_err *reterr)
{
	if (p->post_code)
		return dray_err_set(reterr, -EPERM, p->post_code, "refused by the test");
	p->posts++;
	p->post = *post;
	snprintf(p->post_name, sizeof(p->post_name), "%.*s", (int)post->m.name.n, post->m.name.p);
	snprintf(p->post_payload, sizeof(p->post_payload), "%.*s", (int)post->m.payload.n,
		 (const char *)post->m.payload.p);
	p->post.m.name.p = p->post_name;
	p->post.m.payload.p = (const uint8_t *)p->post_payload;
	return 0;
}

/* --- the agent around it ---------------------------------------------------------------------- */

static void lab_fence(struct peers *peers, dray_handle peer, dray_handle grant, uint32_t code)
{
	fail_msg("unexpected call: no peer imports from this agent");
}

static const struct mailboxes_upcalls lab_mailboxes_up = {
	.send = sessions_send_letter,
	.closed = sessions_mailbox_closed,
};

static struct peers *no_peers;
static struct rails *no_rails;
static const struct regions_upcalls lab_up = { .fence = lab_fence,
					       .revoke_local = sessions_revoke_local,
					       NO_DEVICES };

static void lab_event(struct lab *l, unsigned worker, const struct event *ev)
{
	switch (ev->type) {
	case EVENT_REQUEST:
		sessions_handle_request(l->sessions, ev->session, ev->packet);
		break;
	case EVENT_FDS:
		sessions_handle_fds(l->sessions, ev->session, ev->packet);
		break;
	case EVENT_SESSION_EOF:
		sessions_handle_eof(l->sessions, ev->session, ev->code, ev->packet);
		break;
	case EVENT_SESSION_GONE:
		sessions_handle_gone(l->sessions, ev->session, ev->fd);
		break;
	case EVENT_SESSION_REFUSED:
		sessions_handle_refused(l->sessions, ev->session, ev->code, ev->fd);
		break;
	case EVENT_DROPPED:
		pool_handle_dropped(&l->pool, ev->kind, ev->handle);
		break;
	case EVENT_SENT:
		sessions_handle_sent(l->sessions, ev->session, (enum packet_report)ev->id);
		break;
	case EVENT_NOTIFY:
		sessions_handle_notify(l->sessions, worker, ev->id, ev->handle, ev->tag,
				       ev->packet);
		break;
	case EVENT_SESSION_FAULT:
		sessions_handle_fault(l->sessions, ev->session);
		break;
	case EVENT_TRANSPORT:
		gpus_message(l->gpus, worker, &ev->message);
		break;
	case EVENT_PEER_USED:
	case EVENT_STREAM_LOST:
	case EVENT_STREAM_CLOSED:
	case EVENT_SNAPSHOT:
	case EVENT_CANCELLED:
	case EVENT_REPORT:
	case EVENT_STORE_REPORT:
	case EVENT_STORE_ASK:
	case EVENT_STORE_ASK_STOP:
	case EVENT_STORE_ASK_END:
	case EVENT_STORE_SOURCE_END:
	case EVENT_STORE_KEPT:
	case EVENT_QUIT:
		break;
	}
}

static int lab_pump(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct lab *l = arg;
	struct event ev;

	for (unsigned i = 0; i < l->pool.n; i++)
		while (source == l->sources[i] && worker_next_event(l->pool.workers[i], &ev))
			lab_event(l, i, &ev);
	return 0;
}

static inline int lab_open(struct lab *l, int listen_fd, struct dray_err *err)
{
	return sessions_new(&l->sessions,
			    &(struct sessions_deps){ .event = l->event,
						     .cfg = l->cfg,
						     .pool = &l->pool,
						     .owners = l->owners,
						     .regions = l->regions,
						     .peers = &l->peers,
						     .mailboxes = l->mailboxes,
						     .agent_id = lab_id,
						     .incarnation = 5,
						     .open_pidfd = open_pidfd,
						     .listen_fd = listen_fd,
						     .env_get = l->env_get,
						     .arg = l },
			    err);
}

/* Applies changed limits, as a reload does. */
static inline void lab_limits(struct lab *l)
{
	budgets_configure(&l->owners->budgets, l->cfg);
}

/* Sets up everything except regions and sessions. */
static int lab_setup_workers(void **state)
{
	struct lab *l = calloc(1, sizeof(*l));
	struct dray_err err = DRAY_ERR_NULL;
	struct data_config core;

	assert_non_null(l);
	dray_log_setup(DRAY_LOG_ERROR, DRAY_LOG_FORMAT_TEXT);
	l->fds = cm_fds_count();
	l->config = CONFIG_NULL;
	assert_int_equal(config_load(&l->config, &(struct config_args){ .file = "" }, &err), 0);
	l->cfg = &l->config.v;
	cm_dir_make(l->dir);
	snprintf(l->path, sizeof(l->path), "%s/run/dray.sock", l->dir);
	free(l->cfg->data.socket);
	l->cfg->data.socket = strdup(l->path);
	core = (struct data_config){
		.slice_size = (uint64_t)l->cfg->transfer.slice_size,
		.slice_timeout_ns = l->cfg->transfer.slice_timeout,
		.deadline_ns = l->cfg->transfer.deadline,
		.slices_per_session = (uint32_t)l->cfg->limits.slices_per_session,
		.tcp_streams = 1,
		.tcp_latency_streams = 1,
		.tcp_slices_in_flight = 1,
	};
	assert_true(sd_event_new(&l->event) >= 0);
	assert_int_equal(mailboxes_new(&l->mailboxes,
				       &(struct mailboxes_deps){ .event = l->event,
								 .cfg = l->cfg,
								 .up = &lab_mailboxes_up,
								 .sessions = &l->sessions }),
			 0);
	assert_int_equal(owners_new(&l->owners, l->event, l->cfg), 0);
	assert_int_equal(pool_new(&l->pool, LAB_WORKERS, &core, 1000, &err), 0);
	assert_int_equal(pool_start(&l->pool, &err), 0);
	for (unsigned i = 0; i < LAB_WORKERS; i++)
		assert_true(sd_event_add_io(l->event, &l->sources[i],
					    worker_event_fd(l->pool.workers[i]), EPOLLIN, lab_pump,
					    l) >= 0);
	*state = l;
	return 0;
}

static void lab_regions(struct lab *l)
{
	assert_int_equal(regions_new(&l->regions, &(struct regions_deps){ .cfg = l->cfg,
									  .pool = &l->pool,
									  .gpus = l->gpus,
									  .agent_id = lab_id,
									  .incarnation = 5,
									  .up = &lab_up,
									  .sessions = &l->sessions,
									  .peers = &no_peers,
									  .rails = &no_rails }),
			 0);
}

/* Sets up everything except sessions, so that a test can first change the configuration. */
static inline int lab_setup_closed(void **state)
{
	lab_setup_workers(state);
	lab_regions(*state);
	return 0;
}

static inline void lab_start(struct lab *l)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (lab_open(l, -1, &err) < 0)
		fail_msg("%s", err.msg);
}

static inline int lab_setup(void **state)
{
	struct lab *l;

	lab_setup_closed(state);
	l = *state;
	lab_start(l);
	return 0;
}

static inline void lab_turn(struct lab *l)
{
	assert_true(sd_event_run(l->event, 10000) >= 0);
}

#define lab_until(l, cond)                               \
	do {                                             \
		int64_t end_ = dray_now().ns + LIMIT_NS; \
		while (!(cond) && dray_now().ns < end_)  \
			lab_turn(l);                     \
		assert_true(cond);                       \
	} while (0)

static void lab_stopped(void *arg)
{
	struct lab *l = arg;

	l->stopped++;
}

static void lab_stop(struct lab *l)
{
	if (!l->sessions)
		return;
	l->stopped = 0;
	sessions_stop(l->sessions, lab_stopped, l);
	assert_int_equal(l->stopped, 0);
	lab_until(l, l->stopped);
	l->sessions = sessions_free(l->sessions);
}

static int lab_teardown(void **state)
{
	struct lab *l = *state;
	uint64_t regions, bytes, tokens;

	lab_stop(l);
	regions_totals(l->regions, &regions, &bytes, &tokens);
	assert_int_equal(regions, 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(tokens, 0);
	for (unsigned i = 0; i < LAB_WORKERS; i++)
		l->sources[i] = sd_event_source_disable_unref(l->sources[i]);
	pool_stop(&l->pool);
	assert_true(gpus_free(l->gpus));
	l->regions = regions_free(l->regions);
	l->mailboxes = mailboxes_free(l->mailboxes);
	l->owners = owners_free(l->owners);
	sd_event_unref(l->event);
	config_deinit(&l->config);
	cm_dir_remove(l->dir);
	/* the one for userfaultfd stays open while the process lives */
	assert_in_range(cm_fds_count(), l->fds, l->fds + 1);
	free(l);
	return 0;
}

/* --- clients ---------------------------------------------------------------------------------- */

struct client {
	struct lab *lab;
	int fd;
	uint64_t id; /* of the last request */
	uint8_t buf[DMSG_MESSAGE_MAX];
	struct dmsg_header h; /* of the last message */
	struct dray_fds fds;
	struct dmsg_hello_reply hello;
};

static inline struct client *client_connect(struct lab *l)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct client *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	c->lab = l;
	c->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", l->path);
	assert_int_equal(connect(c->fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return c;
}

static inline void client_close(struct client *c)
{
	dray_fds_close(&c->fds);
	dray_close(c->fd);
	free(c);
}

static inline const uint8_t *client_body(const struct client *c)
{
	return c->buf + DMSG_HEADER_SIZE;
}

/*
 * Receives the next packet. Returns its bytes, 0 at the end of the connection, or -errno;
 * descriptors are in c->fds.
 */
static inline ssize_t client_recv(struct client *c)
{
	int64_t end = dray_now().ns + LIMIT_NS;
	bool t1, t2;
	ssize_t n;

	dray_fds_close(&c->fds);
	while ((n = dray_seqpacket_recv(c->fd, c->buf, sizeof(c->buf), &c->fds, &t1, &t2)) ==
	       -EAGAIN) {
		if (dray_now().ns > end)
			fail_msg("no message arrived");
		assert_true(sd_event_run(c->lab->event, 1000) >= 0);
	}
	return n;
}

/* Checks that the next message has this type. */
static inline void client_expect(struct client *c, uint16_t type)
{
	struct dray_err err = DRAY_ERR_NULL;
	ssize_t n = client_recv(c);

	if (n <= 0)
		fail_msg("the connection ended (%zd) instead of %s", n, dmsg_type_name(type));
	assert_int_equal(dmsg_header_decode(c->buf, (size_t)n, &c->h, &err), 0);
	assert_int_equal(dmsg_packet_check(&c->h, (size_t)n, &err), 0);
	if (c->h.type == DMSG_ERROR && type != DMSG_ERROR) {
		struct dmsg_error m;

		assert_int_equal(dmsg_error_decode(client_body(c), c->h.length, &m, &err), 0);
		fail_msg("error %s: %.*s", dray_error_name(m.code), (int)m.message.n, m.message.p);
	}
	assert_int_equal(c->h.type, type);
}

static inline void client_expect_end(struct client *c)
{
	assert_int_equal(client_recv(c), 0);
}

/* Checks that request `id` is answered with this error. */
static inline void client_expect_error(struct client *c, uint64_t id, uint32_t code)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_error m;

	client_expect(c, DMSG_ERROR);
	assert_int_equal(dmsg_error_decode(client_body(c), c->h.length, &m, &err), 0);
	assert_string_equal(dray_error_name(m.code), dray_error_name(code));
	assert_int_equal(c->h.request_id, id);
	assert_true(m.message.n > 0);
}

static inline void client_send_raw(struct client *c, const void *p, size_t n, const int *fds,
				   unsigned n_fds)
{
	assert_int_equal(dray_seqpacket_send(c->fd, p, n, fds, n_fds), 0);
}

/* Encodes m as a dmsg_X with the next request id, and sends it with descriptors. */
#define CLIENT_SEND_FDS(c, x, m, fds, n_fds)                                          \
	do {                                                                          \
		int n_ = dmsg_##x##_encode((c)->buf, sizeof((c)->buf), ++(c)->id, m); \
		assert_true(n_ > 0);                                                  \
		client_send_raw(c, (c)->buf, (size_t)n_, fds, n_fds);                 \
	} while (0)
#define CLIENT_SEND(c, x, m) CLIENT_SEND_FDS(c, x, m, NULL, 0)

/* Receives the answer to the last request into m. */
#define CLIENT_RECV(c, x, type_, m)                                                              \
	do {                                                                                     \
		struct dray_err err_ = DRAY_ERR_NULL;                                            \
		client_expect(c, type_);                                                         \
		assert_int_equal(dmsg_##x##_decode(client_body(c), (c)->h.length, m, &err_), 0); \
	} while (0)
#define CLIENT_REPLY(c, x, type_, m)                          \
	do {                                                  \
		CLIENT_RECV(c, x, type_, m);                  \
		assert_int_equal((c)->h.request_id, (c)->id); \
	} while (0)

static inline struct dray_str text(const char *s)
{
	return (struct dray_str){ s, (uint32_t)strlen(s) };
}

static inline struct client *client_open(struct lab *l, const char *group, uint16_t flags)
{
	struct dmsg_hello m = { .major_min = 1,
				.major_max = 1,
				.flags = flags,
				.group = text(group),
				.name = text("test") };
	struct client *c = client_connect(l);

	CLIENT_SEND(c, hello, &m);
	CLIENT_REPLY(c, hello_reply, DMSG_HELLO_REPLY, &c->hello);
	return c;
}

/* --- memory ----------------------------------------------------------------------------------- */

static inline int memory_fd(uint64_t bytes, uint8_t fill)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint8_t *p;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	memset(p, fill, bytes);
	munmap(p, bytes);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	return fd;
}

static inline void client_send_add(struct client *c, int fd, uint64_t bytes, uint16_t access)
{
	uint8_t wire[DMSG_EXTENT_SIZE];
	struct dmsg_region_add m = { .access = access, .name = text("kv"), .extents = { wire, 1 } };

	dmsg_extent_put(wire, &(struct dmsg_extent){ .kind = DMSG_KIND_MEMFD, .length = bytes });
	CLIENT_SEND_FDS(c, region_add, &m, &fd, 1);
}

static inline uint64_t client_add(struct client *c, int fd, uint64_t bytes)
{
	struct dmsg_region_add_reply reply;

	client_send_add(c, fd, bytes, DMSG_ACCESS_ALL);
	CLIENT_REPLY(c, region_add_reply, DMSG_REGION_ADD_REPLY, &reply);
	assert_int_equal(reply.length, bytes);
	return reply.region;
}

/* Adds a region of its own memory, filled. */
static inline uint64_t client_add_filled(struct client *c, uint64_t bytes, uint8_t fill)
{
	int fd = memory_fd(bytes, fill);
	uint64_t region = client_add(c, fd, bytes);

	close(fd);
	return region;
}

struct token {
	uint64_t id;
	uint8_t wire[DMSG_TOKEN_MAX];
	uint32_t n;
};

static inline struct token client_export(struct client *c, uint64_t region, uint64_t offset,
					 uint64_t length)
{
	struct dmsg_region_export m = {
		.region = region, .offset = offset, .length = length, .access = DMSG_ACCESS_ALL
	};
	struct dmsg_region_export_reply reply;
	struct token t;

	CLIENT_SEND(c, region_export, &m);
	CLIENT_REPLY(c, region_export_reply, DMSG_REGION_EXPORT_REPLY, &reply);
	t.id = reply.token_id;
	t.n = reply.token.n;
	memcpy(t.wire, reply.token.p, t.n);
	return t;
}

static inline void client_send_import(struct client *c, const struct token *t)
{
	struct dmsg_remote_import m = { .token = { t->wire, t->n } };

	CLIENT_SEND(c, remote_import, &m);
}

static inline uint64_t client_import(struct client *c, const struct token *t)
{
	struct dmsg_remote_import_reply reply;

	client_send_import(c, t);
	CLIENT_REPLY(c, remote_import_reply, DMSG_REMOTE_IMPORT_REPLY, &reply);
	return reply.remote;
}
