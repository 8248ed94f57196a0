/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec: a command in the launcher's environment. Nothing here changes a signal's disposition or the mask, and every
 * descriptor that is opened closes on exec, so that the command finds what drayctl found; SIGINT and SIGTERM during
 * the wait end it as ever.
 */
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/command_line/args.h"
#include "ctl/verbs/command.h"
#include "ctl/verbs/env.h"
#include "ctl/render/human.h"
#include "ctl/verbs/segments.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "lib/units.h"

#define WAIT_DEFAULT "30s"
#define WAIT_MAX_NS (24 * 3600 * DRAY_NS_PER_SEC)
/* Between two tries: nothing tells of a socket that is not there yet. */
#define LOOK_NS (100 * DRAY_NS_PER_MS)

static const char *const on_timeout[] = { "fail", "start", NULL };

struct run {
	struct ctl *c;
	int64_t wait_ns;         /* 0: not at all */
	bool start;              /* --on-timeout=start */
	const char *kv_transfer; /* argument to add, or NULL */
	char *file;              /* what is run */
	struct ctl_bus bus;
	struct ctl_variables variables;
	char **argv, **environment; /* of the command; the entries that are ours come first */
	unsigned n_ours;            /* of the environment */
	char why[400];              /* it is not ready */
};

static void run_deinit(struct run *r)
{
	for (unsigned i = 0; i < r->n_ours; i++)
		free(r->environment[i]);
	free(r->environment);
	free(r->argv);
	free(r->file);
	ctl_variables_deinit(&r->variables);
	ctl_bus_close(&r->bus);
}

static const char *variable_of(const struct ctl *c, const char *name)
{
	size_t n = strlen(name);

	for (char *const *e = c->env->variables; e && *e; e++)
		if (!strncmp(*e, name, n) && (*e)[n] == '=')
			return *e + n + 1;
	return NULL;
}

/* --- options ------------------------------------------------------------------------------------ */

static int json_check(const char *text, struct ctl_err *reterr)
{
	json_error_t where;
	json_t *j = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
	bool object = json_is_object(j);
	char why[JSON_ERROR_TEXT_LENGTH];

	if (!j)
		ctl_err_set(reterr, CTL_EXIT_USAGE,
			    "--kv-transfer-config: not JSON: %s, at byte %d",
			    ctl_show_text(where.text, why, sizeof(why)), where.position);
	else if (!object)
		ctl_err_set(reterr, CTL_EXIT_USAGE,
			    "--kv-transfer-config: a JSON object is wanted");
	json_decref(j);
	return object ? 0 : -1;
}

static int kv_transfer_check(struct run *r, struct ctl_err *reterr)
{
	struct ctl *c = r->c;
	const char *given = c->values[CTL_OPTION_KV_TRANSFER];

	if (!given)
		return 0;
	if (json_check(given, reterr) < 0)
		return -1;
	if (!ctl_command_is_vllm(c->command, c->n_command))
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--kv-transfer-config is for vllm serve and python -m "
				   "vllm.entrypoints..., and %.100s is neither",
				   c->command[0]);
	if (ctl_command_has_kv_transfer(c->command, c->n_command))
		fputs("drayctl: the command has a --kv-transfer-config of its own, which stays\n",
		      c->err);
	else
		r->kv_transfer = given;
	return 0;
}

static int options_read(struct run *r, struct ctl_err *reterr)
{
	struct ctl *c = r->c;
	const char *wait = c->values[CTL_OPTION_WAIT_READY];
	int64_t span;
	int word;

	if (!c->n_command)
		return ctl_err_set(
			reterr, CTL_EXIT_USAGE,
			"exec needs a command: drayctl exec [OPTION]... -- COMMAND [ARG]...");
	/* else it would be looked for as a command */
	if (wait && !*wait && dray_duration_parse(c->command[0], &span) == 0)
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--wait-ready takes its time after =, as in --wait-ready=%.20s",
				   c->command[0]);
	if (wait && !*wait)
		c->values[CTL_OPTION_WAIT_READY] = WAIT_DEFAULT;
	if (ctl_option_span(c, CTL_OPTION_WAIT_READY, DRAY_NS_PER_MS, WAIT_MAX_NS, 0, &r->wait_ns,
			    reterr) < 0 ||
	    ctl_option_word(c, CTL_OPTION_ON_TIMEOUT, on_timeout, &word, reterr) < 0 ||
	    kv_transfer_check(r, reterr) < 0)
		return -1;
	r->start = word == 1;
	/* before the wait: it would be for nothing */
	return ctl_command_find(c->command[0], variable_of(c, "PATH"), &r->file, reterr);
}

/* --- the agent ---------------------------------------------------------------------------------- */

static int variables_ask(struct run *r, struct ctl_err *reterr)
{
	ctl_variables_deinit(&r->variables);
	return ctl_variables_get(r->c, &r->bus, &r->variables, reterr);
}

