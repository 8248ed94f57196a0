/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of libdray that need no agent: arena, checks of the ring, tokens, error codes, memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/arena.h"
#include "client/dray.h"
#include "client/internal.h"
#include "client/ring.h"
#include "lib/wake.h"
#include "lib/memfd.h"
#include "tests/unit/cm.h"

static void arena_reuses_all_of_its_memory(void **state)
{
	enum { N = 200 };
	struct arena a;
	uint64_t at[N] = { 0 }, bytes[N] = { 0 };
	uint64_t whole;
	uint8_t *owner = calloc(1, 1 << 20);
	unsigned seed = 7;

	assert_int_equal(dc_arena_init(&a, 1 << 20), 0);
	for (int round = 0; round < 200000; round++) {
		int i = rand_r(&seed) % N;

		if (bytes[i]) {
			for (uint64_t k = at[i]; k < at[i] + bytes[i]; k += ARENA_UNIT)
				owner[k] = 0;
			dc_arena_free(&a, at[i], bytes[i]);
			bytes[i] = 0;
			continue;
		}
		bytes[i] = 1 + (uint64_t)rand_r(&seed) % 20000;
		if (!dc_arena_alloc(&a, bytes[i], &at[i])) {
			bytes[i] = 0;
			continue;
		}
		assert_int_equal(at[i] % ARENA_UNIT, 0);
		assert_true(at[i] + bytes[i] <= 1 << 20);
		for (uint64_t k = at[i]; k < at[i] + bytes[i]; k += ARENA_UNIT) {
			assert_int_equal(owner[k], 0);
			owner[k] = 1;
		}
	}
	for (int i = 0; i < N; i++)
		if (bytes[i])
			dc_arena_free(&a, at[i], bytes[i]);
	assert_int_equal(a.used, 0);
	assert_int_equal(a.n, 1);
	assert_true(dc_arena_alloc(&a, 1 << 20, &whole));
	assert_false(dc_arena_alloc(&a, 1, &whole));
	dc_arena_free(&a, 0, 1 << 20);
	dc_arena_deinit(&a);
	free(owner);
}

static void arena_refuses_impossible_sizes(void **state)
{
	struct arena a;
	uint64_t at;

	assert_int_equal(dc_arena_init(&a, 4096), 0);
	assert_false(dc_arena_alloc(&a, 0, &at));
	assert_false(dc_arena_alloc(&a, 4097, &at));
	assert_false(dc_arena_alloc(&a, UINT64_MAX - 1, &at));
	assert_true(dc_arena_alloc(&a, 4096, &at));
	dc_arena_deinit(&a);
}

/* A ring as an agent makes it, in a file that the test can change. */
struct rig {
	struct dmsg_ring_open_reply m;
	int memory, doorbell, completion, bell;
	uint8_t *base;
};

static uint32_t *word(struct rig *r, unsigned offset)
{
	return (uint32_t *)(void *)(r->base + offset);
}

static void rig_make(struct rig *r)
{
	*r = (struct rig){ .m = { .sq_entries = 8, .cq_entries = 16, .ring_bytes = 8192 } };
	r->memory = dray_memfd_new("ring", 8192, false);
	r->base = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, r->memory, 0);
	r->doorbell = eventfd(0, EFD_CLOEXEC);
	assert_int_equal(dray_doorbell_new(&r->bell, &r->completion), 0);
	*word(r, DMSG_RING_MAGIC) = DMSG_MAGIC_RING;
	*word(r, DMSG_RING_SQ_ENTRIES) = 8;
	*word(r, DMSG_RING_CQ_ENTRIES) = 16;
	*word(r, DMSG_RING_SQ_OFFSET) = 4096;
	*word(r, DMSG_RING_CQ_OFFSET) = 4096 + 8 * DMSG_SQE_SIZE;
}

static int rig_open(struct rig *r, struct ring *ring)
{
	struct dray_err err = DRAY_ERR_NULL;

	return dc_ring_open(ring, &r->m, 8, r->memory, r->doorbell, r->completion, &err);
}

