/* SPDX-License-Identifier: Apache-2.0 */
/* Rails, registrations and queue pairs on the control thread. */
#include "tests/unit/rails_fixture.h"
#include "schema/gen/errors.h"

/* Keys of staging memory go only to its worker, for all rails that are up; peers get none. */
static void test_staging(void **state)
{
	unsigned said = 0;

	rails_staging_add(lab->rails, 0, (void *)(64 * GIB), 1 << 20);
	assert_int_equal(told(RDMA_STAGING), 0);
	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up") && lab->staging && lab->staging->rails == 3);
	assert_int_equal(dev.last_access, IBV_ACCESS_LOCAL_WRITE);
	assert_non_null(rail_keys_find(lab->staging, 1, 64 * GIB + (1 << 20) - 1));
	assert_null(rail_keys_find(lab->staging, 1, 64 * GIB + (1 << 20)));
	assert_int_equal(lab->published + lab->keys_sent, 0);
	/* a device that has gone stays open while its keys are in use */
	see(1, 1, 3);
	UNTIL(lab->staging->rails == 1);
	UNTIL((let_go(&said), dev.contexts == 1));
	see(2, 2, 3);
	UNTIL(IS(1, "up") && lab->staging->rails == 3);
}

static void test_staging_fails(void **state)
{
	dev.reg_error = -ENOMEM;
	rails_staging_add(lab->rails, 0, (void *)(64 * GIB), 1 << 20);
	see(1, 1, 3);
	UNTIL(metric(DRAY_METRIC_REGISTRATION_FAILURES_TOTAL) == 1);
	assert_int_equal(told(RDMA_STAGING), 0);
}

/* --- rails ------------------------------------------------------------------------------------------------ */

static void test_up_and_down(void **state)
{
	see(2, 1, 3);
	UNTIL(IS(0, "up"));
	assert_true(IS(1, "absent"));
	assert_int_equal(told(RDMA_RAIL_UP), 1);
	assert_int_equal(metric(DRAY_METRIC_RAILS_UP), 1);
	see(2, 2, 3);
	UNTIL(IS(1, "up"));
	see(2, 1, 3);
	assert_true(IS(1, "down"));
	assert_int_equal(dev.contexts, 2);
	see(2, 2, 3);
	assert_true(IS(1, "up"));
	assert_int_equal(metric(DRAY_METRIC_RAILS_LOST_TOTAL), 1);
}

/* A port that an operator disabled counts as down until it is enabled, whatever scans find. */
static void test_disabled(void **state)
{
	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up"));
	assert_int_equal(rails_disable(lab->rails, "dev1", 1, true), 0);
	assert_true(IS(1, "down"));
	see(2, 2, 3);
	assert_true(IS(1, "down"));
	assert_int_equal(rails_disable(lab->rails, "dev1", 1, true), 0);
	assert_int_equal(rails_disable(lab->rails, "dev1", 2, true), -ENOENT);
	assert_int_equal(rails_disable(lab->rails, "dev7", 1, false), -ENOENT);
	assert_int_equal(rails_disable(lab->rails, "dev1", 1, false), 0);
	assert_true(IS(1, "up"));
	/* a port that is absent is disabled when it comes back */
	assert_int_equal(rails_disable(lab->rails, "dev0", 1, true), 0);
	see(0, 0, 0);
	UNTIL(told(RDMA_RAIL_DOWN) == 2);
	say(RDMA_RAIL_GONE, 0, 0);
	say(RDMA_RAIL_GONE, 1, 0);
	UNTIL(IS(0, "absent") && IS(1, "absent"));
	see(2, 2, 3);
	UNTIL(IS(1, "up"));
	assert_true(IS(0, "absent"));
	assert_int_equal(rails_disable(lab->rails, "dev0", 1, false), 0);
	UNTIL(IS(0, "up"));
}

static void test_open_fails_and_then_succeeds(void **state)
{
	dev.open_error = -EACCES;
	see(1, 1, 3);
	UNTIL(IS(0, "failed"));
	dev.open_error = 0;
	UNTIL(IS(0, "up"));
	assert_int_equal(dev.contexts, 1);
}

int __wrap_ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e);
void __wrap_ibv_ack_async_event(struct ibv_async_event *e);

/* The descriptor has the type of the event, plus 1. */
int __wrap_ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	uint64_t type;

	if (read(c->async_fd, &type, sizeof(type)) != sizeof(type))
		return -1;
	*e = (struct ibv_async_event){ .event_type = (enum ibv_event_type)(type - 1) };
	return 0;
}

void __wrap_ibv_ack_async_event(struct ibv_async_event *e)
{
}

/* No queue pair gets the completion queue again: the device is closed and opened. */
static void test_completion_queue_fails(void **state)
{
	uint64_t event = IBV_EVENT_CQ_ERR + 1;
	struct device *d;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	d = dray_list_first(&lab->rails->devices, struct device, link);
	assert_int_equal(write(d->context->async_fd, &event, sizeof(event)), sizeof(event));
	UNTIL(told(RDMA_RAIL_DOWN) == 1);
	assert_true(IS(0, "closing"));
	say(RDMA_RAIL_GONE, 0, 0);
	UNTIL(IS(0, "up"));
	assert_int_equal(told(RDMA_RAIL_UP), 2);
	assert_int_equal(dev.contexts, 1);
}

static void test_device_removed_and_added(void **state)
{
	struct region_view *v = view_new(REGION(1), 0x10000, 1 << 20, DMSG_ACCESS_ALL);
	uint32_t key;

	rails_region_add(lab->rails, v, NULL);
	see(1, 1, 3);
	UNTIL(lab->keys);
	key = lab->keys->v[0].key;
	see(0, 0, 0);
	assert_true(IS(0, "closing"));
	assert_null(lab->keys);
	UNTIL(told(RDMA_RAIL_DOWN) == 1);
	say(RDMA_RAIL_GONE, 0, 0);
	UNTIL(IS(0, "absent"));
	assert_int_equal(dev.contexts, 0);
	see(1, 1, 3);
	UNTIL(lab->keys);
	assert_int_not_equal(lab->keys->v[0].key, key);
	remove_region(v);
}

/* --- registration -------------------------------------------------------------------------------------------- */

