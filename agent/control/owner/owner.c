/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/owner/owner.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/process/jobs.h"
#include "agent/process/privilege.h"
#include "agent/process/process.h"
#include "lib/ballast.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "lib/seqpacket.h"
#include "lib/time.h"

/* Enough for system calls. */
#define STACK_BYTES (128ul << 10)
#define FREE_LIMIT_NS ((int64_t)DRAY_NS_PER_SEC)
/* One owner may use this part of the agent's descriptors, all owners together half of them. */
#define FDS_SHARE 8

static void drop_privileges(void)
{
	privilege_drop();
}

int owners_new(struct owners **ret, sd_event *event, const struct dray_config *cfg)
{
	struct owners *all = calloc(1, sizeof(*all));

	if (!all)
		return -ENOMEM;
	all->event = event;
	all->cfg = cfg;
	dray_list_init(&all->list);
	budgets_configure(&all->budgets, cfg);
	all->own = owner_get(all, cfg->data.tenant, geteuid());
	if (!all->own) {
		free(all);
		return -ENOMEM;
	}
	*ret = all;
	return 0;
}

static void settle(struct owner *o, int64_t end)
{
	int64_t left;

	while (o->jobs && (left = end - dray_now().ns) > 0) {
		struct pollfd p[] = { { .fd = o->opener->done_fd, .events = POLLIN },
				      { .fd = o->closer->done_fd, .events = POLLIN } };

		poll(p, DRAY_ARRAY_SIZE(p), (int)(left / DRAY_NS_PER_MS) + 1);
		dray_jobs_deliver(o->opener);
		dray_jobs_deliver(o->closer);
	}
}

struct owners *owners_free(struct owners *all)
{
	int64_t end = dray_now().ns + FREE_LIMIT_NS;

	if (!all)
		return NULL;
	/* until all have settled: the delivery of a job may end an owner */
	dray_list_for_each(&all->list, o, struct owner, link)
		owner_ref(o);
	dray_list_for_each(&all->list, o, struct owner, link) {
		if (o->opener)
			settle(o, end);
		/* a job that still runs goes on with what it was given until the process ends */
		if (o->jobs)
			continue;
		jobs_free(o->opener);
		jobs_free(o->closer);
		dray_list_del(&o->link);
		free(o);
	}
	if (dray_list_empty(&all->list))
		free(all);
	return NULL;
}

static uint32_t fds_max(const struct owners *all)
{
	uint64_t max =
		dray_min((uint64_t)all->cfg->limits.fds_per_owner, process_max_fds() / FDS_SHARE);

	return (uint32_t)dray_max(max, (uint64_t)1);
}

static bool start_threads(struct owner *o)
{
	sd_event *event = o->all->event;

	if (jobs_new_with(&o->opener, event, "dray-opener", STACK_BYTES, drop_privileges) >= 0 &&
	    jobs_new_with(&o->closer, event, "dray-closer", STACK_BYTES, drop_privileges) >= 0)
		return true;
	jobs_leave(dray_take(o->opener));
	return false;
}

/* An owner without clients is kept for a second, so that connecting again and again does not renew its share of the log. */
static bool resting(const struct owner *o)
{
	return dray_now().ns - o->log.window_ns < DRAY_NS_PER_SEC;
}

static struct owner *find(struct owners *all, const char *tenant, uid_t uid)
{
	struct owner *found = NULL;

	dray_list_for_each(&all->list, o, struct owner, link) {
		if (o->uid == uid && !strcmp(o->tenant, tenant)) {
			found = o;
		} else if (!o->refs && !resting(o)) {
			dray_list_del(&o->link);
			free(o);
		}
	}
	return found;
}

struct owner *owner_get_idle(struct owners *all, const char *tenant, uid_t uid)
{
	struct owner *o = find(all, tenant, uid);

	if (o)
		return owner_ref(o);
	o = calloc(1, sizeof(*o));
	if (!o)
		return NULL;
	o->all = all;
	memcpy(o->tenant, tenant, strlen(tenant));
	o->uid = uid;
	dray_list_init(&o->later);
	account_init(&o->account, fds_max(all));
	budget_account_init(&o->account.budget, &all->budgets, o->tenant, uid);
	dray_list_add(&all->list, &o->link);
	return owner_ref(o);
}

