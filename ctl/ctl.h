/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drayctl: one verb a run. main.c reads the environment; everything else works on what is here, and
 * writes to the two streams named here, so that tests can run it in their own process.
 */
#ifndef DRAY_CTL_CTL_H
#define DRAY_CTL_CTL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses, which scripts rely on. (doctor has its own: 0 clean, 1 warnings, 2 errors.) */
enum ctl_exit {
	CTL_EXIT_OK = 0,
	CTL_EXIT_FAILED = 1,
	CTL_EXIT_USAGE = 2,
	CTL_EXIT_UNREACHABLE = 3, /* no agent there, or it does not answer */
	CTL_EXIT_REFUSED = 4,     /* the kernel or the agent says no */
	/* of exec, which otherwise ends as its command does: as timeout(1), env(1) and shells have them */
	CTL_EXIT_TIMED_OUT = 124,
	CTL_EXIT_NOT_EXECUTABLE = 126,
	CTL_EXIT_NOT_FOUND = 127,
};

/* Why something failed: how to exit, and one sentence. The first one set wins. */
struct ctl_err {
	enum ctl_exit exit;
	char name[96]; /* D-Bus error, or "" */
	bool absent;   /* nobody listens where the agent should */
	char msg[400];
};

#define CTL_ERR_NULL ((struct ctl_err){ CTL_EXIT_OK, .name = "" })