static void test_slices(void **state)
{
	struct region_view *v = view_new(REGION(1), GIB, 10 * GIB + 5, DMSG_ACCESS_ALL);
	uint8_t buf[8 * PMSG_RAIL_SIZE];
	struct pmsg_rail w;

	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up"));
	rails_region_add(lab->rails, v, NULL);
	assert_true(strstr(text_of(v), "pending") != NULL);
	UNTIL(lab->keys && lab->keys->rails == 3);
	assert_int_equal(lab->keys->n, 6);
	assert_true(dev.largest <= 3584ull << 20);
	assert_string_equal(text_of(v), "dev0: registered; dev1: registered");
	assert_int_equal(metric(DRAY_METRIC_MEMORY_REGIONS), 6);
	assert_int_equal(metric(DRAY_METRIC_MEMORY_REGION_BYTES), 2 * (10 * GIB + 5));
	/* a range that crosses from one memory region to the next */
	assert_int_equal(grant_keys(REGION(1), 3 * GIB, GIB, buf, 8), 4);
	pmsg_rail_get(buf, &w);
	assert_int_equal(w.base, 4 * GIB);
	assert_int_equal(w.offset, 0);
	assert_int_equal(w.length, GIB / 2);
	pmsg_rail_get(buf + PMSG_RAIL_SIZE, &w);
	assert_int_equal(w.offset, GIB / 2);
	assert_true(w.rkey > 1000);
	/* a rail's keys are given completely or not at all */
	assert_int_equal(grant_keys(REGION(1), 3 * GIB, GIB, buf, 3), 2);
	assert_int_equal(grant_keys(REGION(2), 0, 1, buf, 8), 0);
	remove_region(v);
	assert_int_equal(dev.mrs, 2);
}

static void test_shared(void **state)
{
	struct region_view *a = view_new(REGION(1), GIB, GIB, DMSG_ACCESS_ALL);
	struct region_view *b = view_new(REGION(2), GIB, GIB, DMSG_ACCESS_ALL);
	struct region_view *c = view_new(REGION(3), GIB + 4096, 8192, DMSG_ACCESS_ALL);
	struct region_view *d = view_new(REGION(4), GIB, GIB, DMSG_ACCESS_READ);

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	rails_region_add(lab->rails, a, NULL);
	rails_region_add(lab->rails, b, NULL);
	rails_region_add(lab->rails, c, NULL);
	UNTIL(strstr(text_of(c), "registered"));
	assert_int_equal(dev.registered, 1);
	rails_region_add(lab->rails, d, NULL);
	UNTIL(strstr(text_of(d), "registered"));
	assert_int_equal(dev.registered, 2);
	remove_region(a);
	remove_region(b);
	assert_int_equal(dev.mrs, 3);
	assert_string_equal(text_of(c), "dev0: registered");
	remove_region(c);
	remove_region(d);
	assert_int_equal(dev.mrs, 1);
}

/* Regions within the bytes of another one share its registration wherever they are, those that pass its ends do not. */
static void test_shared_places(void **state)
{
	static const struct {
		uint64_t base, length;
		bool shared;
	} more[] = {
		{ GIB + 12288, 1, true },      { GIB + 32767, 1, true },
		{ GIB + 12288, 20480, true },  { GIB + 16384 - 8, 16, true },
		{ GIB + 20000, 12000, true },  { GIB + 12287, 2, false },
		{ GIB + 32767, 2, false },     { GIB + 12287, 20481, false },
		{ GIB + 16384, 32768, false }, { GIB - 8192, 8192, false },
	};
	struct region_view *v[DRAY_ARRAY_SIZE(more) + 1];
	unsigned registered = 1;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	v[0] = view_new(REGION(1), GIB + 12288, 20480, DMSG_ACCESS_ALL);
	rails_region_add(lab->rails, v[0], NULL);
	UNTIL(strstr(text_of(v[0]), "registered"));
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(more); i++) {
		v[i + 1] = view_new(REGION(i + 2), more[i].base, more[i].length, DMSG_ACCESS_ALL);
		rails_region_add(lab->rails, v[i + 1], NULL);
		UNTIL(strstr(text_of(v[i + 1]), "registered"));
		registered += !more[i].shared;
		assert_int_equal(dev.registered, registered);
	}
	/* the first one is not shared any more when all that share it are gone */
	for (unsigned i = 0; i <= DRAY_ARRAY_SIZE(more); i++)
		remove_region(v[i]);
	assert_int_equal(dev.mrs, 1);
	v[0] = view_new(REGION(1), GIB + 12288, 1, DMSG_ACCESS_ALL);
	rails_region_add(lab->rails, v[0], NULL);
	UNTIL(strstr(text_of(v[0]), "registered"));
	assert_int_equal(dev.registered, registered + 1);
	remove_region(v[0]);
}

void __real_rail_regions_check(struct rails *r);
void __wrap_rail_regions_check(struct rails *r);

/* Regions that were looked at because a registration has ended. */
static unsigned looks;

void __wrap_rail_regions_check(struct rails *r)
{
	for (const struct dray_list *l = r->unheld.next; l != &r->unheld; l = l->next)
		looks++;
	__real_rail_regions_check(r);
}

/* Each region that is removed is looked at when its own registration has ended, not with each of the others. */
static void test_many_removed(void **state)
{
	enum { N = 200 };
	struct region_view *v[N];

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	for (unsigned i = 0; i < N; i++) {
		v[i] = view_new(REGION(i + 1), GIB + i * 16384ull, 8192, DMSG_ACCESS_ALL);
		rails_region_add(lab->rails, v[i], NULL);
	}
	UNTIL(metric(DRAY_METRIC_MEMORY_REGIONS) == N);
	rail_keys_unref(lab->keys);
	lab->keys = NULL;
	looks = 0;
	for (unsigned i = 0; i < N; i++)
		rails_region_remove(lab->rails, v[i]->o.handle, removed, NULL);
	UNTIL(lab->done == N);
	assert_int_equal(looks, N);
	assert_int_equal(dev.mrs, 1);
	for (unsigned i = 0; i < N; i++)
		free(v[i]);
}

static void gone(void *arg)
{
	assert_int_equal(dev.mrs, 1);
	lab->done++;
}

/* Two registrations have the same bytes: both regions wait for both. */
static void test_removed_with_another(void **state)
{
	struct region_view *a = view_new(REGION(1), GIB, 8192, DMSG_ACCESS_ALL);
	struct region_view *b = view_new(REGION(2), GIB, GIB, DMSG_ACCESS_READ);

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	rails_region_add(lab->rails, a, NULL);
	rails_region_add(lab->rails, b, NULL);
	UNTIL(metric(DRAY_METRIC_MEMORY_REGIONS) == 2);
	rail_keys_unref(lab->keys);
	lab->keys = NULL;
	rails_region_remove(lab->rails, b->o.handle, gone, NULL);
	rails_region_remove(lab->rails, a->o.handle, gone, NULL);
	UNTIL(lab->done == 2);
	free(a);
	free(b);
}

