/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a handle, its set-up and its end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "client/internal.h"
#include "lib/cleanup.h"
#include "lib/units.h"

#define DEFAULT_SOCKET "/run/dray/dray.sock"
#define DEFAULT_RING 256
#define DEFAULT_ARENA (4U << 20)
#define DEFAULT_SPIN_NS 20000
#define DEFAULT_CONNECT_MS 5000
#define DEFAULT_REQUEST_MS 30000
#define DEFAULT_RETRY_MIN_MS 10
#define DEFAULT_RETRY_MAX_MS 1000
#define DEFAULT_EVENTS 4096
#define DEFAULT_CONFIRM_MS 80
/* Beside eight spinning processes on two processors, a killed agent was dead up to 67 ms after the end of its sockets. */
#define DEFAULT_LOSS_MS 1000
#define SPIN_MAX_NS DRAY_NS_PER_SEC

static int64_t ms_or(unsigned int ms, unsigned int fallback)
{
	return (int64_t)(ms ? ms : fallback) * DRAY_NS_PER_MS;
}

static int take_text(struct dray *d, const char *what, const char *s, char *dst, size_t cap)
{
	size_t n = s ? strlen(s) : 0;

	if (n >= cap)
		return dc_fail(d, DRAY_E_TOO_LARGE, "%s is over %zu bytes", what, cap - 1);
	memcpy(dst, s ? s : "", n + 1);
	return 0;
}

static int take_socket(struct dray *d, const char *path)
{
	if (!path)
		path = getenv("DRAY_SOCKET");
	if (!path || !*path)
		path = DEFAULT_SOCKET;
	d->address.sun_family = AF_UNIX;
	return take_text(d, "the path of the socket", path, d->address.sun_path,
			 sizeof(d->address.sun_path));
}

static int take_ring(struct dray *d, const struct dray_options *o)
{
	uint32_t n = o->ring_entries ? o->ring_entries : DEFAULT_RING;

	d->ring_entries = n;
	d->arena_wanted = o->arena_bytes ? o->arena_bytes : DEFAULT_ARENA;
	if (n > DMSG_RING_ENTRIES_MAX || (n & (n - 1)))
		return dc_fail(d, DRAY_E_INVALID,
			       "ring_entries is %u; it must be a power of two up to %d", n,
			       DMSG_RING_ENTRIES_MAX);
	if (d->arena_wanted > DMSG_ARENA_MAX)
		return dc_fail(d, DRAY_E_INVALID, "arena_bytes is over the limit of %d",
			       DMSG_ARENA_MAX);
	return 0;
}

/* The option, else the environment, else the default if there are enough CPUs. */
static int take_spin(struct dray *d, const struct dray_options *o)
{
	const char *text = getenv("DRAY_SPIN");

	d->spin_fixed = true;
	if (o->flags & DRAY_OPTION_NO_SPIN) {
		d->spin_ns = 0;
	} else if (o->spin_us) {
		d->spin_ns = dray_min(o->spin_us * 1000LL, SPIN_MAX_NS);
	} else if (text && *text) {
		if (dray_duration_parse(text, &d->spin_ns) < 0 || d->spin_ns > SPIN_MAX_NS)
			return dc_fail(d, DRAY_E_INVALID,
				       "DRAY_SPIN is \"%.32s\": write a duration up to 1s, "
				       "such as 20us, or 0",
				       text);
	} else {
		d->spin_ns = DEFAULT_SPIN_NS;
		d->spin_fixed = false;
	}
	return 0;
}

