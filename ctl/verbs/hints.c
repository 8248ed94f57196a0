/* SPDX-License-Identifier: Apache-2.0 */
/* hints: lists hints, sets one, forgets some. */
#include <inttypes.h>
#include <string.h>

#include "ctl/verbs/verbs.h"
#include "lib/addr.h"
#include "lib/time.h"

#define SCOPE_MAX 256 /* of the data protocol */

struct hint {
	char scope[SCOPE_MAX + 1];
	const char *segment; /* "": none */
};

/* Divides SCOPE=SEGMENT at the last =. A scope may contain =, so only a valid segment after it is taken as one. */
static int hint_parse(struct ctl *c, enum ctl_option_id id, struct hint *ret)
{
	const char *text = c->values[id], *equals = strrchr(text, '=');
	bool both = equals && dray_endpoint_valid(equals + 1);
	size_t n = both ? (size_t)(equals - text) : strlen(text);

	if (!both && id == CTL_OPTION_SET)
		return ctl_misuse(c, "--set %.100s is not allowed; use SCOPE=HOST:PORT", text);
	if (n > SCOPE_MAX)
		return ctl_misuse(c, "%s: the scope is too long; use at most %u bytes",
				  ctl_options[id].name, SCOPE_MAX);
	memcpy(ret->scope, text, n);
	ret->scope[n] = '\0';
	ret->segment = both ? equals + 1 : "";
	return 0;
}

static int set(struct ctl *c)
{
	struct hint h;

	if (hint_parse(c, CTL_OPTION_SET, &h) < 0)
		return -1;
	return ctl_change(c, "set", c->values[CTL_OPTION_SET], DRAY_DBUS_METHOD_SET_HINT, "ssut",
			  h.scope, h.segment, (uint32_t)c->numbers[CTL_OPTION_SCORE],
			  (uint64_t)(c->numbers[CTL_OPTION_TTL] / DRAY_NS_PER_MS));
}

static int forget(struct ctl *c)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	bool all = c->values[CTL_OPTION_FORGET_ALL];
	struct ctl_json j = CTL_JSON(c->out);
	struct hint h = { .segment = "" };
	uint32_t n;
	int unread = 0, ret;

	if ((!all && hint_parse(c, CTL_OPTION_FORGET, &h) < 0) ||
	    ctl_bus_call(c, DRAY_DBUS_METHOD_FORGET_HINTS, &reply, "ssb", h.scope, h.segment,
			 (int)all) < 0)
		return -1;
	ret = sd_bus_message_read(reply, "u", &n);
	/* an older agent does not say that */
	if (ret > 0 && !sd_bus_message_at_end(reply, true))
		ret = sd_bus_message_read(reply, "b", &unread);
	if (ret <= 0)
		return ctl_bus_bad_reply(c, DRAY_DBUS_METHOD_FORGET_HINTS, ret);
	if (c->format == CTL_JSON)
		ctl_json_record(&j, NULL, J_UINT("forgotten", n), J_BOOL("unread", unread));
	else if (c->format == CTL_PLAIN)
		fprintf(c->out, "%" PRIu32 "\n", n);
	else
		fprintf(c->out, "%" PRIu32 " hint%s forgotten%s\n", n, n == 1 ? "" : "s",
			unread ? ", and those of the database, which cannot be read yet" : "");
	return CTL_EXIT_OK;
}

int ctl_hints(struct ctl *c)
{
	if (c->values[CTL_OPTION_SET])
		return set(c);
	if (c->values[CTL_OPTION_FORGET] || c->values[CTL_OPTION_FORGET_ALL])
		return forget(c);
	return ctl_list_run(c, &ctl_list_hints);
}
