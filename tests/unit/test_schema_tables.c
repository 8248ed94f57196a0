/* SPDX-License-Identifier: Apache-2.0 */
/* The generated tables: errors, configuration keys, metrics, D-Bus; and the fixed sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "schema/gen/config.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus.h"
#define DRAY_DBUS_VTABLE
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/errors.h"
#include "schema/gen/metrics.h"
#include "schema/gen/peer.h"

_Static_assert(DMSG_SQE_SIZE == 128 && DMSG_CQE_SIZE == 32 && DMSG_OP_SIZE == 24, "ring entries");
_Static_assert(DMSG_MESSAGE_MAX == 212960, "a stock kernel's limit");
_Static_assert(DMSG_HEADER_SIZE + DMSG_TRANSFER_BODY_MAX <= DMSG_MESSAGE_MAX,
	       "the largest transfer");
_Static_assert(DMSG_RING_SQ_HEAD % 64 == 0 && DMSG_RING_SQ_TAIL / 64 != DMSG_RING_SQ_HEAD / 64 &&
		       DMSG_RING_CQ_HEAD / 64 != DMSG_RING_CQ_TAIL / 64,
	       "cache lines");

static void test_errors(void **state)
{
	assert_string_equal(dray_error_name(DRAY_OK), "ok");
	assert_string_equal(dray_error_name(DRAY_E_INVALID), "invalid");
	assert_string_equal(dray_error_name(DRAY_E_TIMEOUT), "timeout");
	assert_string_equal(dray_error_name(DRAY_ERROR_N), "unknown");
	assert_string_equal(dray_error_name(UINT32_MAX), "unknown");
	assert_string_equal(dray_error_doc(UINT32_MAX), "unknown");
	for (uint32_t c = 0; c < DRAY_ERROR_N; c++) {
		assert_true(strlen(dray_error_doc(c)) > 3);
		assert_true(strlen(dray_error_fix(c)) > 3);
	}
}

static void test_names(void **state)
{
	assert_string_equal(dmsg_kind_name(DMSG_KIND_CUDA_VMM), "cuda_vmm");
	assert_string_equal(dmsg_kind_name(0), "?");
	assert_string_equal(dmsg_kind_name(UINT32_MAX), "?");
	assert_false(dmsg_kind_valid(0));
	assert_true(dmsg_kind_valid(DMSG_KIND_POOL));
	assert_false(dmsg_kind_valid(DMSG_KIND_POOL + 1));
	assert_true(dmsg_class_valid(0));
	assert_string_equal(dmsg_type_name(DMSG_TRANSFER_DONE), "transfer_done");
	assert_string_equal(dmsg_type_name(0), "?");
	assert_string_equal(dmsg_gpu_path_name(DMSG_GPU_PATH_STAGED), "staged");
	assert_int_equal(DMSG_TRANSFER_FLAG_ALL, 15);
}

static void test_config(void **state)
{
	const struct dray_config_key *k = &dray_config_keys[DRAY_CONFIG_KEY_DATA_MODE];

	assert_string_equal(k->path, "data.mode");
	assert_string_equal(k->def, "0660");
	assert_int_equal(k->max, 0777);
	assert_true(k->octal);
	k = &dray_config_keys[DRAY_CONFIG_KEY_AGENT_STATE_DIR];
	assert_string_equal(k->env, "DRAY_AGENT_STATE_DIR");
	assert_string_equal(k->flag, "--state-dir");
	assert_int_equal(k->type, DRAY_CONFIG_PATH);
	k = &dray_config_keys[DRAY_CONFIG_KEY_LOG_LEVEL];
	assert_string_equal(k->choices[DRAY_CONFIG_LOG_LEVEL_DEBUG], "debug");
	assert_int_equal(k->size, sizeof(int));
	k = &dray_config_keys[DRAY_CONFIG_KEY_PEER_BACKOFF_MAX];
	assert_int_equal(k->min, 10 * INT64_C(1000000));
	assert_int_equal(k->max, 600 * INT64_C(1000000000));
	k = &dray_config_keys[DRAY_CONFIG_KEY_LIMITS_BYTES_PER_GROUP];
	assert_int_equal(k->max, INT64_C(1024) << 40);
	assert_int_equal(k->offset, offsetof(struct dray_config, limits.bytes_per_group));

	for (size_t i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		char path[128];

		k = &dray_config_keys[i];
		snprintf(path, sizeof(path), "%s.%s", k->section, k->name);
		assert_string_equal(path, k->path);
		assert_non_null(k->def);
		assert_true(k->offset + k->size <= sizeof(struct dray_config));
		for (size_t j = 0; j < i; j++) {
			const struct dray_config_key *o = &dray_config_keys[j];

			assert_string_not_equal(k->env, o->env);
			assert_true(k->offset >= o->offset + o->size ||
				    o->offset >= k->offset + k->size);
		}
	}
}

static void test_metrics(void **state)
{
	const struct dray_metric_info *m = &dray_metrics[DRAY_METRIC_TCP_SENT_BYTES_TOTAL];

	assert_string_equal(m->name, "dray_tcp_sent_bytes_total");
	assert_string_equal(m->unit, "bytes");
	assert_int_equal(m->type, DRAY_METRIC_TYPE_COUNTER);
	assert_int_equal(m->owner, DRAY_METRIC_OWNER_WORKER);
	assert_int_equal(dray_metrics[DRAY_METRIC_PEERS].type, DRAY_METRIC_TYPE_GAUGE);
	assert_int_equal(dray_metrics[DRAY_METRIC_PEERS].owner, DRAY_METRIC_OWNER_CONTROL);
}

/* The schema determines the names of the functions in the table for sd-bus. */
#define GETTER(x)                                                                     \
	int dbus_get_##x(sd_bus *bus, const char *path, const char *interface,        \
			 const char *property, sd_bus_message *reply, void *userdata, \
			 sd_bus_error *reterr)                                        \
	{                                                                             \
		return sd_bus_message_append(reply, "s", property);                   \
	}
