/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory in a complete agent without peers: the control thread, workers, the threads that call the
 * plug-in and those of the fake's queues. Clients have transfers of every path in flight, with short and
 * long lists, while regions come and go, a session dies, or a GPU is lost. Bytes that were reported as
 * moved are in place.
 */
#include <sched.h>

#include "agent/control/gpu/internal.h"
#include "tests/gpu/fake.h"
#include "tests/unit/session_fixture.h"

#define USERS 4
#define GPUS 2
#define PLACES (GPUS + 1)
#define HOST GPUS /* place in host memory; other places are memory of the GPU with their number */
#define FLIGHTS (2 * PLACES)
#define EARLY 4
#define WINDOW (64u << 10)
#define BYTES ((uint64_t)2 * FLIGHTS * WINDOW)
#define ROUNDS 32

struct place {
	int fd;
	uint8_t *memory;
	uint64_t region, remote;
};

/* A transfer from one place's range to another's. */
struct flight {
	uint64_t id;
	const struct place *from, *to;
	uint64_t from_at, to_at;
	uint32_t n, length; /* of pieces, which arrive in reverse order */
	uint32_t code;
};

struct user {
	struct client *c;
	struct place places[PLACES];
	struct flight flights[FLIGHTS];
};

struct world {
	struct lab *lab;
	struct user users[USERS];
	struct gpu_plugin_ops ops;
};

static _Atomic uint64_t announced;

static int notify(struct gpu_queue *q, void (*fn)(void *arg), void *arg)
{
	atomic_fetch_add_explicit(&announced, 1, memory_order_relaxed);
	return gpu_plugin_ops.notify(q, fn, arg);
}

static uint32_t code_of(struct client *c)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_transfer_done done;
	struct dmsg_error error;

	if (c->h.type == DMSG_ERROR) {
		assert_int_equal(dmsg_error_decode(client_body(c), c->h.length, &error, &err), 0);
		return error.code;
	}
	if (c->h.type != DMSG_TRANSFER_DONE)
		return 0;
	assert_int_equal(dmsg_transfer_done_decode(client_body(c), c->h.length, &done, &err), 0);
	return done.status;
}

/* Waits for the answer to a request, and skips ends of transfers. Returns its code. */
static uint32_t answer(struct user *u, uint64_t id)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct client *c = u->c;

	do {
		ssize_t n = client_recv(c);

		assert_true(n > 0);
		assert_int_equal(dmsg_header_decode(c->buf, (size_t)n, &c->h, &err), 0);
		for (unsigned i = 0; i < FLIGHTS; i++)
			if (u->flights[i].id && u->flights[i].id == c->h.request_id) {
				u->flights[i].id = 0;
				u->flights[i].code = code_of(c);
			}
	} while (c->h.request_id != id);
	return code_of(c);
}

