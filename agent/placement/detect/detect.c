/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/detect/detect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "agent/placement/detect/pace.h"
#include "agent/process/jobs.h"
#include "agent/process/privilege.h"
#include "lib/backoff.h"
#include "lib/log.h"
#include "lib/time.h"
#include "netdetect/monitor.h"
#include "netdetect/net/socket_count.h"
#include "schema/gen/errors.h"

/* Drivers of devices run on the thread. */
#define STACK_BYTES (8ul << 20)
/* Pause between looks at the CPU limit. */
#define QUOTA_NS (10 * DRAY_NS_PER_SEC)
/* Longest pause between looks during a storm of events. */
#define PAUSE_MAX_NS (200 * DRAY_NS_PER_MS)
/* From a scan that has failed to the next one, if no event comes first. */
#define AGAIN_NS DRAY_NS_PER_SEC
/* The longest of these pauses while scans succeed but for some device, which may fail as long as the node runs. */
#define AGAIN_MAX_NS (60 * DRAY_NS_PER_SEC)
/* Log lines about what one scan has found changed; an interface with all its addresses is a line for each. */
#define CHANGES_LOGGED 20

struct detect {
	struct detect_deps deps;
	struct nd_scan *now;
	struct dray_cpus cpus_seen; /* passed on last */
	sd_event_source *changes;   /* the monitor has events; off during a look and a pause */
	sd_event_source *timer;     /* the end of a pause, or the next look at listening sockets */
	bool of_events;             /* the look was begun by events */
	bool pausing;
	bool failing;        /* the last scan failed, and the log says so */
	bool listen_failing; /* the same of the last read of the listening sockets */
	struct nd_socket_counter counter;
	struct dray_jobs *jobs;
	bool search; /* the look reads the listening sockets in any case */
	/* of the job while it runs */
	struct dray_job job;
	struct nd_monitor *monitor;
	bool looked; /* at least once */
	int64_t again_ns; /* the last scan failed, or a device in it: when the next one is due; 0: neither */
	uint32_t device_fails; /* scans in a row in which a device failed */
	struct pace pace;      /* the control thread sets it if there is no need to search */
	struct dray_cpu_limits limits;
	int64_t quota_ns; /* when the CPU limit was last read, by either thread */
	struct nd_scan *found;
	struct dray_strv changed; /* lines about it; the first ones of n_changed */
	size_t n_changed;
	struct dray_err scan_why; /* the scan failed */
	const char *scan_remedy;
	bool listened; /* `listeners` is valid */
	struct nd_listeners listeners;
	struct dray_err listen_why;
	struct dray_cpus cpus;
	int64_t took_ns;
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

int detect_check_config(const struct dray_config *cfg, enum dray_config_key_id key,
			struct dray_err *reterr)
{
	struct nd_scan_options options = options_of(cfg);

