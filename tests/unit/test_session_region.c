/* SPDX-License-Identifier: Apache-2.0 */
/* Regions, tokens and remotes as requests of sessions, with the bytes that move through them. */
#include <sys/resource.h>

#include "tests/unit/session_fixture.h"
#include "agent/control/session/internal.h"
#include "agent/model/keys.h"
#include "tests/unit/untouched.h"

struct totals {
	uint64_t open, regions, bytes, tokens, remotes;
};

static struct totals totals(struct lab *l)
{
	struct sessions_totals s = sessions_totals(l->sessions);
	struct totals t = { .open = s.open, .remotes = s.remotes };

	regions_totals(l->regions, &t.regions, &t.bytes, &t.tokens);
	return t;
}

static void test_add_remove(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	uint64_t region = client_add_filled(c, 3 * PAGE, 1);

	assert_int_equal(totals(l).regions, 1);
	CLIENT_SEND(c, region_remove, &(struct dmsg_region_remove){ .region = region + 1 });
	client_expect_error(c, c->id, DRAY_E_NOT_FOUND);
	CLIENT_SEND(c, region_remove, &(struct dmsg_region_remove){ .region = region });
	client_expect(c, DMSG_REGION_REMOVE_REPLY);
	assert_int_equal(c->h.request_id, c->id);
	assert_int_equal(totals(l).regions, 0);
	CLIENT_SEND(c, region_remove, &(struct dmsg_region_remove){ .region = region });
	client_expect_error(c, c->id, DRAY_E_NOT_FOUND);
	client_close(c);
}

/* Removing a region looks at no other one. */
static void test_remove_one_of_many(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	uint64_t regions[32];
	struct session *s;

	for (unsigned i = 0; i < 32; i++)
		regions[i] = client_add_filled(c, PAGE, 1);
	s = session_get(l->sessions, c->hello.session);
	dray_map_for_each(&s->regions, r, struct session_region, node)
		if (r->handle != regions[31])
			UNTOUCHED_BEGIN(r->handle);
	CLIENT_SEND(c, region_remove, &(struct dmsg_region_remove){ .region = regions[31] });
	client_expect(c, DMSG_REGION_REMOVE_REPLY);
	dray_map_for_each(&s->regions, r, struct session_region, node)
		UNTOUCHED_END(r->handle);
	assert_int_equal(totals(l).regions, 31);
	client_close(c);
	lab_until(l, totals(l).regions == 0);
}

static void test_add_refused(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	int fd = memory_fd(PAGE, 1), null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct dmsg_region_remove m = { .region = 1 };

	client_send_add(c, fd, PAGE + 1, DMSG_ACCESS_READ);
	client_expect_error(c, c->id, DRAY_E_REGION_TOO_SMALL);
	client_send_add(c, null, PAGE, DMSG_ACCESS_READ);
	client_expect_error(c, c->id, DRAY_E_REGION_KIND);
	/* descriptors with a request that has none */
	CLIENT_SEND_FDS(c, region_remove, &m, &null, 1);
	client_expect_error(c, c->id, DRAY_E_FD_COUNT);
	sessions_drain(l->sessions, 1);
	client_expect(c, DMSG_DRAINING);
	regions_drain(l->regions, true);
	client_send_add(c, fd, PAGE, DMSG_ACCESS_READ);
	client_expect_error(c, c->id, DRAY_E_DRAINING);
	close(fd);
	close(null);
	client_close(c);
}

/* The agent has room for only some of the descriptors. */
static void test_fds_lost(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	int fd = memory_fd(PAGE, 1), fds[40];
	uint8_t wire[DMSG_EXTENT_SIZE];
	struct dmsg_region_add m = { .access = DMSG_ACCESS_READ, .extents = { wire, 1 } };
	struct rlimit former, low;

	for (unsigned i = 0; i < 40; i++)
		fds[i] = fd;
	dmsg_extent_put(wire, &(struct dmsg_extent){ .kind = DMSG_KIND_MEMFD, .length = PAGE });
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &former), 0);
	low = former;
	low.rlim_cur = (rlim_t)cm_fds_count() + 10;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	CLIENT_SEND_FDS(c, region_add, &m, fds, 40);
	client_expect_error(c, c->id, DRAY_E_FD_LIMIT);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &former), 0);
	/* the received descriptors were closed, and the session continues */
	client_add(c, fd, PAGE);
	CLIENT_SEND_FDS(c, region_add, &m, fds, 40);
	client_expect_error(c, c->id, DRAY_E_FD_COUNT);
	close(fd);
	client_close(c);
}