/* Peers read the store's memory, and only this agent writes to it. */
static void test_store(void **state)
{
	struct region_view *v = view_new(REGION(1), GIB, 10 * GIB, DMSG_ACCESS_ALL);
	struct region_view *w = view_new(REGION(2), 20 * GIB, GIB, DMSG_ACCESS_ALL);
	uint8_t buf[8 * PMSG_RAIL_SIZE];
	unsigned sent = lab->keys_sent;
	struct pmsg_rail k;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	rails_store_add(lab->rails, v, true);
	UNTIL(lab->keys && lab->keys->rails == 1);
	assert_int_equal(dev.last_access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	/* no peer is told */
	assert_int_equal(lab->keys_sent, sent);
	assert_int_equal(rails_store_keys(lab->rails, PEER, REGION(1), 0, GIB, 0, buf, 8), 0);
	meet(1);
	assert_int_equal(rails_store_keys(lab->rails, PEER, REGION(1), 3 * GIB, GIB, 100, buf, 8),
			 2);
	pmsg_rail_get(buf, &k);
	assert_int_equal(k.base, 4 * GIB);
	assert_int_equal(k.offset, 100);
	assert_int_equal(k.length, GIB / 2);
	pmsg_rail_get(buf + PMSG_RAIL_SIZE, &k);
	assert_int_equal(k.offset, 100 + GIB / 2);
	assert_int_equal(rails_store_keys(lab->rails, PEER, REGION(3), 0, 1, 0, buf, 8), 0);
	assert_int_equal(lab->store_keys_gone, 0);
	/* a device that goes ends the keys that peers have */
	see(0, 0, 0);
	assert_int_equal(lab->store_keys_gone, REGION(1));
	assert_int_equal(rails_store_keys(lab->rails, PEER, REGION(1), 0, GIB, 0, buf, 8), 0);
	part();
	UNTIL(told(RDMA_RAIL_DOWN) == 1);
	say(RDMA_RAIL_GONE, 0, 0);
	UNTIL(IS(0, "absent"));
	remove_region(v);
	/* of an agent that lends nothing */
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	lab->store_keys_gone = 0;
	rails_store_add(lab->rails, w, false);
	UNTIL(lab->keys);
	assert_int_equal(dev.last_access, IBV_ACCESS_LOCAL_WRITE);
	remove_region(w);
	assert_int_equal(lab->store_keys_gone, 0);
}

/* A memory region is not deregistered while a worker may post with it. */
static void test_keys_in_use(void **state)
{
	struct region_view *v = view_new(REGION(1), GIB, GIB, DMSG_ACCESS_ALL);
	struct rail_keys *held;

	see(1, 1, 3);
	rails_region_add(lab->rails, v, NULL);
	UNTIL(lab->keys);
	held = rail_keys_ref(lab->keys);
	rails_region_remove(lab->rails, REGION(1), removed, NULL);
	assert_null(lab->keys);
	for (int i = 0; i < 20; i++)
		sd_event_run(lab->event, 1000);
	assert_int_equal(lab->done, 0);
	assert_int_equal(dev.mrs, 2);
	rail_keys_unref(held);
	UNTIL(lab->done == 1);
	assert_int_equal(dev.mrs, 1);
	free(v);
}

static void test_revoked(void **state)
{
	struct region_view *v = view_new(REGION(1), GIB, GIB, DMSG_ACCESS_ALL);
	uint32_t key;

	see(1, 1, 3);
	rails_region_add(lab->rails, v, NULL);
	UNTIL(lab->keys);
	key = lab->keys->v[0].key;
	lab->done = 0;
	assert_true(rails_region_revoked(lab->rails, REGION(1), removed, NULL));
	assert_null(lab->keys);
	assert_int_equal(lab->rekeys, 1);
	/* an importer still uses the keys */
	for (int i = 0; i < 20; i++)
		sd_event_run(lab->event, 1000);
	assert_int_equal(dev.mrs, 2);
	assert_int_equal(lab->done, 0);
	lab->rekey_fn(lab->rekey_arg, 0, NULL);
	UNTIL(lab->keys && lab->done);
	assert_int_not_equal(lab->keys->v[0].key, key);
	assert_int_equal(dev.mrs, 2);
	remove_region(v);
}

/* The parts that were registered before one failed are of no use. */
static void test_first_parts(void **state)
{
	struct region_view *v = view_new(REGION(1), GIB, 10 * GIB + 5, DMSG_ACCESS_ALL);

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	dev.reg_ok = 2;
	dev.reg_error = -ENOMEM;
	rails_region_add(lab->rails, v, NULL);
	UNTIL(!strstr(text_of(v), "pending"));
	assert_int_equal(dev.registered, 2);
	assert_int_equal(dev.mrs, 1);
	remove_region(v);
	dev.reg_error = 0;
}

static void refused(int error, uint16_t access, int dmabuf, const char *text)
{
	struct region_view *v = view_new(REGION(1), GIB, GIB, access);
	const struct region_dmabuf at = { dmabuf, 8192 };

	dev.reg_error = error;
	rails_region_add(lab->rails, v, dmabuf < 0 ? NULL : &at);
	UNTIL(!strstr(text_of(v), "pending"));
	if (!strstr(text_of(v), text))
		fail_msg("\"%s\" instead of \"%s\"", text_of(v), text);
	assert_null(lab->keys);
	remove_region(v);
	dev.reg_error = 0;
}

static void test_reasons_for_refusals(void **state)
{
	struct rlimit former, small = { 1 << 20, 1 << 20 };

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &former), 0);
	small.rlim_max = former.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &small), 0);
	refused(-ENOMEM, DMSG_ACCESS_ALL, -1, "1048576 KiB, added to");
	refused(-ENOMEM, DMSG_ACCESS_ALL, -1, "limit of 1024 KiB");
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &former), 0);
	refused(-EFAULT, DMSG_ACCESS_READ, -1, "mapped for reading only");
	refused(-EFAULT, DMSG_ACCESS_ALL, -1, "pages that were never written");
	refused(-EOPNOTSUPP, DMSG_ACCESS_ALL, 0, "lack DMA-BUF");
	refused(-EPERM, DMSG_ACCESS_ALL, -1, "permission is denied");
	refused(-ENOSPC, DMSG_ACCESS_ALL, -1, "100 memory regions");
	/* the one without pages would be tried again */
	assert_int_equal(metric(DRAY_METRIC_REGISTRATION_FAILURES_TOTAL), 6);
}