static void rig_end(struct rig *r)
{
	munmap(r->base, 8192);
	close(r->bell);
}

static void bad_magic(struct rig *r)
{
	*word(r, DMSG_RING_MAGIC) ^= 1;
}

static void bad_sq_offset(struct rig *r)
{
	*word(r, DMSG_RING_SQ_OFFSET) = 0;
}

static void bad_cq_offset(struct rig *r)
{
	*word(r, DMSG_RING_CQ_OFFSET) = 8192 - 64;
}

static void wrapping_offset(struct rig *r)
{
	*word(r, DMSG_RING_CQ_OFFSET) = 0xffffffc0u;
}

static void odd_offset(struct rig *r)
{
	*word(r, DMSG_RING_SQ_OFFSET) = 4097;
}

static void overlapping(struct rig *r)
{
	*word(r, DMSG_RING_CQ_OFFSET) = 4096 + 64;
}

static void other_entries(struct rig *r)
{
	r->m.sq_entries = 16;
}

static void other_cq_entries(struct rig *r)
{
	r->m.cq_entries = 8;
}

static void past_the_file(struct rig *r)
{
	r->m.ring_bytes = 16384;
}

static void unsealed(struct rig *r)
{
	close(r->memory);
	r->memory = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(r->memory, 8192), 0);
}

static void doorbell_is_a_pipe(struct rig *r)
{
	int p[2];

	close(r->doorbell);
	assert_int_equal(pipe(p), 0);
	close(p[0]);
	r->doorbell = p[1];
}

static void completion_is_an_eventfd(struct rig *r)
{
	close(r->completion);
	r->completion = eventfd(0, EFD_CLOEXEC);
}

static void ring_is_checked(void **state)
{
	static void (*const bend[])(struct rig *) = {
		bad_magic,     bad_sq_offset, bad_cq_offset,      wrapping_offset,
		odd_offset,    overlapping,   other_entries,      other_cq_entries,
		past_the_file, unsealed,      doorbell_is_a_pipe, completion_is_an_eventfd,
	};
	int fds = cm_fds_count();
	struct rig r;
	struct ring ring;

	rig_make(&r);
	assert_int_equal(rig_open(&r, &ring), 0);
	dc_ring_close(&ring);
	rig_end(&r);
	for (size_t i = 0; i < sizeof(bend) / sizeof(bend[0]); i++) {
		rig_make(&r);
		bend[i](&r);
		assert_int_equal(rig_open(&r, &ring), -EPROTO);
		assert_null(ring.base);
		rig_end(&r);
	}
	assert_int_equal(cm_fds_count(), fds);
}

static void invalid_ring_indices(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_cqe cqe;
	struct ring ring;
	struct rig r;

	rig_make(&r);
	assert_int_equal(rig_open(&r, &ring), 0);
	assert_int_equal(dc_ring_take(&ring, &cqe, &err), 0);
	/* more completions than submissions */
	*word(&r, DMSG_RING_CQ_TAIL) = 1;
	assert_int_equal(dc_ring_take(&ring, &cqe, &err), -EPROTO);
	*word(&r, DMSG_RING_CQ_TAIL) = 0xffffffffu;
	assert_int_equal(dc_ring_take(&ring, &cqe, &err), -EPROTO);
	/*
	 * the agent claims entries that were never submitted; the client notices when it asks for
	 * room
	 */
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(dc_ring_room(&ring, &err), 1);
		dc_ring_put(&ring, &(struct dmsg_sqe){ .user_data = i });
	}
	*word(&r, DMSG_RING_SQ_HEAD) = 9;
	assert_int_equal(dc_ring_room(&ring, &err), -EPROTO);
	*word(&r, DMSG_RING_SQ_HEAD) = 0u - 1;
	assert_int_equal(dc_ring_room(&ring, &err), -EPROTO);
	*word(&r, DMSG_RING_SQ_HEAD) = 0;
	assert_int_equal(dc_ring_room(&ring, &err), 0);
	*word(&r, DMSG_RING_SQ_HEAD) = 1;
	assert_int_equal(dc_ring_room(&ring, &err), 1);
	dc_ring_close(&ring);
	rig_end(&r);
}