static void place_make(struct place *p, unsigned on)
{
	static const char *const names[PLACES] = { "fake-gpu-0", "fake-gpu-1", "host" };

	p->fd = memfd_create(names[on], MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_true(p->fd >= 0);
	assert_int_equal(ftruncate(p->fd, (off_t)BYTES), 0);
	assert_int_equal(fcntl(p->fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	p->memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, p->fd, 0);
	assert_ptr_not_equal(p->memory, MAP_FAILED);
}

static void place_free(struct place *p)
{
	munmap(p->memory, BYTES);
	close(p->fd);
}

/* early: the answer comes before the memory is open. Returns 0 or the error code. */
static uint32_t place_open(struct user *u, unsigned on, bool early)
{
	static const char *const gpus[GPUS] = { "GPU-00000000-0000-4000-8000-000000000000",
						"GPU-00000000-0000-4000-8000-000000000001" };
	struct place *p = &u->places[on];
	uint8_t wire[DMSG_EXTENT_SIZE];
	struct dmsg_region_add m = { .access = DMSG_ACCESS_ALL,
				     .name = text("kv"),
				     .extents = { wire, 1 } };
	struct dmsg_extent e = { .kind = DMSG_KIND_MEMFD, .length = BYTES };
	struct dmsg_region_add_reply added;
	struct dray_err err = DRAY_ERR_NULL;
	uint32_t code;

	if (on != HOST) {
		e.kind = DMSG_KIND_CUDA_VMM;
		m.device = text(gpus[on]);
		m.flags = early ? 0 : DMSG_REGION_FLAG_WAIT;
	}
	dmsg_extent_put(wire, &e);
	CLIENT_SEND_FDS(u->c, region_add, &m, &p->fd, 1);
	code = answer(u, u->c->id);
	if (code)
		return code;
	assert_int_equal(
		dmsg_region_add_reply_decode(client_body(u->c), u->c->h.length, &added, &err), 0);
	p->region = added.region;
	return 0;
}

static void place_import(struct user *u, unsigned on)
{
	struct place *p = &u->places[on];
	struct dmsg_region_export export = { .region = p->region, .access = DMSG_ACCESS_ALL };
	struct dmsg_region_export_reply exported;
	struct dmsg_remote_import_reply imported;
	struct dray_err err = DRAY_ERR_NULL;
	struct token t;

	export.length = BYTES;
	CLIENT_SEND(u->c, region_export, &export);
	assert_int_equal(answer(u, u->c->id), 0);
	assert_int_equal(dmsg_region_export_reply_decode(client_body(u->c), u->c->h.length,
							 &exported, &err),
			 0);
	t.n = exported.token.n;
	memcpy(t.wire, exported.token.p, t.n);
	client_send_import(u->c, &t);
	assert_int_equal(answer(u, u->c->id), 0);
	assert_int_equal(dmsg_remote_import_reply_decode(client_body(u->c), u->c->h.length,
							 &imported, &err),
			 0);
	p->remote = imported.remote;
}

static void place_close(struct user *u, unsigned on)
{
	CLIENT_SEND(u->c, region_remove, &(struct dmsg_region_remove){ u->places[on].region });
	assert_int_equal(answer(u, u->c->id), 0);
}

static void place_anew(struct user *u, unsigned on)
{
	place_close(u, on);
	assert_int_equal(place_open(u, on, false), 0);
	place_import(u, on);
}

/* The region's memory is being opened: transfers from and to host memory wait for that. */
static void place_use_early(struct user *u, unsigned on)
{
	struct dmsg_transfer m = { .local = u->places[on].region,
				   .remote = u->places[HOST].remote };
	uint8_t ops[DMSG_OP_SIZE];
	uint64_t first = 0;

	dmsg_op_put(ops, &(struct dmsg_op){ 0, 0, BYTES });
	m.ops = (struct dray_vec){ ops, 1 };
	for (unsigned i = 0; i < EARLY; i++) {
		m.direction = i % 2 ? DMSG_DIRECTION_READ : DMSG_DIRECTION_WRITE;
		m.class = DMSG_CLASS_BULK;
		CLIENT_SEND(u->c, transfer, &m);
		first = first ? first : u->c->id;
		u->flights[i] = (struct flight){ .id = u->c->id };
	}
	for (unsigned i = 0; i < EARLY; i++) {
		if (u->flights[i].id)
			u->flights[i].code = answer(u, first + i);
		assert_int_equal(u->flights[i].code, 0);
		u->flights[i].id = 0;
	}
}

static void user_open(struct lab *l, struct user *u)
{
	struct dmsg_hello m = { .major_min = 1,
				.major_max = 1,
				.features = DMSG_FEATURE_REGION_EARLY,
				.group = text("engine"),
				.name = text("test") };

	u->c = client_connect(l);
	CLIENT_SEND(u->c, hello, &m);
	CLIENT_REPLY(u->c, hello_reply, DMSG_HELLO_REPLY, &u->c->hello);
	place_make(&u->places[HOST], HOST);
	assert_int_equal(place_open(u, HOST, false), 0);
	place_import(u, HOST);
	for (unsigned i = 0; i < GPUS; i++) {
		place_make(&u->places[i], i);
		assert_int_equal(place_open(u, i, true), 0);
		place_use_early(u, i);
		place_import(u, i);
	}
}

static void user_close(struct user *u)
{
	client_close(u->c);
	for (unsigned i = 0; i < PLACES; i++)
		place_free(&u->places[i]);
	*u = (struct user){ 0 };
}

static void flight_fill(const struct flight *f, unsigned seed)
{
	memset(f->to->memory + f->to_at, 0, WINDOW);
	for (uint32_t k = 0; k < f->n; k++)
		memset(f->from->memory + f->from_at + k * f->length, (int)(seed + k * 7) | 1,
		       f->length);
}

static void flight_check(const struct flight *f)
{
	for (uint32_t k = 0; k < f->n; k++)
		assert_memory_equal(f->from->memory + f->from_at + k * f->length,
				    f->to->memory + f->to_at + (f->n - 1 - k) * f->length,
				    f->length);
}

/* The user's i-th transfer: each place to each other in turn. */
static void flight_start(struct user *u, unsigned i, unsigned seed)
{
	/* pages; many pieces, which devices read in place; and one piece */
	static const uint32_t counts[] = { 16, 600, 1 }, lengths[] = { 4096, 96, WINDOW };
	static uint8_t ops[600 * DMSG_OP_SIZE];
	const struct place *from = &u->places[i % PLACES];
	const struct place *to = &u->places[(i + 1 + i / PLACES) % PLACES];
	bool write = (i + seed) % 2;
	struct dmsg_transfer m = { .direction = write ? DMSG_DIRECTION_WRITE : DMSG_DIRECTION_READ,
				   .class = seed / 2 % 2 ? DMSG_CLASS_LATENCY : DMSG_CLASS_BULK,
				   .local = write ? from->region : to->region,
				   .remote = write ? to->remote : from->remote };
	struct flight *f = &u->flights[i];

	*f = (struct flight){ .from = from,
			      .to = to,
			      .from_at = (uint64_t)i * WINDOW,
			      .to_at = (uint64_t)(FLIGHTS + i) * WINDOW,
			      .n = counts[(seed + i) % DRAY_ARRAY_SIZE(counts)],
			      .length = lengths[(seed + i) % DRAY_ARRAY_SIZE(counts)] };
	flight_fill(f, seed);
	for (uint32_t k = 0; k < f->n; k++) {
		uint64_t a = f->from_at + k * f->length;
		uint64_t b = f->to_at + (f->n - 1 - k) * f->length;

		dmsg_op_put(ops + k * DMSG_OP_SIZE,
			    &(struct dmsg_op){ write ? a : b, write ? b : a, f->length });
	}
	m.ops = (struct dray_vec){ ops, f->n };
	CLIENT_SEND(u->c, transfer, &m);
	f->id = u->c->id;
}

static void flights_start(struct world *w, unsigned seed)
{
	for (unsigned i = 0; i < FLIGHTS; i++)
		for (unsigned k = 0; k < USERS; k++)
			flight_start(&w->users[k], i, seed + k);
}

/* Transfers from or to `failed` may have failed, others not. */
static void flights_end(struct user *u, const struct place *failed)
{
	for (unsigned i = 0; i < FLIGHTS; i++) {
		struct flight *f = &u->flights[i];

		if (f->id)
			answer(u, f->id);
		if (f->code && f->from != failed && f->to != failed)
			fail_msg("transfer %u from place %u to %u: %s", i,
				 (unsigned)(f->from - u->places), (unsigned)(f->to - u->places),
				 dray_error_name(f->code));
		if (!f->code)
			flight_check(f);
		*f = (struct flight){ 0 };
	}
}

enum event_of_round { NOTHING, COMES_AND_GOES, DIES, IS_LOST, N_EVENTS };

/* Loses a device with copies in flight. Clients that open memory there meanwhile get an error. */
static void lose(struct world *w, unsigned device)
{
	const struct gpus *g = w->lab->gpus;
	struct user *u = &w->users[0];
	uint64_t before = g->lost;

	lab_until(w->lab, atomic_load(&fake_gpu_status()->held));
	fake_gpu_lose(device, true);
	fake_gpu_hold(false);
	lab_until(w->lab, g->lost > before);
	place_close(u, device);
	assert_int_equal(place_open(u, device, false), DRAY_E_GPU_LOST);
	lab_until(w->lab, g->devices[device].state == DEVICE_UNUSED);
	fake_gpu_lose(device, false);
	for (unsigned i = 0; i < USERS; i++) {
		flights_end(&w->users[i], &w->users[i].places[device]);
		if (i)
			place_close(&w->users[i], device);
		assert_int_equal(place_open(&w->users[i], device, false), 0);
		place_import(&w->users[i], device);
	}
}

static void round_run(struct world *w, unsigned round)
{
	enum event_of_round event = (enum event_of_round)(round % N_EVENTS);
	unsigned nth = round / N_EVENTS, place = nth % PLACES;
	struct user *u = &w->users[nth % USERS];

	fake_gpu_hold(event == IS_LOST);
	flights_start(w, round);
	switch (event) {
	case COMES_AND_GOES:
		place_anew(u, place);
		flights_end(u, &u->places[place]);
		break;
	case DIES:
		user_close(u);
		user_open(w->lab, u);
		break;
	case IS_LOST:
		lose(w, nth % GPUS);
		break;
	case NOTHING:
	case N_EVENTS:
		break;
	}
	for (unsigned k = 0; k < USERS; k++)
		flights_end(&w->users[k], NULL);
}

static void up_staging(struct rails *rails, unsigned worker, void *base, uint64_t bytes)
{
	(void)rails;
	(void)worker;
	(void)base;
	(void)bytes;
}

static void run(bool peers)
{
	static const struct gpus_upcalls up = { regions_gpu_lost, up_staging, region_close_fds,
						region_part_opened };
	static struct rails *const rails;
	static struct state *const state_db;
	struct fake_gpu_status *status = fake_gpu_status();
	struct world w = { .ops = gpu_plugin_ops };
	struct lab *l;
	void *state;

	fake_gpu_peers(peers);
	lab_setup_workers(&state);
	w.lab = l = state;
	assert_int_equal(gpus_new(&l->gpus, &(struct gpus_deps){ .event = l->event,
								 .cfg = l->cfg,
								 .pool = &l->pool,
								 .up = &up,
								 .regions = &l->regions,
								 .rails = &rails,
								 .state = &state_db }),
			 0);
	w.ops.notify = notify;
	l->gpus->ops = &w.ops;
	lab_regions(l);
	lab_start(l);
	for (unsigned i = 0; i < USERS; i++)
		user_open(l, &w.users[i]);
	for (unsigned i = 0; i < ROUNDS; i++)
		round_run(&w, i);
	flights_start(&w, ROUNDS);
	for (unsigned i = 0; i < USERS; i++)
		user_close(&w.users[i]);
	lab_teardown(&state);
	assert_int_equal(status->plugins + status->started + status->imports + status->queues +
				 status->pins + status->host_allocs,
			 0);
	assert_int_equal(status->illegal, 0);
}

static void gpus_that_reach_each_other(void **state)
{
	(void)state;
	run(true);
	assert_true(atomic_load(&announced) > 0);
}

static void gpus_that_do_not(void **state)
{
	(void)state;
	run(false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpus_that_reach_each_other),
		cmocka_unit_test(gpus_that_do_not),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