#define METHOD(x)                                                                    \
	int dbus_method_##x(sd_bus_message *m, void *userdata, sd_bus_error *reterr) \
	{                                                                            \
		return sd_bus_reply_method_return(m, NULL);                          \
	}
GETTER(state)
GETTER(version)
GETTER(agent_id)
GETTER(incarnation)
GETTER(segment)
GETTER(pid)
GETTER(workers)
GETTER(poll_time_ns)
GETTER(poll_reason)
GETTER(mooncake_segment)
GETTER(gpu_plugin)
GETTER(uptime_ns)
GETTER(log_level)
GETTER(preferred_segment)
GETTER(transfers_left)
GETTER(bytes_left)
GETTER(grants_left)
GETTER(deadline_ns)
GETTER(counters)
GETTER(keys)
METHOD(list_sessions)
METHOD(list_regions)
METHOD(list_leases)
METHOD(list_mailboxes)
METHOD(list_quotas)
METHOD(list_store)
METHOD(check_store_directory)
METHOD(evict_store)
METHOD(find_store_objects)
METHOD(warm_store)
METHOD(verify_store)
METHOD(trace_store)
METHOD(list_peers)
METHOD(list_rails)
METHOD(list_paths)
METHOD(list_gpus)
METHOD(list_transfers)
METHOD(list_ended_transfers)
METHOD(list_transfer_times)
METHOD(list_events)
METHOD(list_segments)
METHOD(list_candidates)
METHOD(find_mooncake_object)
METHOD(list_hints)
METHOD(set_hint)
METHOD(forget_hints)
METHOD(list_environment)
METHOD(dump_config)
METHOD(reload)
METHOD(set_log_level)
METHOD(cancel_transfer)
METHOD(close_session)
METHOD(disable_rail)
METHOD(enable_rail)
METHOD(check_peer)
METHOD(drain_now)
METHOD(health)
METHOD(drain)
METHOD(resume)

static void test_dbus(void **state)
{
	sd_bus *bus = NULL;
	sd_bus_slot *slot = NULL;

	assert_string_equal(DRAY_DBUS_INTERFACE, "dev.dray.Agent1");
	assert_string_equal(dray_dbus_session_fields[DRAY_DBUS_SESSION_FIELD_AGE_NS].key, "age_ns");
	assert_string_equal(dray_dbus_session_fields[DRAY_DBUS_SESSION_FIELD_AGE_NS].type, "t");
	for (size_t i = 0; i < DRAY_DBUS_METHOD_N; i++)
		assert_int_equal(dray_dbus_methods[i].change,
				 strncmp(dray_dbus_methods[i].name, "List", 4) &&
					 strcmp(dray_dbus_methods[i].name, "DumpConfig") &&
					 strcmp(dray_dbus_methods[i].name, "Health"));

	/* sd-bus checks the table when it is added: signatures, names of parameters, flags */
	assert_int_equal(sd_bus_new(&bus), 0);
	assert_int_equal(sd_bus_add_object_vtable(bus, &slot, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
						  dbus_vtable, NULL),
			 0);
	sd_bus_slot_unref(slot);
	sd_bus_unref(bus);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_errors), cmocka_unit_test(test_names),
		cmocka_unit_test(test_config), cmocka_unit_test(test_metrics),
		cmocka_unit_test(test_dbus),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