/* The indices pass 2^32 without effect. */
static void ring_wraps(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_cqe cqe;
	struct ring ring;
	struct rig r;
	uint32_t start = 0u - 3;

	rig_make(&r);
	*word(&r, DMSG_RING_SQ_HEAD) = *word(&r, DMSG_RING_SQ_TAIL) = start;
	*word(&r, DMSG_RING_CQ_HEAD) = *word(&r, DMSG_RING_CQ_TAIL) = start;
	assert_int_equal(rig_open(&r, &ring), 0);
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(dc_ring_room(&ring, &err), 1);
		dc_ring_put(&ring, &(struct dmsg_sqe){ .user_data = i });
	}
	assert_int_equal(dc_ring_room(&ring, &err), 0);
	*word(&r, DMSG_RING_AGENT_SLEEPING) = 1;
	dc_ring_submit(&ring);
	assert_int_equal(*word(&r, DMSG_RING_SQ_TAIL), 5);
	for (uint32_t i = 0; i < 8; i++)
		dmsg_cqe_put(ring.cqes + ((start + i) & 15) * DMSG_CQE_SIZE,
			     &(struct dmsg_cqe){ .user_data = i });
	*word(&r, DMSG_RING_SQ_HEAD) = *word(&r, DMSG_RING_CQ_TAIL) = 5;
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(dc_ring_take(&ring, &cqe, &err), 1);
		assert_int_equal(cqe.user_data, i);
	}
	assert_int_equal(dc_ring_take(&ring, &cqe, &err), 0);
	assert_int_equal(*word(&r, DMSG_RING_CQ_HEAD), 5);
	dc_ring_close(&ring);
	rig_end(&r);
}

static void tokens_have_one_text_form(void **state)
{
	/* test vectors of RFC 4648 */
	static const char *const known[][2] = {
		{ "f", "dray1:Zg" },          { "fo", "dray1:Zm8" },
		{ "foo", "dray1:Zm9v" },      { "foob", "dray1:Zm9vYg" },
		{ "fooba", "dray1:Zm9vYmE" }, { "\xff\xef", "dray1:_-8" },
	};
	static const char *const bad[] = { "dray1:A",    "dray1:Zg==",      "dray1:Zm9+",
					   "dray1:Zm9/", "dray1:Zm 9",      "dray1:Zh",
					   "dray1:Zm9=", "dray1:Z\xc3\xa4g" };
	struct dray_token a, b;
	uint8_t bytes[DRAY_TOKEN_MAX + 1];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7);
	for (size_t n = 1; n <= DRAY_TOKEN_MAX; n++) {
		assert_int_equal(dray_token_from_bytes(bytes, n, &a), 0);
		assert_int_equal(dray_token_parse(a.text, &b), 0);
		assert_int_equal(b.length, n);
		assert_memory_equal(b.data, bytes, n);
		assert_string_equal(a.text, b.text);
	}
	assert_int_equal(dray_token_from_bytes(bytes, 0, &a), -DRAY_E_TOKEN_INVALID);
	assert_int_equal(dray_token_from_bytes(bytes, sizeof(bytes), &a), -DRAY_E_TOKEN_INVALID);
	assert_int_equal(dray_token_parse("dray1:", &a), -DRAY_E_TOKEN_INVALID);
	assert_int_equal(dray_token_parse("dray2:AAAA", &a), -DRAY_E_TOKEN_INVALID);
	assert_int_equal(dray_token_parse("dray1:AA=A", &a), -DRAY_E_TOKEN_INVALID);
	assert_int_equal(dray_token_parse("dray1:AAAAA", &a), -DRAY_E_TOKEN_INVALID);
	assert_int_equal(dray_token_parse("", &a), -DRAY_E_TOKEN_INVALID);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(known); i++) {
		assert_int_equal(dray_token_from_bytes(known[i][0], strlen(known[i][0]), &a), 0);
		assert_string_equal(a.text, known[i][1]);
	}
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++)
		assert_int_equal(dray_token_parse(bad[i], &a), -DRAY_E_TOKEN_INVALID);
	assert_int_equal(dray_token_parse(NULL, &a), -DRAY_E_TOKEN_INVALID);
}

