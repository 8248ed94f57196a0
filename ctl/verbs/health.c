/* SPDX-License-Identifier: Apache-2.0 */
/* health, for people and for probes that run a command. */
#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"

static void json_print(const struct ctl_health *h, FILE *f)
{
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	ctl_json_add(&j, J_BOOL("alive", h->alive), J_TEXT("reason", h->reason),
		     J_BOOL("ready", h->ready));
	ctl_rows_json(&j, "conditions", &h->conditions);
	ctl_json_end(&j);
}

static void plain_print(const struct ctl_health *h, FILE *f)
{
	char reason[400];

	fprintf(f, "alive\t%d\t%s\nready\t%d\n", h->alive,
		ctl_show_text(h->reason, reason, sizeof(reason)), h->ready);
	ctl_rows_plain(f, &h->conditions);
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
	const struct ctl_rows *r = &h->conditions;
	char text[400];

	verdict_print(f, "alive", h->alive, h->reason, color);
	verdict_print(f, "ready", h->ready, "", color);
	for (size_t i = 0; i < r->n; i++) {
		bool ok = ctl_rows_at(r, i, DRAY_DBUS_CONDITION_FIELD_OK)->n;
		bool required = ctl_rows_at(r, i, DRAY_DBUS_CONDITION_FIELD_REQUIRED)->n;
		const char *reason = ctl_rows_text(r, i, DRAY_DBUS_CONDITION_FIELD_REASON);

		fputs("  ", f);
		ctl_mood_print(f, ok ? "yes" : "no ",
			       ok       ? CTL_MOOD_GOOD :
			       required ? CTL_MOOD_BAD :
					  CTL_MOOD_NONE,
			       color);
		fprintf(f, "  %s%s: %s\n", ctl_rows_text(r, i, DRAY_DBUS_CONDITION_FIELD_NAME),
			required ? "" : ", not required",
			ctl_show_text(reason, text, sizeof(text)));
	}
}

int ctl_health_get(struct ctl *c, struct ctl_health *h)
{
	struct ctl_rows *r = &h->conditions;
	int alive, ready, ret;

	if (ctl_bus_call(c, DRAY_DBUS_METHOD_HEALTH, &r->reply, NULL) < 0)
		return -1;
	ret = sd_bus_message_read(r->reply, "bsb", &alive, &h->reason, &ready);
	if (ret >= 0)
		ret = ctl_rows_read(r, dray_dbus_condition_fields, DRAY_DBUS_CONDITION_FIELD_N);
	if (ret < 0)
		return ctl_bus_bad_reply(c, DRAY_DBUS_METHOD_HEALTH, ret);
	h->alive = alive;
	h->ready = ready;
	return 0;
}

int ctl_health(struct ctl *c)
{
	bool live = c->values[CTL_OPTION_LIVE], ready = c->values[CTL_OPTION_READY];
	struct ctl_health h = CTL_HEALTH_NULL;
	int ret = ctl_health_get(c, &h);

	if (!ret && c->format == CTL_JSON)
		json_print(&h, c->out);
	else if (!ret && c->format == CTL_PLAIN)
		plain_print(&h, c->out);
	else if (!ret)
		text_print(&h, c->out, c->color);
	ctl_rows_deinit(&h.conditions);
	if (ret < 0)
		return ret;
	return (h.alive || ready) && (h.ready || live) ? CTL_EXIT_OK : CTL_EXIT_FAILED;
}
