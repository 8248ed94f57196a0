/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drayctl carries out one verb a run. main.c reads the environment; all other code works on struct ctl and writes to its
 * two streams, so that tests run drayctl in their own process.
 */
#ifndef DRAY_CTL_CTL_H
#define DRAY_CTL_CTL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

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

/* The exit status and one sentence about a failure. The first one set wins. */
struct ctl_err {
	enum ctl_exit exit;
	char name[96]; /* D-Bus error, or "" */
	bool absent;   /* no process listens on the control socket */
	char msg[400];
};

#define CTL_ERR_NULL ((struct ctl_err){ CTL_EXIT_OK, .name = "" })

/* Returns -1. */
int ctl_err_set(struct ctl_err *e, enum ctl_exit status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int ctl_no_memory(struct ctl_err *reterr);

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
	CTL_OPTION_TIMES,
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
	CTL_OPTION_WAIT_METHOD,
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

/* The process's surroundings, as main.c finds them. */
struct ctl_env {
	const char *control;    /* $DRAY_CONTROL_SOCKET, or NULL */
	const char *socket;     /* $DRAY_SOCKET, or NULL */
	bool terminal;          /* standard output is a terminal */
	bool color;             /* and shows colour */
	int in;                 /* standard input */
	char *const *variables; /* all of them, NAME=VALUE, with NULL at the end; NULL: none */
};

#define CTL_ARGS_MAX 2

struct ctl_list;

/* What a shell may complete in the place of an argument or an option's value. */
enum ctl_kind {
	CTL_KIND_FREE, /* nothing, except words that the help spells out, as in read|write */
	CTL_KIND_FILE,
	CTL_KIND_DIR,
	CTL_KIND_VERB,
	CTL_KIND_DEVICE, /* RDMA device of this machine */
	CTL_KIND_SESSION,
	CTL_KIND_N
};

struct ctl;

struct ctl_verb {
	const char *name;
	/*
	 * The text after the name in help and completion: options in brackets, then arguments. Lower-case words are
	 * typed as they are, as in "[--wait] get|set KEY". "" for nothing.
	 */
	const char *args;
	const char *help; /* one line */
	const char *example;
	int (*fn)(struct ctl *c, struct ctl_err *reterr); /* the exit status, or -1 with reterr */
	const struct ctl_list *list;                      /* of ctl_list_verb() */
	unsigned max_args;
	enum ctl_option_id options[20]; /* its own; a global one ends them */
	const char *more;               /* text for help and manual, in the form of render/text.h */
	enum ctl_kind kinds[CTL_ARGS_MAX];
	bool command; /* from -- or the first word on, the arguments are another program's */
};

extern const struct ctl_verb ctl_verbs[];
extern const unsigned ctl_verbs_n;

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
	int64_t timeout_ns; /* of each call to the agent */
	/* As given: NULL, the value, or "" for an option without a value. */
	const char *values[CTL_OPTION_N];
	const char *args[CTL_ARGS_MAX]; /* of the verb */
	unsigned n_args;
	char *const *command; /* words of the command of such verbs */
	unsigned n_command;
	/* The connection to the agent, which bus/bus.h manages; the first call opens it, ctl_run() closes it. */
	struct sd_bus *bus;
	int64_t bus_timeout_ns;
	struct ctl_news news;
};

/* The whole program; returns its exit status. */
int ctl_run(const struct ctl_env *env, FILE *out, FILE *err, int argc, char *const *argv);

/* Writes what the stream holds. A full disk or a closed pipe must not look like a short answer. 0 or -1. */
int ctl_flush(struct ctl *c, struct ctl_err *reterr);

/* The verbs: the exit status, or -1 with reterr. */
int ctl_status(struct ctl *c, struct ctl_err *reterr);
int ctl_list_verb(struct ctl *c, struct ctl_err *reterr);
int ctl_rails(struct ctl *c, struct ctl_err *reterr);
int ctl_gpus(struct ctl *c, struct ctl_err *reterr);
int ctl_transfers(struct ctl *c, struct ctl_err *reterr);
int ctl_cancel(struct ctl *c, struct ctl_err *reterr);
int ctl_close(struct ctl *c, struct ctl_err *reterr);
int ctl_events(struct ctl *c, struct ctl_err *reterr);
int ctl_top(struct ctl *c, struct ctl_err *reterr);
int ctl_detect(struct ctl *c, struct ctl_err *reterr);
int ctl_doctor(struct ctl *c, struct ctl_err *reterr);
int ctl_segments(struct ctl *c, struct ctl_err *reterr);
int ctl_hints(struct ctl *c, struct ctl_err *reterr);
int ctl_env(struct ctl *c, struct ctl_err *reterr);
int ctl_exec(struct ctl *c, struct ctl_err *reterr);
int ctl_health(struct ctl *c, struct ctl_err *reterr);
int ctl_wait(struct ctl *c, struct ctl_err *reterr);
int ctl_drain(struct ctl *c, struct ctl_err *reterr);
int ctl_resume(struct ctl *c, struct ctl_err *reterr);
int ctl_reload(struct ctl *c, struct ctl_err *reterr);
int ctl_config(struct ctl *c, struct ctl_err *reterr);
int ctl_log_level(struct ctl *c, struct ctl_err *reterr);
int ctl_bench(struct ctl *c, struct ctl_err *reterr);
int ctl_version(struct ctl *c, struct ctl_err *reterr);
int ctl_help(struct ctl *c, struct ctl_err *reterr);

#endif
