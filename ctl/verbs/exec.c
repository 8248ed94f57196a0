/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec: runs a command in the environment of an engine. This file changes no signal's disposition or mask, and every
 * descriptor that drayctl opens closes on exec, so that the command finds what drayctl found. SIGINT and SIGTERM during
 * the wait kill drayctl as usual.
 */
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "lib/units.h"

/* Between two tries to connect, because nothing announces a socket that does not exist yet. */
#define LOOK_NS (100 * DRAY_NS_PER_MS)

/* Arguments of vLLM that exec adds: from an option, or from a profile. */
static const struct transfer {
	const char *name;
	enum ctl_option_id option;
} transfers[] = {
	{ "--kv-transfer-config", CTL_OPTION_KV_TRANSFER },
	{ "--ec-transfer-config", CTL_OPTION_EC_TRANSFER },
};

struct run {
	struct ctl *c;
	int64_t wait_ns; /* 0: no wait */
	/* Values of arguments to add, or NULL. */
	const char *transfer[DRAY_ARRAY_SIZE(transfers)];
	char *file; /* of the command */
	struct ctl_variables variables;
	char **argv, **environment; /* of the command; the first n_ours entries are owned */
	unsigned n_ours;
	char why[400]; /* why the segment is not ready */
};

static void run_deinit(struct run *r)
{
	for (unsigned i = 0; i < r->n_ours; i++)
		free(r->environment[i]);
	free(r->environment);
	free(r->argv);
	free(r->file);
	ctl_rows_deinit(&r->variables.rows);
}

static int json_check(struct ctl *c, const char *name, const char *text)
{
	json_error_t where;
	json_t *j = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
	bool object = json_is_object(j);
	char why[JSON_ERROR_TEXT_LENGTH];

	if (!j)
		ctl_misuse(c, "%s is not valid JSON: %s, at byte %d", name,
			   ctl_show_text(where.text, why, sizeof(why)), where.position);
	else if (!object)
		ctl_misuse(c, "%s is not a JSON object; use {...}", name);
	json_decref(j);
	return object ? 0 : -1;
}

/* Adds the argument, unless the command has it. */
static int transfer_add(struct run *r, size_t i, const char *value)
{
	struct ctl *c = r->c;
	const char *where;
	int has;

	if (json_check(c, transfers[i].name, value) < 0)
		return -1;
	if (!ctl_command_is_vllm(c->command, c->n_command))
		return ctl_misuse(c,
				  "%s needs vllm serve or python -m "
				  "vllm.entrypoints...; the command is %.100s",
				  transfers[i].name, c->command[0]);
	has = ctl_command_has(c, transfers[i].name, &where);
	if (has > 0)
		fprintf(c->err, "drayctl: %.200s already has a %s, which stays\n", where,
			transfers[i].name);
	else if (!has)
		r->transfer[i] = value;
	return has < 0 ? -1 : 0;
}

/* An option that is wrong must fail before the wait. */
static int transfers_check(struct run *r)
{
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(transfers); i++) {
		const char *given = r->c->values[transfers[i].option];

		if (given && transfer_add(r, i, given) < 0)
			return -1;
	}
	return 0;
}

static int options_read(struct run *r)
{
	struct ctl *c = r->c;
	const char *wait = c->values[CTL_OPTION_WAIT_READY];
	int64_t span;

	if (!c->n_command)
		return ctl_misuse(
			r->c, "exec needs a command: drayctl exec [OPTION]... -- COMMAND [ARG]...");
	/* A duration here would otherwise be taken as the command. */
	if (wait && !*wait && dray_duration_parse(c->command[0], &span) == 0)
		return ctl_misuse(r->c,
				  "--wait-ready takes its value after =; write --wait-ready=%.20s",
				  c->command[0]);
	if (transfers_check(r) < 0)
		return -1;
	/* A command that does not exist must fail before the wait. */
	return ctl_command_find(r->c, c->command[0], ctl_variable_given(c, "PATH"), &r->file);
}

static int variables_read(struct run *r)
{
	ctl_rows_deinit(&r->variables.rows);
	return ctl_variables_get(r->c, &r->variables);
}

/*
 * Connects, and waits as long as the agent stays. 1: the segment is ready, or there is no wait; 0: not yet, with r->why;
 * -1: it never will be.
 */
static int try(struct run *r, int64_t ends_ns)
{
	static const struct ctl_segment_goal goal = { CTL_SEGMENT_PREFERRED, "ready", true };
	struct ctl_wait_state w = { .reached = !r->wait_ns };
	struct ctl_failure *failure = &r->c->failure;
	int64_t time_ns = r->c->numbers[CTL_OPTION_TIMEOUT];
	int ret;

	if (r->wait_ns)
		time_ns = dray_min(time_ns, ends_ns - dray_now().ns);
	ret = ctl_bus_open(r->c, dray_max(time_ns, LOOK_NS));
	/* The first call reports an unknown profile at once; the second one has the values after the wait. */
	if (!ret)
		ret = variables_read(r);
	if (!ret && r->wait_ns)
		ret = ctl_segment_wait(r->c, false, &goal, ends_ns, &w);
	if (!ret && r->wait_ns)
		ret = variables_read(r);
	if (!ret && w.reached)
		return 1;
	if (ret && failure->exit != CTL_EXIT_UNREACHABLE)
		return -1;
	snprintf(r->why, sizeof(r->why), "%s", ret ? failure->msg : w.why);
	*failure = CTL_FAILURE_NULL;
	return 0;
}