/* A client writes the pages of a pool after the agent has begun to register it. */
static void test_pages_come_later(void **state)
{
	struct region_view *v = view_new(REGION(1), GIB, GIB, DMSG_ACCESS_ALL);

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	dev.reg_error = -EFAULT;
	rails_region_add(lab->rails, v, NULL);
	UNTIL(strstr(text_of(v), "never written"));
	assert_null(lab->keys);
	dev.reg_error = 0;
	UNTIL(lab->keys && lab->keys->rails == 1);
	assert_string_equal(text_of(v), "dev0: registered");
	assert_int_equal(metric(DRAY_METRIC_REGISTRATION_FAILURES_TOTAL), 0);
	remove_region(v);
}

static void test_pages_never_come(void **state)
{
	struct region_view *v = view_new(REGION(1), GIB, GIB, DMSG_ACCESS_ALL);
	struct registration *g;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	dev.reg_error = -EFAULT;
	rails_region_add(lab->rails, v, NULL);
	UNTIL(strstr(text_of(v), "never written"));
	g = dray_container_of(lab->rails->registrations.next, struct registration, link);
	dray_container_of(g->mrs.next, struct mrs, link)->fails = UINT32_MAX - 1;
	UNTIL(metric(DRAY_METRIC_REGISTRATION_FAILURES_TOTAL) == 1);
	assert_int_equal(lab->rails->register_again_ns, INT64_MAX);
	remove_region(v);
	dev.reg_error = 0;
}

static struct region_view *dmabuf_view(dray_handle handle)
{
	struct region_view *v = view_new(handle, GIB, 5 * GIB, DMSG_ACCESS_ALL);

	v->memory = REGION_RDMA;
	return v;
}

/* The session that added the region gets one answer, whenever devices appear. */
static void test_dmabuf(void **state)
{
	const struct region_dmabuf at = { 7, 12288 }, none = { -1, 0 };
	struct region_view *v = dmabuf_view(REGION(1));

	rails_region_add(lab->rails, v, &at);
	for (int i = 0; i < 10; i++)
		sd_event_run(lab->event, 1000);
	assert_int_equal(lab->answers, 0);
	see(1, 1, 3);
	UNTIL(lab->answers == 1);
	assert_true(lab->usable);
	assert_non_null(lab->keys);
	assert_int_equal(dev.last_fd, 7);
	assert_int_equal(dev.last_offset, 12288 + (3584ull << 20));
	remove_region(v);
	/* regions of the same memory are independent, and a failed one is reported */
	dev.reg_error = -EOPNOTSUPP;
	v = dmabuf_view(REGION(2));
	rails_region_add(lab->rails, v, &at);
	UNTIL(lab->answers == 2);
	assert_false(lab->usable);
	assert_non_null(strstr(lab->why, "dev0: the kernel or the device may lack DMA-BUF"));
	assert_null(lab->keys);
	remove_region(v);
	dev.reg_error = 0;
	/* a region that was removed before gets no answer */
	v = dmabuf_view(REGION(3));
	rails_region_add(lab->rails, v, &at);
	remove_region(v);
	assert_int_equal(lab->answers, 2);
	/* GPU memory without a DMA-BUF has no keys */
	v = dmabuf_view(REGION(4));
	v->memory = REGION_GPU;
	rails_region_add(lab->rails, v, &none);
	assert_string_equal(text_of(v), "");
	assert_null(lab->keys);
	remove_region(v);
	assert_int_equal(dev.mrs, 1);
}

static void test_dmabuf_without_devices(void **state)
{
	const struct region_dmabuf at = { 7, 0 };
	struct region_view *v = dmabuf_view(REGION(1));

	see(0, 0, 0);
	rails_region_add(lab->rails, v, &at);
	assert_int_equal(lab->answers, 0);
	UNTIL(lab->answers == 1);
	assert_false(lab->usable);
	assert_string_equal(lab->why, "this agent has none");
	remove_region(v);
}

/* --- queue pairs ------------------------------------------------------------------------------------------------ */

static void test_connect(void **state)
{
	uint64_t id;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	assert_true(lab->n_ports == 1);
	assert_int_equal(dev.qps, 0);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	assert_int_equal(lab->asked[0].qpn, 17);
	assert_int_equal(lab->asked[0].reads, 4);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 3);
	/* a queue pair is lost: it is dead when both ends are. Its successor may come before that. */
	id = last(RDMA_QP_UP)->id;
	say(RDMA_QP_LOST, id, IBV_WC_RETRY_EXC_ERR);
	UNTIL(lab->closes == 1);
	UNTIL(told(RDMA_QP_QUIET) == 1);
	assert_int_equal(last(RDMA_QP_QUIET)->id, id);
	assert_int_equal(told(RDMA_QP_DEAD), 0);
	lab->close_fn(lab->close_arg, 0, NULL);
	UNTIL(told(RDMA_QP_DEAD) == 1);
	assert_int_equal(last(RDMA_QP_DEAD)->id, id);
	UNTIL(lab->n_asked == 1);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 4);
	assert_int_equal(told(RDMA_UNREACHABLE), 0);
	part();
}

/* Its path goes before the peer has answered, and the peer answers QP_CLOSE first. */
static void test_close_before_connect(void **state)
{
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	rails_peer_ports(lab->rails, PEER, &(struct dray_vec){ NULL, 0 });
	UNTIL(lab->closes == 3);
	for (unsigned i = 0; i < 3; i++)
		lab->close_fn(lab->close_args[i], 0, NULL);
	UNTIL(dev.qps == 0);
	answer_connects(DRAY_E_TIMEOUT);
	part();
}

static void test_connect_fails(void **state)
{
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	dev.create_error = -ENOMEM;
	say(RDMA_WANTED, 0, 0);
	UNTIL(told(RDMA_UNREACHABLE) == 2);
	/* attempts continue, and the failure is reported once */
	dev.create_error = 0;
	UNTIL(lab->n_asked == 3);
	answer_connects(DRAY_E_QUOTA);
	UNTIL(lab->closes == 3);
	part();
}

/* Each attempt fails, and others are always under way: transfers do not wait for them, and use queue pairs again when there are some. */
static void test_connect_fails_in_turn(void **state)
{
	union pmsg_body none = { .ports = { { NULL, 0 } } };

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	say(RDMA_WANTED, 0, 0);
	for (unsigned i = 1; i <= 3; i++) {
		UNTIL(lab->n_asked == 2 + i);
		assert_int_equal(lab->asked[i].class, DMSG_CLASS_BULK);
		assert_int_equal(told(RDMA_UNREACHABLE), 0);
		lab->asked_fn[i](lab->asked_arg[i], DRAY_E_IO, &none);
		UNTIL(lab->closes == i);
		lab->close_fn(lab->close_arg, 0, NULL);
	}
	UNTIL(told(RDMA_UNREACHABLE) == 2);
	UNTIL(lab->n_asked == 6);
	/* three are left: that of the latency class, and the last ones */
	for (unsigned i = 1; i < 3; i++) {
		lab->asked_fn[i] = lab->asked_fn[i + 3];
		lab->asked_arg[i] = lab->asked_arg[i + 3];
	}
	lab->n_asked = 3;
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 3);
	part();
}

