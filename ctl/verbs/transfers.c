/* SPDX-License-Identifier: Apache-2.0 */
/* transfers: those in flight, now or again and again, and those that ended last. cancel: the end of one. */
#include "ctl/command_line/args.h"
#include "ctl/verbs/change.h"
#include "ctl/bus/list.h"
#include "ctl/verbs/watch.h"

static int look(struct ctl *c, struct ctl_bus *b, void *arg, struct ctl_err *reterr)
{
	const struct ctl_list *l = arg;
	struct ctl_rows rows = CTL_ROWS_NULL;
	sd_bus_message *reply = NULL;
	int ret = ctl_list_get(b, l, 0, &rows, &reply, reterr);

	if (!ret)
		ret = ctl_list_print(c, l, &rows, reterr);
	ctl_rows_deinit(&rows);
	sd_bus_message_unref(reply);
	return ret;
}

int ctl_transfers(struct ctl *c)
{
	const struct ctl_list *l = c->values[CTL_OPTION_RECENT] ? &ctl_list_ended :
								  &ctl_list_transfers;
	bool again = c->values[CTL_OPTION_INTERVAL] || c->values[CTL_OPTION_LOOKS];
	struct ctl_err err = CTL_ERR_NULL;

	if (c->values[CTL_OPTION_REPEAT])
		return ctl_watch(c, look, (void *)(uintptr_t)l);
	if (again) {
		ctl_err_set(&err, CTL_EXIT_USAGE, "--interval and --count go with --watch");
		return ctl_fail(c, &err);
	}
	return ctl_list_run(c, l);
}

int ctl_cancel(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	sd_bus_message *reply = NULL;
	uint64_t session = 0, request = 0;
	const char *result;
	int ret;

	if (c->n_args < 2) {
		ctl_err_set(&err, CTL_EXIT_USAGE,
			    "cancel needs SESSION and REQUEST; drayctl transfers shows both");
		return ctl_fail(c, &err);
	}
	ret = ctl_handle_parse("SESSION", c->args[0], &session, &err);
	if (!ret)
		ret = ctl_handle_parse("REQUEST", c->args[1], &request, &err);
	if (!ret)
		ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = ctl_bus_ask(&bus, DRAY_DBUS_METHOD_CANCEL_TRANSFER, &reply, &err, "tt",
				  session, request);
	if (!ret && (ret = sd_bus_message_read(reply, "s", &result)) < 0)
		ret = ctl_bus_bad_reply(&err, DRAY_DBUS_METHOD_CANCEL_TRANSFER, ret);
	if (ret >= 0)
		ctl_result_print(c, "result", result);
	sd_bus_message_unref(reply);
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}
