/* SPDX-License-Identifier: Apache-2.0 */
/* The table of verbs, the help made from it, and the way from a command line to a verb. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "ctl/args.h"
#include "lib/err.h"
#include "lib/nearest.h"

/* The first one is what a bare drayctl does. */
const struct ctl_verb ctl_verbs[] = {
	{ "status", "", "what the agent is and does", "drayctl status", ctl_status, 0, { 0 } },
	{ "sessions",
	  "",
	  "engines and other clients with an open session",
	  "drayctl sessions --json | jq '.sessions[].name'",
	  ctl_sessions,
	  0,
	  { 0 } },
	{ "regions", "", "memory that clients registered", "drayctl regions", ctl_regions, 0, { 0 } },
	{ "peers",
	  "",
	  "other agents, and the state of the way to them",
	  "drayctl peers",
	  ctl_peers,
	  0,
	  { 0 } },
	{ "rails",
	  "[--enable DEVICE[/PORT] | --disable DEVICE[/PORT]]",
	  "RDMA ports, and the GID that the agent chose for each",
	  "drayctl rails --disable mlx5_0",
	  ctl_rails,
	  0,
	  { CTL_OPTION_ENABLE, CTL_OPTION_DISABLE, 0 } },
	{ "paths",
	  "",
	  "rails by which peers are reached, and what has gone over each",
	  "drayctl paths --json | jq '.paths[] | {segment, device, state, queue_pairs}'",
	  ctl_paths,
	  0,
	  { 0 } },
	{ "transfers",
	  "[--recent] [--watch [--interval DURATION] [--count N]]",
	  "transfers in flight, or those that ended last",
	  "drayctl transfers --plain | cut -f 6,8,9",
	  ctl_transfers,
	  0,
	  { CTL_OPTION_RECENT, CTL_OPTION_REPEAT, CTL_OPTION_INTERVAL, CTL_OPTION_LOOKS, 0 } },
	{ "top",
	  "[--interval DURATION] [--count N]",
	  "what moves at this moment, in all, by rail and by session",
	  "drayctl top --interval 2s",
	  ctl_top,
	  0,
	  { CTL_OPTION_INTERVAL, CTL_OPTION_LOOKS, 0 } },
	{ "events",
	  "[--watch]",
	  "what has changed lately: states, rails, peers, sessions, configuration",
	  "drayctl events --watch",
	  ctl_events,
	  0,
	  { CTL_OPTION_WATCH, 0 } },
	{ "cancel",
	  "SESSION REQUEST",
	  "stop a transfer; returns when no byte of it can move any more",
	  "drayctl cancel 4294967297 17",
	  ctl_cancel,
	  2,
	  { 0 } },
	{ "close",
	  "SESSION [REASON]",
	  "end a session as if its client had died",
	  "drayctl close 4294967297 \"wrong model\"",
	  ctl_close,
	  2,
	  { 0 } },
	{ "detect",
	  "[--explain DEVICE[/PORT] | --watch] [OPTION]...",
	  "RNICs, GIDs, GPUs, addresses and listeners of this place, without an agent",
	  "drayctl detect --explain mlx5_0",
	  ctl_detect,
	  0,
	  { CTL_OPTION_EXPLAIN, CTL_OPTION_FROM_SYSFS, CTL_OPTION_WATCH, CTL_OPTION_ONLY,
	    CTL_OPTION_WITHOUT, CTL_OPTION_GID_INDEX, CTL_OPTION_FAMILY, CTL_OPTION_NODE_ADDRESSES,
	    CTL_OPTION_RNICS, CTL_OPTION_OWNERS, 0 } },
	{ "doctor",
	  "[--register SIZE] [--from-sysfs DIR]",
	  "what is wrong with this place, and the fix; exits 1 on warnings, 2 on errors",
	  "drayctl doctor --register 64GiB",
	  ctl_doctor,
	  0,
	  { CTL_OPTION_REGISTER, CTL_OPTION_FROM_SYSFS, 0 } },
	{ "drain",
	  "[--wait] [--timeout DURATION | --force] [--stay]",
	  "take no new work, end what is in flight, then exit",
	  "drayctl drain --wait --timeout 10s",
	  ctl_drain,
	  0,
	  { CTL_OPTION_WAIT, CTL_OPTION_LIMIT, CTL_OPTION_STAY, CTL_OPTION_FORCE, 0 } },
	{ "resume",
	  "",
	  "take new work again, while draining or drained",
	  "drayctl drain --wait --stay && drayctl resume",
	  ctl_resume,
	  0,
	  { 0 } },
	{ "reload",
	  "",
	  "read the configuration again; a bad one changes nothing",
	  "drayctl reload",
	  ctl_reload,
	  0,
	  { 0 } },
	{ "config",
	  "[--origin]",
	  "the configuration in effect",
	  "drayctl config --origin | grep -v default",
	  ctl_config,
	  0,
	  { CTL_OPTION_ORIGIN, 0 } },
	{ "log-level",
	  "[error|warning|notice|info|debug]",
	  "the lowest level that is logged, or another one from now on",
	  "drayctl log-level debug",
	  ctl_log_level,
	  1,
	  { 0 } },
	{ "bench",
	  "[--serve | --token TOKEN] [OPTION]...",
	  "measure transfers, within this agent or to another",
	  "drayctl bench --size 64KiB --ops 256 --duration 5s",
	  ctl_bench,
	  0,
	  { CTL_OPTION_SOCKET, CTL_OPTION_SIZE, CTL_OPTION_OPS, CTL_OPTION_BATCH, CTL_OPTION_COUNT,
	    CTL_OPTION_DURATION, CTL_OPTION_DIRECTION, CTL_OPTION_CLASS, CTL_OPTION_MEMORY,
	    CTL_OPTION_TOKEN, CTL_OPTION_SERVE, 0 } },
	{ "version",
	  "",
	  "releases of drayctl and of the agent",
	  "drayctl version",
	  ctl_version,
	  0,
	  { 0 } },
	{ "help", "[VERB]", "print help", "drayctl help drain", ctl_help, 1, { 0 } },
};

