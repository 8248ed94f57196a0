/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/detect/detect.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/process/privilege.h"
#include "lib/log.h"
#include "lib/thread.h"
#include "lib/time.h"
#include "lib/wake.h"
#include "netdetect/monitor.h"
#include "schema/gen/errors.h"

/* detect_free() waits this long for a thread that may hang in a device. */
#define JOIN_SECONDS 1
/* Longest pause between scans during a storm of events. */
#define PAUSE_MAX_NS (200 * DRAY_NS_PER_MS)

struct detect {
	struct detect_deps deps;
	sd_event_source *source;
	struct nd_scan *now;        /* of the control thread */
	struct nd_monitor *monitor; /* of the thread, once it runs */
	pthread_t thread;
	int ready_fd; /* thread to control: a result waits */
	int quit_fd;  /* control to thread */
	pthread_mutex_t lock;
	struct nd_scan *next; /* under the lock: not yet taken */
	/* of the thread */
	struct nd_scan *last;                /* for the addresses of listeners */
	int64_t listen_ns;                   /* when it last read the listening sockets */
	struct nd_listeners *seen;           /* passed on last */
	struct nd_listeners *next_listeners; /* under the lock: not yet taken */
	struct dray_cpus cpus_seen;          /* of the thread: passed on last */
	struct dray_cpus next_cpus; /* under the lock: not yet taken; none allowed: nothing new */
};

/* --- the thread ------------------------------------------------------------------------------------- */

static struct nd_scan_options options_of(const struct dray_config *cfg)
{
	static const uint8_t families[] = { [DRAY_CONFIG_RDMA_GID_FAMILY_AUTO] = AF_UNSPEC,
					    [DRAY_CONFIG_RDMA_GID_FAMILY_IPV4] = AF_INET,
					    [DRAY_CONFIG_RDMA_GID_FAMILY_IPV6] = AF_INET6 };

	return (struct nd_scan_options){
		.rnics_per_gpu = (unsigned)cfg->rdma.rnics_per_gpu,
		.node_addresses = cfg->node.addresses,
		.only = cfg->rdma.devices,
		.without = cfg->rdma.exclude,
		.gid_indices = cfg->rdma.gid_index,
		.gid_family = families[cfg->rdma.gid_family],
	};
}

int detect_check_config(const struct dray_config *cfg, enum dray_config_key_id *ret_key,
			struct dray_err *reterr)
{
	struct nd_scan_options options = options_of(cfg);

	*ret_key = DRAY_CONFIG_KEY_RDMA_GID_INDEX;
	return nd_scan_options_check(&options, reterr);
}

static void publish(struct detect *d, struct nd_scan *scan)
{
	struct nd_scan *unseen;

	pthread_mutex_lock(&d->lock);
	unseen = d->next;
	d->next = scan;
	pthread_mutex_unlock(&d->lock);
	nd_scan_free(unseen);
	dray_wake(d->ready_fd);
}

static void look_at_cpus(struct detect *d)
{
	struct dray_cpus now;

	dray_cpus_get(&now);
	if (now.allowed == d->cpus_seen.allowed && now.quota_milli == d->cpus_seen.quota_milli)
		return;
	d->cpus_seen = now;
	pthread_mutex_lock(&d->lock);
	d->next_cpus = now;
	pthread_mutex_unlock(&d->lock);
	dray_wake(d->ready_fd);
}

static struct nd_listeners *listeners_free(struct nd_listeners *l)
{
	if (l)
		nd_listeners_deinit(l);
	free(l);
	return NULL;
}
DRAY_DEFINE_CLEANUP(struct nd_listeners *, listeners_free);

static struct nd_listeners *listeners_copy(const struct nd_listeners *l)
{
	struct nd_listeners *copy = malloc(sizeof(*copy));

	if (!copy)
		return NULL;
	*copy = *l;
	copy->v = malloc(dray_max(l->n, (size_t)1) * sizeof(*l->v));
	if (!copy->v) {
		free(copy);
		return NULL;
	}
	if (l->n)
		memcpy(copy->v, l->v, l->n * sizeof(*l->v));
	return copy;
}