/* Returns -1. */
int ctl_err_set(struct ctl_err *e, enum ctl_exit status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

enum ctl_format { CTL_TEXT, CTL_PLAIN, CTL_JSON };

enum ctl_option_id {
	/* of every verb */
	CTL_OPTION_CONTROL,
	CTL_OPTION_JSON,
	CTL_OPTION_PLAIN,
	CTL_OPTION_NO_COLOR,
	CTL_OPTION_TIMEOUT,
	CTL_OPTION_HELP,
	CTL_OPTION_VERSION,
	CTL_OPTION_GLOBAL_N,
	/* drain */
	CTL_OPTION_WAIT = CTL_OPTION_GLOBAL_N,
	CTL_OPTION_LIMIT,
	CTL_OPTION_STAY,
	CTL_OPTION_FORCE,
	/* rails */
	CTL_OPTION_ENABLE,
	CTL_OPTION_DISABLE,
	/* transfers, top */
	CTL_OPTION_RECENT,
	CTL_OPTION_REPEAT,
	CTL_OPTION_INTERVAL,
	CTL_OPTION_LOOKS,
	/* config */
	CTL_OPTION_ORIGIN,
	/* health */
	CTL_OPTION_LIVE,
	CTL_OPTION_READY,
	/* wait */
	CTL_OPTION_FOR,
	CTL_OPTION_WAIT_LIMIT,
	/* bench */
	CTL_OPTION_SOCKET,
	CTL_OPTION_SIZE,
	CTL_OPTION_OPS,
	CTL_OPTION_BATCH,
	CTL_OPTION_COUNT,
	CTL_OPTION_DURATION,
	CTL_OPTION_DIRECTION,
	CTL_OPTION_CLASS,
	CTL_OPTION_MEMORY,
	CTL_OPTION_TOKEN,
	CTL_OPTION_SERVE,
	CTL_OPTION_OWNER,
	CTL_OPTION_SESSIONS,
	CTL_OPTION_HOW,
	CTL_OPTION_CEILING,
	CTL_OPTION_ROUNDS,
	/* detect, doctor */
	CTL_OPTION_EXPLAIN,
	CTL_OPTION_FROM_SYSFS,
	CTL_OPTION_WATCH,
	CTL_OPTION_ONLY,
	CTL_OPTION_WITHOUT,
	CTL_OPTION_GID_INDEX,
	CTL_OPTION_FAMILY,
	CTL_OPTION_NODE_ADDRESSES,
	CTL_OPTION_RNICS,
	CTL_OPTION_OWNERS,
	CTL_OPTION_REGISTER,
	CTL_OPTION_GPU_PLUGIN,
	/* segments */
	CTL_OPTION_CANDIDATES,
	CTL_OPTION_SCOPE,
	/* hints */
	CTL_OPTION_SET,
	CTL_OPTION_SCORE,
	CTL_OPTION_TTL,
	CTL_OPTION_FORGET,
	CTL_OPTION_FORGET_ALL,
	/* env, exec */
	CTL_OPTION_PROFILE,
	CTL_OPTION_ENV_FORMAT,
	CTL_OPTION_OVERRIDE,
	CTL_OPTION_WAIT_READY,
	CTL_OPTION_ON_TIMEOUT,
	CTL_OPTION_KV_TRANSFER,
	CTL_OPTION_N
};

/* What main.c found around it. */
struct ctl_env {
	const char *control; /* $DRAY_CONTROL_SOCKET, or NULL */
	const char *socket;  /* $DRAY_SOCKET, or NULL */
	bool terminal;       /* standard output is one */
	bool color;          /* and wants it */
	int in;              /* standard input */
	/* all of it, NAME=VALUE, with NULL at the end; NULL: nothing */
	char *const *variables;
};

#define CTL_ARGS_MAX 2

struct ctl {
	const struct ctl_env *env;
	FILE *out, *err;
	const char *control; /* path of the control socket */
	enum ctl_format format;
	bool color;
	int64_t timeout_ns; /* of each call */
	/* as given: NULL, the value, or "" for options that take none */
	const char *values[CTL_OPTION_N];
	const char *args[CTL_ARGS_MAX]; /* of the verb */
	unsigned n_args;
	char *const *command; /* of verbs that take one: its words */
	unsigned n_command;
};

/* What stands for an argument or an option's value, so that a shell can complete it. */
enum ctl_kind {
	CTL_KIND_FREE, /* nothing, but for words that the help spells out: read|write */
	CTL_KIND_FILE,
	CTL_KIND_DIR,
	CTL_KIND_VERB,
	CTL_KIND_DEVICE, /* RDMA device of this place */
	CTL_KIND_SESSION,
	CTL_KIND_N
};

struct ctl_verb {
	const char *name;
	/*
	 * What follows the name, for help and completion: options in brackets, then arguments, in small letters
	 * what is typed as it stands, as in "[--wait] get|set KEY"; "" for nothing.
	 */
	const char *args;
	const char *help; /* one line */
	const char *example;
	int (*fn)(struct ctl *c); /* returns the exit status */
	unsigned max_args;
	enum ctl_option_id options[20]; /* its own; ends with a global one */
	const char *more;               /* sentences for help and manual, as text.h says */
	enum ctl_kind kinds[CTL_ARGS_MAX];
	bool command; /* what follows, from -- or the first word on, is another program's */
};

extern const struct ctl_verb ctl_verbs[];
extern const unsigned ctl_verbs_n;

/* The whole program; returns its exit status. */
int ctl_run(const struct ctl_env *env, FILE *out, FILE *err, int argc, char *const *argv);

/* Says why, on the error stream; returns the exit status. */
int ctl_fail(struct ctl *c, const struct ctl_err *e);

/* The verbs. */
int ctl_status(struct ctl *c);
int ctl_sessions(struct ctl *c);
int ctl_regions(struct ctl *c);
int ctl_peers(struct ctl *c);
int ctl_rails(struct ctl *c);
int ctl_paths(struct ctl *c);
int ctl_gpus(struct ctl *c);
int ctl_transfers(struct ctl *c);
int ctl_cancel(struct ctl *c);
int ctl_close(struct ctl *c);
int ctl_events(struct ctl *c);
int ctl_top(struct ctl *c);
int ctl_detect(struct ctl *c);
int ctl_doctor(struct ctl *c);
int ctl_segments(struct ctl *c);
int ctl_hints(struct ctl *c);
int ctl_env(struct ctl *c);
int ctl_exec(struct ctl *c);
int ctl_health(struct ctl *c);
int ctl_wait(struct ctl *c);
int ctl_drain(struct ctl *c);
int ctl_resume(struct ctl *c);
int ctl_reload(struct ctl *c);
int ctl_config(struct ctl *c);
int ctl_log_level(struct ctl *c);
int ctl_bench(struct ctl *c);
int ctl_version(struct ctl *c);
int ctl_help(struct ctl *c);

#endif
