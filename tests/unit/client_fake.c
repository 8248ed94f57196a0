/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client_fake.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/memfd.h"
#include "lib/wake.h"
#include "schema/gen/errors.h"

#define SQES 4096
#define MINOR_OFFSET 5 /* in the header of a message */

static uint32_t *word(struct fake *f, unsigned offset)
{
	return (uint32_t *)(void *)(f->ring + offset);
}

void fake_send(struct fake *f, int n, const uint8_t *buf)
{
	dray_assert(n > 0);
	if (f->conn >= 0)
		dray_seqpacket_send(f->conn, buf, (size_t)n, NULL, 0);
}

static uint8_t version(const struct fake *f)
{
	return f->is_old ? 0 : f->no_gpu ? 1 : DMSG_MINOR;
}

void fake_send_error(struct fake *f, uint64_t id, uint32_t code, const char *text)
{
	uint8_t buf[512];
	struct dmsg_error m = { code, { text, (uint32_t)strlen(text) } };

	int n = dmsg_error_encode(buf, sizeof(buf), id, &m);

	buf[MINOR_OFFSET] = version(f);
	fake_send(f, n, buf);
}

void fake_hang_up(struct fake *f)
{
	f->conn = dray_close(f->conn);
	f->doorbell_fd = dray_close(f->doorbell_fd);
	f->completion_fd = dray_close(f->completion_fd);
	if (f->ring)
		munmap(f->ring, f->ring_bytes);
	if (f->arena)
		munmap(f->arena, f->arena_bytes);
	f->ring = f->arena = NULL;
}

void fake_ring(struct fake *f)
{
	static const uint64_t one = 1;

	dray_assert(write(f->completion_fd, &one, sizeof(one)) == sizeof(one));
}

static void complete(struct fake *f, const struct dmsg_cqe *e)
{
	uint32_t slot = f->cq_tail & (2 * f->sq_entries - 1);

	dmsg_cqe_put(f->ring + SQES + (uint64_t)f->sq_entries * DMSG_SQE_SIZE +
			     (uint64_t)slot * DMSG_CQE_SIZE,
		     e);
	__atomic_store_n(word(f, DMSG_RING_CQ_TAIL), ++f->cq_tail, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(word(f, DMSG_RING_CLIENT_SLEEPING), __ATOMIC_SEQ_CST))
		fake_ring(f);
}

void fake_complete(struct fake *f, uint64_t user_data, uint32_t status)
{
	complete(f, &(struct dmsg_cqe){ .user_data = user_data,
					.status = status,
					.transport = DMSG_TRANSPORT_LOCAL,
					.bytes = 1,
					.duration_ns = 1000 });
}

void fake_complete_message(struct fake *f, uint32_t status, uint64_t n)
{
	complete(f, &(struct dmsg_cqe){ .user_data = f->last_message.user_data,
					.status = status,
					.bytes = n,
					.duration_ns = 1000 });
}

/* An entry with a request to the store. */
static void message(struct fake *f, const uint8_t *sqe)
{
	struct dmsg_sqe_message *m = &f->last_message;

	dmsg_sqe_message_get(sqe, m);
	dray_assert(m->flags == DMSG_ENTRY_FLAG_MESSAGE);
	dray_assert(m->offset + dray_max(m->length, m->room) <= f->arena_bytes);
	dray_assert(dmsg_header_decode(f->arena + m->offset, m->length, &f->last_message_header,
				       NULL) == 0);
	dray_assert(dmsg_packet_check(&f->last_message_header, m->length, NULL) == 0);
	dray_assert(f->last_message_header.request_id == m->user_data);
}