static void test_malformed(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct dmsg_header h = { .magic = DMSG_MAGIC, .major = 1, .request_id = 50 };
	uint8_t buf[64] = { 0 };

	h.type = 0x0777;
	dmsg_header_put(buf, &h);
	client_send_raw(c, buf, DMSG_HEADER_SIZE, NULL, 0);
	client_expect_error(c, 50, DRAY_E_UNKNOWN_TYPE);
	h.type = DMSG_REGION_EXPORT;
	h.length = 10;
	h.request_id++;
	dmsg_header_put(buf, &h);
	client_send_raw(c, buf, DMSG_HEADER_SIZE + 10, NULL, 0);
	client_expect_error(c, 51, DRAY_E_TRUNCATED);
	client_send_raw(c, buf, DMSG_HEADER_SIZE + 9, NULL, 0);
	client_expect_error(c, 51, DRAY_E_TRUNCATED);
	/* an event is not a request */
	h.type = DMSG_REMOTE_LOST;
	h.length = 0;
	h.request_id++;
	dmsg_header_put(buf, &h);
	client_send_raw(c, buf, DMSG_HEADER_SIZE, NULL, 0);
	client_expect_error(c, 52, DRAY_E_UNKNOWN_TYPE);
	client_close(c);
}

static void test_quota(void **state)
{
	struct lab *l = *state;
	struct client *a = client_open(l, "g", 0), *b = client_open(l, "g", 0),
		      *other = client_open(l, "", 0);
	int fd = memory_fd(4 * PAGE, 1);
	uint64_t region;

	l->cfg->limits.regions_per_session = 2;
	l->cfg->limits.regions_per_group = 3;
	l->cfg->limits.regions = l->cfg->limits.regions_per_owner = 4;
	lab_limits(l);
	region = client_add(a, fd, PAGE);
	client_add(a, fd, PAGE);
	client_send_add(a, fd, PAGE, DMSG_ACCESS_READ);
	client_expect_error(a, a->id, DRAY_E_QUOTA);
	client_add(b, fd, PAGE);
	client_send_add(b, fd, PAGE, DMSG_ACCESS_READ);
	client_expect_error(b, b->id, DRAY_E_QUOTA);
	client_add(other, fd, PAGE);
	client_send_add(other, fd, PAGE, DMSG_ACCESS_READ);
	client_expect_error(other, other->id, DRAY_E_QUOTA);
	CLIENT_SEND(a, region_remove, &(struct dmsg_region_remove){ .region = region });
	client_expect(a, DMSG_REGION_REMOVE_REPLY);
	client_add(a, fd, PAGE);

	l->cfg->limits.regions_per_session = l->cfg->limits.regions_per_group =
		l->cfg->limits.regions = l->cfg->limits.regions_per_owner = 100;
	lab_limits(l);
	l->cfg->limits.extents_per_session = 2;
	client_send_add(a, fd, PAGE, DMSG_ACCESS_READ);
	client_expect_error(a, a->id, DRAY_E_QUOTA);
	l->cfg->limits.extents_per_session = 100;
	l->cfg->limits.bytes_per_session = 5 * (int64_t)PAGE;
	client_send_add(a, fd, 4 * PAGE, DMSG_ACCESS_READ);
	client_expect_error(a, a->id, DRAY_E_QUOTA);
	l->cfg->limits.bytes_per_session = 6 * (int64_t)PAGE;
	l->cfg->limits.bytes_per_group = 6 * (int64_t)PAGE;
	client_send_add(a, fd, 4 * PAGE, DMSG_ACCESS_READ);
	client_expect_error(a, a->id, DRAY_E_QUOTA);
	l->cfg->limits.bytes_per_group = 7 * (int64_t)PAGE;
	client_add(a, fd, 4 * PAGE);
	close(fd);
	client_close(a);
	client_close(b);
	client_close(other);
}