static int gave_up(struct run *r)
{
	if (r->c->numbers[CTL_OPTION_ON_TIMEOUT] == CTL_ON_TIMEOUT_START) {
		fprintf(r->c->err, "drayctl: starting without a preferred segment: %s\n", r->why);
		r->variables.without_preference = true;
		return 0;
	}
	if (!r->wait_ns)
		return ctl_fail(r->c, CTL_EXIT_UNREACHABLE, "%s", r->why);
	return ctl_fail(r->c, CTL_EXIT_TIMED_OUT,
			"no preferred segment was ready within %s: %s; --on-timeout=start "
			"starts the command anyway",
			ctl_span((uint64_t)r->wait_ns), r->why);
}

static int ready_wait(struct run *r)
{
	int64_t ends_ns = dray_now().ns + r->wait_ns;

	for (;;) {
		int ret = try(r, ends_ns);
		int64_t left = ends_ns - dray_now().ns;

		if (ret)
			return ret < 0 ? ret : 0;
		if (!r->wait_ns || left <= 0)
			return gave_up(r);
		poll(NULL, 0, (int)(dray_min(left, LOOK_NS) / DRAY_NS_PER_MS) + 1);
	}
}

static bool is_ours(const struct run *r, const char *entry)
{
	size_t n = strcspn(entry, "=");

	for (unsigned i = 0; i < r->n_ours; i++)
		if (!strncmp(r->environment[i], entry, n) && r->environment[i][n] == '=')
			return true;
	return false;
}

static int environment_make(struct run *r)
{
	const struct ctl_variables *v = &r->variables;
	char *const *given = r->c->env->variables;
	size_t n = 0, at;

	while (given && given[n])
		n++;
	r->environment = calloc(v->rows.n + n + 1, sizeof(*r->environment));
	if (!r->environment)
		return -ENOMEM;
	for (size_t i = 0; i < v->rows.n; i++) {
		struct ctl_variable var = ctl_variable_at(r->c, v, i);
		char *entry;

		if (var.fate != CTL_FATE_SET)
			continue;
		if (asprintf(&entry, "%s=%s", var.name, var.value) < 0)
			return -ENOMEM;
		r->environment[r->n_ours++] = entry;
	}
	at = r->n_ours;
	for (size_t i = 0; i < n; i++)
		if (!is_ours(r, given[i]))
			r->environment[at++] = given[i];
	return 0;
}

/* The words of the command, unchanged, and then the arguments to add. */
static int argv_make(struct run *r)
{
	struct ctl *c = r->c;
	size_t at = c->n_command;

	r->argv = calloc(c->n_command + 2 * DRAY_ARRAY_SIZE(transfers) + 1, sizeof(*r->argv));
	if (!r->argv)
		return -ENOMEM;
	memcpy(r->argv, c->command, c->n_command * sizeof(*r->argv));
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(transfers); i++) {
		if (!r->transfer[i])
			continue;
		memcpy(&r->argv[at++], &transfers[i].name, sizeof(char *));
		memcpy(&r->argv[at++], &r->transfer[i], sizeof(char *));
	}
	return 0;
}

/* The index in `transfers`, or their number. */
static size_t transfer_find(const char *name)
{
	size_t i = 0;

	while (i < DRAY_ARRAY_SIZE(transfers) && strcmp(transfers[i].name, name) != 0)
		i++;
	return i;
}

/* Takes the arguments that profiles have for vLLM. An option takes precedence. exec adds no other arguments. */
static int arguments_take(struct run *r)
{
	for (size_t i = 0; i < r->variables.rows.n; i++) {
		struct ctl_variable v = ctl_variable_at(r->c, &r->variables, i);
		size_t k = transfer_find(v.name);

		if (v.fate != CTL_FATE_ARGUMENT)
			continue;
		if (k == DRAY_ARRAY_SIZE(transfers))
			return ctl_misuse(r->c,
					  "profile %.40s has arguments, which exec does not add; "
					  "drayctl env --profile %.40s --format args prints them",
					  v.profile, v.profile);
		if (!r->c->values[transfers[k].option] && transfer_add(r, k, v.value) < 0)
			return -1;
	}
	return 0;
}

int ctl_exec(struct ctl *c)
{
	struct run r = { .c = c,
			 .wait_ns = c->numbers[CTL_OPTION_WAIT_READY],
			 .variables = CTL_VARIABLES_NULL };
	int ret;

	ret = options_read(&r);
	if (!ret)
		ret = ready_wait(&r);
	if (!ret)
		ret = arguments_take(&r);
	if (!ret && (environment_make(&r) < 0 || argv_make(&r) < 0))
		ret = ctl_no_memory(c);
	if (!ret) {
		ctl_variables_note(c, &r.variables);
		fflush(c->out);
		fflush(c->err);
		ret = ctl_command_exec(c, r.file, r.argv, r.environment);
	}
	run_deinit(&r);
	return ret;
}