/* Constants of the public header that repeat the schema. */
_Static_assert((int)DRAY_KIND_MEMFD == DMSG_KIND_MEMFD &&
		       (int)DRAY_KIND_DMABUF == DMSG_KIND_DMABUF &&
		       (int)DRAY_KIND_CUDA_IPC == DMSG_KIND_CUDA_IPC &&
		       (int)DRAY_KIND_CUDA_VMM == DMSG_KIND_CUDA_VMM &&
		       (int)DRAY_READ == DMSG_ACCESS_READ && (int)DRAY_WRITE == DMSG_ACCESS_WRITE &&
		       (int)DRAY_DIRECTION_WRITE == DMSG_DIRECTION_WRITE &&
		       (int)DRAY_DIRECTION_READ == DMSG_DIRECTION_READ &&
		       (int)DRAY_PRIORITY_LATENCY == DMSG_CLASS_LATENCY &&
		       (int)DRAY_TRANSPORT_RDMA == DMSG_TRANSPORT_RDMA &&
		       (int)DRAY_TRANSPORT_GPU == DMSG_TRANSPORT_GPU &&
		       DRAY_NOTIFY_MAX == DMSG_NOTIFY_MAX &&
		       (int)DRAY_SEGMENT_PROBING == DMSG_SEGMENT_STATE_PROBING &&
		       (int)DRAY_SEGMENT_READY == DMSG_SEGMENT_STATE_READY &&
		       (int)DRAY_SEGMENT_LOST == DMSG_SEGMENT_STATE_LOST &&
		       (int)DRAY_SEGMENT_UNVERIFIED == DMSG_SEGMENT_FLAG_UNVERIFIED &&
		       (int)DRAY_SEGMENT_NODE_LOCAL == DMSG_SEGMENT_FLAG_NODE_LOCAL &&
		       (int)DRAY_SEGMENT_PREFERRED == DMSG_SEGMENT_FLAG_PREFERRED &&
		       (int)DRAY_PREFERENCE_EXPLICIT == DMSG_PREFERENCE_EXPLICIT &&
		       (int)DRAY_PREFERENCE_ENVIRONMENT == DMSG_PREFERENCE_ENVIRONMENT &&
		       (int)DRAY_PREFERENCE_HINT == DMSG_PREFERENCE_HINT &&
		       (int)DRAY_PREFERENCE_DETECTED == DMSG_PREFERENCE_DETECTED &&
		       (int)DRAY_HINT_EXPLICIT == DMSG_HINT_SOURCE_EXPLICIT &&
		       (int)DRAY_HINT_ENVIRONMENT == DMSG_HINT_SOURCE_ENVIRONMENT &&
		       (int)DRAY_HINT_DETECTED == DMSG_HINT_SOURCE_DETECTED &&
		       (int)DRAY_HINT_CLIENT == DMSG_HINT_SOURCE_CLIENT &&
		       DRAY_TOKEN_MAX == DMSG_TOKEN_MAX,
	       "the public header repeats the schema");

#define CODE(NAME, name)             \
	{                            \
		DRAY_E_##NAME, #name \
	}