static void match_again(void)
{
	unsigned n = told(RDMA_PATHS);

	paths_refresh(lab->rails, true);
	UNTIL(told(RDMA_PATHS) > n);
}

/* The worker is told of the path that fails, so that transfers which need it do not wait, and the other path goes on. */
static void test_one_path_fails(void **state)
{
	union pmsg_body none = { .ports = { { NULL, 0 } } };
	unsigned kept = 0;

	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up"));
	meet(2);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 6);
	for (unsigned i = 0; i < 6; i++) {
		const struct qp *q = lab->asked_arg[i];

		if (q->rail->number == 1) {
			lab->asked_fn[i](lab->asked_arg[i], DRAY_E_IO, &none);
			continue;
		}
		lab->asked_fn[kept] = lab->asked_fn[i];
		lab->asked_arg[kept++] = lab->asked_arg[i];
	}
	lab->n_asked = kept;
	assert_int_equal(kept, 3);
	UNTIL(told(RDMA_PATH_UNREACHABLE) == 2);
	assert_int_equal(last(RDMA_PATH_UNREACHABLE)->id >> 1, 1);
	/* the same holds for the paths of the next match */
	match_again();
	assert_int_equal(lab->unreachable[0], 2);
	assert_int_equal(lab->unreachable[1], 2);
	UNTIL(lab->closes == 3);
	for (unsigned i = 0; i < 3; i++)
		lab->close_fn(lab->close_args[i], 0, NULL);
	UNTIL(lab->n_asked == 6);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 6);
	match_again();
	assert_int_equal(lab->unreachable[0] | lab->unreachable[1], 0);
	assert_int_equal(told(RDMA_PATH_UNREACHABLE), 2);
	assert_int_equal(told(RDMA_UNREACHABLE), 0);
	part();
}

static int workers_setup(void **state)
{
	setup(state);
	lab->pool.n = 2;
	return 0;
}

/* The peer refuses what was asked for this worker, and closes its ends. */
static void refuse_worker(unsigned worker)
{
	union pmsg_body none = { .ports = { { NULL, 0 } } };
	unsigned n = lab->n_asked, closes = lab->closes, failed;

	lab->n_asked = 0;
	for (unsigned i = 0; i < n; i++) {
		const struct qp *q = lab->asked_arg[i];

		if (q->worker == worker) {
			lab->asked_fn[i](lab->asked_arg[i], DRAY_E_IO, &none);
			continue;
		}
		lab->asked_fn[lab->n_asked] = lab->asked_fn[i];
		lab->asked_arg[lab->n_asked++] = lab->asked_arg[i];
	}
	failed = n - lab->n_asked;
	assert_int_equal(failed, 3);
	UNTIL(lab->closes == closes + failed);
	for (unsigned i = closes; i < closes + failed; i++)
		lab->close_fn(lab->close_args[i % DRAY_ARRAY_SIZE(lab->close_args)], 0, NULL);
}

/* All attempts of one worker fail, and those of another one are under way: its transfers still wait for them. */
static void test_connect_fails_for_one_worker(void **state)
{
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	for (unsigned i = 0; i < 2; i++)
		rails_handle_message(lab->rails, i,
				     &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
								  .type = RDMA_WANTED,
								  .peer = PEER });
	UNTIL(lab->n_asked == 6);
	refuse_worker(0);
	UNTIL(lab->n_asked == 6);
	assert_int_equal(told(RDMA_UNREACHABLE), 2);
	refuse_worker(1);
	UNTIL(lab->n_asked == 6);
	assert_int_equal(told(RDMA_UNREACHABLE), 4);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 6);
	part();
}

static struct path *only_path(void)
{
	struct rail_peer *peer = dray_list_first(&lab->rails->peers, struct rail_peer, link);

	return dray_list_first(&peer->paths, struct path, link);
}

/* The newest queue pair is lost, and both its ends are destroyed. */
static void lose_one(unsigned *up, uint32_t code)
{
	unsigned closes = lab->closes, dead = told(RDMA_QP_DEAD);

	say(RDMA_QP_LOST, last(RDMA_QP_UP)->id, code);
	UNTIL(lab->closes == closes + 1);
	lab->close_fn(lab->close_arg, 0, NULL);
	UNTIL(told(RDMA_QP_DEAD) == dead + 1);
	*up += 1;
}

static void note_state(void *arg, const struct dray_dbus_path *path)
{
	snprintf(arg, 64, "%s: %s", path->state, path->reason);
}

/* Its state and reason, which are shown. */
static const char *path_text(void)
{
	static char text[64];

	rails_each_path(lab->rails, note_state, text);
	return text;
}

/* The queue pairs of the path have been up for so long that their loss alone is no failure of the path. */
static void let_live(void)
{
	dray_list_for_each(&only_path()->peer->qps, q, struct qp, link)
		q->up_ns -= 10 * DRAY_NS_PER_SEC;
}

/* The workers give up what they were told to, and both ends are destroyed. */
static void give_up(unsigned n)
{
	unsigned closes = lab->closes;

	for (unsigned i = 0, n_told = lab->n_told; i < n_told; i++)
		if (lab->told[i].type == RDMA_QP_LOSE)
			say(RDMA_QP_LOST, lab->told[i].id, RDMA_LOSS_COMMAND);
	/* the path keeps the cause */
	assert_non_null(strstr(path_text(), "failed: a queue pair was lost: "));
	UNTIL(lab->closes == closes + n);
	for (unsigned i = closes; i < closes + n; i++)
		lab->close_fn(lab->close_args[i % DRAY_ARRAY_SIZE(lab->close_args)], 0, NULL);
}

