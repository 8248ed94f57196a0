/* SPDX-License-Identifier: Apache-2.0 */
/* health: is the agent alive, and ready? For people, and for probes that run a command. */
#include "ctl/verbs/health.h"

#include <string.h>

#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "ctl/render/table.h"
#include "lib/err.h"

static int health_read(struct ctl_health *h, sd_bus_message *reply)
{
	int alive, ready, ret;

	ret = sd_bus_message_read(reply, "bsb", &alive, &h->reason, &ready);
	if (ret < 0)
		return ret;
	h->alive = alive;
	h->ready = ready;
	return ctl_rows_read(&h->conditions, reply, dray_dbus_condition_fields,
			     DRAY_DBUS_CONDITION_FIELD_N);
}

static const char *text_of(const struct ctl_health *h, size_t row, unsigned field)
{
	const char *s = ctl_rows_at(&h->conditions, row, field)->s;

	return s ? s : "";
}

static bool flag_of(const struct ctl_health *h, size_t row, unsigned field)
{
	return ctl_rows_at(&h->conditions, row, field)->n;
}

static void json_print(const struct ctl_health *h, FILE *f)
{
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	ctl_json_bool(&j, "alive", h->alive);
	ctl_json_string(&j, "reason", h->reason);
	ctl_json_bool(&j, "ready", h->ready);
	ctl_json_array(&j, "conditions");
	for (size_t i = 0; i < h->conditions.n; i++) {
		ctl_json_object(&j, NULL);
		ctl_json_string(&j, "name", text_of(h, i, DRAY_DBUS_CONDITION_FIELD_NAME));
		ctl_json_bool(&j, "ok", flag_of(h, i, DRAY_DBUS_CONDITION_FIELD_OK));
		ctl_json_bool(&j, "required", flag_of(h, i, DRAY_DBUS_CONDITION_FIELD_REQUIRED));
		ctl_json_string(&j, "reason", text_of(h, i, DRAY_DBUS_CONDITION_FIELD_REASON));
		ctl_json_end(&j);
	}
	ctl_json_end(&j);
	ctl_json_end(&j);
}

static void plain_print(const struct ctl_health *h, FILE *f)
{
	char reason[400];

	fprintf(f, "alive\t%d\t%s\nready\t%d\n", h->alive,
		ctl_show_text(h->reason, reason, sizeof(reason)), h->ready);
	for (size_t i = 0; i < h->conditions.n; i++)
		fprintf(f, "%s\t%d\t%d\t%s\n", text_of(h, i, DRAY_DBUS_CONDITION_FIELD_NAME),
			flag_of(h, i, DRAY_DBUS_CONDITION_FIELD_OK),
			flag_of(h, i, DRAY_DBUS_CONDITION_FIELD_REQUIRED),
			ctl_show_text(text_of(h, i, DRAY_DBUS_CONDITION_FIELD_REASON), reason,
				      sizeof(reason)));
}

static void verdict_print(FILE *f, const char *word, bool ok, const char *reason, bool color)
{
	char text[400];

	if (!ok)
		fputs("not ", f);
	ctl_mood_print(f, word, ok ? CTL_MOOD_GOOD : CTL_MOOD_BAD, color);
	fprintf(f, "%s%s\n", *reason ? ": " : "", ctl_show_text(reason, text, sizeof(text)));
}

static void text_print(const struct ctl_health *h, FILE *f, bool color)
{
	char text[400];

	verdict_print(f, "alive", h->alive, h->reason, color);
	verdict_print(f, "ready", h->ready, "", color);
	for (size_t i = 0; i < h->conditions.n; i++) {
		bool ok = flag_of(h, i, DRAY_DBUS_CONDITION_FIELD_OK);
		bool required = flag_of(h, i, DRAY_DBUS_CONDITION_FIELD_REQUIRED);

		fputs("  ", f);
		ctl_mood_print(f, ok ? "yes" : "no ",
			       ok       ? CTL_MOOD_GOOD :
			       required ? CTL_MOOD_BAD :
					  CTL_MOOD_NONE,
			       color);
		fprintf(f, "  %s%s: ", text_of(h, i, DRAY_DBUS_CONDITION_FIELD_NAME),
			required ? "" : ", not required");
		fprintf(f, "%s\n",
			ctl_show_text(text_of(h, i, DRAY_DBUS_CONDITION_FIELD_REASON), text,
				      sizeof(text)));
	}
}

int ctl_health_ask(struct ctl_bus *b, struct ctl_health *h, sd_bus_message **ret_reply,
		   struct ctl_err *reterr)
{
	int ret = ctl_bus_ask(b, DRAY_DBUS_METHOD_HEALTH, ret_reply, reterr, NULL);

	if (ret < 0)
		return ret;
	ret = health_read(h, *ret_reply);
	return ret < 0 ? ctl_bus_bad_reply(reterr, DRAY_DBUS_METHOD_HEALTH, ret) : 0;
}

int ctl_health(struct ctl *c)
{
	bool live = c->values[CTL_OPTION_LIVE], ready = c->values[CTL_OPTION_READY];
	struct ctl_health h = CTL_HEALTH_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	struct ctl_err err = CTL_ERR_NULL;
	sd_bus_message *reply = NULL;
	int ret = 0;

	if (live && ready)
		ret = ctl_err_set(&err, CTL_EXIT_USAGE,
				  "--live and --ready exclude each other; "
				  "without either both count");
	if (!ret)
		ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = ctl_health_ask(&bus, &h, &reply, &err);
	if (!ret && c->format == CTL_JSON)
		json_print(&h, c->out);
	else if (!ret && c->format == CTL_PLAIN)
		plain_print(&h, c->out);
	else if (!ret)
		text_print(&h, c->out, c->color);
	ctl_rows_deinit(&h.conditions);
	sd_bus_message_unref(reply);
	ctl_bus_close(&bus);
	if (ret < 0)
		return ctl_fail(c, &err);
	return (h.alive || ready) && (h.ready || live) ? CTL_EXIT_OK : CTL_EXIT_FAILED;
}