/* The public header has every code of the schema, with the same name. */
static void codes_match_the_schema(void **state)
{
	static const struct {
		int code;
		const char *name;
	} codes[] = {
		{ DRAY_OK, "ok" },
		CODE(INVALID, invalid),
		CODE(UNSUPPORTED, unsupported),
		CODE(VERSION, version),
		CODE(UNKNOWN_TYPE, unknown_type),
		CODE(TRUNCATED, truncated),
		CODE(TOO_LARGE, too_large),
		CODE(BAD_MAGIC, bad_magic),
		CODE(OUT_OF_ORDER, out_of_order),
		CODE(DUPLICATE_ID, duplicate_id),
		CODE(NOT_FOUND, not_found),
		CODE(DENIED, denied),
		CODE(QUOTA, quota),
		CODE(BUSY, busy),
		CODE(DRAINING, draining),
		CODE(RANGE, range),
		CODE(EXISTS, exists),
		CODE(FD_LIMIT, fd_limit),
		CODE(FD_COUNT, fd_count),
		CODE(REGION_KIND, region_kind),
		CODE(REGION_UNSEALED, region_unsealed),
		CODE(REGION_TOO_SMALL, region_too_small),
		CODE(REGION_NOT_RESIDENT, region_not_resident),
		CODE(REGION_READ_ONLY, region_read_only),
		CODE(REGION_FAULT, region_fault),
		CODE(TOKEN_INVALID, token_invalid),
		CODE(TOKEN_EXPIRED, token_expired),
		CODE(TOKEN_USED, token_used),
		CODE(TOKEN_AUDIENCE, token_audience),
		CODE(INCARNATION, incarnation),
		CODE(REVOKED, revoked),
		CODE(PEER_UNREACHABLE, peer_unreachable),
		CODE(PEER_LOST, peer_lost),
		CODE(PEER_DENIED, peer_denied),
		CODE(DEADLINE, deadline),
		CODE(CANCELLED, cancelled),
		CODE(SESSION_CLOSED, session_closed),
		CODE(AGENT_RESTARTED, agent_restarted),
		CODE(NO_MEMORY, no_memory),
		CODE(NO_SPACE, no_space),
		CODE(NO_FDS, no_fds),
		CODE(IO, io),
		CODE(INTERNAL, internal),
		CODE(NOTIFY_REFUSED, notify_refused),
		CODE(PROTOCOL, protocol),
		CODE(IDENTITY, identity),
		CODE(TIMEOUT, timeout),
		CODE(GPU_LOST, gpu_lost),
		CODE(GPU_HANDLE, gpu_handle),
		CODE(GPU_DEVICE, gpu_device),
		CODE(UNCONFIRMED, unconfirmed),
		CODE(MAILBOX_FULL, mailbox_full),
	};
	const int n = sizeof(codes) / sizeof(codes[0]);

	for (int i = 0; i < n; i++) {
		assert_int_equal(codes[i].code, i);
		assert_string_equal(dray_strerrorname(i), codes[i].name);
		assert_string_equal(dray_strerrorname(-i), codes[i].name);
	}
	assert_string_equal(dray_strerrorname(n), "unknown");
	assert_string_equal(dray_strerror(-DRAY_E_CANCELLED), "The transfer was cancelled.");
	assert_non_null(dray_strerrorfix(INT32_MIN));
}

static void memory_is_ready_to_register(void **state)
{
	int fds = cm_fds_count();
	struct dray_memory m;

	assert_int_equal(dray_memory_alloc(0, 0, &m), -DRAY_E_INVALID);
	assert_int_equal(dray_memory_alloc(1, 4, &m), -DRAY_E_INVALID);
	assert_int_equal(dray_memory_alloc(UINT64_MAX, 0, &m), -DRAY_E_INVALID);
	assert_int_equal(dray_memory_alloc((1 << 20) + 1, 0, &m), 0);
	assert_int_equal(m.length, (1 << 20) + 4096);
	assert_true(fcntl(m.fd, F_GET_SEALS) & F_SEAL_SHRINK);
	assert_true(fcntl(m.fd, F_GETFD) & FD_CLOEXEC);
	/* the file has no holes */
	assert_int_equal(lseek(m.fd, 0, SEEK_HOLE), (off_t)m.length);
	memset(m.address, 1, m.length);
	dray_memory_free(&m);
	dray_memory_free(&m);
	dray_memory_free(NULL);
	assert_int_equal(cm_fds_count(), fds);
}

static int memfd_of(uint64_t bytes, bool sealed)
{
	int fd = memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (sealed)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	return fd;
}

static int populate_code(int fd, uint64_t offset, uint64_t length)
{
	char why[200] = "";
	int error = dray_memory_populate(fd, offset, length, why, sizeof(why));

	assert_int_equal(!error, !why[0]);
	assert_int_equal(error, dray_memory_populate(fd, offset, length, NULL, 0));
	return -error;
}