static int take_options(struct dray *d, const struct dray_options *o)
{
	const unsigned int flags = DRAY_OPTION_NOTIFICATIONS | DRAY_OPTION_NO_RING |
				   DRAY_OPTION_NO_RECONNECT | DRAY_OPTION_WAIT |
				   DRAY_OPTION_NO_SPIN | DRAY_OPTION_SEGMENTS | DRAY_OPTION_GPU;
	int error;

	if (o->flags & ~flags)
		return dc_fail(d, DRAY_E_UNSUPPORTED, "flags has unknown bits 0x%x",
			       o->flags & ~flags);
	d->flags = o->flags;
	d->connect_ns = ms_or(o->connect_ms, DEFAULT_CONNECT_MS);
	d->request_ns = ms_or(o->request_ms, DEFAULT_REQUEST_MS);
	d->retry_min_ns = ms_or(o->reconnect_min_ms, DEFAULT_RETRY_MIN_MS);
	d->retry_max_ns =
		dray_max(ms_or(o->reconnect_max_ms, DEFAULT_RETRY_MAX_MS), d->retry_min_ns);
	d->retry_for_ns = ms_or(o->reconnect_for_ms, 0);
	d->retry_ns = d->retry_min_ns;
	d->patience_ns = ms_or(o->patience_ms, 0);
	d->proof.confirm_ns = ms_or(o->confirm_ms, DEFAULT_CONFIRM_MS);
	d->proof.loss_ns = ms_or(o->confirm_ms, DEFAULT_LOSS_MS);
	d->events_max = o->events_max ? o->events_max : DEFAULT_EVENTS;
	error = take_socket(d, o->socket);
	if (!error)
		error = take_spin(d, o);
	if (!error)
		error = take_text(d, "group", o->group, d->group, sizeof(d->group));
	if (!error)
		error = take_text(d, "name", o->name, d->name, sizeof(d->name));
	if (!error && o->flags & DRAY_OPTION_GPU)
		error = take_text(d, "gpu", o->gpu, d->gpu, sizeof(d->gpu));
	return error ? error : take_ring(d, o);
}

/* The kernel zeroes this page in a child, so that dc_enter() needs no system call. */
static int mark_owner(struct dray *d)
{
	void *p = mmap(NULL, sizeof(*d->owner), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);

	if (p == MAP_FAILED)
		return -errno;
	if (madvise(p, sizeof(*d->owner), MADV_WIPEONFORK) < 0)
		d->owner_pid = getpid();
	d->owner = p;
	*d->owner = 1;
	return 0;
}

static int make_fds(struct dray *d)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = ENGINE_TIMER };

	d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (d->epoll_fd < 0)
		return -errno;
	d->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (d->timer_fd < 0)
		return -errno;
	return epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->timer_fd, &ev) < 0 ? -errno : 0;
}

static int make_buffers(struct dray *d)
{
	d->out = malloc(DMSG_MESSAGE_MAX);
	d->in = malloc(DMSG_MESSAGE_MAX);
	d->in_ring = malloc(DMSG_MESSAGE_MAX);
	d->ops = malloc((size_t)DMSG_OPS_INLINE_MAX * DMSG_OP_SIZE);
	return d->out && d->in && d->in_ring && d->ops ? 0 : -ENOMEM;
}

static void handle_free(struct dray *d)
{
	uint32_t cursor = 0;
	struct region *g;

	dc_session_free(d);
	dc_requests_deinit(&d->requests);
	dc_proof_deinit(d);
	while ((g = dray_handles_next(&d->regions, &cursor, NULL)))
		dc_region_free(d, g);
	dray_handles_deinit(&d->regions);
	dc_remotes_free(d);
	dc_leases_free(d);
	dc_mailboxes_free(d);
	dc_store_free(d);
	free(d->store_lists);
	dc_events_free(d);
	dray_close(d->user_fd);
	dray_close(d->ready_fd);
	dray_close(d->timer_fd);
	dray_close(d->epoll_fd);
	free(d->out);
	free(d->in);
	free(d->in_ring);
	free(d->ops);
	if (d->owner)
		munmap((void *)(uintptr_t)d->owner, sizeof(*d->owner));
	dc_threads_deinit(&d->threads);
	free(d);
}