/*
 * Asks once, and waits for as long as the agent stays. 1: it is ready, or nobody waits for that; 0: not yet, and
 * why; -1: it never will.
 */
static int try(struct run *r, int64_t ends_ns, struct ctl_err *reterr)
{
	static const struct ctl_segment_goal goal = { CTL_SEGMENT_PREFERRED, "ready", true };
	struct ctl_segment_look l = { .reached = !r->wait_ns };
	struct ctl_err err = CTL_ERR_NULL;
	int64_t time_ns = r->c->timeout_ns;
	int ret;

	if (r->wait_ns)
		time_ns = dray_min(time_ns, ends_ns - dray_now().ns);
	ctl_bus_close(&r->bus);
	ret = ctl_bus_open(&r->bus, r->c->control, dray_max(time_ns, LOOK_NS), &err);
	if (!ret)
		ret = variables_ask(r, &err);
	/* a profile that does not exist is told at once; what is said may be another when the wait is over */
	if (!ret && r->wait_ns)
		ret = ctl_segment_wait(r->c, &r->bus, NULL, &goal, ends_ns, &l, &err);
	if (!ret && r->wait_ns)
		ret = variables_ask(r, &err);
	if (!ret && l.reached)
		return 1;
	snprintf(r->why, sizeof(r->why), "%s", ret ? err.msg : l.why);
	if (!ret || err.exit == CTL_EXIT_UNREACHABLE)
		return 0;
	return ctl_err_set(reterr, err.exit, "%s", err.msg);
}

static int gave_up(struct run *r, struct ctl_err *reterr)
{
	char span[CTL_HUMAN_BYTES];

	if (r->start) {
		fprintf(r->c->err, "drayctl: starting without a preferred segment: %s\n", r->why);
		r->variables.without_preference = true;
		return 0;
	}
	if (!r->wait_ns)
		return ctl_err_set(reterr, CTL_EXIT_UNREACHABLE, "%s", r->why);
	return ctl_err_set(reterr, CTL_EXIT_TIMED_OUT,
			   "no preferred segment was ready within %s: %s; --on-timeout=start would "
			   "start all the same",
			   ctl_show_span((uint64_t)r->wait_ns, span), r->why);
}

static int ready_wait(struct run *r, struct ctl_err *reterr)
{
	int64_t ends_ns = dray_now().ns + r->wait_ns;

	for (;;) {
		int ret = try(r, ends_ns, reterr);
		int64_t left = ends_ns - dray_now().ns;

		if (ret)
			return ret < 0 ? ret : 0;
		if (!r->wait_ns || left <= 0)
			return gave_up(r, reterr);
		poll(NULL, 0, (int)(dray_min(left, LOOK_NS) / DRAY_NS_PER_MS) + 1);
	}
}

/* --- the command -------------------------------------------------------------------------------- */

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

/* Those that were given, whatever is in them, and behind them what was asked for. */
static int argv_make(struct run *r)
{
	static const char name[] = "--kv-transfer-config";
	struct ctl *c = r->c;

	r->argv = calloc(c->n_command + 3, sizeof(*r->argv));
	if (!r->argv)
		return -ENOMEM;
	memcpy(r->argv, c->command, c->n_command * sizeof(*r->argv));
	if (r->kv_transfer) {
		memcpy(&r->argv[c->n_command], &(const char *){ name }, sizeof(char *));
		memcpy(&r->argv[c->n_command + 1], &r->kv_transfer, sizeof(char *));
	}
	return 0;
}

/* A command line is the caller's to write. */
static int arguments_refuse(struct run *r, struct ctl_err *reterr)
{
	for (size_t i = 0; i < r->variables.rows.n; i++) {
		struct ctl_variable v = ctl_variable_at(r->c, &r->variables, i);

		if (v.fate == CTL_FATE_ARGUMENT)
			return ctl_err_set(
				reterr, CTL_EXIT_USAGE,
				"profile %.40s is of arguments, which exec does not add; "
				"drayctl env --profile %.40s --format args prints them",
				v.profile, v.profile);
	}
	return 0;
}

int ctl_exec(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct run r = { .c = c };
	int ret;

	ret = options_read(&r, &err);
	if (!ret)
		ret = ready_wait(&r, &err);
	if (!ret)
		ret = arguments_refuse(&r, &err);
	if (!ret && (environment_make(&r) < 0 || argv_make(&r) < 0))
		ret = ctl_err_set(&err, CTL_EXIT_FAILED, "out of memory");
	if (!ret) {
		ctl_variables_note(c, &r.variables);
		fflush(c->out);
		fflush(c->err);
		ret = ctl_command_exec(r.file, r.argv, r.environment, &err);
	}
	run_deinit(&r);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}
