/* SPDX-License-Identifier: Apache-2.0 */
/* libdray: regions, tokens, remotes and events. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/memfd.h"
#include "tests/unit/client_rig.h"
#include "tests/unit/cm.h"

static void regions_tokens_remotes(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_remote_info info;
	struct dray_memory m;
	struct dray_token t, parsed;
	dray_region region;
	dray_remote remote;
	uint64_t agent;

	client_region(d, &region, &m);
	agent = agent_region(d, region);
	assert_int_equal(agent, client_fake.next_handle);
	assert_int_equal(dray_region_export(d, region, NULL, &t), 0);
	assert_int_equal(t.length, 40);
	assert_int_equal(strncmp(t.text, "dray1:", 6), 0);
	assert_int_equal(dray_region_revoke(d, region, &t), 0);
	assert_int_equal(dray_token_parse(t.text, &parsed), 0);
	assert_int_equal(dray_region_revoke(d, region, &parsed), -DRAY_E_NOT_FOUND);
	assert_int_equal(fake_count(&client_fake, DMSG_REGION_REVOKE), 1);
	assert_int_equal(dray_remote_import(d, &t, 0, &remote), 0);
	assert_int_equal(dray_remote_get_info(d, remote, &info), 0);
	assert_int_equal(info.length, 1 << 20);
	assert_int_equal(info.transport, DRAY_TRANSPORT_LOCAL);
	assert_int_equal(dray_notify(d, remote, 5, "hello", 5), 0);
	assert_int_equal(dray_remote_release(d, remote), 0);
	assert_int_equal(dray_remote_release(d, remote), -DRAY_E_NOT_FOUND);
	assert_int_equal(dray_notify(d, remote, 5, "hello", 5), -DRAY_E_NOT_FOUND);
	assert_int_equal(dray_region_remove(d, region), 0);
	assert_int_equal(dray_region_remove(d, region), -DRAY_E_NOT_FOUND);
	assert_int_equal(dray_region_export(d, region, NULL, &t), -DRAY_E_NOT_FOUND);
	dray_memory_free(&m);
	dray_disconnect(d);
}

/* Descriptors of this process, after the fake has closed those that it received. */
static int settled_fds(void)
{
	fake_count(&client_fake, 0);
	return cm_fds_count();
}

static void extents_share_descriptors(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_extent e[6];
	struct dray_memory a, b;
	struct dray_region_spec spec = {
		.name = "kv", .access = DRAY_READ, .extents = e, .extents_n = 6
	};
	dray_region region;
	int fds;

	assert_int_equal(dray_memory_alloc(65536, 0, &a), 0);
	assert_int_equal(dray_memory_alloc(65536, 0, &b), 0);
	for (unsigned i = 0; i < 6; i++)
		e[i] = (struct dray_extent){ .kind = DRAY_KIND_MEMFD,
					     .fd = i % 2 ? b.fd : a.fd,
					     .offset = i * 1000,
					     .length = 100 + i };
	fds = settled_fds();
	assert_int_equal(dray_region_add(d, &spec, &region), 0);
	/* two duplicates in this process */
	assert_int_equal(settled_fds(), fds + 2);
	assert_int_equal(client_fake.last_add_fds, 2);
	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(client_fake.last_extents[i].fd_index, i % 2);
		assert_int_equal(client_fake.last_extents[i].offset, i * 1000);
		assert_int_equal(client_fake.last_extents[i].length, 100 + i);
	}
	assert_int_equal(dray_region_remove(d, region), 0);
	assert_int_equal(settled_fds(), fds);
	e[3].fd = 9999;
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_INVALID);
	e[3].fd = a.fd;
	e[3].length = 65536;
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_REGION_TOO_SMALL);
	assert_int_equal(settled_fds(), fds);
	e[3].length = 0;
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_INVALID);
	spec.extents_n = 0;
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_INVALID);
	dray_memory_free(&a);
	dray_memory_free(&b);
	dray_disconnect(d);
}