static void listen_once(struct detect *d)
{
	dray_auto(listeners_free) struct nd_listeners *now = calloc(1, sizeof(*now));
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_listeners *out;
	int r;

	look_at_cpus(d);
	d->listen_ns = dray_now().ns;
	if (!now || !d->last || !d->deps.cfg->segment.listen_interval || !d->deps.listeners)
		return;
	r = nd_listeners_scan(&ND_SOURCE_LIVE, &d->last->links, &d->deps.cfg->node.addresses, false,
			      now, &err);
	/* the interval begins when the read has ended, however long that took */
	d->listen_ns = dray_now().ns;
	if (r < 0) {
		log_limited(DRAY_LOG_WARNING, "detect",
			    "listening sockets: %s, keeping the last list", err.msg);
		return;
	}
	if (d->seen && nd_listeners_equal(d->seen, now))
		return;
	out = listeners_copy(now);
	if (!out)
		return;
	listeners_free(d->seen);
	d->seen = dray_take(now);
	pthread_mutex_lock(&d->lock);
	now = d->next_listeners;
	d->next_listeners = out;
	pthread_mutex_unlock(&d->lock);
	dray_wake(d->ready_fd);
}

static void scan_once(struct detect *d)
{
	struct nd_scan_options options = options_of(d->deps.cfg);
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_scan *scan;

	if (nd_scan_run(&ND_SOURCE_LIVE, &options, &scan, &err) < 0) {
		log_limited(DRAY_LOG_WARNING, "detect", "%s, keeping the last scan", err.msg);
		return;
	}
	nd_monitor_follow(d->monitor, scan);
	nd_scan_free(d->last);
	d->last = nd_scan_ref(scan);
	publish(d, scan);
	listen_once(d);
}

/* False: the thread must end. */
static bool wait_change(struct detect *d)
{
	struct pollfd p[2] = { { d->quit_fd, POLLIN, 0 },
			       { nd_monitor_fd(d->monitor), POLLIN, 0 } };
	int64_t interval = d->deps.listeners ? d->deps.cfg->segment.listen_interval : 0;

	for (;;) {
		/* by the clock: events that need no scan may come more often than the interval */
		int64_t left = dray_max(d->listen_ns + interval - dray_now().ns, (int64_t)0);
		struct timespec t = { .tv_sec = left / DRAY_NS_PER_SEC,
				      .tv_nsec = left % DRAY_NS_PER_SEC };
		int n = ppoll(p, 2, interval ? &t : NULL, NULL);

		if (n < 0 && errno != EINTR)
			return false;
		if (n > 0 && p[0].revents)
			return false;
		if (n > 0 && p[1].revents && nd_monitor_read(d->monitor))
			return true;
		if (interval && dray_now().ns >= d->listen_ns + interval)
			listen_once(d);
	}
}

/* Pauses as long as the last scan took, so that a storm of events takes half a CPU at most. False as above. */
static bool pause_after(struct detect *d, int64_t took_ns)
{
	struct timespec t = { .tv_nsec = dray_min(took_ns, (int64_t)PAUSE_MAX_NS) };
	struct pollfd p = { d->quit_fd, POLLIN, 0 };

	return ppoll(&p, 1, &t, NULL) <= 0;
}

static void *detect_main(void *arg)
{
	struct detect *d = arg;
	bool go_on = true;

	privilege_drop();
	while (go_on) {
		int64_t start = dray_now().ns;

		scan_once(d);
		go_on = pause_after(d, dray_now().ns - start) && wait_change(d);
	}
	return NULL;
}

/* --- control thread ---------------------------------------------------------------------------------- */

static void log_change(const char *line, void *arg)
{
	log_info("detect", "%s", line);
}