static struct dray *handle_new(void)
{
	static uint64_t serials;
	struct dray *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	if (dc_threads_init(&d->threads) < 0) {
		free(d);
		return NULL;
	}
	d->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
	d->epoll_fd = d->timer_fd = d->sock = d->user_fd = d->ready_fd = -1;
	d->timer_at = INT64_MAX;
	d->ring = RING_NULL;
	d->state = SESSION_DOWN;
	d->lost_at = dray_now().ns;
	d->hello_minor = DMSG_MINOR;
	dc_requests_init(&d->requests);
	dc_proof_init(&d->proof);
	dray_handles_init(&d->regions, REGIONS_MAX, DMSG_HANDLE_KIND_REGION);
	dray_handles_init(&d->remotes, REMOTES_MAX, DMSG_HANDLE_KIND_REMOTE);
	dray_handles_init(&d->leases, LEASES_MAX, DMSG_HANDLE_KIND_LEASE);
	dc_store_init(d);
	dray_handles_init(&d->mailboxes, MAILBOXES_MAX, DMSG_HANDLE_KIND_MAILBOX);
	dc_events_init(&d->events);
	dray_list_init(&d->splits);
	return d;
}

static int open_session(struct dray *d)
{
	/* longer than the attempt itself, whose own timeout has a better message */
	int64_t until = dray_now().ns + d->connect_ns + 10 * DRAY_NS_PER_MS;
	struct dray *in dray_auto(dc_leave) = dc_enter(d);

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	dc_engine_wait(d, dc_session_up_or_closed, NULL, until);
	if (dc_session_is_up(d))
		return 0;
	if (d->last_loss.code)
		return -d->last_loss.code;
	return dc_fail(d, DRAY_E_TIMEOUT, "no answer from the agent at %s", d->address.sun_path);
}

static int set_up(struct dray *d, const struct dray_options *options)
{
	static const struct dray_options defaults;
	int error = take_options(d, options ? options : &defaults);
	int r;

	if (error)
		return error;
	r = mark_owner(d);
	r = r ? r : make_fds(d);
	r = r ? r : make_buffers(d);
	return r ? dc_fail(d, dc_code_of_errno(r), "%s", dray_errno_text(r)) : 0;
}

/* Sets up a handle and runs `open` with it, or frees it again. */
static int make(const struct dray_options *options, int (*open)(struct dray *d), struct dray **ret,
		char *why, size_t why_size)
{
	struct dray *d = handle_new();
	int error;

	if (why && why_size)
		*why = '\0';
	if (!d)
		return -DRAY_E_NO_MEMORY;
	error = set_up(d, options);
	if (!error)
		error = open(d);
	if (error) {
		if (why && why_size)
			snprintf(why, why_size, "%s",
				 d->last_loss.code ? d->last_loss.msg : dc_results()->error.msg);
		handle_free(d);
		return error;
	}
	*ret = d;
	return 0;
}

int dray_connect(const struct dray_options *options, struct dray **ret, char *why, size_t why_size)
{
	return make(options, open_session, ret, why, why_size);
}

static int open_later(struct dray *d)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	d->in_background = true;
	dc_engine_poll(d);
	return 0;
}

int dray_connect_start(const struct dray_options *options, struct dray **ret, char *why,
		       size_t why_size)
{
	return make(options, open_later, ret, why, why_size);
}

void dray_disconnect(struct dray *d)
{
	if (d)
		handle_free(d);
}

int dray_get_info(const struct dray *d, struct dray_info *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct results *results = dc_results();

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	*ret = (struct dray_info){
		.connected = dc_session_is_up(d),
		.session = d->session,
		.incarnation = d->incarnation,
		.segment = memcpy(results->segment, d->segment, sizeof(d->segment)),
		.version = memcpy(results->version, d->version, sizeof(d->version)),
		.ring_entries = d->ring.base ? d->ring.sq_entries : 0,
		.arena_bytes = d->arena_bytes,
		.in_flight = (size_t)d->requests.in_flight_n + d->requests.queued_n,
		.completions = d->requests.done_n,
		.events = dc_events_count(d),
		.segments = d->segments,
		.spin_ns = (uint64_t)d->linger.max_ns,
		.waits_spun = d->spun,
		.waits_slept = d->slept,
		.losses = d->losses,
		.no_ring = memcpy(results->no_ring, d->no_ring, sizeof(d->no_ring)),
	};
	memcpy(ret->agent_id, d->agent_id, sizeof(ret->agent_id));
	return 0;
}