struct owner *owner_get(struct owners *all, const char *tenant, uid_t uid)
{
	struct owner *o = owner_get_idle(all, tenant, uid);

	if (!o || o->opener || start_threads(o))
		return o;
	owner_unref(o);
	return NULL;
}

struct owner *owner_get_named(struct owners *all, const char *tenant, uid_t uid)
{
	return find(all, tenant, uid) || dray_list_length(&all->list) < OWNERS_NAMED_MAX ?
		       owner_get_idle(all, tenant, uid) :
		       NULL;
}

struct owner *owner_ref(struct owner *o)
{
	atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
	return o;
}

void owner_unref(struct owner *o)
{
	if (!o || atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) > 1)
		return;
	jobs_leave(dray_take(o->opener));
	jobs_leave(dray_take(o->closer));
	if (resting(o))
		return;
	dray_list_del(&o->link);
	free(o);
}

bool owner_may_log(struct owner *o, uint32_t *ret_dropped)
{
	bool pass = dray_log_limit_pass(&o->log, (uint32_t)o->all->cfg->limits.log_lines_per_owner,
					ret_dropped);

	o->lines_dropped += !pass;
	return pass;
}

bool owners_exhausted(const struct owners *all, const char *tenant, unsigned n)
{
	uint64_t closing = 0;

	dray_list_for_each(&all->list, o, struct owner, link)
		if (!strcmp(o->tenant, tenant))
			closing += o->closing;
	return closing > process_max_fds() / 2 / n;
}

/* --- jobs --- */

static void job_run(struct dray_job *j)
{
	struct owner_job *job = dray_container_of(j, struct owner_job, job);

	job->run(job);
}

static void later_next(struct owner *o);

static void job_done(struct dray_job *j)
{
	struct owner_job *job = dray_container_of(j, struct owner_job, job);
	struct owner *o = job->owner;

	o->jobs--;
	if (o->later_now == job)
		o->later_now = NULL;
	job->done(job);
	later_next(o);
	owner_unref(o);
}

static void later_next(struct owner *o)
{
	struct dray_job *j;

	if (o->later_now || !(j = dray_list_pop(&o->later, struct dray_job, link)))
		return;
	o->later_now = dray_container_of(j, struct owner_job, job);
	dray_jobs_add(o->opener, j, job_run, job_done);
}

static void prepare(struct owner *o, struct owner_job *j, void (*run)(struct owner_job *j),
		    void (*done)(struct owner_job *j))
{
	j->owner = owner_ref(o);
	o->jobs++;
	j->run = run;
	j->done = done;
}

void owner_open_job(struct owner *o, struct owner_job *j, void (*run)(struct owner_job *j),
		    void (*done)(struct owner_job *j))
{
	prepare(o, j, run, done);
	dray_jobs_add(o->opener, &j->job, job_run, job_done);
}

void owner_close_job(struct owner *o, struct owner_job *j, void (*run)(struct owner_job *j),
		     void (*done)(struct owner_job *j))
{
	prepare(o, j, run, done);
	dray_jobs_add(o->closer, &j->job, job_run, job_done);
}

void owner_later_job(struct owner *o, struct owner_job *j, void (*run)(struct owner_job *j),
		     void (*done)(struct owner_job *j))
{
	prepare(o, j, run, done);
	dray_list_add(&o->later, &j->job.link);
	later_next(o);
}

bool owner_later_cancel(struct owner_job *j)
{
	struct owner *o = j->owner;

	if (o->later_now == j)
		return false;
	dray_list_del(&j->job.link);
	o->jobs--;
	owner_unref(o);
	return true;
}

/* --- descriptors --- */

void owner_count_fds(struct owner *o, unsigned n)
{
	account_add_fds(&o->account, n);
}

static void uncount(struct owner *o, unsigned n)
{
	account_sub_fds(&o->account, n);
	if (account_may_resume(&o->account) && o->all->readable)
		o->all->readable(o->all->arg, o);
}

struct closing {
	struct owner_job job;
	unsigned n;
	int fds[];
};

static void close_run(struct owner_job *j)
{
	struct closing *c = dray_container_of(j, struct closing, job);

	for (unsigned i = 0; i < c->n; i++)
		dray_close(c->fds[i]);
}