static bool entry(struct fake *f)
{
	uint8_t sqe[DMSG_SQE_SIZE];
	struct dmsg_sqe e;
	const uint8_t *ops;

	if (!f->ring || f->ignore_ring ||
	    f->sq_head == __atomic_load_n(word(f, DMSG_RING_SQ_TAIL), __ATOMIC_SEQ_CST))
		return false;
	memcpy(sqe, f->ring + SQES + (uint64_t)(f->sq_head & (f->sq_entries - 1)) * DMSG_SQE_SIZE,
	       sizeof(sqe));
	dmsg_sqe_get(sqe, &e);
	__atomic_store_n(word(f, DMSG_RING_SQ_HEAD), ++f->sq_head, __ATOMIC_RELEASE);
	if (e.flags & DMSG_ENTRY_FLAG_MESSAGE) {
		message(f, sqe);
		return true;
	}
	f->last_transfer = e.user_data;
	f->last_transfer_on_ring = true;
	f->last_transfer_in_arena = e.flags & DMSG_TRANSFER_FLAG_ARENA;
	f->last_transfer_ops = e.op_count;
	f->all_ops += e.op_count;
	f->last_op = (struct dmsg_op){ e.op_local, e.op_remote, e.op_length };
	if (f->last_transfer_in_arena) {
		dray_assert(e.arena_offset + (uint64_t)e.op_count * DMSG_OP_SIZE <= f->arena_bytes);
		ops = f->arena + e.arena_offset;
		dmsg_op_get(ops + (e.op_count - 1) * DMSG_OP_SIZE, &f->last_op);
	}
	f->last_payload_n = e.notify_length;
	dray_assert(e.notify_offset + e.notify_length <= f->arena_bytes);
	memcpy(f->last_payload, f->arena + e.notify_offset, e.notify_length);
	if (!f->hold_transfers)
		fake_complete(f, e.user_data, f->transfer_status);
	return true;
}

/* Takes all entries from the ring; sets agent_sleeping if there are none. */
static void entries(struct fake *f)
{
	if (!f->ring || f->ignore_ring)
		return;
	__atomic_store_n(word(f, DMSG_RING_AGENT_SLEEPING), 0, __ATOMIC_SEQ_CST);
	do {
		while (f->ring && entry(f))
			;
		if (!f->ring)
			return;
		__atomic_store_n(word(f, DMSG_RING_AGENT_SLEEPING), 1, __ATOMIC_SEQ_CST);
	} while (f->sq_head != __atomic_load_n(word(f, DMSG_RING_SQ_TAIL), __ATOMIC_SEQ_CST));
}

static void *map(int fd, uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	dray_assert(p != MAP_FAILED);
	return p;
}

static void ring_open(struct fake *f, uint64_t id, const struct dmsg_ring_open *m)
{
	uint8_t buf[256];
	struct dmsg_ring_open_reply reply = { .sq_entries = m->sq_entries,
					      .cq_entries = 2 * m->sq_entries,
					      .arena_bytes =
						      (m->arena_bytes + 4095) / 4096 * 4096 };
	int fds[4] = { -1, -1, -1, -1 }, n;

	f->arena_bytes = reply.arena_bytes;
	fds[0] = dray_memfd_new("arena", f->arena_bytes, false);
	f->arena = map(fds[0], f->arena_bytes);
	reply.ring_bytes = SQES + (uint64_t)m->sq_entries * (DMSG_SQE_SIZE + 2 * DMSG_CQE_SIZE);
	f->ring_bytes = reply.ring_bytes;
	fds[1] = dray_memfd_new("ring", f->ring_bytes, false);
	f->ring = map(fds[1], f->ring_bytes);
	f->sq_entries = m->sq_entries;
	f->sq_head = f->cq_tail = 0;
	*word(f, DMSG_RING_MAGIC) = DMSG_MAGIC_RING;
	*word(f, DMSG_RING_SQ_ENTRIES) = m->sq_entries;
	*word(f, DMSG_RING_CQ_ENTRIES) = 2 * m->sq_entries;
	*word(f, DMSG_RING_SQ_OFFSET) = SQES;
	*word(f, DMSG_RING_CQ_OFFSET) = SQES + m->sq_entries * DMSG_SQE_SIZE;
	*word(f, DMSG_RING_AGENT_SLEEPING) = 1;
	fds[2] = eventfd(0, EFD_CLOEXEC);
	dray_assert(dray_doorbell_new(&f->completion_fd, &fds[3]) == 0);
	f->doorbell_fd = dup(fds[2]);
	f->rings_open++;
	n = dmsg_ring_open_reply_encode(buf, sizeof(buf), id, &reply);
	dray_seqpacket_send(f->conn, buf, (size_t)n, fds, 4);
	for (int i = 0; i < 4; i++)
		dray_close(fds[i]);
}