static void test_pool(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	uint8_t wire[DMSG_EXTENT_SIZE];
	struct dmsg_region_add m = { .access = DMSG_ACCESS_ALL, .extents = { wire, 1 } };
	struct dmsg_region_add_reply reply;

	dmsg_extent_put(wire, &(struct dmsg_extent){ .kind = DMSG_KIND_POOL,
						     .fd_index = UINT16_MAX,
						     .length = 2 * PAGE });
	CLIENT_SEND(c, region_add, &m);
	CLIENT_REPLY(c, region_add_reply, DMSG_REGION_ADD_REPLY, &reply);
	assert_int_equal(reply.length, 2 * PAGE);
	assert_int_equal(c->fds.n, 1);
	assert_int_equal(lseek(c->fds.fd[0], 0, SEEK_END), 2 * PAGE);
	client_close(c);
}

static struct dmsg_transfer_done move(struct client *c, uint8_t direction, uint64_t local,
				      uint64_t remote, uint64_t at, uint64_t bytes)
{
	uint8_t wire[DMSG_OP_SIZE];
	struct dmsg_transfer m = {
		.direction = direction, .local = local, .remote = remote, .ops = { wire, 1 }
	};
	struct dmsg_transfer_done done;

	dmsg_op_put(wire, &(struct dmsg_op){ .local = at, .remote = at, .length = bytes });
	CLIENT_SEND(c, transfer, &m);
	CLIENT_REPLY(c, transfer_done, DMSG_TRANSFER_DONE, &done);
	return done;
}

/* Two clients of different groups share a region by a token; then the owner revokes it. */
static void test_local_remote(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0), *user = client_open(l, "", 0);
	int fd = memory_fd(4 * PAGE, 0);
	uint8_t *p = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	uint64_t theirs = client_add_filled(owner, 4 * PAGE, 0x77),
		 mine = client_add(user, fd, 4 * PAGE);
	struct token t = client_export(owner, theirs, PAGE, 2 * PAGE);
	struct dmsg_remote_import_reply reply;
	struct dmsg_remote_lost lost;
	struct dmsg_region_revoke_reply revoked;

	assert_ptr_not_equal(p, MAP_FAILED);
	client_send_import(user, &t);
	CLIENT_REPLY(user, remote_import_reply, DMSG_REMOTE_IMPORT_REPLY, &reply);
	assert_int_equal(reply.length, 2 * PAGE);
	assert_int_equal(reply.access, DMSG_ACCESS_ALL);
	assert_int_equal(reply.transport, DMSG_TRANSPORT_LOCAL);

	assert_int_equal(move(user, DMSG_DIRECTION_READ, mine, reply.remote, 100, PAGE).status,
			 DRAY_OK);
	assert_int_equal(p[99], 0);
	assert_int_equal(p[100], 0x77);
	assert_int_equal(p[PAGE + 99], 0x77);
	assert_int_equal(p[PAGE + 100], 0);

	CLIENT_SEND(owner, region_revoke,
		    (&(struct dmsg_region_revoke){ .region = theirs, .token_id = t.id }));
	CLIENT_REPLY(owner, region_revoke_reply, DMSG_REGION_REVOKE_REPLY, &revoked);
	assert_int_equal(revoked.count, 1);
	CLIENT_RECV(user, remote_lost, DMSG_REMOTE_LOST, &lost);
	assert_int_equal(lost.remote, reply.remote);
	assert_int_equal(lost.code, DRAY_E_REVOKED);
	assert_true(lost.message.n > 0);
	assert_int_equal(totals(l).tokens, 0);
	/* the handle is invalid until it is released */
	CLIENT_SEND(user, notify, &(struct dmsg_notify){ .remote = reply.remote });
	client_expect_error(user, user->id, DRAY_E_REVOKED);
	assert_int_equal(totals(l).remotes, 1);
	CLIENT_SEND(user, remote_release, &(struct dmsg_remote_release){ .remote = reply.remote });
	client_expect(user, DMSG_REMOTE_RELEASE_REPLY);
	assert_int_equal(totals(l).remotes, 0);
	CLIENT_SEND(user, remote_release, &(struct dmsg_remote_release){ .remote = reply.remote });
	client_expect_error(user, user->id, DRAY_E_NOT_FOUND);
	client_send_import(user, &t);
	client_expect_error(user, user->id, DRAY_E_REVOKED);
	munmap(p, 4 * PAGE);
	close(fd);
	client_close(owner);
	client_close(user);
}