/* Queue pairs are connected, and fail when they are used, one after the other: transfers leave the path, which is tried again later. */
static void test_path_moves_nothing(void **state)
{
	unsigned up = 3;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 3);
	/* one that moves something between losses is not given up */
	for (unsigned i = 0; i < 5; i++) {
		atomic_fetch_add(&only_path()->counters.slices, 1);
		lose_one(&up, IBV_WC_RETRY_EXC_ERR);
		UNTIL(lab->n_asked == 1);
		answer_connects(0);
		UNTIL(told(RDMA_QP_UP) == up);
	}
	assert_int_equal(told(RDMA_QP_LOSE), 0);
	lose_one(&up, IBV_WC_RETRY_EXC_ERR);
	UNTIL(lab->n_asked == 1);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == up);
	assert_int_equal(told(RDMA_QP_LOSE), 0);
	lose_one(&up, IBV_WC_RETRY_EXC_ERR);
	/* the others, too */
	assert_int_equal(told(RDMA_QP_LOSE), 2);
	assert_int_equal(told(RDMA_UNREACHABLE), 2);
	let_live();
	give_up(2);
	/* after a pause queue pairs are made again */
	UNTIL(lab->n_asked == 3);
	answer_connects(0);
	up += 2;
	UNTIL(told(RDMA_QP_UP) == up);
	/* one that is lost without a fault says nothing about the others */
	lose_one(&up, RDMA_LOSS_UNUSED);
	assert_int_equal(told(RDMA_QP_LOSE), 2);
	UNTIL(lab->n_asked == 1);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == up);
	/* the first fault ends a further round */
	say(RDMA_QP_LOST, last(RDMA_QP_UP)->id, IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(told(RDMA_QP_LOSE), 4);
	part();
}

static bool is_matching(void)
{
	return rail_peer_get(lab->rails, PEER)->matching;
}

/* Most events of the kernel change nothing of this: peers are sent nothing, and no route is looked up. */
static void test_nothing_has_changed(void **state)
{
	uint8_t buf[PMSG_PORT_SIZE];
	struct dray_vec same = { buf, 1 };
	unsigned ports;

	pmsg_port_put(buf, &(struct pmsg_port){ .mtu = 4096, .gid_type = 2, .layer = 2 });
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	ports = lab->ports;
	see(1, 1, 3);
	assert_int_equal(lab->ports, ports);
	assert_false(is_matching());
	rails_peer_ports(lab->rails, PEER, &same);
	assert_false(is_matching());
	/* a route has changed, which the rail's state does not show */
	lab->routes_hash++;
	see(1, 1, 3);
	assert_int_equal(lab->ports, ports);
	assert_true(is_matching());
	UNTIL(!is_matching());
	see(1, 0, 3);
	assert_int_equal(lab->ports, ports + 1);
	assert_int_equal(lab->n_ports, 0);
	UNTIL(!is_matching());
	see(1, 1, 3);
	assert_int_equal(lab->ports, ports + 2);
	assert_int_equal(lab->n_ports, 1);
	UNTIL(!is_matching());
	/* a second peer that comes later is told, too */
	rails_peer_down(lab->rails, PEER);
	rails_peer_up(lab->rails, PEER, PMSG_FEATURE_RDMA);
	assert_int_equal(lab->ports, ports + 3);
}

/* Routes cannot be asked for: paths stay while both their ends do, and the match is tried again although nothing happens. */
static void test_match_fails(void **state)
{
	struct path *path;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	path = only_path();
	lab->match_error = -EMFILE;
	lab->routes_hash++;
	see(1, 1, 3);
	UNTIL(!is_matching());
	assert_ptr_equal(only_path(), path);
	assert_true(path->active);
	assert_string_equal(path_text(), "connecting: same subnet");
	assert_int_equal(lab->closes, 0);
	lab->match_error = 0;
	UNTIL(!is_matching() && !path->peer->match_error);
	assert_true(path->active);
	/* one whose other end is gone does not stay */
	lab->match_error = -EMFILE;
	announce(0, 0);
	assert_false(path->active);
	lab->match_error = 0;
	part();
}

/* A path that was given up goes and comes back while a former queue pair is left: it is used at once. */
static void test_path_returns(void **state)
{
	struct path *path;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	path = only_path();
	announce(0, 0);
	assert_ptr_equal(only_path(), path);
	path->fails = path->futile = path->unmade[0] = 9;
	path->retry_ns = INT64_MAX;
	announce(1, 0);
	assert_ptr_equal(only_path(), path);
	UNTIL(lab->n_asked == 6);
	assert_string_equal(path_text(), "connecting: same subnet");
	part();
}

/* max_cqe limits the completion queue, so the last queue pair has less depth. */
static void test_completion_queue_short(void **state)
{
	dev.max_cqe = 1024 + 1024 + 100;
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	assert_int_equal(dev.least_depth, 100);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 3);
	part();
}

/* A queue pair that would have almost no depth is not made, and the path has the reason. */
static void test_completion_queue_full(void **state)
{
	char why[256] = "";

	dev.max_cqe = 1024 + 10;
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 1);
	rails_each_path(lab->rails, note_reason, why);
	assert_non_null(strstr(why, "max_cqe is 1034"));
	assert_non_null(strstr(why, "rdma.queue_depth"));
	/* only bulk uses another transport */
	UNTIL(told(RDMA_UNREACHABLE) == 1);
	assert_int_equal(last(RDMA_UNREACHABLE)->id, DMSG_CLASS_BULK);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 1);
	part();
}

/* A peer changes its keys again and again, and answers nothing: it gets no more queue pairs before the former ones are gone. */
static void test_crowded(void **state)
{
	char why[256] = "";

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	announce(1, 1);
	UNTIL(lab->n_asked == 6);
	for (uint32_t i = 2; i < 8; i++)
		announce(1, i);
	UNTIL(lab->closes == 6);
	assert_int_equal(dev.tried, 6);
	rails_each_path(lab->rails, note_reason, why);
	assert_non_null(strstr(why, "former queue pairs"));
	UNTIL(told(RDMA_UNREACHABLE) == 2);
	/* they are gone: the next ones are made at once */
	answer_connects(DRAY_E_TIMEOUT);
	for (unsigned i = 0; i < 6; i++)
		lab->close_fn(lab->close_args[i], 0, NULL);
	UNTIL(lab->n_asked == 3);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 3);
	rails_each_path(lab->rails, note_reason, why);
	assert_null(strstr(why, "former queue pairs"));
	part();
}

/* A peer can announce no rails, and some again, as often as it likes: its limit holds for what is logged about that. */
static void test_announced_and_not(void **state)
{
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	lab->limited = 0;
	for (unsigned i = 0; i < 3; i++) {
		announce(0, 0);
		announce(1, 0);
	}
	assert_int_equal(lab->limited, 3);
	part();
}

