/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a client to a real worker, valid and invalid. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/worker/internal.h"
#include "lib/time.h"
#include "lib/err.h"
#include "lib/wake.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/worker_parts.h"
#include "tests/unit/worker_rig.h"

/* There is no memory for descriptors; and how often that was found out. */
static _Atomic bool no_packets;
static _Atomic unsigned n_refused;

struct packet *__real_packet_new(uint32_t capacity, unsigned n_fds);
struct packet *__wrap_packet_new(uint32_t capacity, unsigned n_fds);

struct packet *__wrap_packet_new(uint32_t capacity, unsigned n_fds)
{
	if (!n_fds || !no_packets)
		return __real_packet_new(capacity, n_fds);
	n_refused++;
	return NULL;
}

static int setup(void **state)
{
	struct wrig *r = malloc(sizeof(*r));

	assert_non_null(r);
	wrig_init(r, 8, 1 << 16);
	*state = r;
	return 0;
}

static int teardown(void **state)
{
	struct wrig *r = *state;

	wrig_deinit(r);
	assert_int_equal(r->shared.own.transfers, 0);
	free(r);
	return 0;
}

struct reply {
	struct dmsg_header h;
	uint32_t code; /* of error or transfer_done */
};

/* Receives the next message from the agent; type 0 at end of file. */
static struct reply next(struct wrig *r)
{
	static uint8_t buf[DMSG_MESSAGE_MAX];
	struct pollfd p = { .fd = r->client, .events = POLLIN };
	struct dray_err err = DRAY_ERR_NULL;
	struct reply reply = { 0 };
	ssize_t n;

	assert_int_equal(poll(&p, 1, 20000), 1);
	n = recv(r->client, buf, sizeof(buf), 0);
	if (n <= 0)
		return reply;
	assert_int_equal(dmsg_header_decode(buf, (size_t)n, &reply.h, &err), 0);
	if (reply.h.type == DMSG_ERROR) {
		struct dmsg_error m;

		assert_int_equal(
			dmsg_error_decode(buf + DMSG_HEADER_SIZE, reply.h.length, &m, &err), 0);
		assert_true(m.message.n > 0);
		reply.code = m.code;
	} else if (reply.h.type == DMSG_TRANSFER_DONE) {
		struct dmsg_transfer_done m;

		assert_int_equal(dmsg_transfer_done_decode(buf + DMSG_HEADER_SIZE, reply.h.length,
							   &m, &err),
				 0);
		reply.code = m.status;
	}
	return reply;
}

static void say(struct wrig *r, const void *p, size_t n)
{
	assert_int_equal(send(r->client, p, n, MSG_NOSIGNAL), (ssize_t)n);
}

static size_t transfer(uint8_t *buf, uint64_t id, uint64_t length, uint16_t flags)
{
	uint8_t op[DMSG_OP_SIZE];
	struct dmsg_transfer m = { .direction = DMSG_DIRECTION_WRITE,
				   .flags = flags,
				   .local = WRIG_REGION_A,
				   .remote = WRIG_REMOTE_B,
				   .wait_region = WRIG_REGION_A,
				   .wait_value = 99,
				   .ops = { op, 1 } };
	int n;

	dmsg_op_put(op, &(struct dmsg_op){ 0, 0, length });
	n = dmsg_transfer_encode(buf, 4096, id, &m);
	assert_true(n > 0);
	return (size_t)n;
}

/* Checks that the session works: a transfer succeeds. */
static void works(struct wrig *r, uint64_t id)
{
	uint8_t buf[4096];
	struct reply reply;

	memset(r->a, (int)id, 64);
	say(r, buf, transfer(buf, id, 64, 0));
	reply = next(r);
	assert_int_equal(reply.h.type, DMSG_TRANSFER_DONE);
	assert_int_equal(reply.h.request_id, id);
	assert_int_equal(reply.code, 0);
	assert_int_equal(r->b[63], (uint8_t)id);
}

static void transfers_succeed(void **state)
{
	struct wrig *r = *state;

	for (uint64_t id = 1; id < 200; id++)
		works(r, id);
}