static void test_import_refused(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0), *stranger = client_open(l, "", 0);
	uint64_t region = client_add_filled(c, PAGE, 1);
	struct token good = client_export(c, region, 0, PAGE), t = good;

	t.n--;
	client_send_import(c, &t);
	client_expect_error(c, c->id, DRAY_E_TOKEN_INVALID);
	t = good;
	t.wire[90] ^= 1; /* capability */
	client_send_import(c, &t);
	client_expect_error(c, c->id, DRAY_E_TOKEN_INVALID);
	t = good;
	t.wire[24] ^= 1; /* incarnation */
	client_send_import(c, &t);
	client_expect_error(c, c->id, DRAY_E_INCARNATION);
	/* a region of another group */
	CLIENT_SEND(stranger, region_export,
		    (&(struct dmsg_region_export){
			    .region = region, .length = 1, .access = DMSG_ACCESS_READ }));
	client_expect_error(stranger, stranger->id, DRAY_E_NOT_FOUND);
	CLIENT_SEND(stranger, region_revoke,
		    (&(struct dmsg_region_revoke){ .region = region, .token_id = good.id }));
	client_expect_error(stranger, stranger->id, DRAY_E_NOT_FOUND);
	l->cfg->limits.remotes_per_session = 1;
	client_import(c, &good);
	client_send_import(c, &good);
	client_expect_error(c, c->id, DRAY_E_QUOTA);
	sessions_drain(l->sessions, 1);
	client_expect(c, DMSG_DRAINING);
	client_send_import(c, &good);
	client_expect_error(c, c->id, DRAY_E_DRAINING);
	client_close(c);
	client_close(stranger);
}

/* The owner's client dies: all its objects end, and the users are notified. */
static void test_owner_dies(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0), *user = client_open(l, "", 0);
	struct token t = client_export(owner, client_add_filled(owner, PAGE, 1), 0, PAGE);
	uint64_t remote = client_import(user, &t);
	struct dmsg_remote_lost lost;

	client_close(owner);
	CLIENT_RECV(user, remote_lost, DMSG_REMOTE_LOST, &lost);
	assert_int_equal(lost.remote, remote);
	assert_int_equal(lost.code, DRAY_E_REVOKED);
	lab_until(l, totals(l).regions == 0);
	assert_int_equal(totals(l).tokens, 0);
	assert_int_equal(totals(l).open, 1);
	client_close(user);
}

/* The user's client dies: the token stays valid. */
static void test_user_dies(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0), *user = client_open(l, "", 0);
	uint64_t region = client_add_filled(owner, PAGE, 1);
	struct token t = client_export(owner, region, 0, PAGE);

	client_import(user, &t);
	client_import(user, &t);
	client_close(user);
	lab_until(l, totals(l).remotes == 0);
	assert_int_equal(totals(l).tokens, 1);
	CLIENT_SEND(owner, region_remove, &(struct dmsg_region_remove){ .region = region });
	client_expect(owner, DMSG_REGION_REMOVE_REPLY);
	client_close(owner);
}

/*
 * A hole appears during a transfer: the transfer gets a typed error, and the session that owns the
 * memory ends.
 */
static void test_fault(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0), *user = client_open(l, "", 0);
	int fd = memory_fd(4 * PAGE, 1);
	struct token t = client_export(owner, client_add(owner, fd, 4 * PAGE), 0, 4 * PAGE);
	uint64_t mine = client_add_filled(user, 4 * PAGE, 2), remote = client_import(user, &t);
	struct dmsg_transfer_done done;
	void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	bool guarded = fault_guard_memory(p, PAGE);

	assert_int_equal(fault_init(), 0);
	munmap(p, PAGE);
	if (guarded) {
		assert_int_equal(
			fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, PAGE), 0);
		done = move(user, DMSG_DIRECTION_READ, mine, remote, 0, 4 * PAGE);
		assert_int_equal(done.status, DRAY_E_REGION_FAULT);
		client_expect_error(owner, 0, DRAY_E_REGION_FAULT);
		client_expect_end(owner);
		client_expect(user, DMSG_REMOTE_LOST);
		assert_int_equal(totals(l).open, 1);
	}
	close(fd);
	client_close(owner);
	client_close(user);
	if (!guarded)
		skip();
}

/* --- remotes of peers ------------------------------------------------------------------------- */

static struct token foreign_token(struct client *c)
{
	struct token t = client_export(c, client_add_filled(c, PAGE, 1), 0, PAGE);

	memcpy(t.wire + 8, other_id, 16);
	return t;
}

