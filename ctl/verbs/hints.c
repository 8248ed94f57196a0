/* SPDX-License-Identifier: Apache-2.0 */
/* hints: shows them, remembers one, forgets some. */
#include <inttypes.h>
#include <string.h>

#include "ctl/command_line/args.h"
#include "ctl/verbs/change.h"
#include "ctl/render/json.h"
#include "ctl/verbs/segments.h"
#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "schema/gen/dbus.h"

#define SCOPE_MAX 256 /* of the data protocol */
#define TTL_MAX_NS (8760 * 3600 * DRAY_NS_PER_SEC)

const struct ctl_list ctl_list_hints = {
	DRAY_DBUS_METHOD_LIST_HINTS,
	NULL,
	"hints",
	dray_dbus_hint_fields,
	DRAY_DBUS_HINT_FIELD_N,
	.columns = {
		{ "SCOPE", DRAY_DBUS_HINT_FIELD_SCOPE, CTL_CELL_TEXT },
		{ "SEGMENT", DRAY_DBUS_HINT_FIELD_SEGMENT, CTL_CELL_TEXT },
		{ "SOURCE", DRAY_DBUS_HINT_FIELD_SOURCE, CTL_CELL_TEXT },
		{ "UID", DRAY_DBUS_HINT_FIELD_UID, CTL_CELL_NUMBER },
		{ "SCORE", DRAY_DBUS_HINT_FIELD_SCORE, CTL_CELL_NUMBER },
		{ "AGE", DRAY_DBUS_HINT_FIELD_AGE_NS, CTL_CELL_SPAN },
		{ "LEFT", DRAY_DBUS_HINT_FIELD_LEFT_NS, CTL_CELL_SPAN },
		{ "COUNTS", DRAY_DBUS_HINT_FIELD_COUNTS, CTL_CELL_YES_NO },
	},
};

/* SCOPE=SEGMENT at its last =, since a segment has none. */
struct placement {
	char scope[SCOPE_MAX + 1];
	const char *segment;
};

static int placement_parse(enum ctl_option_id id, const char *text, size_t n, const char *segment,
			   struct placement *ret, struct ctl_err *reterr)
{
	if (n > SCOPE_MAX)
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "%s: a scope has at most %u bytes",
				   ctl_options[id].name, SCOPE_MAX);
	memcpy(ret->scope, text, n);
	ret->scope[n] = '\0';
	ret->segment = segment;
	return 0;
}

static int set_parse(const char *text, struct placement *ret, struct ctl_err *reterr)
{
	const char *equals = strrchr(text, '=');

	if (!equals || !dray_segment_valid(equals + 1))
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--set %.100s: SCOPE=HOST:PORT is allowed", text);
	return placement_parse(CTL_OPTION_SET, text, (size_t)(equals - text), equals + 1, ret,
			       reterr);
}

/* A scope may have = in it: only what is a segment behind it counts as one. */
static int forget_parse(const char *text, struct placement *ret, struct ctl_err *reterr)
{
	const char *equals = strrchr(text, '=');
	bool both = equals && dray_segment_valid(equals + 1);

	return placement_parse(CTL_OPTION_FORGET, text,
			       both ? (size_t)(equals - text) : strlen(text),
			       both ? equals + 1 : "", ret, reterr);
}

static int set(struct ctl *c, struct ctl_bus *b, struct ctl_err *reterr)
{
	sd_bus_message *reply = NULL;
	struct placement p;
	int64_t score = 0, ttl_ns = 0;
	int ret = set_parse(c->values[CTL_OPTION_SET], &p, reterr);

	if (!ret)
		ret = ctl_option_count(c, CTL_OPTION_SCORE, 0, UINT32_MAX, 0, &score, reterr);
	if (!ret)
		ret = ctl_option_span(c, CTL_OPTION_TTL, DRAY_NS_PER_SEC, TTL_MAX_NS, 0, &ttl_ns,
				      reterr);
	if (!ret)
		ret = ctl_bus_open(b, c->control, c->timeout_ns, reterr);
	if (!ret)
		ret = ctl_bus_ask(b, DRAY_DBUS_METHOD_SET_HINT, &reply, reterr, "ssut", p.scope,
				  p.segment, (uint32_t)score, (uint64_t)(ttl_ns / DRAY_NS_PER_MS));
	sd_bus_message_unref(reply);
	if (!ret)
		ctl_result_print(c, "set", c->values[CTL_OPTION_SET]);
	return ret;
}

static void forgotten_print(struct ctl *c, uint32_t n)
{
	struct ctl_json j = CTL_JSON(c->out);

	switch (c->format) {
	case CTL_JSON:
		ctl_json_object(&j, NULL);
		ctl_json_uint(&j, "forgotten", n);
		ctl_json_end(&j);
		break;
	case CTL_PLAIN:
		fprintf(c->out, "%" PRIu32 "\n", n);
		break;
	case CTL_TEXT:
		fprintf(c->out, "%" PRIu32 " hint%s forgotten\n", n, n == 1 ? "" : "s");
		break;
	}
}

static int forget(struct ctl *c, struct ctl_bus *b, struct ctl_err *reterr)
{
	bool all = c->values[CTL_OPTION_FORGET_ALL];
	struct placement p = { .segment = "" };
	sd_bus_message *reply = NULL;
	uint32_t n = 0;
	int ret = 0;

	if (!all)
		ret = forget_parse(c->values[CTL_OPTION_FORGET], &p, reterr);
	if (!ret)
		ret = ctl_bus_open(b, c->control, c->timeout_ns, reterr);
	if (!ret)
		ret = ctl_bus_ask(b, DRAY_DBUS_METHOD_FORGET_HINTS, &reply, reterr, "ssb", p.scope,
				  p.segment, (int)all);
	if (!ret) {
		int r = sd_bus_message_read(reply, "u", &n);

		if (r <= 0)
			ret = ctl_bus_bad_reply(reterr, DRAY_DBUS_METHOD_FORGET_HINTS, r);
	}
	sd_bus_message_unref(reply);
	if (!ret)
		forgotten_print(c, n);
	return ret;
}

int ctl_hints(struct ctl *c)
{
	static const enum ctl_option_id ways[] = { CTL_OPTION_SET, CTL_OPTION_FORGET,
						   CTL_OPTION_FORGET_ALL };
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	unsigned given = 0;
	int ret;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(ways); i++)
		given += c->values[ways[i]] != NULL;
	if (given > 1)
		ret = ctl_err_set(&err, CTL_EXIT_USAGE,
				  "--set, --forget and --forget-all exclude each other");
	else if (!c->values[CTL_OPTION_SET] &&
		 (c->values[CTL_OPTION_SCORE] || c->values[CTL_OPTION_TTL]))
		ret = ctl_err_set(&err, CTL_EXIT_USAGE, "--score and --ttl go with --set");
	else if (!given)
		return ctl_list_run(c, &ctl_list_hints);
	else if (c->values[CTL_OPTION_SET])
		ret = set(c, &bus, &err);
	else
		ret = forget(c, &bus, &err);
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}