static int hello(struct fake *f, uint8_t *buf, size_t cap, const struct dmsg_header *h,
		 const uint8_t *body, struct dray_fds *fds)
{
	static const uint32_t newer[] = { [0] = DMSG_HELLO_FLAG_SEGMENTS |
						DMSG_HELLO_FLAG_AGENT_PIDFD,
					  [1] = DMSG_HELLO_FLAG_AGENT_PIDFD,
					  [DMSG_MINOR] = 0 };
	struct dmsg_hello m;
	struct dmsg_hello_reply reply = { .major = DMSG_MAJOR,
					  .minor = version(f),
					  .ops_inline_max = f->ops_inline_max,
					  .features = f->features,
					  .session = 7,
					  .incarnation = f->incarnation,
					  .segment = { "127.0.0.1:7411", 14 },
					  .version = { "fake", 4 } };
	int n, fd;

	dray_assert(dmsg_hello_decode(body, h->length, &m, NULL) == 0);
	f->hellos++;
	f->last_hello_flags = m.flags;
	dray_assert(fds->n == (m.flags & DMSG_HELLO_FLAG_PIDFD ? 1 : 0));
	if (m.flags & newer[version(f)]) {
		fake_send_error(f, h->request_id, DRAY_E_UNSUPPORTED, "flags has unknown bits");
		fake_hang_up(f);
		return 0;
	}
	memset(reply.agent_id, f->agent_id, sizeof(reply.agent_id));
	if (!f->process || !(m.flags & DMSG_HELLO_FLAG_AGENT_PIDFD))
		return dmsg_hello_reply_encode(buf, cap, h->request_id, &reply);
	reply.flags = DMSG_HELLO_REPLY_FLAG_PIDFD;
	n = dmsg_hello_reply_encode(buf, cap, h->request_id, &reply);
	fd = (int)syscall(SYS_pidfd_open, f->process, 0);
	dray_seqpacket_send(f->conn, buf, (size_t)n, &fd, 1);
	dray_close(fd);
	return 0;
}

static void region_add(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		       struct dray_fds *fds)
{
	struct dmsg_region_add_reply reply = { .region = ++f->next_handle };
	int fd dray_auto_close = -1;
	uint8_t buf[256];
	int n;

	dray_assert(dmsg_region_add_decode(body, h->length, &f->last_add, NULL) == 0);
	f->last_add_fds = fds->n;
	for (uint32_t i = 0; i < f->last_add.extents.n; i++) {
		struct dmsg_extent e;

		dmsg_extent_get(f->last_add.extents.p + i * DMSG_EXTENT_SIZE, &e);
		if (i < DRAY_ARRAY_SIZE(f->last_extents))
			f->last_extents[i] = e;
		reply.length += e.length;
		if (e.kind == DMSG_KIND_POOL)
			fd = dray_memfd_new("pool", e.length, false);
		else if (e.kind == DMSG_KIND_CUDA_IPC)
			dray_assert((e.fd_index + 1U) * 64 <= f->last_add.handles.n);
		else
			dray_assert(e.fd_index < fds->n);
	}
	memcpy(f->last_device, f->last_add.device.p, f->last_add.device.n);
	f->last_device[f->last_add.device.n] = '\0';
	memcpy(f->last_allocations, f->last_add.allocations.p,
	       dray_min(f->last_add.allocations.n * sizeof(uint64_t), sizeof(f->last_allocations)));
	memcpy(f->last_handles, f->last_add.handles.p,
	       dray_min((size_t)f->last_add.handles.n, sizeof(f->last_handles)));
	n = dmsg_region_add_reply_encode(buf, sizeof(buf), h->request_id, &reply);
	dray_seqpacket_send(f->conn, buf, (size_t)n, &fd, fd >= 0 ? 1 : 0);
}