static void close_done(struct owner_job *j)
{
	struct closing *c = dray_container_of(j, struct closing, job);

	c->job.owner->closing -= c->n;
	uncount(c->job.owner, c->n);
	free(c);
}

void owner_close_fds(struct owner *o, int *fds, unsigned n)
{
	struct closing *c;
	unsigned open = 0;

	for (unsigned i = 0; i < n; i++)
		open += fds[i] >= 0;
	if (open < n)
		uncount(o, n - open);
	if (!open)
		return;
	c = dray_calloc_sure(1, sizeof(*c) + open * sizeof(c->fds[0]));
	for (unsigned i = 0; i < n; i++) {
		if (fds[i] >= 0)
			c->fds[c->n++] = fds[i];
		fds[i] = -1;
	}
	o->closing += c->n;
	owner_close_job(o, &c->job, close_run, close_done);
}

/* --- connections --- */

struct farewell {
	struct owner_job job;
	int fd;
	struct packet *message; /* NULL: none, or sent already */
};

static void discard(int fd)
{
	uint8_t byte;
	struct dray_fds fds;
	bool cut, lost;

	while (dray_seqpacket_recv(fd, &byte, sizeof(byte), &fds, &cut, &lost) > 0 || fds.n)
		dray_fds_close(&fds);
}

static void send_last(int fd, struct packet *message)
{
	if (message)
		dray_seqpacket_send(fd, message->data, message->length, NULL, 0);
}

static void farewell_run(struct owner_job *j)
{
	struct farewell *f = dray_container_of(j, struct farewell, job);

	if (f->message) {
		discard(f->fd);
		send_last(f->fd, f->message);
	}
	dray_close(f->fd);
}

static void farewell_done(struct owner_job *j)
{
	struct farewell *f = dray_container_of(j, struct farewell, job);

	f->job.owner->closing--;
	uncount(f->job.owner, 1);
	packet_free(f->message);
	free(f);
}

void owner_farewell(struct owner *o, int fd, struct packet *message)
{
	struct farewell *f = dray_calloc_sure(1, sizeof(*f));
	int unread = 0;

	/* from here on the client's messages fail */
	shutdown(fd, SHUT_RD);
	if (ioctl(fd, SIOCINQ, &unread) < 0 || !unread) {
		send_last(fd, message);
		packet_free(dray_take(message));
	}
	owner_count_fds(o, 1);
	*f = (struct farewell){ .fd = fd, .message = message };
	o->closing++;
	owner_close_job(o, &f->job, farewell_run, farewell_done);
}

/* --- for operators --- */

static uint64_t load(const _Atomic uint64_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

static void each_quota(const struct owner *o,
		       void (*fn)(void *arg, const struct dray_dbus_quota *quota), void *arg)
{
	const struct budget_account *a = &o->account.budget;

	for (unsigned i = 0; i < RESOURCE_N; i++)
		fn(arg, &(struct dray_dbus_quota){
				.tenant = o->tenant,
				.uid = o->uid,
				.resource = resource_name(i),
				.used = load(&a->of[i].used),
				.limit = budget_limit(a, i),
				.agent_used = load(&a->all->of[i].used),
				.agent_limit = load(&a->all->of[i].max),
				.refused = load(&a->of[i].refused),
			});
	fn(arg, &(struct dray_dbus_quota){
			.tenant = o->tenant,
			.uid = o->uid,
			.resource = "fds",
			.used = atomic_load(&o->account.fds),
			.limit = o->account.fds_max,
		});
	fn(arg, &(struct dray_dbus_quota){
			.tenant = o->tenant,
			.uid = o->uid,
			.resource = "log_lines",
			.used = resting(o) ? o->log.count : 0,
			.limit = (uint64_t)o->all->cfg->limits.log_lines_per_owner,
			.refused = o->lines_dropped,
		});
}

void owners_each_quota(struct owners *all,
		       void (*fn)(void *arg, const struct dray_dbus_quota *quota), void *arg)
{
	dray_list_for_each(&all->list, o, struct owner, link)
		if (o->refs > (o == all->own))
			each_quota(o, fn, arg);
}
