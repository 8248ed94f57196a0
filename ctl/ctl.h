/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drayctl carries out one verb a run. main.c reads the environment; all other code works on struct ctl and writes to its
 * two streams, so that tests run drayctl in their own process.
 */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "schema/gen/drayctl.h"

/* Exit statuses, which scripts rely on. doctor has its own: 0 clean, 1 warnings, 2 errors. */
enum ctl_exit {
	CTL_EXIT_OK = 0,
	CTL_EXIT_FAILED = 1,
	CTL_EXIT_USAGE = 2,
	CTL_EXIT_UNREACHABLE = 3, /* there is no agent, or it does not answer */
	CTL_EXIT_REFUSED = 4,     /* the kernel or the agent refuses */
	/* Only exec uses these, with the meaning that timeout(1), env(1) and shells give them. */
	CTL_EXIT_TIMED_OUT = 124,
	CTL_EXIT_NOT_EXECUTABLE = 126,
	CTL_EXIT_NOT_FOUND = 127,
};

/* The exit status and one sentence about a failure. */
struct ctl_failure {
	enum ctl_exit exit;
	char name[96]; /* D-Bus error, or "" */
	bool absent;   /* no process listens on the control socket */
	char msg[400];
};

#define CTL_FAILURE_NULL ((struct ctl_failure){ CTL_EXIT_OK, .name = "" })

enum ctl_format { CTL_TEXT, CTL_PLAIN, CTL_JSON };

/* The process's surroundings, as main.c finds them. */
struct ctl_env {
	const char *control;    /* $DRAY_CONTROL_SOCKET, or NULL */
	const char *socket;     /* $DRAY_SOCKET, or NULL */
	bool terminal;          /* standard output is a terminal */
	bool color;             /* and shows colour */
	int in;                 /* standard input */
	char *const *variables; /* all of them, NAME=VALUE, with NULL at the end; NULL: none */
};

/* The signals that came over the connection, since ctl_bus_subscribe() or since the reader cleared them. */
struct ctl_news {
	bool any;
	bool drained, running; /* the agent entered this state */
};

struct ctl {
	const struct ctl_env *env;
	FILE *out, *err;
	const struct ctl_verb *verb; /* NULL: the command line names none */
	const char *control;         /* path of the control socket */
	enum ctl_format format;
	bool color;
	/* As given: NULL, the value, or "" for an option without a value. */
	const char *values[CTL_OPTION_N];
	int64_t numbers[CTL_OPTION_N];  /* of numbers; of words, their index */
	const char *args[CTL_ARGS_MAX]; /* of the verb */
	unsigned n_args;
	char *const *command; /* words of the command of such verbs */
	unsigned n_command;
	/* The connection to the agent, which bus/bus.h manages; the first call opens it, ctl_run() closes it. */
	struct sd_bus *bus;
	int64_t bus_timeout_ns;
	struct ctl_news news;
	struct ctl_failure failure;
};

/* The whole program; returns its exit status. */
int ctl_run(const struct ctl_env *env, FILE *out, FILE *err, int argc, char *const *argv);

/*
 * Reads the command line by the tables of schema/drayctl.yaml: fills verb, values, numbers, args and settings of c.
 * Options may stand anywhere, those of a verb after it. 0, or -1 with CTL_EXIT_USAGE.
 */
int ctl_args_parse(struct ctl *c, int argc, char *const *argv);

/* The verb of that name, or NULL with CTL_EXIT_USAGE and the nearest name. */
const struct ctl_verb *ctl_verb_find(struct ctl *c, const char *name);

/* Sets c->failure, unless it is set already. Functions return -1 with it. */
int ctl_fail(struct ctl *c, enum ctl_exit status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
#define ctl_failed(c, ...) ctl_fail((c), CTL_EXIT_FAILED, __VA_ARGS__)
#define ctl_misuse(c, ...) ctl_fail((c), CTL_EXIT_USAGE, __VA_ARGS__)
int ctl_no_memory(struct ctl *c);

/* Flushes standard output. A full disk or a closed pipe must not look like a short answer. 0 or -1. */
int ctl_flush(struct ctl *c);

enum ctl_wake {
	CTL_WAKE_END = 0, /* a signal came, or the reader closed standard output */
	CTL_WAKE_READY,   /* fd is readable */
	CTL_WAKE_TIME,    /* the time is over */
	CTL_WAKE_CLOSED,  /* only of ctl_bus_wait(): the agent closed the connection */
	CTL_WAKE_SIGNAL,  /* only of ctl_signals_wait() */
};

/*
 * For verbs that run until a signal ends them. While drayctl waits here, SIGINT and SIGTERM end it in order. While it
 * writes, they kill it as usual, because a reader that has stopped would otherwise block it. fd may be -1; timeout_ns
 * below 0 is no limit. One of enum ctl_wake, or -1.
 */
int ctl_interrupt_wait(struct ctl *c, int fd, int64_t timeout_ns);

/*
 * Until the release, SIGINT and SIGTERM wait for ctl_interrupt_wait(), so that what was done by then is reported. For verbs that wait
 * for nobody else without a limit.
 */
void ctl_interrupt_hold(sigset_t *ret_former);
void ctl_interrupt_release(const sigset_t *former);

/* The same for any signals, of which *ret_signal is the one that came (CTL_WAKE_SIGNAL). */
int ctl_signals_wait(struct ctl *c, const sigset_t *set, int fd, int64_t timeout_ns,
		     int *ret_signal);

/* The verbs: the exit status, or -1 with c->failure. */
#define CTL_DECLARE(id, function) int function(struct ctl *c);
CTL_VERB_FUNCTIONS(CTL_DECLARE)
#undef CTL_DECLARE