static uint64_t peer_answers(struct client *c, uint64_t grant)
{
	struct peers *p = &c->lab->peers;
	struct dray_err ok = DRAY_ERR_NULL;
	struct dmsg_remote_import_reply reply;

	p->import_fn(p->import_arg, &ok, LAB_PEER,
		     &(struct pmsg_import_reply){
			     .grant = grant, .length = 8192, .access = DMSG_ACCESS_READ },
		     NULL);
	CLIENT_REPLY(c, remote_import_reply, DMSG_REMOTE_IMPORT_REPLY, &reply);
	assert_int_equal(reply.length, 8192);
	assert_int_equal(reply.access, DMSG_ACCESS_READ);
	assert_int_equal(reply.transport, DMSG_TRANSPORT_TCP);
	return reply.remote;
}

static uint64_t import_peer(struct client *c, const struct token *t, uint64_t grant)
{
	unsigned before = c->lab->peers.imports;

	client_send_import(c, t);
	lab_until(c->lab, c->lab->peers.imports == before + 1);
	return peer_answers(c, grant);
}

static void test_peer_import(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct token t = foreign_token(c);
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_remote_import m = { .token = { t.wire, t.n }, .timeout_ms = 250 };
	uint64_t remote;

	CLIENT_SEND(c, remote_import, &m);
	lab_until(l, l->peers.imports == 1);
	assert_int_equal(l->peers.timeout_ns, 250 * DRAY_NS_PER_MS);
	assert_string_equal(l->peers.segment, "127.0.0.1:7411");
	assert_memory_equal(l->peers.token.agent_id, other_id, 16);
	dray_err_set(&err, -EPERM, DRAY_E_PEER_DENIED, "no");
	l->peers.import_fn(l->peers.import_arg, &err, 0, NULL, NULL);
	client_expect_error(c, c->id, DRAY_E_PEER_DENIED);

	l->peers.import_code = DRAY_E_PEER_UNREACHABLE;
	client_send_import(c, &t);
	client_expect_error(c, c->id, DRAY_E_PEER_UNREACHABLE);
	l->peers.import_code = 0;
	remote = import_peer(c, &t, 11);
	assert_int_equal(l->peers.timeout_ns, 0);
	CLIENT_SEND(c, remote_release, &(struct dmsg_remote_release){ .remote = remote });
	client_expect(c, DMSG_REMOTE_RELEASE_REPLY);
	assert_int_equal(l->peers.n_released, 1);
	assert_int_equal(l->peers.released[0], 11);
	assert_int_equal(totals(l).remotes, 0);

	/* the open imports of a client that dies are cancelled */
	client_send_import(c, &t);
	lab_until(l, l->peers.imports == 3);
	client_close(c);
	lab_until(l, l->peers.cancelled == 1);
	lab_until(l, totals(l).regions == 0);
}

/* The owner hears that the keys of a remote have ended when no work request holds them any more. */
static void test_rekey(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct token t = foreign_token(c);
	uint8_t record[PMSG_RAIL_SIZE];
	const struct dray_vec rails = { record, 1 };
	struct dray_list held = DRAY_LIST_INIT(held);
	struct rail_keys *keys;

	pmsg_rail_put(record, &(struct pmsg_rail){ .rkey = 5, .base = 4096, .length = 4096 });
	sessions_remote_rekey(l->sessions, LAB_PEER, 7, 1);
	assert_int_equal(l->peers.n_rekeyed, 1);
	/* held by the workers until they have handled the command */
	import_peer(c, &t, 8);
	sessions_remote_keys(l->sessions, LAB_PEER, 8, &rails);
	sessions_remote_rekey(l->sessions, LAB_PEER, 8, 2);
	lab_until(l, l->peers.rekeyed == 2);
	/* held by a work request, of the first of two sets */
	keys = rail_keys_ref(remote_keys_hold(&held, &rails, 4096));
	assert_non_null(remote_keys_hold(&held, &rails, 4096));
	remote_keys_end(l->sessions, &held, LAB_PEER, 3);
	assert_true(dray_list_empty(&held));
	/* answered in the order of the ends: 4 has no keys */
	sessions_remote_rekey(l->sessions, LAB_PEER, 8, 4);
	assert_int_equal(l->peers.rekeyed, 4);
	for (int i = 0; i < 20; i++)
		sd_event_run(l->event, 1000);
	assert_int_equal(l->peers.n_rekeyed, 3);
	rail_keys_unref(keys);
	lab_until(l, l->peers.rekeyed == 3);
	assert_int_equal(l->peers.n_rekeyed, 4);
	client_close(c);
}

