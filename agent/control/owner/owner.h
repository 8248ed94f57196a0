/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owners of sessions: pairs of a tenant, which is the name of a listening socket, and a uid. What a client costs the agent is
 * accounted to its owner, and everything that may wait for a client's files runs on threads of that owner: closing a socket
 * that carries descriptors, a socket with SO_LINGER or a file of a hung file system takes as long as the client likes. So an
 * owner delays only itself.
 *
 * A descriptor of a client counts against limits.fds_per_owner from its receipt until it is closed. At the limit the agent
 * reads nothing more from clients of that owner.
 *
 * Control thread only, except where a comment says otherwise.
 */
#pragma once

#include <stdatomic.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "agent/config/tenant.h"
#include "agent/model/message.h"
#include "agent/model/quota.h"
#include "lib/err.h"
#include "lib/jobs.h"
#include "lib/list.h"
#include "lib/log.h"
#include "schema/gen/config.h"
#include "schema/gen/dbus.h"

struct owner;

struct owners {
	sd_event *event;
	const struct dray_config *cfg;
	struct dray_list list; /* of struct owner */
	struct budgets budgets;
	struct owner *own; /* of data.socket and the agent's own uid, as in most pods; it stays */
	/* Clients of the owner may be read again; NULL: nobody reads. */
	void (*readable)(void *arg, struct owner *o);
	void *arg;
};

struct owner {
	struct dray_list link; /* on owners->list */
	struct owners *all;
	char tenant[TENANT_BYTES];
	uid_t uid;
	uint64_t closing; /* descriptors that wait to be closed */
	_Atomic uint32_t refs;
	uint32_t jobs;                /* not delivered yet */
	uint32_t pending_clients;     /* connections before their HELLO */
	struct owner_account account; /* shared with the workers, and with threads of the owner */
	struct dray_jobs *opener, *closer; /* NULL: it had no client since its first reference */
	struct dray_list
		later; /* jobs that wait for `later_now`, which the opener has; NULL: it has none */
	struct owner_job *later_now;
	struct dray_log_limit log;
	uint64_t lines_dropped; /* since its first session */
};

/* A job on a thread of the owner, which it keeps alive. Embedded; queued once at a time. */
struct owner_job {
	struct dray_job job;
	struct owner *owner;
	void (*run)(struct owner_job *j); /* on the owner's thread */
	void (*done)(
		struct owner_job *j); /* on the control thread; may free the job or add it again */
};

/* Counts a resource at its owner and the agent, as budget_take() and budget_put(). Any thread. */
static inline int owner_take(struct owner *o, enum resource r, uint64_t n, struct dray_err *reterr)
{
	return budget_take(&o->account.budget, r, n, reterr);
}

static inline void owner_put(struct owner *o, enum resource r, uint64_t n)
{
	budget_put(&o->account.budget, r, n);
}

/* Begins before the agent drops its privileges; its threads drop them. 0 or -errno. */
int owners_new(struct owners **ret, sd_event *event, const struct dray_config *cfg);
/* After sessions and regions. Waits a bounded time for jobs. NULL is allowed. */
struct owners *owners_free(struct owners *all);

/* The owner, with one reference. NULL: no memory or no thread. tenant: less than TENANT_BYTES. */
struct owner *owner_get(struct owners *all, const char *tenant, uid_t uid);
/* The same without threads, for what has no client: no job is given to it. NULL: no memory. */
struct owner *owner_get_idle(struct owners *all, const char *tenant, uid_t uid);
/* The same for an owner that another agent names. NULL, too, if it has nothing here, and OWNERS_NAMED_MAX others have. */
#define OWNERS_NAMED_MAX 64
struct owner *owner_get_named(struct owners *all, const char *tenant, uid_t uid);
/* Another reference, for a caller that has one. Any thread. */
struct owner *owner_ref(struct owner *o);
void owner_unref(struct owner *o);

/*
 * Logs a line that clients of the owner can bring about again and again: at most limits.log_lines_per_owner in each second.
 * The next line that passes says how many were dropped.
 */
#define owner_log(o, level, area, ...)                                                \
	do {                                                                          \
		uint32_t dropped_;                                                    \
		if (owner_may_log(o, &dropped_)) {                                    \
			dray_log(level, area, __VA_ARGS__);                           \
			if (dropped_)                                                 \
				dray_log(level, area,                                 \
					 "%u more lines about clients of this owner " \
					 "tenant=%s uid=%u",                          \
					 dropped_, (o)->tenant, (o)->uid);            \
		}                                                                     \
	} while (0)
bool owner_may_log(struct owner *o, uint32_t *ret_dropped);

/*
 * Descriptors of this tenant that wait to be closed are more than its part of half of the agent's open files, which n tenants
 * share.
 */
bool owners_exhausted(const struct owners *all, const char *tenant, unsigned n);

/*
 * Each runs the job where it may take as long as it likes, after the jobs that were given to the same function before. Two
 * threads: what is opened does not wait for large files to be freed.
 */
void owner_open_job(struct owner *o, struct owner_job *j, void (*run)(struct owner_job *j),
		    void (*done)(struct owner_job *j));
void owner_close_job(struct owner *o, struct owner_job *j, void (*run)(struct owner_job *j),
		     void (*done)(struct owner_job *j));

/*
 * The same as owner_open_job() for a step of work that can wait. The owner's jobs of this kind take turns, and its other jobs wait for
 * one of them at most.
 */
void owner_later_job(struct owner *o, struct owner_job *j, void (*run)(struct owner_job *j),
		     void (*done)(struct owner_job *j));
/* Takes it back. False: it may have begun, and will be delivered. */
bool owner_later_cancel(struct owner_job *j);

/* Each resource of each owner that has clients, or still uses something. Without hints, which it does not count. */
void owners_each_quota(struct owners *all,
		       void (*fn)(void *arg, const struct dray_dbus_quota *quota), void *arg);

/* Counts descriptors that were received by this thread. */
void owner_count_fds(struct owner *o, unsigned n);
/* Closes descriptors that are counted, and sets them to -1. Those that are -1 already are not counted any more. */
void owner_close_fds(struct owner *o, int *fds, unsigned n);

/*
 * Sends the last message of a connection, and closes it. Both are consumed; the message may be NULL. If messages are left
 * unread, the kernel resets the connection instead of delivering our last message, so they are discarded before.
 */
void owner_farewell(struct owner *o, int fd, struct packet *message);
