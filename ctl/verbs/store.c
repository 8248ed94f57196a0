/* SPDX-License-Identifier: Apache-2.0 */
/* store: lists the name spaces of the store, evicts objects of one. */
#include <inttypes.h>
#include <string.h>

#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"
#include "lib/units.h"

#define TENANT_MAX 64

/* A name space: with a name, or that of an owner. */
struct space {
	const char *name;
	char tenant[TENANT_MAX + 1];
	uint32_t uid;
};

static int owner_parse(struct ctl *c, const char *text, struct space *ret)
{
	const char *colon = strrchr(text, ':');
	int64_t uid;

	if (!colon || colon - text > TENANT_MAX || dray_int_parse(colon + 1, 0, &uid) < 0 ||
	    uid < 0 || uid > UINT32_MAX)
		return ctl_misuse(
			c, "--owner %.80s is not allowed; use TENANT:UID, such as default:0", text);
	snprintf(ret->tenant, sizeof(ret->tenant), "%.*s", (int)(colon - text), text);
	ret->uid = (uint32_t)uid;
	return 0;
}

/* One call evicts some objects, so that the agent serves others in between. */
static int evict(struct ctl *c, const struct space *s, uint64_t bytes, uint64_t *objects,
		 uint64_t *evicted)
{
	int more = 1;

	while (more && *evicted < bytes) {
		dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
		uint64_t n_bytes;
		uint32_t n;
		int ret;

		if (ctl_bus_call(c, DRAY_DBUS_METHOD_EVICT_STORE, &reply, "ssut", s->name,
				 s->tenant, s->uid, bytes - *evicted) < 0)
			return -1;
		ret = sd_bus_message_read(reply, "utb", &n, &n_bytes, &more);
		if (ret <= 0)
			return ctl_bus_bad_reply(c, DRAY_DBUS_METHOD_EVICT_STORE, ret);
		*objects += n;
		*evicted += n_bytes;
	}
	return 0;
}

static int evict_space(struct ctl *c)
{
	struct space s = { .name = c->values[CTL_OPTION_SPACE] };
	struct ctl_json j = CTL_JSON(c->out);
	uint64_t objects = 0, bytes = 0;

	if (!s.name && !c->values[CTL_OPTION_SPACE_OWNER])
		return ctl_misuse(
			c,
			"--evict needs --space NAME or --owner TENANT:UID; drayctl store lists both");
	if (!s.name && owner_parse(c, c->values[CTL_OPTION_SPACE_OWNER], &s) < 0)
		return -1;
	if (!s.name)
		s.name = "";
	if (evict(c, &s, (uint64_t)c->numbers[CTL_OPTION_EVICT], &objects, &bytes) < 0)
		return -1;
	if (c->format == CTL_JSON)
		ctl_json_record(&j, NULL, J_UINT("objects", objects), J_UINT("bytes", bytes));
	else if (c->format == CTL_PLAIN)
		fprintf(c->out, "%" PRIu64 "\t%" PRIu64 "\n", objects, bytes);
	else
		fprintf(c->out, "%" PRIu64 " object%s evicted, %" PRIu64 " bytes\n", objects,
			objects == 1 ? "" : "s", bytes);
	return CTL_EXIT_OK;
}

int ctl_store(struct ctl *c)
{
	if (c->values[CTL_OPTION_EVICT])
		return evict_space(c);
	if (c->values[CTL_OPTION_SPACE] || c->values[CTL_OPTION_SPACE_OWNER])
		return ctl_misuse(c, "--space and --owner have no effect without --evict");
	return ctl_list_run(c, &ctl_list_store);
}