static void populating_touches_only_the_extent(void **state)
{
	int fd = memfd_of(1 << 20, true), loose = memfd_of(1 << 20, false);
	int reading = -1, null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char path[64];

	assert_int_equal(populate_code(fd, 8191, 2), 0);
	assert_int_equal(lseek(fd, 0, SEEK_DATA), 4096);
	assert_int_equal(lseek(fd, 4096, SEEK_HOLE), 12288);
	assert_int_equal(populate_code(fd, 0, (1 << 20) + 1), DRAY_E_REGION_TOO_SMALL);
	assert_int_equal(populate_code(fd, UINT64_MAX, 2), DRAY_E_REGION_TOO_SMALL);
	assert_int_equal(populate_code(loose, 0, 4096), DRAY_E_REGION_UNSEALED);
	assert_int_equal(populate_code(null, 0, 4096), DRAY_E_REGION_KIND);
	assert_int_equal(populate_code(-1, 0, 4096), DRAY_E_REGION_KIND);
	/* also through a read-only descriptor */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	reading = open(path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(populate_code(reading, 1 << 19, 4096), 0);
	assert_int_equal(lseek(fd, 12288, SEEK_DATA), 1 << 19);
	close(reading);
	close(null);
	close(loose);
	close(fd);
}

/* RFC 3720, B.4. */
static void copies_are_estimated(void **state)
{
	struct requests q = { .copy_ns_a_mib = 800 };
	const uint64_t mib = 1 << 20;

	assert_int_equal(dc_copies_left(&q, 1000), 0);
	q.in_flight_n = 1;
	dc_copy_sent(&q, mib, 1000);
	assert_int_equal(dc_copies_left(&q, 1000), 900);
	assert_int_equal(dc_copies_left(&q, 1400), 500);
	/* the second one comes behind the first */
	q.in_flight_n = 2;
	dc_copy_sent(&q, mib, 1400);
	assert_int_equal(dc_copies_left(&q, 1400), 1400);
	/* a wait may be for a request that copies nothing */
	q.in_flight_n = 3;
	assert_int_equal(dc_copies_left(&q, 1400), 0);
	q.in_flight_n = 2;
	/* copies that take less than estimated do not add up in a pipeline */
	for (int64_t now = 1500; now < 100 * 1000; now += 100) {
		dc_copy_ended(&q, mib, now);
		dc_copy_sent(&q, mib, now);
		assert_int_equal(dc_copies_left(&q, now), 1800);
	}
	/* nor is one that takes longer a time in the past */
	assert_int_equal(dc_copies_left(&q, 200 * 1000), 0);
	dc_copy_ended(&q, mib, 200 * 1000);
	dc_copy_ended(&q, mib, 200 * 1000);
	q.in_flight_n = 0;
	assert_int_equal(q.copies_bytes, 0);
	assert_int_equal(dc_copies_left(&q, 200 * 1000), 0);
}

static void checksums_continue(void **state)
{
	uint8_t bytes[32];

	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)i;
	assert_int_equal(dray_checksum(0, bytes, sizeof(bytes)), 0x46dd794e);
	for (unsigned i = 0; i <= sizeof(bytes); i++)
		assert_int_equal(dray_checksum(dray_checksum(0, bytes, i), bytes + i,
					       sizeof(bytes) - i),
				 0x46dd794e);
	assert_int_equal(dray_checksum(0x46dd794e, NULL, 0), 0x46dd794e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arena_reuses_all_of_its_memory),
		cmocka_unit_test(arena_refuses_impossible_sizes),
		cmocka_unit_test(ring_is_checked),
		cmocka_unit_test(invalid_ring_indices),
		cmocka_unit_test(ring_wraps),
		cmocka_unit_test(tokens_have_one_text_form),
		cmocka_unit_test(codes_match_the_schema),
		cmocka_unit_test(copies_are_estimated),
		cmocka_unit_test(checksums_continue),
		cmocka_unit_test(memory_is_ready_to_register),
		cmocka_unit_test(populating_touches_only_the_extent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