static void mistakes_with_a_request_id_are_answered(void **state)
{
	struct wrig *r = *state;
	static uint8_t big[DMSG_MESSAGE_MAX + 100];
	uint8_t buf[4096];
	struct reply reply;
	size_t n;
	int size = 1 << 20;

	n = transfer(buf, 1, 64, 0);
	say(r, buf, n - 1);
	reply = next(r);
	assert_int_equal(reply.h.type, DMSG_ERROR);
	assert_int_equal(reply.h.request_id, 1);
	assert_int_equal(reply.code, DRAY_E_TRUNCATED);

	n = transfer(buf, 2, 1 << 17, 0);
	say(r, buf, n);
	reply = next(r);
	assert_int_equal(reply.h.request_id, 2);
	assert_int_equal(reply.code, DRAY_E_RANGE);

	/* unknown flags in the header */
	n = transfer(buf, 3, 64, 0);
	buf[8] = 1;
	say(r, buf, n);
	reply = next(r);
	assert_int_equal(reply.h.request_id, 3);
	assert_int_equal(reply.code, DRAY_E_UNSUPPORTED);

	setsockopt(r->client, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	memset(big, 0, sizeof(big));
	dmsg_header_put(big, &(struct dmsg_header){ .magic = DMSG_MAGIC,
						    .major = DMSG_MAJOR,
						    .minor = DMSG_MINOR,
						    .type = DMSG_TRANSFER,
						    .length = sizeof(big) - DMSG_HEADER_SIZE,
						    .request_id = 4 });
	say(r, big, sizeof(big));
	reply = next(r);
	assert_int_equal(reply.h.request_id, 4);
	assert_int_equal(reply.code, DRAY_E_TOO_LARGE);
	works(r, 5);
}

static void a_used_id_is_refused(void **state)
{
	struct wrig *r = *state;
	uint8_t buf[4096];
	struct reply reply;

	say(r, buf, transfer(buf, 9, 64, DMSG_TRANSFER_FLAG_WAIT));
	say(r, buf, transfer(buf, 9, 64, 0));
	reply = next(r);
	assert_int_equal(reply.h.type, DMSG_ERROR);
	assert_int_equal(reply.code, DRAY_E_DUPLICATE_ID);
	say(r, buf,
	    (size_t)dmsg_transfer_cancel_encode(buf, sizeof(buf), 10,
						&(struct dmsg_transfer_cancel){ 9 }));
	reply = next(r);
	assert_int_equal(reply.h.type, DMSG_TRANSFER_DONE);
	assert_int_equal(reply.h.request_id, 9);
	assert_int_equal(reply.code, DRAY_E_CANCELLED);
	reply = next(r);
	assert_int_equal(reply.h.type, DMSG_TRANSFER_CANCEL_REPLY);
	assert_int_equal(reply.h.request_id, 10);
	say(r, buf,
	    (size_t)dmsg_transfer_cancel_encode(buf, sizeof(buf), 11,
						&(struct dmsg_transfer_cancel){ 9 }));
	reply = next(r);
	assert_int_equal(reply.h.request_id, 11);
	assert_int_equal(reply.code, DRAY_E_NOT_FOUND);
	works(r, 9);
}

static void other_requests_go_to_the_control_thread_within_their_limit(void **state)
{
	struct wrig *r = *state;
	uint8_t buf[4096];
	struct reply reply;

	for (uint64_t id = 1; id <= 5; id++)
		say(r, buf,
		    (size_t)dmsg_remote_release_encode(buf, sizeof(buf), id,
						       &(struct dmsg_remote_release){ id }));
	/* the fifth exceeds requests_max */
	reply = next(r);
	assert_int_equal(reply.h.request_id, 5);
	assert_int_equal(reply.code, DRAY_E_BUSY);
	for (uint64_t id = 1; id <= 4; id++) {
		struct event ev = wrig_event(r);
		struct packet *p = packet_new(4096, 0);

		assert_int_equal(ev.type, EVENT_REQUEST);
		packet_free(ev.packet);
		p->length = (uint32_t)dmsg_remote_release_reply_encode(p->data, 4096, id, NULL);
		worker_post(r->pool.workers[0], &(struct command){ .type = COMMAND_SEND,
								   .session = WRIG_SESSION,
								   .id = id,
								   .packet = p });
		reply = next(r);
		assert_int_equal(reply.h.type, DMSG_REMOTE_RELEASE_REPLY);
		assert_int_equal(reply.h.request_id, id);
	}
	works(r, 1);
}

/* The session has ended, and the control thread gets the message that is sent when nothing of it can be touched any more. */
static void ended_with(struct wrig *r, uint32_t code)
{
	struct event ev = wrig_event(r);
	struct dmsg_header h;
	struct dmsg_error m;

	assert_int_equal(ev.type, EVENT_SESSION_EOF);
	assert_int_equal(ev.code, code);
	assert_non_null(ev.packet);
	assert_int_equal(dmsg_header_decode(ev.packet->data, ev.packet->length, &h, NULL), 0);
	assert_int_equal(h.type, DMSG_ERROR);
	assert_int_equal(h.request_id, 0);
	assert_int_equal(dmsg_error_decode(ev.packet->data + DMSG_HEADER_SIZE, h.length, &m, NULL),
			 0);
	assert_int_equal(m.code, code);
	assert_true(m.message.n > 0);
	packet_free(ev.packet);
	/* the worker has sent nothing, and left the socket open */
	assert_int_equal(recv(r->client, &(char){ 0 }, 1, MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
}

static void garbage_ends_the_session_with_an_error(void **state)
{
	struct wrig *r = *state;

	say(r, "GET / HTTP/1.1\r\nHost: dray\r\n\r\n", 31);
	ended_with(r, DRAY_E_BAD_MAGIC);
}

static void an_invalid_ring_ends_the_session(void **state)
{
	struct wrig *r = *state;
	uint64_t one = 1;

	works(r, 1);
	__atomic_store_n((uint32_t *)(void *)(r->ring.ring + DMSG_RING_SQ_TAIL), 1000u,
			 __ATOMIC_SEQ_CST);
	assert_int_equal(write(r->doorbell, &one, sizeof(one)), sizeof(one));
	ended_with(r, DRAY_E_PROTOCOL);
}

/* Closing a session ends its transfers, but tells the client nothing: RDMA devices may go on with their memory. */
static void a_closed_session_is_silent(void **state)
{
	struct wrig *r = *state;
	uint32_t *tail = (void *)(r->ring.ring + DMSG_RING_CQ_TAIL);
	uint8_t buf[4096];
	struct event ev;

	say(r, buf, transfer(buf, 9, 64, DMSG_TRANSFER_FLAG_WAIT));
	works(r, 10);
	worker_post(r->pool.workers[0], &(struct command){ .type = COMMAND_SESSION_CLOSE,
							   .session = WRIG_SESSION,
							   .code = DRAY_E_SESSION_CLOSED });
	ev = wrig_event(r);
	assert_int_equal(ev.type, EVENT_SESSION_GONE);
	assert_int_equal(r->shared.own.transfers, 0);
	assert_int_equal(__atomic_load_n(tail, __ATOMIC_SEQ_CST), 0);
	assert_int_equal(recv(r->client, buf, sizeof(buf), MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(close(ev.fd), 0);
	assert_int_equal(recv(r->client, buf, sizeof(buf), MSG_DONTWAIT), 0);
}

static void the_end_of_a_client_ends_its_transfers(void **state)
{
	struct wrig *r = *state;
	uint8_t buf[4096];

	say(r, buf, transfer(buf, 9, 64, DMSG_TRANSFER_FLAG_WAIT));
	works(r, 10);
	assert_int_equal(r->shared.own.transfers, 1);
	close(r->client);
	r->client = -1;
	assert_int_equal(wrig_event(r).type, EVENT_SESSION_EOF);
	assert_int_equal(r->shared.own.transfers, 0);
}

static uint32_t cancel(struct wrig *r, dray_handle session, uint64_t request, uint64_t call)
{
	worker_post(r->pool.workers[0], &(struct command){ .type = COMMAND_CANCEL,
							   .session = session,
							   .id = request,
							   .handle = call });
	for (;;) {
		struct event ev = wrig_event(r);

		if (ev.type != EVENT_CANCELLED)
			continue;
		assert_int_equal(ev.handle, call);
		assert_int_equal(ev.id, ev.code == DRAY_E_CANCELLED);
		return ev.code;
	}
}

static void an_operator_cancels_a_transfer(void **state)
{
	struct wrig *r = *state;
	uint8_t buf[4096];
	struct reply reply;

	assert_int_equal(cancel(r, WRIG_SESSION, 9, 1), DRAY_E_NOT_FOUND);
	assert_int_equal(cancel(r, WRIG_SESSION + 1, 9, 2), DRAY_E_NOT_FOUND);
	say(r, buf, transfer(buf, 9, 64, DMSG_TRANSFER_FLAG_WAIT));
	works(r, 10);
	assert_int_equal(cancel(r, WRIG_SESSION, 9, 3), DRAY_E_CANCELLED);
	reply = next(r);
	assert_int_equal(reply.h.request_id, 9);
	assert_int_equal(reply.code, DRAY_E_CANCELLED);
	assert_int_equal(cancel(r, WRIG_SESSION, 9, 4), DRAY_E_NOT_FOUND);
	works(r, 11);
}

static struct snapshot *snapshot(struct wrig *r, bool ended, uint32_t cap)
{
	struct snapshot *s = snapshot_new(NULL, ended, cap);

	worker_post(r->pool.workers[0],
		    &(struct command){ .type = COMMAND_SNAPSHOT, .snapshot = s });
	while (wrig_event(r).type != EVENT_SNAPSHOT)
		;
	return s;
}

static void a_snapshot_counts_transfers_beyond_its_room(void **state)
{
	struct wrig *r = *state;
	uint8_t buf[4096];
	struct snapshot *s;

	works(r, 1);
	say(r, buf, transfer(buf, 2, 64, DMSG_TRANSFER_FLAG_WAIT));
	say(r, buf, transfer(buf, 3, 100, DMSG_TRANSFER_FLAG_WAIT));
	works(r, 4);
	s = snapshot(r, false, 1);
	assert_int_equal(s->n, 1);
	assert_int_equal(s->in_flight, 2);
	assert_int_equal(s->bytes_left, 164);
	/* both have the same deadline; the first one is reported */
	assert_int_equal(s->first_due.record.request, 2);
	assert_true(s->first_due.left_ns > 0);
	free(s);
	s = snapshot(r, false, 0);
	assert_int_equal(s->n, 0);
	assert_int_equal(s->in_flight, 2);
	assert_int_equal(s->first_due.record.request, 2);
	free(s);
	s = snapshot(r, true, 10);
	assert_int_equal(s->n, 2);
	assert_int_equal(s->records[0].request, 1);
	assert_int_equal(s->records[1].request, 4);
	assert_int_equal(s->records[1].bytes_done, 64);
	assert_int_equal(s->records[1].transport, DMSG_TRANSPORT_LOCAL);
	free(s);
	s = snapshot(r, true, 1);
	assert_int_equal(s->n, 1);
	assert_int_equal(s->records[0].request, 4);
	free(s);
}

static void a_new_configuration_is_applied(void **state)
{
	const struct data_config ours = { .slice_size = 1 << 20,
					  .slice_timeout_ns = DRAY_NS_PER_SEC,
					  .deadline_ns = DRAY_NS_PER_MS,
					  .slices_per_session = 64,
					  .report_all = true };
	struct data_config *cfg = malloc(sizeof(*cfg));
	struct wrig *r = *state;
	uint8_t buf[4096];
	struct reply reply;
	struct event ev;

	*cfg = ours;
	worker_post(r->pool.workers[0], &(struct command){ .type = COMMAND_CONFIG, .config = cfg });
	free(snapshot(r, false, 1));
	say(r, buf, transfer(buf, 1, 64, DMSG_TRANSFER_FLAG_WAIT));
	reply = next(r);
	assert_int_equal(reply.code, DRAY_E_DEADLINE);
	do
		ev = wrig_event(r);
	while (ev.type != EVENT_REPORT);
	assert_false(ev.report->slow);
	assert_int_equal(ev.report->record.request, 1);
	assert_int_equal(ev.report->record.code, DRAY_E_DEADLINE);
	assert_true(ev.report->record.phase_ns[XFER_PHASE_WAIT] >= DRAY_NS_PER_MS);
	assert_int_equal(record_duration(&ev.report->record),
			 ev.report->record.phase_ns[XFER_PHASE_WAIT]);
	free(ev.report);
}

/* A request that has arrived is read as soon as there is memory, without another event. */
static void a_request_waits_for_memory(void **state)
{
	struct wrig *r = *state;
	uint8_t buf[4096];
	unsigned n = 0;

	no_packets = true;
	say(r, buf, transfer(buf, 1, 64, 0));
	while (n_refused < 3 && n++ < 20000)
		poll(NULL, 0, 1);
	no_packets = false;
	assert_true(n_refused >= 3);
	assert_int_equal(next(r).h.request_id, 1);
	works(r, 2);
}

/* A worker knows whether commands wait for room in its ring. */
static void late_commands_are_announced(void **state)
{
	struct data_config cfg = worker_part_config(0);
	struct worker_pool p;
	struct event ev;
	struct worker *w;

	assert_int_equal(pool_new(&p, 1, &cfg, 8, NULL), 0);
	w = p.workers[0];
	for (unsigned i = 0; i < 1024; i++)
		worker_post(w, &(struct command){ .type = COMMAND_RESUME });
	assert_false(w->core.commands_late);
	worker_post(w, &(struct command){ .type = COMMAND_RESUME });
	assert_true(w->core.commands_late);
	assert_int_equal(pool_start(&p, NULL), 0);
	for (unsigned n = 0; w->core.commands_late && n < 20000; n++) {
		assert_false(worker_next_event(w, &ev));
		poll(NULL, 0, 1);
	}
	assert_false(w->core.commands_late);
	assert_true(pool_stop(&p));
}

/* Unless its command finds no room: frames that name the grant wake the worker that has them. */
static void a_grant_wakes_no_worker_up(void **state)
{
	struct grant_view grant = { .o = { .kind = OBJECT_GRANT, .handle = 1 } };
	struct region_view region = { .o = { .kind = OBJECT_REGION, .handle = 1 } };
	struct data_config cfg = worker_part_config(0);
	struct worker_pool p;
	struct worker *w;

	assert_int_equal(pool_new(&p, 1, &cfg, 8, NULL), 0);
	w = p.workers[0];
	pool_publish(&p, &grant.o);
	assert_false(dray_spsc_empty(&w->commands));
	assert_false(dray_wake_clear(w->command_fd));
	pool_publish(&p, &region.o);
	assert_true(dray_wake_clear(w->command_fd));
	for (unsigned i = 0; i < 1022; i++)
		pool_publish(&p, &grant.o);
	assert_false(dray_wake_clear(w->command_fd));
	pool_publish(&p, &grant.o);
	assert_true(dray_wake_clear(w->command_fd));
	assert_true(pool_stop(&p));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(transfers_succeed, setup, teardown),
		cmocka_unit_test_setup_teardown(mistakes_with_a_request_id_are_answered, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_used_id_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(
			other_requests_go_to_the_control_thread_within_their_limit, setup,
			teardown),
		cmocka_unit_test_setup_teardown(garbage_ends_the_session_with_an_error, setup,
						teardown),
		cmocka_unit_test_setup_teardown(an_invalid_ring_ends_the_session, setup, teardown),
		cmocka_unit_test_setup_teardown(a_closed_session_is_silent, setup, teardown),
		cmocka_unit_test_setup_teardown(the_end_of_a_client_ends_its_transfers, setup,
						teardown),
		cmocka_unit_test_setup_teardown(an_operator_cancels_a_transfer, setup, teardown),
		cmocka_unit_test_setup_teardown(a_snapshot_counts_transfers_beyond_its_room, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_new_configuration_is_applied, setup, teardown),
		cmocka_unit_test_setup_teardown(a_request_waits_for_memory, setup, teardown),
		cmocka_unit_test(late_commands_are_announced),
		cmocka_unit_test(a_grant_wakes_no_worker_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