static int transfer(struct fake *f, uint8_t *buf, size_t cap, const struct dmsg_header *h,
		    const uint8_t *body)
{
	struct dmsg_transfer m;
	struct dmsg_transfer_done done = { .status = f->transfer_status,
					   .transport = DMSG_TRANSPORT_TCP };

	dray_assert(dmsg_transfer_decode(body, h->length, &m, NULL) == 0);
	f->last_transfer = h->request_id;
	f->last_transfer_on_ring = false;
	f->last_transfer_in_arena = m.flags & DMSG_TRANSFER_FLAG_ARENA;
	f->last_transfer_ops = f->last_transfer_in_arena ? m.arena_ops : m.ops.n;
	f->all_ops += f->last_transfer_ops;
	dmsg_op_get((f->last_transfer_in_arena ? f->arena + m.arena_offset : m.ops.p) +
			    (f->last_transfer_ops - 1) * DMSG_OP_SIZE,
		    &f->last_op);
	f->last_payload_n = m.notify.n;
	memcpy(f->last_payload, m.notify.p, m.notify.n);
	if (f->hold_transfers)
		return 0;
	if (done.status)
		done.message = (struct dray_str){ "the fake says so", 16 };
	return dmsg_transfer_done_encode(buf, cap, h->request_id, &done);
}

static void answer(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		   struct dray_fds *fds)
{
	uint8_t buf[1024];
	uint8_t token[40];
	struct dmsg_ring_open open;
	uint64_t id = h->request_id;
	int n = 0;

	memset(token, 0x5a, sizeof(token));
	switch (h->type) {
	case DMSG_HELLO:
		n = hello(f, buf, sizeof(buf), h, body, fds);
		break;
	case DMSG_RING_OPEN:
		dray_assert(dmsg_ring_open_decode(body, h->length, &open, NULL) == 0);
		ring_open(f, id, &open);
		break;
	case DMSG_REGION_ADD:
		region_add(f, h, body, fds);
		break;
	case DMSG_REGION_REMOVE:
		n = dmsg_region_remove_reply_encode(buf, sizeof(buf), id,
						    &(struct dmsg_region_remove_reply){});
		break;
	case DMSG_REGION_EXPORT:
		n = dmsg_region_export_reply_encode(
			buf, sizeof(buf), id,
			&(struct dmsg_region_export_reply){ ++f->next_handle,
							    { token, sizeof(token) } });
		break;
	case DMSG_REGION_REVOKE:
		n = dmsg_region_revoke_reply_encode(buf, sizeof(buf), id,
						    &(struct dmsg_region_revoke_reply){ 1 });
		break;
	case DMSG_REMOTE_IMPORT:
		n = dmsg_remote_import_reply_encode(
			buf, sizeof(buf), id,
			&(struct dmsg_remote_import_reply){
				++f->next_handle, 1 << 20, DMSG_ACCESS_ALL, DMSG_TRANSPORT_LOCAL });
		break;
	case DMSG_REMOTE_RELEASE:
		n = dmsg_remote_release_reply_encode(buf, sizeof(buf), id,
						     &(struct dmsg_remote_release_reply){});
		break;
	case DMSG_NOTIFY:
		n = dmsg_notify_reply_encode(buf, sizeof(buf), id, &(struct dmsg_notify_reply){});
		break;
	case DMSG_TRANSFER:
		n = transfer(f, buf, sizeof(buf), h, body);
		break;
	case DMSG_TRANSFER_CANCEL:
		fake_send_error(f, id, 10, "no such transfer");
		break;
	default:
		dray_assert(!"a message that no client sends");
	}
	if (n)
		fake_send(f, n, buf);
}

/* Receives one message; returns true if there was one. */
static bool receive(struct fake *f)
{
	static uint8_t buf[DMSG_MESSAGE_MAX];
	bool short_data, short_fds;
	struct dmsg_header h;
	struct dray_fds fds;
	ssize_t n = dray_seqpacket_recv(f->conn, buf, sizeof(buf), &fds, &short_data, &short_fds);

	if (n == -EAGAIN)
		return false;
	if (n <= 0) {
		fake_hang_up(f);
		return false;
	}
	dray_assert(!short_data && !short_fds);
	dray_assert(dmsg_header_decode(buf, (size_t)n, &h, NULL) == 0);
	dray_assert(dmsg_packet_check(&h, (size_t)n, NULL) == 0);
	if (f->types_n < FAKE_LOG_MAX)
		f->types[f->types_n++] = h.type;
	if (!f->hook || !f->hook(f, &h, buf + DMSG_HEADER_SIZE, &fds))
		answer(f, &h, buf + DMSG_HEADER_SIZE, &fds);
	dray_fds_close(&fds);
	return true;
}

