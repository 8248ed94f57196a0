/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that several verbs use. */
#pragma once

#include "ctl/bus/list.h"
#include "ctl/bus/properties.h"
#include "ctl/ctl.h"

/*
 * Calls a method without a result, with types and arguments as of ctl_bus_call(), and prints the new state: {"key":
 * "value"} in JSON, else the value alone. 0 or -1.
 */
int ctl_change(struct ctl *c, const char *key, const char *value, const char *member,
	       const char *types, ...);

/* Reads the agent's settings. The row of a key; -1: no agent answers, or it does not know the key. */
ssize_t ctl_setting_find(struct ctl *c, struct ctl_rows *r, const char *key);

/* store --trace: an exit status, or -1. */
int ctl_store_trace(struct ctl *c);

/* The agent's health; the conditions own the reply. */
struct ctl_health {
	bool alive, ready;
	const char *reason; /* why it is not alive, or "" */
	struct ctl_rows conditions;
};

#define CTL_HEALTH_NULL ((struct ctl_health){ .reason = "", .conditions = CTL_ROWS_NULL })

/* 0 or -1; the caller owns the conditions in any case. */
int ctl_health_get(struct ctl *c, struct ctl_health *h);

/* The work that is left of a drain, and its limit. Fills buf and returns it. */
#define CTL_DRAIN_BYTES 200
const char *ctl_drain_text(const struct ctl_properties *p, char *buf, size_t n);

/* What a verb shows again and again. */
struct ctl_watched {
	/* 0, 1: what was printed does not count, or -1 */
	int (*print)(struct ctl *c, void *arg);
	/* NULL: no keys besides q. True: what was printed last is to be printed again, by `again`, which returns 0 or -1 */
	bool (*key)(void *arg, char key);
	int (*again)(struct ctl *c, void *arg);
};

/*
 * Prints every --interval, until it has printed --count times, or until interrupted. On a terminal, each output replaces the
 * last, and is printed again when the terminal's size changes; there, the key q ends it, too.
 */
int ctl_watch(struct ctl *c, const struct ctl_watched *w, void *arg);

#define CTL_SEGMENT_LOCAL "local"         /* any segment on this node */
#define CTL_SEGMENT_PREFERRED "preferred" /* the preferred one, after a probe has confirmed it */

struct ctl_segment_goal {
	const char *segment; /* host:port, or one of the words above */
	const char *state;
	bool running; /* the agent has to be running as well */
};

/* The progress of a wait for the agent or for a segment. */
struct ctl_wait_state {
	bool reached, interrupted;
	char segment[300]; /* the segment in question */
	char why[400];     /* the missing condition */
};

/*
 * Waits for the goal until ends_ns (0: no limit), or until the agent closes the connection, which is not an error.
 * interruptible: as of ctl_bus_wait(). 0, or -1 if the agent cannot answer.
 */
int ctl_segment_wait(struct ctl *c, bool interruptible, const struct ctl_segment_goal *goal,
		     int64_t ends_ns, struct ctl_wait_state *w);

/* The environment of an engine, as the agent describes it, and what happens to each variable here. */
struct ctl_variables {
	struct ctl_rows rows; /* the agent's records; they own the texts */
	bool without_preference;
};

#define CTL_VARIABLES_NULL ((struct ctl_variables){ .rows = CTL_ROWS_NULL })

/* Calls the agent for the profiles of --profile. 0 or -1, also for names that a shell cannot assign. */
int ctl_variables_get(struct ctl *c, struct ctl_variables *v);

enum ctl_fate {
	CTL_FATE_SET,
	CTL_FATE_ARGUMENT, /* of a command line */
	CTL_FATE_LEFT_OUT,
	CTL_FATE_SAME, /* has this value already, from the caller or an earlier record */
};

struct ctl_variable {
	const char *profile, *name, *value;
	enum ctl_fate fate;
	const char *reason; /* the origin, or why it is omitted */
};

/* The i-th variable. */
struct ctl_variable ctl_variable_at(struct ctl *c, const struct ctl_variables *v, size_t i);

/* Prints a line for each omitted variable on the error stream. */
void ctl_variables_note(struct ctl *c, const struct ctl_variables *v);

/* The value of a variable in the caller's environment, or NULL. */
const char *ctl_variable_given(const struct ctl *c, const char *name);

/*
 * Finds the file that a shell would run, which the caller frees; path: $PATH, or NULL. 0, or -1 with
 * CTL_EXIT_NOT_FOUND or CTL_EXIT_NOT_EXECUTABLE.
 */
int ctl_command_find(struct ctl *c, const char *name, const char *path, char **ret);

/* Returns only on failure: -1. A file without #! is a script of sh, as with execvp(3). */
int ctl_command_exec(struct ctl *c, const char *file, char *const *argv, char *const *variables);

/* True for vllm serve and python -m vllm.entrypoints..., also behind numactl and similar programs. */
bool ctl_command_is_vllm(char *const *argv, unsigned n);

/*
 * 1 if the command of c has this argument (--name), in any spelling that vLLM accepts, or the file of its --config has it;
 * *where names which. 0 if not, or -1 if the file cannot be read.
 */
int ctl_command_has(struct ctl *c, const char *name, const char **where);