static void send_events(struct fake *f, void *arg)
{
	uint8_t buf[8192];
	uint64_t region = *(uint64_t *)arg;
	struct dmsg_notification n = { .tag = 5,
				       .region = region,
				       .incarnation = 3,
				       .id = 9,
				       .payload = { (const uint8_t *)"payload", 7 } };

	fake_send(f, dmsg_notification_encode(buf, sizeof(buf), 0, &n), buf);
	n.region = 4242;
	n.payload.n = 0;
	fake_send(f, dmsg_notification_encode(buf, sizeof(buf), 0, &n), buf);
	fake_send(f,
		  dmsg_remote_lost_encode(buf, sizeof(buf), 0,
					  &(struct dmsg_remote_lost){ f->next_handle,
								      DRAY_E_REVOKED,
								      { "taken back", 10 } }),
		  buf);
	fake_send(f, dmsg_draining_encode(buf, sizeof(buf), 0, &(struct dmsg_draining){ 500 }),
		  buf);
}

static void events_are_delivered(void **state)
{
	struct dray *d = client_connect(DRAY_OPTION_NOTIFICATIONS);
	struct dray_memory m;
	struct dray_event e;
	dray_region region;
	dray_remote remote;
	uint64_t agent;
	struct pollfd p = { dray_fd(d), POLLIN, 0 };

	client_region(d, &region, &m);
	client_remote(d, &remote);
	agent = agent_region(d, region);
	fake_do(&client_fake, send_events, &agent);
	assert_int_equal(poll(&p, 1, 5000), 1);
	e = client_event(d, DRAY_EVENT_NOTIFICATION);
	assert_int_equal(e.region.id, region.id);
	assert_int_equal(e.tag, 5);
	assert_int_equal(e.id, 9);
	assert_int_equal(e.length, 7);
	assert_memory_equal(e.payload, "payload", 7);
	e = client_event(d, DRAY_EVENT_NOTIFICATION);
	assert_int_equal(e.region.id, 0);
	assert_int_equal(e.agent_region, 4242);
	e = client_event(d, DRAY_EVENT_REMOTE_LOST);
	assert_int_equal(e.remote.id, remote.id);
	assert_int_equal(e.code, -DRAY_E_REVOKED);
	assert_string_equal(e.message, "taken back");
	e = client_event(d, DRAY_EVENT_DRAINING);
	assert_int_equal(e.deadline_ms, 500);
	assert_int_equal(dray_notify(d, remote, 1, NULL, 0), -DRAY_E_REVOKED);
	/* the library has released it by itself, and sends nothing when the caller does */
	assert_int_equal(dray_remote_release(d, remote), 0);
	assert_int_equal(dray_remote_release(d, remote), -DRAY_E_NOT_FOUND);
	assert_int_equal(dray_region_remove(d, region), 0);
	assert_int_equal(fake_count(&client_fake, DMSG_REMOTE_RELEASE), 1);
	dray_memory_free(&m);
	dray_disconnect(d);
}

static void handles_are_confused(void **state)
{
	struct dray *d = client_connect(0);
	static const struct dray_op op = { 0, 0, 8 };
	struct dray_transfer t = { .direction = DRAY_DIRECTION_READ, .ops = &op, .count = 1 };
	struct dray_remote_info info;
	struct dray_memory m;
	dray_region region;
	dray_remote remote;

	client_region(d, &region, &m);
	client_remote(d, &remote);
	assert_int_not_equal(region.id, remote.id);
	t.local.id = remote.id;
	t.remote.id = region.id;
	assert_int_equal(dray_submit(d, &t, NULL), -DRAY_E_INVALID);
	assert_non_null(strstr(dray_last_error(d), "is a remote, not a region"));
	t.local = region;
	assert_int_equal(dray_submit(d, &t, NULL), -DRAY_E_INVALID);
	assert_non_null(strstr(dray_last_error(d), "is a region, not a remote"));
	assert_int_equal(dray_remote_get_info(d, (dray_remote){ region.id }, &info),
			 -DRAY_E_INVALID);
	assert_int_equal(dray_region_remove(d, (dray_region){ remote.id }), -DRAY_E_INVALID);
	assert_int_equal(dray_remote_release(d, (dray_remote){ region.id }), -DRAY_E_INVALID);
	assert_int_equal(dray_cancel(d, region.id), -DRAY_E_INVALID);
	assert_non_null(strstr(dray_last_error(d), "is a region, not a request"));
	assert_int_equal(dray_remote_release(d, remote), 0);
	assert_int_equal(dray_region_remove(d, region), 0);
	dray_memory_free(&m);
	dray_disconnect(d);
}

static void flood(struct fake *f, void *arg)
{
	uint8_t buf[128];

	for (int i = 0; i < 20; i++)
		fake_send(f,
			  dmsg_draining_encode(buf, sizeof(buf), 0,
					       &(struct dmsg_draining){ (uint32_t)i }),
			  buf);
}