static void test_fence(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct token t = foreign_token(c);
	uint64_t remotes[200];
	struct dmsg_remote_lost lost;

	for (unsigned i = 0; i < 200; i++)
		remotes[i] = import_peer(c, &t, 1000 + i);
	/* a fence for an unknown remote is acknowledged at once */
	sessions_remote_fenced(l->sessions, LAB_PEER, 7, DRAY_E_REVOKED);
	assert_int_equal(l->peers.n_acked, 1);
	sessions_remote_fenced(l->sessions, LAB_PEER, 1042, DRAY_E_REVOKED);
	/* not before the workers have released the remote */
	assert_int_equal(l->peers.n_acked, 1);
	CLIENT_RECV(c, remote_lost, DMSG_REMOTE_LOST, &lost);
	assert_int_equal(lost.remote, remotes[42]);
	assert_int_equal(lost.code, DRAY_E_REVOKED);
	lab_until(l, l->peers.n_acked == 2);
	assert_int_equal(l->peers.acked[1], 1042);
	CLIENT_SEND(c, remote_release, &(struct dmsg_remote_release){ .remote = remotes[42] });
	client_expect(c, DMSG_REMOTE_RELEASE_REPLY);
	assert_int_equal(l->peers.n_released, 0);

	/* a fence crosses a release */
	CLIENT_SEND(c, remote_release, &(struct dmsg_remote_release){ .remote = remotes[43] });
	CLIENT_SEND(c, remote_release, &(struct dmsg_remote_release){ .remote = remotes[44] });
	client_expect(c, DMSG_REMOTE_RELEASE_REPLY);
	client_expect(c, DMSG_REMOTE_RELEASE_REPLY);
	sessions_remote_fenced(l->sessions, LAB_PEER, 1044, DRAY_E_REVOKED);
	assert_int_equal(l->peers.n_acked, 3);

	/* the peer dies: nothing is sent to it, and every remote of it is lost once */
	l->peers.n_released = 0;
	sessions_peer_lost(l->sessions, LAB_PEER, DRAY_E_PEER_LOST, "silent for 3 s");
	sessions_peer_lost(l->sessions, LAB_PEER, DRAY_E_PEER_LOST, "silent for 3 s");
	for (unsigned i = 0; i < 197; i++) {
		CLIENT_RECV(c, remote_lost, DMSG_REMOTE_LOST, &lost);
		assert_int_equal(lost.code, DRAY_E_PEER_LOST);
		assert_int_equal(lost.message.n, strlen("silent for 3 s"));
	}
	CLIENT_SEND(c, notify, &(struct dmsg_notify){ .remote = remotes[0] });
	client_expect_error(c, c->id, DRAY_E_PEER_LOST);
	client_close(c);
	lab_until(l, totals(l).remotes == 0);
	assert_int_equal(l->peers.n_released, 0);
	assert_int_equal(l->peers.n_acked, 3);
}

static void send_release(struct client *c, uint64_t remote)
{
	CLIENT_SEND(c, remote_release, &(struct dmsg_remote_release){ .remote = remote });
}

/* Of a remote whose peer is lost only the handle is left, until the client releases it. */
static void test_release_of_lost(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct token t = foreign_token(c);
	uint64_t remotes[2] = { import_peer(c, &t, 1), import_peer(c, &t, 2) };
	struct dmsg_remote_lost lost;

	sessions_peer_lost(l->sessions, LAB_PEER, DRAY_E_PEER_LOST, "silent for 3 s");
	for (unsigned i = 0; i < 2; i++) {
		CLIENT_RECV(c, remote_lost, DMSG_REMOTE_LOST, &lost);
		/* it counts until it is released, and no longer */
		assert_int_equal(totals(l).remotes, 2);
	}
	for (unsigned i = 0; i < 2; i++) {
		send_release(c, remotes[i]);
		client_expect(c, DMSG_REMOTE_RELEASE_REPLY);
		/* at the latest when the workers have dropped it */
		lab_until(l, totals(l).remotes == 1 - i);
		send_release(c, remotes[i]);
		client_expect_error(c, c->id, DRAY_E_NOT_FOUND);
	}
	/* the lost peer was told nothing */
	assert_int_equal(l->peers.n_released + l->peers.n_acked, 0);
	/* an index that is used again is another handle */
	assert_int_not_equal(import_peer(c, &t, 3), remotes[0]);
	client_close(c);
}

