/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors of the loader if there is no plug-in, another file in its place, or a plug-in without a
 * driver.
 */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu/loader.h"
#include "schema/gen/errors.h"

/* Path of the plug-in of this build; false if it was not built. */
static bool plugin_path(char *buf)
{
	const char *build = getenv("DRAY_BUILD");

	snprintf(buf, PATH_MAX, "%s/%s", build ? build : "build/asan", GPU_PLUGIN_FILE);
	return access(buf, R_OK) == 0;
}

static void reports_what_is_missing(void **state)
{
	const struct gpu_plugin_ops *ops = NULL;
	struct dray_err err = DRAY_ERR_NULL;

	assert_int_equal(gpu_load("/nowhere/dray-cuda.so", &ops, &err), -ENOENT);
	assert_int_equal(err.code, DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "/nowhere/dray-cuda.so"));
	assert_null(ops);
}

static void refuses_other_files(void **state)
{
	const struct gpu_plugin_ops *ops = NULL;
	struct dray_err err = DRAY_ERR_NULL;

	/* a library that is not a plug-in */
	if (access("/lib/x86_64-linux-gnu/libm.so.6", R_OK) < 0)
		skip();
	assert_int_equal(gpu_load("/lib/x86_64-linux-gnu/libm.so.6", &ops, &err), -ELIBBAD);
	assert_int_equal(err.code, DRAY_E_UNSUPPORTED);

	err = DRAY_ERR_NULL;
	assert_int_equal(gpu_load("/proc/self/maps", &ops, &err), -ELIBBAD);
	assert_int_equal(err.code, DRAY_E_UNSUPPORTED);
	assert_null(ops);
}

static void loads_without_a_driver(void **state)
{
	const struct gpu_plugin_ops *ops = NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct gpu_plugin *plugin = NULL;
	char path[PATH_MAX];
	int r;

	if (!plugin_path(path))
		skip();
	assert_int_equal(gpu_load(path, &ops, &err), 0);
	assert_string_equal(ops->name, "cuda");
	assert_true(ops->open && ops->close && ops->version && ops->devices && ops->start &&
		    ops->stop);
	assert_true(ops->import && ops->release && ops->export_dmabuf && ops->flush_rdma);
	assert_true(ops->host_alloc && ops->host_free && ops->pin && ops->unpin);
	assert_true(ops->queue_new && ops->queue_free && ops->submit && ops->check && ops->notify);
	r = ops->open(&plugin, &err);
	if (r == 0) {
		ops->close(plugin);
		return;
	}
	assert_true(r < 0);
	assert_int_equal(err.code, DRAY_E_UNSUPPORTED);
	assert_true(err.msg[0]);
	assert_null(plugin);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reports_what_is_missing),
		cmocka_unit_test(refuses_other_files),
		cmocka_unit_test(loads_without_a_driver),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