/* A client whose queue of events is full: it has the first five of twenty, and the others are in its socket. */
static struct dray *flooded(dray_remote *ret)
{
	struct dray_options o = client_options();
	struct dray *d = NULL;
	struct pollfd p;

	o.events_max = 5;
	assert_int_equal(dray_connect(&o, &d, NULL, 0), 0);
	client_remote(d, ret);
	fake_do(&client_fake, flood, NULL);
	p = (struct pollfd){ dray_fd(d), POLLIN, 0 };
	assert_int_equal(dray_process(d, 5000), 5);
	assert_int_equal(dray_process(d, 0), 5);
	assert_int_equal(poll(&p, 1, 0), 0);
	return d;
}

static size_t events_of(struct dray *d)
{
	struct dray_info info;

	dray_get_info(d, &info);
	return info.events;
}

/* Takes events, whose deadlines count from `from`, until the last one of the flood. */
static void take_flood(struct dray *d, unsigned int from)
{
	struct dray_event e;

	while (from < 20) {
		if (dray_next_event(d, &e) == 0) {
			assert_true(dray_process(d, 5000) > 0);
			continue;
		}
		assert_int_equal(e.type, DRAY_EVENT_DRAINING);
		assert_int_equal(e.deadline_ms, from++);
	}
}

static void take_dropped(struct dray *d, uint64_t n)
{
	struct dray_event e;

	assert_int_equal(dray_next_event(d, &e), 1);
	assert_int_equal(e.type, DRAY_EVENT_DROPPED);
	assert_int_equal(e.tag, DRAY_EVENT_DRAINING);
	assert_int_equal(e.id, n);
	assert_string_equal(e.message, "");
}

/* A full queue stops receiving events; nothing is lost of what a slow program takes. */
static void events_have_a_limit(void **state)
{
	dray_remote remote;
	struct dray *d = flooded(&remote);

	assert_int_equal(events_of(d), 5);
	take_flood(d, 0);
	dray_disconnect(d);
}

/* An answer behind unread events comes, whether a function blocks for it or not. The queue does not grow for it. */
static void events_do_not_hold_up_answers(void **state)
{
	for (int blocks = 0; blocks < 2; blocks++) {
		struct dray_completion c;
		dray_remote remote;
		struct dray *d = flooded(&remote);
		struct pollfd p = { dray_fd(d), POLLIN, 0 };

		if (blocks) {
			assert_int_equal(dray_notify(d, remote, 1, "x", 1), 0);
		} else {
			assert_int_equal(dray_notify_start(d, remote, 1, "x", 1, NULL, NULL), 0);
			do {
				assert_int_equal(poll(&p, 1, 5000), 1);
				assert_true(dray_process(d, 0) > 0);
			} while (dray_next_completion(d, &c) == 0);
			assert_int_equal(c.status, 0);
		}
		assert_int_equal(events_of(d), 11);
		take_dropped(d, 10);
		assert_int_equal(events_of(d), 10);
		take_flood(d, 10);
		dray_disconnect(d);
	}
}

/* The loss of the session is behind unread events. What comes with it drops some of those. */
static void events_do_not_hide_a_loss(void **state)
{
	dray_remote remote;
	struct dray *d = flooded(&remote);
	struct dray_info info;
	struct dray_event e;

	fake_do(&client_fake, client_restart, NULL);
	do {
		assert_true(dray_process(d, 5000) > 0);
		dray_get_info(d, &info);
	} while (!info.losses || !info.connected);
	take_dropped(d, 12);
	for (unsigned int i = 12; i < 20; i++) {
		assert_int_equal(dray_next_event(d, &e), 1);
		assert_int_equal(e.deadline_ms, i);
	}
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(events_of(d), 0);
	dray_disconnect(d);
}

static void blocking_calls_keep_the_wake_up(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_completion c;
	dray_remote remote;
	uint64_t id;
	struct pollfd p = { dray_fd(d), POLLIN, 0 };

	client_remote(d, &remote);
	assert_int_equal(dray_notify_start(d, remote, 1, "x", 1, NULL, &id), 0);
	/* the agent answers it before the blocking call */
	assert_int_equal(dray_notify(d, remote, 2, "y", 1), 0);
	assert_int_equal(poll(&p, 1, 0), 1);
	assert_int_equal(dray_process(d, 0), 1);
	assert_int_equal(dray_next_completion(d, &c), 1);
	assert_int_equal(c.id, id);
	assert_int_equal(c.request, DRAY_REQUEST_NOTIFY);
	assert_int_equal(dray_next_completion(d, &c), 0);
	assert_int_equal(dray_process(d, 0), 0);
	assert_int_equal(poll(&p, 1, 0), 0);
	assert_int_equal(dray_wait(d, id, 0, &c), -DRAY_E_NOT_FOUND);
	dray_disconnect(d);
}

