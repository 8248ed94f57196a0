/* SPDX-License-Identifier: Apache-2.0 */
/* store: lists the name spaces of the store; lists, warms, verifies and evicts objects of one. */
#include <inttypes.h>
#include <string.h>

#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"
#include "lib/time.h"
#include "lib/units.h"
#include "schema/gen/config.h"

#define TENANT_MAX 64
/* Until the agent has read some of what it reads from disk. */
#define WARM_PAUSE_NS (5 * DRAY_NS_PER_MS)
/* Without an object for so many of them the disk does not answer: five seconds. */
#define WARM_PAUSES_MAX 1000u
/* Between looks at a verification, and between lines about it. */
#define VERIFY_PAUSE_NS (100 * DRAY_NS_PER_MS)
#define VERIFY_LINE_NS (10 * DRAY_NS_PER_SEC)

/* A name space: with a name, or that of an owner. */
struct space {
	const char *name;
	char tenant[TENANT_MAX + 1];
	uint32_t uid;
};

struct amount {
	uint64_t objects, bytes;
};

/* What is done by calls of which each does a part of it, so that the agent serves others in between. */
struct work {
	const char *member;
	/* Reads an answer, and sets `more`. As sd_bus_message_read(). */
	int (*read)(struct work *w, sd_bus_message *reply);
	/* Before a further call; may be NULL. 0 or -1. */
	int (*pause)(struct ctl *c, struct work *w);
	uint64_t argument; /* of the next call: bytes that are left, or a rate */
	struct amount done;
	int more, full;
	unsigned pauses; /* in a row */
	/* of a verification */
	struct amount good, damaged, unreadable; /* of this name space */
	struct amount before[3];                 /* of others */
	bool interrupted;
	int64_t line_ns; /* when the next line is due */
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

/* 0 or -1. */
static int carry_out(struct ctl *c, const struct space *s, struct work *w)
{
	do {
		dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
		int ret;

		if (ctl_bus_call(c, w->member, &reply, "ssut", s->name, s->tenant, s->uid,
				 w->argument) < 0)
			return -1;
		ret = w->read(w, reply);
		if (ret <= 0)
			return ctl_bus_bad_reply(c, w->member, ret);
		if (w->more && w->pause && w->pause(c, w) < 0)
			return -1;
	} while (w->more);
	return 0;
}

static void count(struct work *w, uint32_t objects, uint64_t bytes)
{
	w->done.objects += objects;
	w->done.bytes += bytes;
	w->argument -= dray_min(bytes, w->argument);
	w->more = w->more && w->argument;
	w->pauses = objects ? 0 : w->pauses + 1;
}

static int evict_read(struct work *w, sd_bus_message *reply)
{
	uint64_t bytes;
	uint32_t n;
	int ret = sd_bus_message_read(reply, "utb", &n, &bytes, &w->more);

	if (ret > 0)
		count(w, n, bytes);
	return ret;
}

static int warm_read(struct work *w, sd_bus_message *reply)
{
	uint64_t bytes;
	uint32_t n;
	int ret = sd_bus_message_read(reply, "utbb", &n, &bytes, &w->full, &w->more);

	if (ret > 0)
		count(w, n, bytes);
	return ret;
}

/* While the agent reads enough. */
static int warm_pause(struct ctl *c, struct work *w)
{
	const struct timespec pause = { .tv_nsec = WARM_PAUSE_NS };

	if (w->pauses == WARM_PAUSES_MAX)
		return ctl_failed(c,
				  "%" PRIu64
				  " objects are being read, and nothing came from the disk "
				  "for five seconds; drayctl store shows its state",
				  w->done.objects);
	if (w->pauses)
		nanosleep(&pause, NULL);
	return 0;
}

static int space_get(struct ctl *c, const char *option, struct space *ret)
{
	*ret = (struct space){ .name = c->values[CTL_OPTION_SPACE] };
	if (ret->name && !*ret->name)
		return ctl_misuse(
			c, "--space needs a name; --owner TENANT:UID names the space of an owner");
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
	struct work w = { .member = DRAY_DBUS_METHOD_EVICT_STORE,
			  .read = evict_read,
			  .argument = (uint64_t)c->numbers[CTL_OPTION_EVICT] };
	struct ctl_json j = CTL_JSON(c->out);
	struct space s;

	if (space_get(c, "--evict", &s) < 0 || carry_out(c, &s, &w) < 0)
		return -1;
	if (c->format == CTL_JSON)
		ctl_json_record(&j, NULL, J_UINT("objects", w.done.objects),
				J_UINT("bytes", w.done.bytes));
	else if (c->format == CTL_PLAIN)
		fprintf(c->out, "%" PRIu64 "\t%" PRIu64 "\n", w.done.objects, w.done.bytes);
	else
		fprintf(c->out, "%" PRIu64 " object%s evicted, %" PRIu64 " bytes\n", w.done.objects,
			w.done.objects == 1 ? "" : "s", w.done.bytes);
	return CTL_EXIT_OK;
}

static int warm_space(struct ctl *c)
{
	struct work w = { .member = DRAY_DBUS_METHOD_WARM_STORE,
			  .read = warm_read,
			  .pause = warm_pause,
			  .argument = (uint64_t)c->numbers[CTL_OPTION_WARM] };
	struct ctl_json j = CTL_JSON(c->out);
	struct space s;

	if (space_get(c, "--warm", &s) < 0 || carry_out(c, &s, &w) < 0)
		return -1;
	if (c->format == CTL_JSON)
		ctl_json_record(&j, NULL, J_UINT("objects", w.done.objects),
				J_UINT("bytes", w.done.bytes), J_BOOL("full", w.full));
	else if (c->format == CTL_PLAIN)
		fprintf(c->out, "%" PRIu64 "\t%" PRIu64 "\t%d\n", w.done.objects, w.done.bytes,
			w.full);
	else
		fprintf(c->out, "%" PRIu64 " object%s read from disk, %" PRIu64 " bytes%s\n",
			w.done.objects, w.done.objects == 1 ? "" : "s", w.done.bytes,
			w.full ? "; memory has no room for more" : "");
	return CTL_EXIT_OK;
}

/* --- verify --------------------------------------------------------------------------------------- */

static int verify_read(struct work *w, sd_bus_message *reply)
{
	return sd_bus_message_read(reply, "ttttttb", &w->good.objects, &w->good.bytes,
				   &w->damaged.objects, &w->damaged.bytes, &w->unreadable.objects,
				   &w->unreadable.bytes, &w->more);
}

static struct amount sum(struct amount a, struct amount b)
{
	return (struct amount){ a.objects + b.objects, a.bytes + b.bytes };
}

/* Of all name spaces so far. */
static void verified(const struct work *w, struct amount ret[3])
{
	ret[0] = sum(w->before[0], w->good);
	ret[1] = sum(w->before[1], w->damaged);
	ret[2] = sum(w->before[2], w->unreadable);
}

static void verified_line(FILE *f, const struct work *w)
{
	static const char *const words[] = { "good", "damaged", "unreadable" };
	struct amount a[3];

	verified(w, a);
	for (unsigned i = 0; i < 3; i++)
		fprintf(f, "%s%" PRIu64 " object%s with %" PRIu64 " bytes %s %s", i ? ", " : "",
			a[i].objects, a[i].objects == 1 ? "" : "s", a[i].bytes,
			a[i].objects == 1 ? "is" : "are", words[i]);
}

static int verify_pause(struct ctl *c, struct work *w)
{
	int ret = ctl_interrupt_wait(c, -1, VERIFY_PAUSE_NS);

	if (ret < 0)
		return -1;
	if (ret == CTL_WAKE_END) {
		w->interrupted = true;
		w->more = 0;
	} else if (c->format == CTL_TEXT && dray_now().ns >= w->line_ns) {
		w->line_ns = dray_now().ns + VERIFY_LINE_NS;
		fputs("verifying: ", c->err);
		verified_line(c->err, w);
		fputs(" so far\n", c->err);
		fflush(c->err);
	}
	return 0;
}

/* A name space that is gone has nothing on disk. 0 or -1. */
static int verify_one(struct ctl *c, const struct space *s, struct work *w, bool may_be_gone)
{
	int ret = carry_out(c, s, w);

	if (ret < 0 && may_be_gone && !strcmp(c->failure.name, DRAY_DBUS_ERROR_NOT_FOUND)) {
		c->failure = CTL_FAILURE_NULL;
		ret = 0;
	}
	verified(w, w->before);
	w->good = w->damaged = w->unreadable = (struct amount){ 0 };
	return ret;
}

/* 0 or -1. */
static int verify_all(struct ctl *c, struct work *w)
{
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;
	/* for an agent without a name space: it says so if it cannot verify any */
	struct space s = { .name = "" };
	int ret = ctl_list_get(c, &ctl_list_store, &rows, NULL);

	if (!ret && !rows.n)
		ret = verify_one(c, &s, w, true);
	for (size_t i = 0; i < rows.n && !ret && !w->interrupted; i++) {
		s.name = ctl_rows_text(&rows, i, DRAY_DBUS_STORE_SPACE_FIELD_SPACE);
		snprintf(s.tenant, sizeof(s.tenant), "%s",
			 ctl_rows_text(&rows, i, DRAY_DBUS_STORE_SPACE_FIELD_TENANT));
		s.uid = (uint32_t)ctl_rows_at(&rows, i, DRAY_DBUS_STORE_SPACE_FIELD_UID)->n;
		ret = verify_one(c, &s, w, true);
	}
	return ret;
}

static void verified_print(struct ctl *c, const struct work *w, const struct amount a[3])
{
	struct ctl_json j = CTL_JSON(c->out);

	if (c->format == CTL_JSON) {
		ctl_json_record(&j, NULL, J_UINT("good", a[0].objects),
				J_UINT("good_bytes", a[0].bytes), J_UINT("damaged", a[1].objects),
				J_UINT("damaged_bytes", a[1].bytes),
				J_UINT("unreadable", a[2].objects),
				J_UINT("unreadable_bytes", a[2].bytes),
				J_BOOL("complete", !w->interrupted));
	} else if (c->format == CTL_PLAIN) {
		for (unsigned i = 0; i < 3; i++)
			fprintf(c->out, "%" PRIu64 "\t%" PRIu64 "\t", a[i].objects, a[i].bytes);
		fprintf(c->out, "%d\n", !w->interrupted);
	} else {
		verified_line(c->out, w);
		fputs(w->interrupted ? "; others have not been verified\n" : "\n", c->out);
	}
}

static int verify(struct ctl *c)
{
	bool one = c->values[CTL_OPTION_SPACE] || c->values[CTL_OPTION_SPACE_OWNER];
	struct work w = { .member = DRAY_DBUS_METHOD_VERIFY_STORE,
			  .read = verify_read,
			  .pause = verify_pause,
			  .argument = (uint64_t)c->numbers[CTL_OPTION_RATE],
			  .line_ns = dray_now().ns + VERIFY_LINE_NS };
	struct amount a[3];
	sigset_t former;
	struct space s;
	int ret;

	if (one && space_get(c, "--verify", &s) < 0)
		return -1;
	ctl_interrupt_hold(&former);
	ret = one ? verify_one(c, &s, &w, false) : verify_all(c, &w);
	ctl_interrupt_release(&former);
	if (ret < 0)
		return -1;
	verified(&w, a);
	verified_print(c, &w, a);
	return a[1].objects || a[2].objects || w.interrupted ? CTL_EXIT_FAILED : CTL_EXIT_OK;
}

/* --- list ----------------------------------------------------------------------------------------- */

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

/* People learn whether there is a store at all: an agent without one lists nothing, too. */
static int list_spaces(struct ctl *c)
{
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL, settings = CTL_ROWS_NULL;
	ssize_t row;

	if (ctl_list_get(c, &ctl_list_store, &rows, NULL) < 0)
		return -1;
	if (rows.n || c->format != CTL_TEXT)
		return ctl_list_print(c, &ctl_list_store, &rows);
	row = ctl_setting_find(c, &settings,
			       dray_config_keys[DRAY_CONFIG_KEY_LIMITS_STORE_BYTES].path);
	if (row < 0)
		return -1;
	if (!strcmp(ctl_rows_text(&settings, (size_t)row, DRAY_DBUS_SETTING_FIELD_VALUE), "0"))
		fputs("this agent has no store; set limits.store_bytes\n", c->out);
	else
		fputs("no store spaces; the first PUT of an owner makes one\n", c->out);
	return CTL_EXIT_OK;
}

int ctl_store(struct ctl *c)
{
	if (c->values[CTL_OPTION_EVICT])
		return evict_space(c);
	if (c->values[CTL_OPTION_WARM])
		return warm_space(c);
	if (c->values[CTL_OPTION_VERIFY])
		return verify(c);
	if (c->values[CTL_OPTION_TRACE])
		return ctl_store_trace(c);
	if (c->values[CTL_OPTION_KEYS])
		return list_objects(c);
	if (c->values[CTL_OPTION_SPACE] || c->values[CTL_OPTION_SPACE_OWNER])
		return ctl_misuse(
			c,
			"--space and --owner have no effect without --keys, --warm, --verify or --evict");
	return list_spaces(c);
}