	return key == DRAY_CONFIG_KEY_RDMA_GID_INDEX ? nd_scan_options_check(&options, reterr) : 0;
}

static void note_change(const char *line, void *arg)
{
	struct detect *d = arg;

	/* without memory the line is one of those that are only counted */
	if (d->n_changed++ < CHANGES_LOGGED)
		(void)dray_strv_add(&d->changed, line, strlen(line));
}

static void scan_node(struct detect *d)
{
	struct nd_scan_options options = options_of(d->deps.cfg);
	int64_t pause;
	int r;

	options.before = d->now;
	r = nd_scan_run(&ND_SOURCE_LIVE, &options, &d->found, &d->scan_why);
	d->looked = true;
	d->scan_remedy = nd_scan_remedy(r);
	if (r >= 0)
		r = nd_monitor_follow(d->monitor, d->found);
	d->device_fails = d->found && d->found->failing ? d->device_fails + 1 : 0;
	pause = r < 0 ? AGAIN_NS : backoff_pause(d->device_fails, AGAIN_NS, AGAIN_MAX_NS);
	d->again_ns = r < 0 || d->device_fails ? dray_now().ns + pause : 0;
	/* here, because it takes milliseconds where there are thousands of routes */
	if (d->found && d->now)
		nd_scan_diff(d->now, d->found, note_change, d);
}

/* The kernel reports a change once, so after a scan that failed no event may come. */
static bool must_scan(const struct detect *d)
{
	return !d->looked || (d->again_ns && dray_now().ns >= d->again_ns);
}

static void scan_listeners(struct detect *d)
{
	const struct nd_scan *scan = d->found ? d->found : d->now;
	struct nd_socket_count count;

	if (!scan || !d->deps.cfg->segment.listen_interval || !d->deps.listeners) {
		pace_skipped(&d->pace, dray_now().ns);
		return;
	}
	count = nd_socket_count_read(&d->counter);
	pace_searches(&d->pace, &count, dray_now().ns);
	d->listened = nd_listeners_scan(&ND_SOURCE_LIVE, &scan->links, &d->deps.cfg->node.addresses,
					false, &d->listeners, &d->listen_why) >= 0;
	/* the pause begins when the search has ended, however long that took */
	pace_searched(&d->pace, d->listened, dray_now().ns);
}

/* The CPU limit is in files, so it is not read each time. */
static void count_cpus(struct detect *d, bool all)
{
	int64_t now = dray_now().ns;

	d->cpus.allowed = dray_cpus_allowed();
	if (all)
		dray_cpu_limits_find(&d->limits, "");
	if (all || now >= d->quota_ns + QUOTA_NS) {
		d->quota_ns = now;
		d->cpus.quota_milli = dray_cpu_limits_read(&d->limits);
	}
}

static int64_t due_ns(const struct detect *d)
{
	return pace_due_ns(&d->pace, d->deps.cfg->segment.listen_interval);
}

static void look(struct dray_job *j)
{
	struct detect *d = dray_container_of(j, struct detect, job);
	int64_t start = dray_now().ns;
	bool changed = nd_monitor_read(d->monitor) || must_scan(d);
	/* events that need no scan may come more often than the interval, and then no timer ends */
	bool due = d->of_events && start >= due_ns(d);

	if (!d->looked)
		privilege_drop();
	d->scan_why = d->listen_why = DRAY_ERR_NULL;
	d->listened = false;
	if (changed)
		scan_node(d);
	if (changed || due || !d->of_events)
		count_cpus(d, changed);
	if (changed || due || d->search)
		scan_listeners(d);
	d->took_ns = dray_now().ns - start;
}

/* --- control thread ---------------------------------------------------------------------------------- */

static void log_changes(struct detect *d)
{
	for (size_t i = 0; i < d->changed.n; i++)
		log_info("detect", "%s", d->changed.v[i]);
	if (d->n_changed > d->changed.n)
		log_info("detect", "and %zu more changes", d->n_changed - d->changed.n);
	dray_strv_clear(&d->changed);
	d->n_changed = 0;
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
			char why[ND_REASON_MAX];

			log_info("detect", "%s/%u %s, %s", d->name, p->number,
				 nd_port_state_name(p->state), nd_port_why(p, why));
		}
	}
}

static void take_scan(struct detect *d, struct nd_scan *now)
{
	struct nd_scan *old = d->now;

	if (d->failing)
		log_info("detect", "the node has been scanned again");
	d->failing = false;
	log_notes(old, now);
	if (old && old->failing && !now->failing)
		log_info("detect", "all devices have been read again");
	if (old)
		log_changes(d);
	else
		log_first(now);
	d->now = now;
	d->deps.changed(d->deps.arg, now);
	nd_scan_free(old);
}

static void arm(struct detect *d, int64_t pause_ns)
{
	sd_event_source_set_time_relative(d->timer, (uint64_t)pause_ns / 1000);
	sd_event_source_set_enabled(d->timer, SD_EVENT_ONESHOT);
}

/* Until an event comes, the next search for listening sockets is due, or a scan that failed is to be repeated. */
static void await_look(struct detect *d)
{
	int64_t due = d->again_ns ? d->again_ns : INT64_MAX;

	d->pausing = false;
	sd_event_source_set_enabled(d->changes, SD_EVENT_ON);
	if (d->deps.listeners && d->deps.cfg->segment.listen_interval)
		due = dray_min(due, due_ns(d));
	if (due < INT64_MAX)
		arm(d, dray_max(due - dray_now().ns, (int64_t)0));
}

static void report_cpus(struct detect *d)
{
	if (d->cpus.allowed == d->cpus_seen.allowed &&
	    d->cpus.quota_milli == d->cpus_seen.quota_milli)
		return;
	d->cpus_seen = d->cpus;
	d->deps.cpus(d->deps.arg, &d->cpus);
}

/* Once until a scan succeeds. */
static void report_failure(struct detect *d)
{
	if (!d->failing)
		log_warning("detect", "%s; %s; %s, trying again every second", d->scan_why.msg,
			    d->scan_remedy,
			    d->now ? "keeping the last scan" : "nothing is known of the node yet");
	d->failing = true;
}