/*
 * The owner drains: the remote is lost, but transfers in flight may finish. A client that releases the remote as soon as
 * it hears of the loss gets its answer at once, and cancels nothing.
 */
static void test_release_during_drain(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct token t = foreign_token(c);
	int fd = memory_fd(PAGE, 0);
	uint32_t *word = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	uint64_t local = client_add(c, fd, PAGE), remote = import_peer(c, &t, 7), transfer;
	uint8_t op[DMSG_OP_SIZE];
	struct dmsg_transfer m = {
		.direction = DMSG_DIRECTION_READ,
		.flags = DMSG_TRANSFER_FLAG_WAIT,
		.local = local,
		.remote = remote,
		.wait_region = local,
		.wait_value = 1,
		.ops = { op, 1 },
	};
	struct dmsg_transfer_done done;
	struct dmsg_remote_lost lost;

	assert_ptr_not_equal(word, MAP_FAILED);
	dmsg_op_put(op, &(struct dmsg_op){ .local = 8, .length = 8 });
	CLIENT_SEND(c, transfer, &m);
	transfer = c->id;
	/* the worker has read the transfer when it has read the next request */
	client_add_filled(c, PAGE, 1);
	sessions_peer_draining(l->sessions, LAB_PEER);
	CLIENT_RECV(c, remote_lost, DMSG_REMOTE_LOST, &lost);
	assert_int_equal(lost.code, DRAY_E_DRAINING);
	send_release(c, remote);
	client_expect(c, DMSG_REMOTE_RELEASE_REPLY);
	send_release(c, remote);
	client_expect_error(c, c->id, DRAY_E_NOT_FOUND);
	/* the grant is held for the transfer */
	assert_int_equal(l->peers.n_released, 0);
	*word = 1;
	CLIENT_RECV(c, transfer_done, DMSG_TRANSFER_DONE, &done);
	assert_int_equal(c->h.request_id, transfer);
	/* it went on: there is no way to this peer, which only its start can find out */
	assert_string_equal(dray_error_name(done.status), dray_error_name(DRAY_E_PEER_LOST));
	lab_until(l, totals(l).remotes == 0);
	assert_int_equal(l->peers.n_released, 1);
	assert_int_equal(l->peers.released[0], 7);
	munmap(word, PAGE);
	close(fd);
	client_close(c);
}

/* A session that ends while its remote is fenced still acknowledges the fence, once. */
static void test_fence_and_death(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct token t = foreign_token(c);

	import_peer(c, &t, 1);
	import_peer(c, &t, 2);
	sessions_remote_fenced(l->sessions, LAB_PEER, 1, DRAY_E_REVOKED);
	assert_int_equal(sessions_close(l->sessions, c->hello.session, "test"), 0);
	lab_until(l, totals(l).remotes == 0);
	assert_int_equal(l->peers.n_acked, 1);
	assert_int_equal(l->peers.acked[0], 1);
	assert_int_equal(l->peers.n_released, 1);
	assert_int_equal(l->peers.released[0], 2);
	client_close(c);
}

static unsigned drops;

void __real_pool_drop(struct worker_pool *p, enum object_kind kind, dray_handle handle,
		      uint32_t code, bool urgent, void (*done)(void *arg), void *arg);
void __wrap_pool_drop(struct worker_pool *p, enum object_kind kind, dray_handle handle,
		      uint32_t code, bool urgent, void (*done)(void *arg), void *arg);

void __wrap_pool_drop(struct worker_pool *p, enum object_kind kind, dray_handle handle,
		      uint32_t code, bool urgent, void (*done)(void *arg), void *arg)
{
	drops++;
	__real_pool_drop(p, kind, handle, code, urgent, done, arg);
}

void __real_pool_retire(struct worker_pool *p, enum object_kind kind, dray_handle handle,
			uint32_t code, void (*done)(void *arg), void *arg);
void __wrap_pool_retire(struct worker_pool *p, enum object_kind kind, dray_handle handle,
			uint32_t code, void (*done)(void *arg), void *arg);

void __wrap_pool_retire(struct worker_pool *p, enum object_kind kind, dray_handle handle,
			uint32_t code, void (*done)(void *arg), void *arg)
{
	drops++;
	__real_pool_retire(p, kind, handle, code, done, arg);
}