static bool swallow_add(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			struct dray_fds *fds)
{
	if (h->type != DMSG_REGION_ADD)
		return false;
	f->last_transfer = h->request_id;
	return true;
}

static void answer_add(struct fake *f, void *arg)
{
	uint8_t buf[128];

	fake_send(f,
		  dmsg_region_add_reply_encode(buf, sizeof(buf), f->last_transfer,
					       &(struct dmsg_region_add_reply){ 77, 65536 }),
		  buf);
}

/* An object whose reply comes after its caller's timeout is released. */
static void late_answers_are_undone(void **state)
{
	struct dray_options o = client_options();
	struct dray *d = NULL;
	struct dray_memory m;
	dray_region region = { 0 };

	o.request_ms = 30;
	assert_int_equal(dray_connect(&o, &d, NULL, 0), 0);
	assert_int_equal(dray_memory_alloc(65536, 0, &m), 0);
	client_fake.hook = swallow_add;
	assert_int_equal(dray_region_add_memory(d, &m, DRAY_READ, &region), -DRAY_E_TIMEOUT);
	assert_int_equal(region.id, 0);
	fake_do(&client_fake, answer_add, NULL);
	while (!fake_count(&client_fake, DMSG_REGION_REMOVE))
		assert_int_equal(dray_process(d, 10), 0);
	dray_memory_free(&m);
	dray_disconnect(d);
}

/* The READ that waits for its answer, and the leases that have ended. */
static uint64_t read_request, ended_leases[4];
static uint32_t ended_leases_n, ended_flags, read_deadline_ms;

static bool keep_read(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		      struct dray_fds *fds)
{
	struct dmsg_store_release m;
	struct dmsg_store_read read;
	uint8_t buf[64];

	if (h->type == DMSG_STORE_READ) {
		dray_assert(dmsg_store_read_decode(body, h->length, &read, NULL) == 0);
		read_request = h->request_id;
		read_deadline_ms = read.deadline_ms;
	}
	if (h->type != DMSG_STORE_RELEASE)
		return h->type == DMSG_STORE_READ;
	dray_assert(dmsg_store_release_decode(body, h->length, &m, NULL) == 0);
	ended_flags = m.flags;
	for (uint32_t i = 0; i < m.leases.n; i++)
		ended_leases[ended_leases_n++] =
			dray_le_get64(m.leases.p + i * DMSG_STORE_LEASE_SIZE);
	fake_send(f,
		  dmsg_store_release_reply_encode(buf, sizeof(buf), h->request_id,
						  &(struct dmsg_store_release_reply){ m.leases.n }),
		  buf);
	return true;
}

/* Two objects of one memfd, and a key that is not found. arg: its descriptor is lost on the way. */
static void answer_read(struct fake *f, void *arg)
{
	static const struct dmsg_store_place places[] = {
		{ .length = 8, .file = 1, .file_bytes = 4096, .lease = 77 },
		{ .status = DMSG_STORE_STATUS_NOT_FOUND, .fd_index = UINT16_MAX },
		{ .length = 8,
		  .file = 1,
		  .file_bytes = 4096,
		  .offset = 64,
		  .lease = 78,
		  .fd_index = UINT16_MAX },
	};
	uint8_t records[DRAY_ARRAY_SIZE(places) * DMSG_STORE_PLACE_SIZE], buf[512];
	struct dmsg_store_read_reply m = { { records, DRAY_ARRAY_SIZE(places) } };
	int fd dray_auto_close = dray_memfd_new("store", 4096, false);
	int n;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(places); i++)
		dmsg_store_place_put(records + i * DMSG_STORE_PLACE_SIZE, &places[i]);
	n = dmsg_store_read_reply_encode(buf, sizeof(buf), read_request, &m);
	dray_seqpacket_send(f->conn, buf, (size_t)n, &fd, arg ? 0 : 1);
}