/* What the connector has queued for queue pairs that are not needed any more is skipped. */
static void test_doomed(void **state)
{
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	dev.hangs = true;
	say(RDMA_WANTED, 0, 0);
	for (uint64_t i = 1; i < 20; i++)
		rails_peer_connect(lab->rails, PEER, i,
				   &(struct pmsg_qp_connect){ .qp = i, .mtu = 4096, .reads = 1 });
	UNTIL(dev.tried == 1);
	announce(1, 1);
	for (uint64_t i = 1; i < 20; i++)
		rails_peer_close(lab->rails, PEER, i, i);
	dev.hangs = false;
	UNTIL(lab->close_replies == 19);
	assert_int_equal(lab->refusals, 19);
	UNTIL(lab->n_asked == 3);
	assert_int_equal(dev.tried, 4);
	part();
}

/* One peer's queue pairs wait for each other, and another peer's for one of them. */
static void test_turns(void **state)
{
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	rails_peer_up(lab->rails, OTHER, PMSG_FEATURE_RDMA);
	dev.hangs = true;
	for (uint64_t i = 1; i < 9; i++)
		rails_peer_connect(lab->rails, PEER, i,
				   &(struct pmsg_qp_connect){ .qp = i, .mtu = 4096, .reads = 1 });
	rails_peer_connect(lab->rails, OTHER, 1,
			   &(struct pmsg_qp_connect){ .qp = 1, .mtu = 4096, .reads = 1 });
	UNTIL(dev.tried == 1);
	dev.hangs = false;
	UNTIL(lab->others == 1);
	assert_int_equal(lab->before_others, 1);
	UNTIL(lab->replies == 8);
	rails_peer_close(lab->rails, OTHER, 2, 1);
	UNTIL(lab->others == 2);
	rails_peer_down(lab->rails, OTHER);
	part();
}

static void test_modify_fails(void **state)
{
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	dev.modify_error = -ETIMEDOUT;
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	answer_connects(0);
	UNTIL(lab->closes == 3);
	assert_int_equal(told(RDMA_QP_UP), 0);
	dev.modify_error = 0;
	part();
}

static void test_rail_lost(void **state)
{
	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up"));
	meet(2);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 6);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 6);
	see(2, 1, 3);
	assert_int_equal(told(RDMA_QP_LOSE), 3);
	assert_int_equal(lab->n_ports, 1);
	/* likewise when its GID has moved */
	see(2, 1, 5);
	assert_int_equal(told(RDMA_QP_LOSE), 6);
	part();
}

static unsigned paths_of_peer(uint64_t add)
{
	unsigned n = 0;

	dray_list_for_each(&rail_peer_get(lab->rails, PEER)->paths, path, struct path, link) {
		atomic_fetch_add(&path->counters.sent, add);
		n++;
	}
	return n;
}

/* The bytes of a path still count for its peer when the path is gone. */
static void test_bytes_of_a_lost_path(void **state)
{
	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up"));
	meet(2);
	assert_int_equal(paths_of_peer(10), 2);
	assert_int_equal(rails_peer_traffic(lab->rails, PEER).sent, 20);
	see(2, 1, 3);
	UNTIL(paths_of_peer(0) == 1);
	assert_int_equal(rails_peer_traffic(lab->rails, PEER).sent, 20);
	part();
	assert_int_equal(rails_peer_traffic(lab->rails, PEER + 1).sent, 0);
}

static void test_serve(void **state)
{
	struct pmsg_qp_connect m = {
		.qp = 4, .rail = 0, .to_rail = 0, .qpn = 3, .mtu = 1024, .reads = 99, .class = 0
	};

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	rails_peer_connect(lab->rails, PEER, 1, &m);
	assert_int_equal(lab->refusals, 1); /* not a peer */
	meet(1);
	rails_peer_connect(lab->rails, PEER, 1, &m);
	UNTIL(lab->replies == 1);
	rails_peer_connect(lab->rails, PEER, 2, &m);
	assert_int_equal(lab->refusals, 2); /* the id is in use */
	m.qp = 5;
	m.to_rail = 9;
	rails_peer_connect(lab->rails, PEER, 3, &m);
	m.to_rail = 0;
	m.mtu = 1;
	rails_peer_connect(lab->rails, PEER, 4, &m);
	m.mtu = 1024;
	assert_int_equal(lab->refusals, 4);
	dev.create_error = -ENOMEM;
	rails_peer_connect(lab->rails, PEER, 5, &m);
	UNTIL(lab->refusals == 5);
	dev.create_error = 0;
	UNTIL(metric(DRAY_METRIC_RDMA_SERVING_QUEUE_PAIRS) == 1);
	rails_peer_close(lab->rails, PEER, 6, 77);
	assert_int_equal(lab->close_replies, 1);
	rails_peer_close(lab->rails, PEER, 7, 4);
	assert_int_equal(lab->close_replies, 1);
	UNTIL(lab->close_replies == 2);
	assert_int_equal(dev.qps, 0);
	/* the peer is lost while it has a queue pair, which is dead before the peer's grants end */
	rails_peer_connect(lab->rails, PEER, 8, &m);
	UNTIL(lab->replies == 2);
	assert_false(rails_peer_is_quiet(lab->rails, PEER));
	assert_true(rails_peer_down(lab->rails, PEER));
	assert_int_equal(lab->quiet, 0);
	assert_false(rails_peer_is_quiet(lab->rails, PEER));
	assert_true(rails_peer_is_quiet(lab->rails, PEER + 1));
	UNTIL(lab->quiet == 1);
	assert_int_equal(dev.qps, 0);
	assert_int_equal(lab->told_quiet, 1);
}

/* Regions are published once without the keys of a device that goes, however many queue pairs it has. */
static void test_keys_of_a_device_that_goes(void **state)
{
	enum { N = 12 };
	struct region_view *v = view_new(REGION(1), GIB, GIB, DMSG_ACCESS_ALL);
	struct pmsg_qp_connect m = {
		.qp = 4, .to_rail = 1, .qpn = 5, .mtu = 1024, .reads = 1, .gid = { 1 }
	};
	struct rail_keys *held;
	unsigned before, said;

	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up"));
	rails_region_add(lab->rails, v, NULL);
	UNTIL(lab->keys && lab->keys->rails == 3);
	held = rail_keys_ref(lab->keys);
	meet(2);
	for (unsigned i = 0; i < N; i++, m.qp++)
		rails_peer_connect(lab->rails, PEER, 1 + i, &m);
	UNTIL(lab->replies == N);
	before = lab->published;
	said = lab->n_told;
	see(1, 1, 3);
	UNTIL(dev.qps == 0);
	assert_in_range(lab->published - before, 1, 3);
	rail_keys_unref(held);
	UNTIL((let_go(&said), dev.contexts == 1));
	remove_region(v);
	part();
}