static void log_notes(const struct nd_scan *old, const struct nd_scan *now)
{
	for (size_t i = 0; i < now->n_notes; i++) {
		const struct nd_note *n = &now->notes[i];
		bool known = false;

		for (size_t k = 0; old && k < old->n_notes; k++)
			known |= !strcmp(old->notes[k].text, n->text);
		if (!known)
			log_notice("detect", "%s: %s", n->about, n->text);
	}
}

/* The first scan: a line for each port, none for interfaces and routes. */
static void log_first(const struct nd_scan *now)
{
	for (size_t i = 0; i < now->devices.n; i++) {
		const struct nd_device *d = &now->devices.v[i];

		for (size_t k = 0; k < d->n_ports; k++) {
			const struct nd_port *p = &d->ports[k];
			const struct nd_gid *g = nd_gids_best(&p->gids);

			log_info("detect", "%s/%u %s, %s", d->name, p->number,
				 nd_port_state_name(p->state), g ? g->reason : "no GID is usable");
		}
	}
}

static void take_scan(struct detect *d, struct nd_scan *now)
{
	struct nd_scan *old = d->now;

	log_notes(old, now);
	if (old)
		nd_scan_diff(old, now, log_change, NULL);
	else
		log_first(now);
	d->now = now;
	d->deps.changed(d->deps.arg, now);
	nd_scan_free(old);
}

static int handle_ready(sd_event_source *source, int fd, uint32_t events, void *arg)
{
	struct detect *d = arg;
	dray_auto(listeners_free) struct nd_listeners *listeners = NULL;
	struct dray_cpus cpus;
	struct nd_scan *now;

	if (!dray_wake_clear(fd))
		return 0;
	pthread_mutex_lock(&d->lock);
	now = dray_take(d->next);
	listeners = dray_take(d->next_listeners);
	cpus = d->next_cpus;
	d->next_cpus.allowed = 0;
	pthread_mutex_unlock(&d->lock);
	if (now)
		take_scan(d, now);
	if (cpus.allowed)
		d->deps.cpus(d->deps.arg, &cpus);
	if (listeners)
		d->deps.listeners(d->deps.arg, listeners);
	return 0;
}

static void release(struct detect *d)
{
	d->source = sd_event_source_disable_unref(d->source);
	nd_monitor_free(d->monitor);
	nd_scan_free(d->now);
	nd_scan_free(d->next);
	nd_scan_free(d->last);
	listeners_free(d->seen);
	listeners_free(d->next_listeners);
	dray_close(d->ready_fd);
	dray_close(d->quit_fd);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

int detect_new(struct detect **ret, const struct detect_deps *deps, struct dray_err *reterr)
{
	struct detect *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	d->deps = *deps;
	pthread_mutex_init(&d->lock, NULL);
	d->ready_fd = dray_wake_new();
	d->quit_fd = dray_wake_new();
	r = dray_min(d->ready_fd, d->quit_fd);
	if (r >= 0)
		r = nd_monitor_new(&d->monitor, reterr);
	if (r >= 0)
		r = sd_event_add_io(deps->event, &d->source, d->ready_fd, EPOLLIN, handle_ready, d);
	if (r >= 0)
		r = dray_thread_start(&d->thread, "dray-detect", 0, detect_main, d);
	if (r < 0) {
		release(d);
		return dray_err_set(reterr, r, DRAY_E_NO_FDS, "the thread that scans the node: %s",
				    dray_errno_text(r));
	}
	log_debug("detect", "changes come by %s", nd_monitor_describe(d->monitor));
	*ret = d;
	return 0;
}

struct detect *detect_free(struct detect *d)
{
	struct timespec until;

	if (!d)
		return NULL;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += JOIN_SECONDS;
	dray_wake(d->quit_fd);
	if (pthread_timedjoin_np(d->thread, NULL, &until) != 0) {
		log_warning("detect", "a device does not answer; its thread is abandoned");
		d->source = sd_event_source_disable_unref(d->source);
		return NULL;
	}
	release(d);
	return NULL;
}

const struct nd_scan *detect_scan(const struct detect *d)
{
	return d ? d->now : NULL;
}