/* Nobody sees the leases of a READ whose answer comes too late, or cannot be used. */
static void leases_that_nobody_sees_end(void **state)
{
	static const struct dray_store_item items[3] = {
		{ .key = "a", .key_length = 1 },
		{ .key = "b", .key_length = 1 },
		{ .key = "c", .key_length = 1 },
	};
	static const struct dray_store_batch batch = { .items = items,
						       .items_n = 3,
						       .deadline_ms = 20 };
	struct dray_options o = client_options();
	struct dray_store_result results[3];
	struct dray_completion c;
	bool lost = true;
	struct dray *d = NULL;
	uint64_t id, bytes;
	const uint8_t *data;
	void *base;

	o.request_ms = 30;
	assert_int_equal(dray_connect(&o, &d, NULL, 0), 0);
	client_fake.hook = keep_read;
	ended_leases_n = 0;
	assert_int_equal(dray_store(d, DRAY_STORE_READ, &batch, results), -DRAY_E_TIMEOUT);
	assert_int_equal(read_deadline_ms, 20);
	fake_do(&client_fake, answer_read, NULL);
	while (!fake_count(&client_fake, DMSG_STORE_RELEASE))
		assert_int_equal(dray_process(d, 10), 0);
	assert_int_equal(ended_flags, 0);
	dray_disconnect(d);

	d = client_connect(0);
	assert_int_equal(dray_store_start(d, DRAY_STORE_READ, &batch, NULL, &id), 0);
	fake_do(&client_fake, answer_read, &lost);
	assert_int_equal(dray_wait(d, id, -1, &c), 0);
	assert_int_equal(c.status, -DRAY_E_NO_FDS);
	assert_null(c.store);
	while (fake_count(&client_fake, DMSG_STORE_RELEASE) < 2)
		assert_int_equal(dray_process(d, 10), 0);
	/* the agent is to send its descriptor again */
	assert_int_equal(ended_flags, DMSG_STORE_RELEASE_FLAG_FILES);

	/* its caller ends them itself */
	assert_int_equal(dray_store_start(d, DRAY_STORE_READ, &batch, NULL, &id), 0);
	fake_do(&client_fake, answer_read, NULL);
	assert_int_equal(dray_wait(d, id, -1, &c), 0);
	assert_int_equal(c.status, 0);
	assert_int_equal(c.store->v[0].lease, 77);
	assert_int_equal(c.store->v[2].lease, 78);
	data = c.store->v[2].data;
	assert_int_equal(dray_store_keep(d, &lost, &base, &bytes), -DRAY_E_NOT_FOUND);
	assert_non_null(strstr(dray_last_error(d), "read in place"));
	assert_int_equal(dray_store_keep(d, data, &base, &bytes), 0);
	assert_int_equal(data - (const uint8_t *)base, 64);
	assert_int_equal(bytes, 4096);
	dray_disconnect(d);
	assert_int_equal(*data, 0);
	munmap(base, bytes);
	assert_int_equal(fake_count(&client_fake, DMSG_STORE_RELEASE), 2);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(ended_leases[i], 77 + i % 2);
}

/* Of the memory of stores. */
static unsigned mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	unsigned n = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:store") != NULL;
	fclose(f);
	return n;
}

static const uint8_t *read_in_place(struct dray *d, const struct dray_store_batch *batch)
{
	struct dray_completion c;
	uint64_t id;

	assert_int_equal(dray_store_start(d, DRAY_STORE_READ, batch, NULL, &id), 0);
	fake_do(&client_fake, answer_read, NULL);
	assert_int_equal(dray_wait(d, id, -1, &c), 0);
	assert_int_equal(c.status, 0);
	return c.store->v[0].data;
}

static void lose_agent(struct dray *d)
{
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
}

