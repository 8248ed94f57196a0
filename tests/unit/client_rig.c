/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client_rig.h"

#include <string.h>

#include "tests/unit/cm.h"

struct fake client_fake;

struct dray_options client_options(void)
{
	return (struct dray_options){ .socket = client_fake.path,
				      .name = "test",
				      .reconnect_min_ms = 1,
				      .reconnect_max_ms = 20,
				      .connect_ms = 2000,
				      .request_ms = 2000 };
}

struct dray *client_connect(unsigned int flags)
{
	struct dray_options o = client_options();
	struct dray *d = NULL;
	char why[200];
	int error;

	o.flags = flags;
	error = dray_connect(&o, &d, why, sizeof(why));
	if (error)
		print_error("%s\n", why);
	assert_int_equal(error, 0);
	return d;
}

int client_setup(void **state)
{
	client_fake = (struct fake){ 0 };
	fake_start(&client_fake);
	return 0;
}

int client_teardown(void **state)
{
	fake_stop(&client_fake);
	return 0;
}

void client_region(struct dray *d, dray_region *ret, struct dray_memory *m)
{
	assert_int_equal(dray_memory_alloc(65536, 0, m), 0);
	assert_int_equal(dray_region_add_memory(d, m, DRAY_READ | DRAY_WRITE, ret), 0);
}

uint64_t agent_region(struct dray *d, dray_region region)
{
	struct dray_region_info info;

	assert_int_equal(dray_region_get_info(d, region, &info), 0);
	return info.agent_region;
}

void client_remote(struct dray *d, dray_remote *ret)
{
	struct dray_token t;

	assert_int_equal(dray_token_from_bytes("token", 5, &t), 0);
	assert_int_equal(dray_remote_import(d, &t, 0, ret), 0);
}

void client_hang_up(struct fake *f, void *arg)
{
	fake_hang_up(f);
}

void client_restart(struct fake *f, void *arg)
{
	fake_hang_up(f);
	f->incarnation++;
}

void client_close_with_error(struct fake *f, void *arg)
{
	fake_send_error(f, 0, DRAY_E_REGION_FAULT, "a page is gone");
	fake_hang_up(f);
}

/* Waits for the next event, which must be of this type. */
struct dray_event client_event(struct dray *d, enum dray_event_type type)
{
	struct dray_event e;

	for (;;) {
		if (dray_next_event(d, &e) == 1)
			break;
		assert_true(dray_process(d, 5000) > 0);
	}
	assert_int_equal(e.type, type);
	return e;
}