/* Runs the function of fake_do() after all messages that were sent before the call. */
static void run_fn(struct fake *f)
{
	while (f->conn >= 0 && receive(f))
		;
	entries(f);
	pthread_mutex_lock(&f->lock);
	if (f->fn) {
		f->fn(f, f->fn_arg);
		f->fn = NULL;
		pthread_cond_broadcast(&f->done_cond);
	}
	pthread_mutex_unlock(&f->lock);
}

static void *serve(void *arg)
{
	struct fake *f = arg;
	uint64_t count;

	while (!__atomic_load_n(&f->stop, __ATOMIC_ACQUIRE)) {
		struct pollfd p[4] = { { f->wake_fd, POLLIN, 0 },
				       { f->conn < 0 ? f->listen_fd : -1, POLLIN, 0 },
				       { f->conn, POLLIN, 0 },
				       { f->doorbell_fd, POLLIN, 0 } };

		entries(f);
		if (poll(p, 4, -1) <= 0)
			continue;
		if (p[0].revents && read(f->wake_fd, &count, sizeof(count)) > 0)
			run_fn(f);
		if (p[1].revents & POLLIN) {
			f->conn = accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
			f->connections++;
		}
		if (p[3].revents & POLLIN && f->doorbell_fd >= 0 &&
		    read(f->doorbell_fd, &count, sizeof(count)) > 0)
			f->doorbells++;
		if (p[2].revents && f->conn >= 0)
			receive(f);
	}
	return NULL;
}

void fake_start(struct fake *f)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	if (!f->incarnation)
		f->incarnation = 1;
	if (!f->agent_id)
		f->agent_id = 0xa9;
	if (!f->ops_inline_max)
		f->ops_inline_max = DMSG_OPS_INLINE_MAX;
	f->next_handle = 100;
	f->conn = f->doorbell_fd = f->completion_fd = -1;
	snprintf(f->dir, sizeof(f->dir), "/tmp/dray-test-XXXXXX");
	dray_assert(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/sock", f->dir);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", f->path);
	f->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	dray_assert(bind(f->listen_fd, (struct sockaddr *)&a, sizeof(a)) == 0);
	dray_assert(listen(f->listen_fd, 16) == 0);
	f->wake_fd = eventfd(0, EFD_CLOEXEC);
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->done_cond, NULL);
	dray_assert(pthread_create(&f->thread, NULL, serve, f) == 0);
}

static void wake(struct fake *f)
{
	uint64_t one = 1;

	dray_assert(write(f->wake_fd, &one, sizeof(one)) == sizeof(one));
}

void fake_do(struct fake *f, fake_fn fn, void *arg)
{
	pthread_mutex_lock(&f->lock);
	f->fn = fn;
	f->fn_arg = arg;
	wake(f);
	while (f->fn)
		pthread_cond_wait(&f->done_cond, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

void fake_stop(struct fake *f)
{
	__atomic_store_n(&f->stop, true, __ATOMIC_RELEASE);
	wake(f);
	pthread_join(f->thread, NULL);
	fake_hang_up(f);
	dray_close(f->listen_fd);
	dray_close(f->wake_fd);
	unlink(f->path);
	rmdir(f->dir);
	pthread_mutex_destroy(&f->lock);
	pthread_cond_destroy(&f->done_cond);
}

struct counting {
	uint16_t type;
	uint32_t n;
};

static void do_count(struct fake *f, void *arg)
{
	struct counting *c = arg;

	for (uint32_t i = 0; i < f->types_n; i++)
		c->n += f->types[i] == c->type;
}

uint32_t fake_count(struct fake *f, uint16_t type)
{
	struct counting c = { .type = type };

	fake_do(f, do_count, &c);
	return c.n;
}

void fake_new_process(struct fake *f, void *arg)
{
	f->process = fork();
	dray_assert(f->process >= 0);
	if (f->process)
		return;
	/* without the parent's descriptors, of which the socket is one */
	for (int fd = 3; fd < 256; fd++)
		close(fd);
	for (;;)
		pause();
}

void fake_end_process(struct fake *f)
{
	if (f->process <= 0)
		return;
	kill(f->process, SIGKILL);
	waitpid(f->process, NULL, 0);
	f->process = 0;
}
