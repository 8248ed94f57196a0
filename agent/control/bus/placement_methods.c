/* SPDX-License-Identifier: Apache-2.0 */
/* Methods for segments, hints and the launcher's environment. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/bus/internal.h"
#include "agent/control/placement.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/errors.h"

static void segment_append(void *arg, const struct segment_info *s)
{
	const union value v[DRAY_DBUS_SEGMENT_FIELD_N] = {
		[DRAY_DBUS_SEGMENT_FIELD_SEGMENT] = { .s = s->name },
		[DRAY_DBUS_SEGMENT_FIELD_STATE] = { .s = dmsg_segment_state_name(s->state) },
		[DRAY_DBUS_SEGMENT_FIELD_VERIFIED] = { .n = s->verified },
		[DRAY_DBUS_SEGMENT_FIELD_PREFERRED] = { .n = s->preferred },
		[DRAY_DBUS_SEGMENT_FIELD_LOCAL] = { .n = s->local },
		[DRAY_DBUS_SEGMENT_FIELD_SOURCES] = { .s = s->sources },
		[DRAY_DBUS_SEGMENT_FIELD_PROBE] = { .s = s->probe },
		[DRAY_DBUS_SEGMENT_FIELD_TARGET] = { .s = s->target },
		[DRAY_DBUS_SEGMENT_FIELD_REASON] = { .s = s->reason },
		[DRAY_DBUS_SEGMENT_FIELD_SINCE_NS] = { .n = dictionary_duration(s->since_ns) },
		[DRAY_DBUS_SEGMENT_FIELD_LATENCY_NS] = { .n = dictionary_duration(s->latency_ns) },
		[DRAY_DBUS_SEGMENT_FIELD_PROBES] = { .n = s->probes },
		[DRAY_DBUS_SEGMENT_FIELD_FAILURES] = { .n = s->failures },
		[DRAY_DBUS_SEGMENT_FIELD_NEXT_NS] = { .n = dictionary_duration(s->next_ns) },
		[DRAY_DBUS_SEGMENT_FIELD_CAPACITY] = { .n = s->capacity },
		[DRAY_DBUS_SEGMENT_FIELD_ALLOCATED] = { .n = s->allocated },
		[DRAY_DBUS_SEGMENT_FIELD_READY_AGO_NS] = { .n = dictionary_duration(
								   s->ready_ago_ns) },
	};

	dictionary_append(arg, dray_dbus_segment_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_segments(struct dictionaries *d)
{
	segments_each(d->agent->segments, segment_append, d);
}

static void candidate_append(void *arg, unsigned rank, const struct candidate *c)
{
	enum dmsg_segment_state state = c->known ? c->known->state : DMSG_SEGMENT_STATE_UNKNOWN;
	const union value v[DRAY_DBUS_CANDIDATE_FIELD_N] = {
		[DRAY_DBUS_CANDIDATE_FIELD_RANK] = { .n = rank },
		[DRAY_DBUS_CANDIDATE_FIELD_SEGMENT] = { .s = c->name },
		[DRAY_DBUS_CANDIDATE_FIELD_PREFERENCE] = { .s = dmsg_preference_name(
								   c->preference) },
		[DRAY_DBUS_CANDIDATE_FIELD_STATE] = { .s = dmsg_segment_state_name(state) },
		[DRAY_DBUS_CANDIDATE_FIELD_CHOSEN] = { .n = c->chosen },
		[DRAY_DBUS_CANDIDATE_FIELD_REASON] = { .s = c->reason },
	};

	dictionary_append(arg, dray_dbus_candidate_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_candidates(struct dictionaries *d)
{
	const char *scope = "";

	if (d->ret >= 0)
		d->ret = sd_bus_message_read(d->call, "s", &scope);
	if (d->ret >= 0)
		d->ret = segments_explain(d->agent->segments, scope, candidate_append, d);
}

static void hint_append(void *arg, const struct hint *h)
{
	const union value v[DRAY_DBUS_HINT_FIELD_N] = {
		[DRAY_DBUS_HINT_FIELD_SCOPE] = { .s = h->scope },
		[DRAY_DBUS_HINT_FIELD_SEGMENT] = { .s = h->segment },
		[DRAY_DBUS_HINT_FIELD_SOURCE] = { .s = dmsg_hint_source_name(h->source) },
		[DRAY_DBUS_HINT_FIELD_UID] = { .n = h->uid },
		[DRAY_DBUS_HINT_FIELD_SCORE] = { .n = h->score },
		[DRAY_DBUS_HINT_FIELD_AGE_NS] = { .n = dictionary_duration(h->age_ms) *
						       DRAY_NS_PER_MS },
		[DRAY_DBUS_HINT_FIELD_LEFT_NS] = { .n = dictionary_duration(h->left_ms) *
							DRAY_NS_PER_MS },
		[DRAY_DBUS_HINT_FIELD_COUNTS] = { .n = h->counts },
	};

	dictionary_append(arg, dray_dbus_hint_fields, v, DRAY_ARRAY_SIZE(v));
}

void fill_hints(struct dictionaries *d)
{
	hints_each(d->agent->hints, hint_append, d);
}

int dbus_method_set_hint(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	struct dray_err err = DRAY_ERR_NULL;
	struct hint_put put = { .source = DMSG_HINT_SOURCE_EXPLICIT };
	int ret;

	ret = bus_conn_read_change(c, m, reterr, "ssut", &put.scope, &put.segment, &put.score,
				   &put.ttl_ms);
	if (ret < 0)
		return ret;
	if (hints_put(c->server->agent->hints, &put, &err) < 0)
		return sd_bus_error_set(reterr,
					err.code == DRAY_E_INVALID ? SD_BUS_ERROR_INVALID_ARGS :
								     SD_BUS_ERROR_LIMITS_EXCEEDED,
					err.msg);
	log_notice("control", "hint scope=%s segment=%s uid=%u pid=%d",
		   *put.scope ? put.scope : "\"\"", put.segment, c->who.uid, c->who.pid);
	return sd_bus_reply_method_return(m, NULL);
}

int dbus_method_forget_hints(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	const char *scope, *segment;
	uint32_t count;
	int all, ret;

	ret = bus_conn_read_change(c, m, reterr, "ssb", &scope, &segment, &all);
	if (ret < 0)
		return ret;
	count = hints_forget(c->server->agent->hints, scope, *segment ? segment : NULL, all);
	if (count)
		log_notice("control", "%u hints forgotten uid=%u pid=%d", count, c->who.uid,
			   c->who.pid);
	return sd_bus_reply_method_return(m, "u", count);
}

static void variable_append(struct dictionaries *d, const struct env_variable *e)
{
	const union value v[DRAY_DBUS_VARIABLE_FIELD_N] = {
		[DRAY_DBUS_VARIABLE_FIELD_PROFILE] = { .s = e->profile },
		[DRAY_DBUS_VARIABLE_FIELD_NAME] = { .s = e->name },
		[DRAY_DBUS_VARIABLE_FIELD_VALUE] = { .s = e->value },
		[DRAY_DBUS_VARIABLE_FIELD_LEFT_OUT] = { .n = !e->value },
		[DRAY_DBUS_VARIABLE_FIELD_ARGUMENT] = { .n = e->argument },
		[DRAY_DBUS_VARIABLE_FIELD_REASON] = { .s = e->reason },
	};

	dictionary_append(d, dray_dbus_variable_fields, v, DRAY_ARRAY_SIZE(v));
}

static void words_free(char **words)
{
	for (char **w = words; w && *w; w++)
		free(*w);
	free(words);
}

void fill_environment(struct dictionaries *d)
{
	struct dray_strv profiles = DRAY_STRV_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct env env = ENV_NULL;
	char **words = NULL;

	d->ret = sd_bus_message_read_strv(d->call, &words);
	for (char **w = words; w && *w && d->ret >= 0; w++)
		d->ret = dray_strv_add(&profiles, *w, strlen(*w));
	if (d->ret >= 0)
		d->ret = agent_environment(d->agent, &profiles, &env, &err);
	if (d->ret == -EINVAL && err.code)
		d->ret = sd_bus_error_set(d->reterr, SD_BUS_ERROR_INVALID_ARGS, err.msg);
	for (size_t i = 0; i < env.n; i++)
		variable_append(d, &env.v[i]);
	env_deinit(&env);
	dray_strv_clear(&profiles);
	words_free(words);
}