static void memory_of_a_lost_agent_stays_until_its_leases_end(void **state)
{
	static const struct dray_store_item items[3] = {
		{ .key = "a", .key_length = 1 },
		{ .key = "b", .key_length = 1 },
		{ .key = "c", .key_length = 1 },
	};
	static const struct dray_store_batch batch = { .items = items, .items_n = 3 };
	static const uint64_t leases[] = { 77, 78 };
	struct dray *d = client_connect(0);
	const uint8_t *data;
	uint64_t bytes;
	void *base;

	client_fake.hook = keep_read;
	ended_leases_n = 0;
	read_in_place(d, &batch);
	assert_int_equal(dray_store_release(d, leases, 1), 0);
	lose_agent(d);
	assert_int_equal(mappings(), 1);
	/* twice is once */
	assert_int_equal(dray_store_release(d, leases, 1), 0);
	assert_int_equal(mappings(), 1);
	assert_int_equal(dray_store_release(d, leases + 1, 1), 0);
	assert_int_equal(mappings(), 0);

	ended_leases_n = 0;
	read_in_place(d, &batch);
	assert_int_equal(dray_store_release(d, leases, 2), 0);
	assert_int_equal(mappings(), 1);
	lose_agent(d);
	assert_int_equal(mappings(), 0);

	/* the caller unmaps it */
	ended_leases_n = 0;
	data = read_in_place(d, &batch);
	assert_int_equal(dray_store_keep(d, data, &base, &bytes), 0);
	assert_int_equal(dray_store_release(d, leases, 2), 0);
	assert_int_equal(dray_store_keep(d, data, &base, &bytes), 0);
	lose_agent(d);
	assert_int_equal(mappings(), 1);
	assert_int_equal(dray_store_keep(d, data, &base, &bytes), -DRAY_E_NOT_FOUND);
	munmap(base, bytes);
	dray_disconnect(d);
}

static void groups_share_regions(void **state)
{
	struct dray *d = client_connect(0);
	dray_region region;
	dray_remote remote;
	uint64_t agent;
	struct dray_remote_info info;

	assert_int_equal(dray_region_borrow(d, 4711, &region), 0);
	agent = agent_region(d, region);
	assert_int_equal(agent, 4711);
	assert_int_equal(dray_remote_borrow(d, 4712, &remote), 0);
	assert_int_equal(dray_remote_get_info(d, remote, &info), 0);
	assert_int_equal(info.agent_remote, 4712);
	assert_int_equal(dray_remote_release(d, remote), 0);
	assert_int_equal(dray_region_remove(d, region), 0);
	assert_int_equal(fake_count(&client_fake, DMSG_REGION_REMOVE), 0);
	assert_int_equal(fake_count(&client_fake, DMSG_REMOTE_RELEASE), 0);
	assert_int_equal(dray_region_borrow(d, 4711, &region), 0);
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(agent_region(d, region), 0);
	assert_int_equal(dray_region_remove(d, region), 0);
	assert_int_equal(dray_region_borrow(d, 0, &region), -DRAY_E_INVALID);
	dray_disconnect(d);
}

static uint64_t pending[2];
static unsigned pending_n, refused;

/* An agent that accepts two requests at a time. */
static bool two_at_a_time(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			  struct dray_fds *fds)
{
	if (h->type != DMSG_NOTIFY)
		return false;
	if (pending_n == 2) {
		refused++;
		fake_send_error(f, h->request_id, DRAY_E_BUSY, "two at a time");
		return true;
	}
	pending[pending_n++] = h->request_id;
	return true;
}

static void answer_pending(struct fake *f, void *arg)
{
	uint8_t buf[64];

	while (pending_n)
		fake_send(f,
			  dmsg_notify_reply_encode(buf, sizeof(buf), pending[--pending_n],
						   &(struct dmsg_notify_reply){}),
			  buf);
}

static void busy_requests_are_retried(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_completion c;
	dray_remote remote;
	unsigned ended = 0;

	client_remote(d, &remote);
	pending_n = refused = 0;
	client_fake.hook = two_at_a_time;
	for (int i = 0; i < 30; i++)
		assert_int_equal(dray_notify_start(d, remote, 1, "x", 1, NULL, NULL), 0);
	while (ended < 30) {
		dray_process(d, 1);
		fake_do(&client_fake, answer_pending, NULL);
		while (dray_next_completion(d, &c) == 1) {
			assert_int_equal(c.status, 0);
			ended++;
		}
	}
	/* the library adapts: far fewer requests are refused than pass */
	assert_in_range(refused, 1, 100);
	dray_disconnect(d);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, client_setup, client_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(regions_tokens_remotes),
		TEST(extents_share_descriptors),
		TEST(events_are_delivered),
		TEST(handles_are_confused),
		TEST(events_have_a_limit),
		TEST(events_do_not_hold_up_answers),
		TEST(events_do_not_hide_a_loss),
		TEST(blocking_calls_keep_the_wake_up),
		TEST(late_answers_are_undone),
		TEST(leases_that_nobody_sees_end),
		TEST(memory_of_a_lost_agent_stays_until_its_leases_end),
		TEST(groups_share_regions),
		TEST(busy_requests_are_retried),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