/* Once until a read succeeds. */
static void report_listeners(struct detect *d)
{
	if (d->listen_why.code && !d->listen_failing)
		log_warning("detect",
			    "listening sockets: %s; keeping the last list, trying again every "
			    "segment.listen_interval; if this kernel lacks INET_DIAG, set that to "
			    "0 and name the segments of this node in segment.known",
			    d->listen_why.msg);
	if (d->listened && d->listen_failing)
		log_info("detect", "listening sockets have been read again");
	if (d->listened || d->listen_why.code)
		d->listen_failing = !d->listened;
}

/* Pauses after events as long as the look took, so that a storm of them takes half a CPU at most. */
static void handle_look(struct dray_job *j)
{
	struct detect *d = dray_container_of(j, struct detect, job);

	d->pausing = d->of_events;
	if (d->pausing)
		arm(d, dray_min(d->took_ns, (int64_t)PAUSE_MAX_NS));
	else
		await_look(d);
	if (d->scan_why.code)
		report_failure(d);
	if (d->found)
		take_scan(d, dray_take(d->found));
	report_cpus(d);
	report_listeners(d);
	if (d->listened)
		d->deps.listeners(d->deps.arg, &d->listeners);
	nd_listeners_deinit(&d->listeners);
}

static void begin_look(struct detect *d, bool of_events)
{
	d->of_events = of_events;
	sd_event_source_set_enabled(d->changes, SD_EVENT_OFF);
	sd_event_source_set_enabled(d->timer, SD_EVENT_OFF);
	dray_jobs_add(d->jobs, &d->job, look, handle_look);
}

static void begin_scan(struct detect *d)
{
	d->search = false;
	begin_look(d, true);
}

static int handle_changes(sd_event_source *source, int fd, uint32_t events, void *arg)
{
	begin_scan(arg);
	return 0;
}

/* The listening sockets are those of the last search. */
static void skip_search(struct detect *d)
{
	pace_skipped(&d->pace, dray_now().ns);
	count_cpus(d, false);
	report_cpus(d);
	await_look(d);
}

static int handle_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct detect *d = arg;
	struct nd_socket_count count;

	if (d->pausing) {
		await_look(d);
		return 0;
	}
	if (must_scan(d)) {
		begin_scan(d);
		return 0;
	}
	count = nd_socket_count_read(&d->counter);
	d->search = pace_must_search(&d->pace, &count);
	if (d->search)
		begin_look(d, false);
	else
		skip_search(d);
	return 0;
}

static void release(struct detect *d)
{
	nd_monitor_free(d->monitor);
	nd_socket_counter_deinit(&d->counter);
	nd_scan_free(d->now);
	nd_scan_free(d->found);
	dray_strv_clear(&d->changed);
	nd_listeners_deinit(&d->listeners);
	dray_cpu_limits_deinit(&d->limits);
	free(d);
}

int detect_new(struct detect **ret, const struct detect_deps *deps, struct dray_err *reterr)
{
	struct detect *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	d->deps = *deps;
	nd_socket_counter_init(&d->counter);
	r = nd_monitor_new(&d->monitor, reterr);
	if (r >= 0)
		r = sd_event_add_io(deps->event, &d->changes, nd_monitor_fd(d->monitor), EPOLLIN,
				    handle_changes, d);
	if (r >= 0)
		r = sd_event_add_time_relative(deps->event, &d->timer, CLOCK_MONOTONIC, 0, 1000,
					       handle_timer, d);
	if (r >= 0)
		r = jobs_new(&d->jobs, deps->event, "dray-detect", STACK_BYTES);
	if (r < 0) {
		detect_free(d);
		return dray_err_set(reterr, r, DRAY_E_NO_FDS, "the thread that scans the node: %s",
				    dray_errno_text(r));
	}
	log_debug("detect", "changes come by %s", nd_monitor_describe(d->monitor));
	begin_look(d, true);
	*ret = d;
	return 0;
}

struct detect *detect_free(struct detect *d)
{
	if (!d)
		return NULL;
	sd_event_source_disable_unref(d->changes);
	sd_event_source_disable_unref(d->timer);
	if (jobs_free(d->jobs))
		release(d);
	else
		log_warning("detect", "a device does not answer; its thread is abandoned");
	return NULL;
}

const struct nd_scan *detect_scan(const struct detect *d)
{
	return d ? d->now : NULL;
}