/*
 * A device that does not destroy a queue pair may still answer the peer with it. The peer's grants last until the device is closed; then
 * it is opened again.
 */
static void test_serving_queue_pair_stuck(void **state)
{
	struct pmsg_qp_connect m = {
		.qp = 4, .rail = 0, .to_rail = 0, .qpn = 3, .mtu = 1024, .reads = 1, .class = 0
	};
	unsigned said;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	rails_peer_connect(lab->rails, PEER, 1, &m);
	UNTIL(lab->replies == 1);
	said = lab->n_told;
	dev.n_to_stick = 1;
	assert_true(rails_peer_down(lab->rails, PEER));
	UNTIL(dev.n_stuck_qps == 1);
	UNTIL(!IS(0, "up"));
	assert_int_equal(lab->quiet, 0);
	assert_false(rails_peer_is_quiet(lab->rails, PEER));
	assert_int_equal(metric(DRAY_METRIC_RDMA_SERVING_QUEUE_PAIRS), 1);
	UNTIL((let_go(&said), lab->quiet == 1));
	assert_int_equal(lab->told_quiet, 1);
	assert_int_equal(dev.qps, 0);
	assert_int_equal(metric(DRAY_METRIC_RDMA_SERVING_QUEUE_PAIRS), 0);
	UNTIL((let_go(&said), IS(0, "up")));
}

static void connect_three(void)
{
	meet(1);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	answer_connects(0);
	UNTIL(told(RDMA_QP_UP) == 3);
}

/* The last one of three that post is lost and cannot be destroyed. The device goes, and with it the other two. */
static void stick_last(void)
{
	dev.n_to_stick = 1;
	say(RDMA_QP_LOST, last(RDMA_QP_UP)->id, IBV_WC_RETRY_EXC_ERR);
	UNTIL(dev.n_stuck_qps == 1);
	lab->close_fn(lab->close_arg, 0, NULL);
	UNTIL(told(RDMA_QP_LOSE) == 2);
	rails_peer_down(lab->rails, PEER);
	for (unsigned i = 0, n = lab->n_told; i < n; i++)
		if (lab->told[i].type == RDMA_QP_UP)
			say(RDMA_QP_LOST, lab->told[i].id, RDMA_LOSS_PEER);
}

/* The same for one that posts: its worker and the peer learn of its end when it cannot touch memory any more. */
static void test_posting_queue_pair_stuck(void **state)
{
	unsigned said;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	connect_three();
	said = lab->n_told;
	stick_last();
	UNTIL(dev.qps == 1);
	assert_true(told(RDMA_QP_DEAD) <= 2);
	UNTIL((let_go(&said), told(RDMA_QP_DEAD) == 3));
	assert_int_equal(dev.qps, 0);
	UNTIL((let_go(&said), IS(0, "up")));
}

/* Its work requests keep the keys of their memory until their worker learns of its end, so that the device does not wait for them. */
static void test_stuck_queue_pair_with_keys(void **state)
{
	struct region_view *v = view_new(REGION(1), 0x10000, 1 << 20, DMSG_ACCESS_ALL);
	unsigned said;

	rails_region_add(lab->rails, v, NULL);
	see(1, 1, 3);
	UNTIL(IS(0, "up") && lab->keys);
	connect_three();
	lab->held = rail_keys_ref(lab->keys);
	said = lab->n_told;
	stick_last();
	UNTIL((let_go(&said), told(RDMA_QP_DEAD) == 3));
	UNTIL((let_go(&said), IS(0, "up") && lab->keys));
	/* the former keys are of a device that is gone; the region is removed after their last use */
	rails_region_remove(lab->rails, v->o.handle, removed, NULL);
	for (int i = 0; i < 20; i++)
		sd_event_run(lab->event, 1000);
	assert_int_equal(lab->done, 0);
	rail_keys_unref(lab->held);
	UNTIL(lab->done == 1);
	free(v);
}

/* At the end of the agent everything ends at once, whatever is in progress. */
static void test_end_with_all_up(void **state)
{
	struct region_view *v = view_new(REGION(1), 0x10000, 1 << 20, DMSG_ACCESS_ALL);
	struct pmsg_qp_connect m = {
		.qp = 4, .rail = 0, .to_rail = 0, .qpn = 3, .mtu = 1024, .reads = 1, .class = 0
	};

	rails_region_add(lab->rails, v, NULL);
	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up") && lab->keys);
	meet(2);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 6);
	answer_connects(0);
	rails_peer_connect(lab->rails, PEER, 1, &m);
	UNTIL(lab->replies == 1 && told(RDMA_QP_UP));
	/* some of these jobs have run, and their results were not used */
	say(RDMA_QP_LOST, last(RDMA_QP_UP)->id, IBV_WC_RETRY_EXC_ERR);
	rails_region_remove(lab->rails, v->o.handle, removed, NULL);
	lab->rails = rails_free(lab->rails);
	assert_int_equal(dev.contexts + dev.mrs + dev.qps + dev.cqs + dev.pds + dev.channels, 0);
	free(v);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(staging),
		TEST(staging_fails),
		TEST(up_and_down),
		TEST(disabled),
		TEST(open_fails_and_then_succeeds),
		TEST(completion_queue_fails),
		TEST(device_removed_and_added),
		TEST(slices),
		TEST(first_parts),
		TEST(shared),
		TEST(shared_places),
		TEST(many_removed),
		TEST(removed_with_another),
		TEST(store),
		TEST(keys_in_use),
		TEST(revoked),
		TEST(reasons_for_refusals),
		TEST(pages_come_later),
		TEST(pages_never_come),
		TEST(dmabuf),
		TEST(dmabuf_without_devices),
		TEST(connect),
		TEST(close_before_connect),
		TEST(keys_of_a_device_that_goes),
		TEST(connect_fails),
		TEST(connect_fails_in_turn),
		TEST(one_path_fails),
		cmocka_unit_test_setup_teardown(test_connect_fails_for_one_worker, workers_setup,
						teardown),
		TEST(path_moves_nothing),
		TEST(nothing_has_changed),
		TEST(match_fails),
		TEST(path_returns),
		TEST(completion_queue_short),
		TEST(completion_queue_full),
		TEST(crowded),
		TEST(announced_and_not),
		TEST(doomed),
		TEST(turns),
		TEST(modify_fails),
		TEST(rail_lost),
		TEST(bytes_of_a_lost_path),
		TEST(serve),
		TEST(serving_queue_pair_stuck),
		TEST(posting_queue_pair_stuck),
		TEST(stuck_queue_pair_with_keys),
		TEST(end_with_all_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