/* Many remotes of a session that ends are released in several turns of the loop. */
static void test_many_remotes(void **state)
{
	const unsigned n = 2 * REMOTES_PER_TURN + 1;
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0), *user = client_open(l, "", 0);
	struct token t = client_export(owner, client_add_filled(owner, PAGE, 1), 0, PAGE);

	l->cfg->limits.remotes_per_session = n;
	for (unsigned i = 0; i < n; i++)
		client_import(user, &t);
	client_close(user);
	drops = 0;
	for (unsigned turns = 0, before; totals(l).remotes; turns++) {
		assert_true(turns < 100 * n);
		before = drops;
		lab_turn(l);
		assert_in_range(drops - before, 0, REMOTES_PER_TURN);
	}
	assert_int_equal(drops, n);
	lab_until(l, totals(l).open == 1);
	client_close(owner);
}

static void lose_peer(struct sessions *ss)
{
	sessions_peer_lost(ss, LAB_PEER, DRAY_E_PEER_LOST, NULL);
}

static void drain_peer(struct sessions *ss)
{
	sessions_peer_draining(ss, LAB_PEER);
}

/* The same for the remotes of a peer that is lost, or drains. */
static void many_remotes_of_peer(struct lab *l, void (*end)(struct sessions *ss), uint32_t code)
{
	const unsigned n = 2 * REMOTES_PER_TURN + 1;
	struct client *c = client_open(l, "", 0);
	struct token t = foreign_token(c);
	struct dmsg_remote_lost lost;
	dray_auto_free uint64_t *remotes = calloc(n, sizeof(*remotes));

	assert_non_null(remotes);
	l->cfg->limits.remotes_per_session = n;
	for (unsigned i = 0; i < n; i++)
		remotes[i] = import_peer(c, &t, i + 1);
	drops = 0;
	end(l->sessions);
	assert_in_range(drops, 1, REMOTES_PER_TURN);
	for (unsigned turns = 0, before; drops < n; turns++) {
		assert_true(turns < 100 * n);
		before = drops;
		lab_turn(l);
		assert_in_range(drops - before, 0, REMOTES_PER_TURN);
	}
	for (unsigned i = 0; i < n; i++) {
		CLIENT_RECV(c, remote_lost, DMSG_REMOTE_LOST, &lost);
		assert_int_equal(lost.remote, remotes[i]);
		assert_int_equal(lost.code, code);
	}
	assert_int_equal(drops, n);
	client_close(c);
	lab_until(l, totals(l).remotes == 0);
}

static void test_many_remotes_lost(void **state)
{
	many_remotes_of_peer(*state, lose_peer, DRAY_E_PEER_LOST);
}

static void test_many_remotes_drain(void **state)
{
	many_remotes_of_peer(*state, drain_peer, DRAY_E_DRAINING);
}

/* What happens to one peer looks at no remote of another one. */
static void test_remotes_of_others(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct token t = foreign_token(c);
	struct remote *r = remote_find(l->sessions, import_peer(c, &t, 1));

	UNTOUCHED_BEGIN(*r);
	sessions_peer_draining(l->sessions, LAB_PEER + 1);
	sessions_peer_lost(l->sessions, LAB_PEER + 1, DRAY_E_PEER_LOST, NULL);
	sessions_engine_lost(l->sessions, LAB_PEER, DRAY_E_PEER_LOST, "of another table");
	UNTOUCHED_END(*r);
	assert_int_equal(r->state, REMOTE_LIVE);
	client_close(c);
	lab_until(l, totals(l).remotes == 0);
}

int main(void)
{
#define T(t) cmocka_unit_test_setup_teardown(t, lab_setup, lab_teardown)
	const struct CMUnitTest tests[] = {
		T(test_add_remove),
		T(test_add_refused),
		T(test_fds_lost),
		T(test_malformed),
		T(test_quota),
		T(test_pool),
		T(test_local_remote),
		T(test_import_refused),
		T(test_owner_dies),
		T(test_user_dies),
		T(test_many_remotes),
		T(test_fault),
		T(test_peer_import),
		T(test_rekey),
		T(test_fence),
		T(test_fence_and_death),
		T(test_release_of_lost),
		T(test_release_during_drain),
		T(test_remove_one_of_many),
		T(test_many_remotes_lost),
		T(test_many_remotes_drain),
		T(test_remotes_of_others),
	};

	return cmocka_run_group_tests_name("session_region", tests, NULL, NULL);
}