const unsigned ctl_verbs_n = sizeof(ctl_verbs) / sizeof(ctl_verbs[0]);

const struct ctl_verb *ctl_verb_find(const char *name, const char **ret_nearest)
{
	struct dray_nearest nearest = DRAY_NEAREST(name);

	for (unsigned i = 0; i < ctl_verbs_n; i++) {
		if (!strcmp(ctl_verbs[i].name, name))
			return &ctl_verbs[i];
		dray_nearest_offer(&nearest, ctl_verbs[i].name);
	}
	*ret_nearest = nearest.best;
	return NULL;
}

int ctl_err_set(struct ctl_err *e, enum ctl_exit status, const char *fmt, ...)
{
	va_list ap;

	if (!e || e->exit)
		return -1;
	e->exit = status;
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	return -1;
}

int ctl_fail(struct ctl *c, const struct ctl_err *e)
{
	fprintf(c->err, "drayctl: %s\n", e->msg);
	return (int)e->exit;
}

/* --- help --------------------------------------------------------------------------------------- */

static void option_help(FILE *f, enum ctl_option_id id)
{
	const struct ctl_option *o = &ctl_options[id];
	char left[40];

	snprintf(left, sizeof(left), "%s%s%s", o->name, o->value ? " " : "",
		 o->value ? o->value : "");
	fprintf(f, "  %-24s %s\n", left, o->help);
}

static void verb_help(FILE *f, const struct ctl_verb *v)
{
	fprintf(f, "Usage: drayctl [OPTION]... %s%s%s\n%s\n\n", v->name, *v->args ? " " : "",
		v->args, v->help);
	if (v->options[0])
		fputs("Options of its own, after the word:\n", f);
	for (unsigned i = 0; v->options[i]; i++)
		option_help(f, v->options[i]);
	fprintf(f, "%sOptions of every verb:\n", v->options[0] ? "\n" : "");
	for (int i = 0; i < CTL_OPTION_GLOBAL_N; i++)
		option_help(f, (enum ctl_option_id)i);
	fprintf(f, "\nExample: %s\n", v->example);
}

static void all_help(FILE *f)
{
	fputs("Usage: drayctl [OPTION]... [VERB]\n"
	      "Looks at the dray agent of this node, and drains it. Without a verb: status.\n\nVerbs:\n",
	      f);
	for (unsigned i = 0; i < ctl_verbs_n; i++)
		fprintf(f, "  %-10s %s\n", ctl_verbs[i].name, ctl_verbs[i].help);
	fputs("\nOptions:\n", f);
	for (int i = 0; i < CTL_OPTION_GLOBAL_N; i++)
		option_help(f, (enum ctl_option_id)i);
	fputs("\nExit status: 0 ok, 1 failed, 2 wrong use, 3 agent unreachable, 4 refused.\n", f);
}

int ctl_help(struct ctl *c)
{
	const struct ctl_verb *verb = NULL;
	struct ctl_err err = CTL_ERR_NULL;
	const char *nearest = NULL;

	if (c->n_args) {
		verb = ctl_verb_find(c->args[0], &nearest);
		if (!verb) {
			ctl_err_set(&err, CTL_EXIT_USAGE, "unknown verb %.60s%s%s%s", c->args[0],
				    nearest ? ", did you mean " : "; drayctl --help lists all",
				    nearest ? nearest : "", nearest ? "?" : "");
			return ctl_fail(c, &err);
		}
		verb_help(c->out, verb);
	} else {
		all_help(c->out);
	}
	return CTL_EXIT_OK;
}

/* --- the program -------------------------------------------------------------------------------- */

static int dispatch(struct ctl *c, const struct ctl_verb *verb)
{
	if (c->values[CTL_OPTION_HELP]) {
		if (verb)
			verb_help(c->out, verb);
		else
			all_help(c->out);
		return CTL_EXIT_OK;
	}
	if (c->values[CTL_OPTION_VERSION]) {
		fputs("drayctl " DRAY_VERSION "\n", c->out);
		return CTL_EXIT_OK;
	}
	return (verb ? verb : &ctl_verbs[0])->fn(c);
}

int ctl_run(const struct ctl_env *env, FILE *out, FILE *err, int argc, char *const *argv)
{
	struct ctl c = { .env = env, .out = out, .err = err };
	struct ctl_err e = CTL_ERR_NULL;
	const struct ctl_verb *verb = NULL;
	int status;

	if (ctl_args_parse(&c, argc, argv, &verb, &e) < 0)
		return ctl_fail(&c, &e);
	status = dispatch(&c, verb);
	/* a full disk or a closed pipe must not look like a short answer */
	if (status == CTL_EXIT_OK && (fflush(out) != 0 || ferror(out))) {
		ctl_err_set(&e, CTL_EXIT_FAILED, "writing: %s", dray_errno_text(errno));
		return ctl_fail(&c, &e);
	}
	return status;
}
