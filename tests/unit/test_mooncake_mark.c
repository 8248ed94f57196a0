/* SPDX-License-Identifier: Apache-2.0 */
/* When the head of a request wakes the worker: an engine's end of a data connection, the other end, and a clock of the test's own. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transport/mooncake/mooncake.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"
#include "tests/unit/core_rig.h"

#define BYTES 65536u
#define BASE UINT64_C(0x7f0000000000)
#define SMALL 100u
#define MARK (MOONCAKE_REQUEST_BYTES + 1)
#define MS DRAY_NS_PER_MS
/* Small writes in a row that set the mark, at first. */
#define WRITES 16

struct lab {
	struct rig rig;
	struct rig_region region;
	struct grant_view grant;
	struct mooncake *m;
	int fd, far; /* the engine's end, and the agent's */
};

static struct lab *lab;
static uint8_t bytes[BYTES];

static void pair(int *ret_near, int *ret_far)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &n), 0);
	*ret_near = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(*ret_near, (struct sockaddr *)&at, sizeof(at)), 0);
	*ret_far = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	assert_true(*ret_far >= 0);
	assert_int_equal(setsockopt(*ret_near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
	close(listener);
}

static int setup(void **state)
{
	struct core *c;

	lab = calloc(1, sizeof(*lab));
	assert_non_null(lab);
	c = &lab->rig.core;
	rig_init(&lab->rig);
	c->cfg.mooncake_stall_ns = 60 * DRAY_NS_PER_SEC;
	c->cfg.mooncake_idle_ns = 60 * DRAY_NS_PER_SEC;
	assert_int_equal(transport_mooncake.init(c, &c->transport_state[1]), 0);
	c->transports[c->n_transports++] = &transport_mooncake;
	lab->m = c->transport_state[1];
	rig_region_init(&lab->rig, &lab->region, 1ull << 32 | 1, 5, BYTES, 1);
	lab->grant = (struct grant_view){ .o = { .kind = OBJECT_GRANT,
						 .handle = 1ull << 32 | 2,
						 .length = BYTES,
						 .access = DMSG_ACCESS_ALL },
					  .peer = MOONCAKE_PEER,
					  .region = 1ull << 32 | 1,
					  .mooncake = BASE };
	object_publish(c, &lab->grant.o);
	transport_mooncake.publish(c, lab->m, &lab->grant.o);
	pair(&lab->fd, &lab->far);
	mooncake_conn_adopt(lab->m, 1, lab->far);
	for (unsigned i = 0; i < BYTES; i++)
		bytes[i] = (uint8_t)(i * 7 >> 2);
	return 0;
}

static int teardown(void **state)
{
	struct core *c = &lab->rig.core;

	close(lab->fd);
	transport_mooncake.deinit(c, lab->m);
	rig_deinit(&lab->rig);
	rig_region_deinit(&lab->region);
	free(lab);
	return 0;
}

static struct mooncake_conn *conn(void)
{
	return dray_list_first(&lab->m->conns, struct mooncake_conn, link);
}

static int mark(void)
{
	int value = 0;
	socklen_t n = sizeof(value);

	assert_int_equal(getsockopt(lab->far, SOL_SOCKET, SO_RCVLOWAT, &value, &n), 0);
	return value;
}

/* Without waiting. The timer may have something to tell at any time. */
static void look(void)
{
	while (loop_turn(&lab->rig.core.loop, 0) > 0)
		continue;
}

/* The socket has woken the worker, or would have. */
static bool woken(void)
{
	look();
	return conn()->readable;
}

static void work(void)
{
	struct core *c = &lab->rig.core;

	do {
		look();
		while (transport_mooncake.progress(c, lab->m))
			continue;
	} while (transport_mooncake.tick(c, lab->m) <= c->now_ns);
}

static void later(int64_t ns)
{
	lab->rig.core.now_ns += ns;
}

static void feed(const void *p, size_t n)
{
	assert_int_equal(send(lab->fd, p, n, MSG_NOSIGNAL), n);
}

static void begin(bool write, uint64_t at, uint64_t length)
{
	uint8_t head[MOONCAKE_REQUEST_BYTES] = { 0 };

	for (unsigned i = 0; i < 8; i++) {
		head[i] = (uint8_t)(length >> 8 * i);
		head[8 + i] = (uint8_t)((BASE + at) >> 8 * i);
	}
	head[16] = write;
	feed(head, sizeof(head));
}

static void write_at(uint64_t at, uint64_t length)
{
	begin(true, at, length);
	feed(bytes + at, length);
	work();
	assert_memory_equal(rig_at(&lab->region, at), bytes + at, length);
}

static void small_writes(unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		write_at(i % 64 * SMALL, SMALL);
}

static void read_back(uint64_t length)
{
	uint8_t got[BYTES];

	assert_int_equal(recv(lab->fd, got, length, MSG_DONTWAIT), length);
	assert_memory_equal(got, bytes, length);
}

/* The timer's descriptor has told that it expired, in the machine's time. */
static void await_timer(void)
{
	assert_true(lab->m->heads_timed);
	while (lab->m->heads_timed)
		assert_int_equal(loop_turn(&lab->rig.core.loop, 60 * DRAY_NS_PER_SEC), 1);
}

/* Its time is over by the test's clock, too. */
static void expire(void)
{
	await_timer();
	later(MS);
	work();
}

/* The socket has told all that it has. */
static void settle(void)
{
	work();
	assert_false(woken());
}

static void test_after_small_writes(void **state)
{
	small_writes(WRITES - 1);
	assert_int_equal(mark(), 1);
	small_writes(1);
	assert_int_equal(mark(), MARK);
	settle();
	for (unsigned i = 0; i < 100; i++) {
		begin(true, i * SMALL, SMALL);
		assert_false(woken());
		feed(bytes + i * SMALL, SMALL);
		assert_true(woken());
		work();
		assert_memory_equal(rig_at(&lab->region, i * SMALL), bytes + i * SMALL, SMALL);
		assert_int_equal(mark(), MARK);
	}
}

static void test_at_once(void **state)
{
	for (unsigned i = 0; i < WRITES; i++) {
		begin(true, i * SMALL, SMALL);
		feed(bytes + i * SMALL, SMALL);
	}
	work();
	assert_int_equal(mark(), MARK);
}

/* A writer whose writes come one by one with pauses is never marked, so that it costs neither options nor a timer. */
static void test_slow_writer(void **state)
{
	for (unsigned i = 0; i < 100; i++) {
		write_at(i * SMALL, SMALL);
		assert_int_equal(mark(), 1);
		assert_false(lab->m->heads_timed);
		later(MS);
	}
	/* nor one that pauses at times */
	for (unsigned i = 0; i < 20; i++) {
		small_writes(WRITES - 1);
		assert_int_equal(mark(), 1);
		later(2 * MS);
	}
	assert_false(lab->m->heads_timed);
}

/* A pause ends the mark, and as many writes set it again. */
static void test_pauses(void **state)
{
	for (unsigned i = 0; i < 5; i++) {
		small_writes(WRITES - 1);
		assert_int_equal(mark(), 1);
		small_writes(10);
		assert_int_equal(mark(), MARK);
		expire();
		assert_int_equal(mark(), 1);
		assert_false(lab->m->heads_timed);
		later(10 * MS);
	}
	assert_int_equal(conn()->writes_needed, WRITES);
}

/* As long as writes go on, the timer leaves the mark as it is. */
static void test_timer_while_writing(void **state)
{
	small_writes(WRITES);
	await_timer();
	later(MS / 2);
	small_writes(1);
	assert_int_equal(mark(), MARK);
	assert_true(lab->m->heads_timed);
	await_timer();
	later(MS / 2);
	small_writes(1);
	assert_int_equal(mark(), MARK);
}

static void test_read(void **state)
{
	for (unsigned needed = WRITES; needed <= 64; needed *= 2) {
		small_writes(needed);
		assert_int_equal(mark(), MARK);
		settle();
		begin(false, 0, SMALL);
		assert_false(woken());
		expire();
		read_back(SMALL);
		assert_int_equal(mark(), 1);
		assert_int_equal(conn()->writes_needed, 2 * needed);
		small_writes(2 * needed - 1);
		assert_int_equal(mark(), 1);
		later(MS);
	}
	/* a read that had not to wait */
	begin(false, 0, SMALL);
	work();
	read_back(SMALL);
	assert_int_equal(conn()->writes_needed, 128);
}

/* There is a bound for reads in between, and large writes and refusals leave a mark behind no more. */
static void test_others(void **state)
{
	conn()->writes_needed = 4096;
	small_writes(4096);
	assert_int_equal(mark(), MARK);
	settle();
	begin(false, 0, SMALL);
	expire();
	read_back(SMALL);
	assert_int_equal(conn()->writes_needed, 4096);

	conn()->writes_needed = WRITES;
	later(MS);
	small_writes(WRITES);
	write_at(0, BYTES);
	assert_int_equal(mark(), 1);
	small_writes(WRITES - 1);
	assert_int_equal(mark(), 1);
}

/* A call that meets a missing page behind other bytes returns those: the page is noticed although nothing follows. */
static void test_missing_page(void **state)
{
	uint8_t *page = lab->region.view->extents[0].base + BYTES - 4096;

	begin(true, 0, BYTES);
	work();
	/* in pieces, which the kernel does not put together */
	for (unsigned at = 0; at < BYTES; at += 256)
		feed(bytes + at, 256);
	assert_int_equal(mprotect(page, 4096, PROT_NONE), 0);
	work();
	assert_int_equal(mprotect(page, 4096, PROT_READ | PROT_WRITE), 0);
	assert_int_equal(lab->rig.n_faults, 1);
	assert_true(dray_list_empty(&lab->m->conns));
}

static void test_head_in_pieces(void **state)
{
	uint8_t head[MOONCAKE_REQUEST_BYTES] = { SMALL, [13] = 0x7f };

	small_writes(WRITES);
	settle();
	feed(head, 1);
	assert_false(woken());
	expire();
	assert_int_equal(mark(), 1);
	for (unsigned i = 1; i < sizeof(head); i++) {
		feed(head + i, 1);
		work();
	}
	read_back(SMALL);
}

static void test_head_alone(void **state)
{
	small_writes(WRITES);
	settle();
	begin(true, 1000, 500);
	expire(); /* the payload comes later than that */
	feed(bytes + 1000, 490);
	work();
	assert_memory_equal(rig_at(&lab->region, 1000), bytes + 1000, 490);
	for (unsigned i = 0; i < 10; i++) {
		feed(bytes + 1490 + i, 1);
		work();
	}
	assert_memory_equal(rig_at(&lab->region, 1000), bytes + 1000, 500);
	assert_int_equal(conn()->state, MOONCAKE_HEAD);
}

/* A write of one byte is as long as the mark. */
static void test_one_byte(void **state)
{
	small_writes(WRITES);
	settle();
	begin(true, 5000, 1);
	assert_false(woken());
	feed(bytes + 5000, 1);
	assert_true(woken());
	work();
	assert_int_equal(*rig_at(&lab->region, 5000), bytes[5000]);
}

/* The worker does not sleep before it has looked for the unknown buffer again. */
static void test_refused(void **state)
{
	small_writes(WRITES);
	settle();
	begin(false, BYTES - 1, SMALL);
	assert_false(woken());
	expire();
	assert_null(conn());
	assert_int_equal(lab->rig.n_told, 1);
}

static void test_end(void **state)
{
	small_writes(WRITES);
	settle();
	begin(true, 0, SMALL);
	shutdown(lab->fd, SHUT_WR);
	work();
	assert_null(conn());
	assert_int_equal(lab->rig.n_told, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(test_after_small_writes),
		TEST(test_at_once),
		TEST(test_slow_writer),
		TEST(test_pauses),
		TEST(test_timer_while_writing),
		TEST(test_read),
		TEST(test_others),
		TEST(test_head_in_pieces),
		TEST(test_missing_page),
		TEST(test_head_alone),
		TEST(test_one_byte),
		TEST(test_refused),
		TEST(test_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
