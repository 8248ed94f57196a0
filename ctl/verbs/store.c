/* SPDX-License-Identifier: Apache-2.0 */
/* store: lists the name spaces of the store; lists, warms and evicts objects of one. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"
#include "lib/units.h"

#define TENANT_MAX 64
/* Until the agent has read some of what it reads from disk. */
#define WARM_PAUSE_NS 5000000
/* Without an object for so many of them the disk does not answer: five seconds. */
#define WARM_PAUSES_MAX 1000u

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

/* The same for reading from disk; it waits while the agent reads enough. */
static int warm(struct ctl *c, const struct space *s, uint64_t bytes, uint64_t *objects,
		uint64_t *read, int *full)
{
	const struct timespec pause = { .tv_nsec = WARM_PAUSE_NS };
	unsigned pauses = 0;
	int more = 1;

	while (more && *read < bytes) {
		dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
		uint64_t n_bytes;
		uint32_t n;
		int ret;

		if (ctl_bus_call(c, DRAY_DBUS_METHOD_WARM_STORE, &reply, "ssut", s->name, s->tenant,
				 s->uid, bytes - *read) < 0)
			return -1;
		ret = sd_bus_message_read(reply, "utbb", &n, &n_bytes, full, &more);
		if (ret <= 0)
			return ctl_bus_bad_reply(c, DRAY_DBUS_METHOD_WARM_STORE, ret);
		*objects += n;
		*read += n_bytes;
		pauses = n ? 0 : pauses + 1;
		if (pauses == WARM_PAUSES_MAX)
			return ctl_failed(c,
					  "%" PRIu64
					  " objects are being read, and nothing came from the disk "
					  "for five seconds; drayctl store shows its state",
					  *objects);
		if (more && !n)
			nanosleep(&pause, NULL);
	}
	return 0;
}

static int space_get(struct ctl *c, const char *option, struct space *ret)
{
	*ret = (struct space){ .name = c->values[CTL_OPTION_SPACE] };
	if (!ret->name && !c->values[CTL_OPTION_SPACE_OWNER])
		return ctl_misuse(
			c, "%s needs --space NAME or --owner TENANT:UID; drayctl store lists both",
			option);
	if (!ret->name && owner_parse(c, c->values[CTL_OPTION_SPACE_OWNER], ret) < 0)
		return -1;
	if (!ret->name)
		ret->name = "";
	return 0;
}

static int evict_space(struct ctl *c)
{
	struct ctl_json j = CTL_JSON(c->out);
	uint64_t objects = 0, bytes = 0;
	struct space s;

	if (space_get(c, "--evict", &s) < 0)
		return -1;
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

static int warm_space(struct ctl *c)
{
	struct ctl_json j = CTL_JSON(c->out);
	uint64_t objects = 0, bytes = 0;
	struct space s;
	int full = 0;

	if (space_get(c, "--warm", &s) < 0)
		return -1;
	if (warm(c, &s, (uint64_t)c->numbers[CTL_OPTION_WARM], &objects, &bytes, &full) < 0)
		return -1;
	if (c->format == CTL_JSON)
		ctl_json_record(&j, NULL, J_UINT("objects", objects), J_UINT("bytes", bytes),
				J_BOOL("full", full));
	else if (c->format == CTL_PLAIN)
		fprintf(c->out, "%" PRIu64 "\t%" PRIu64 "\t%d\n", objects, bytes, full);
	else
		fprintf(c->out, "%" PRIu64 " object%s read from disk, %" PRIu64 " bytes%s\n",
			objects, objects == 1 ? "" : "s", bytes,
			full ? "; memory has no room for more" : "");
	return CTL_EXIT_OK;
}

static int list_objects(struct ctl *c)
{
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;
	struct space s;

	if (space_get(c, "--keys", &s) < 0)
		return -1;
	if (ctl_list_get(c, &ctl_list_store_objects, &rows, "ssuu", s.name, s.tenant, s.uid,
			 (uint32_t)c->numbers[CTL_OPTION_KEYS]) < 0)
		return -1;
	return ctl_list_print(c, &ctl_list_store_objects, &rows);
}

int ctl_store(struct ctl *c)
{
	if (c->values[CTL_OPTION_EVICT])
		return evict_space(c);
	if (c->values[CTL_OPTION_WARM])
		return warm_space(c);
	if (c->values[CTL_OPTION_KEYS])
		return list_objects(c);
	if (c->values[CTL_OPTION_SPACE] || c->values[CTL_OPTION_SPACE_OWNER])
		return ctl_misuse(
			c, "--space and --owner have no effect without --keys, --warm or --evict");
	return ctl_list_run(c, &ctl_list_store);
}
