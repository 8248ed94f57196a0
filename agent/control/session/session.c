/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions from HELLO to their end. All parts of a session end in parallel, each with a proof of its own: its worker
 * reports that no transfer is left, the regions that no byte of its memory is used, the remotes that no transfer of this
 * agent uses them. Until then the session object stays, so that late answers find it, and its socket stays open. Then the
 * client is told, by an ERROR with request id 0: this message proves to it that its memory is free. An end of the socket
 * without it proves nothing.
 */
#include "agent/control/session/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/control/session/internal.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "lib/seqpacket.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

static void quota_init(struct quota *q, int64_t max)
{
	atomic_init(&q->transfers, 0);
	q->transfers_max = (uint32_t)dray_min(max, (int64_t)UINT32_MAX);
}

/* Clients of the owner may be read again. */
static void handle_readable(void *arg, struct owner *o)
{
	struct sessions *ss = arg;
	struct session *s;

	for (uint32_t at = 0; (s = session_next(ss, &at));)
		if (s->uid_owner == o)
			worker_post(ss->deps.pool->workers[s->worker],
				    &(struct command){ .type = COMMAND_SESSION_READ,
						       .session = s->handle });
	pending_clients_go_on(ss, o);
}

/* Losing the session is better for the client than waiting for ever. */
static int handle_doomed(sd_event_source *source, void *arg)
{
	struct session *s;

	for (uint32_t at = 0; (s = session_next(arg, &at));)
		if (s->doomed)
			session_close(s, DRAY_E_NO_MEMORY,
				      "the agent has no memory for a reply; connect again",
				      "no memory for a reply");
	return 0;
}

static void close_passed(const struct sessions_deps *deps)
{
	dray_close(deps->listen_fd);
	for (unsigned i = 0; i < deps->n_passed; i++)
		dray_close(deps->passed[i].fd);
}

DRAY_DEFINE_CLEANUP(struct sessions *, sessions_free);

int sessions_new(struct sessions **ret, const struct sessions_deps *deps, struct dray_err *reterr)
{
	dray_auto(sessions_free) struct sessions *ss = calloc(1, sizeof(*ss));
	int r;

	if (!ss) {
		close_passed(deps);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for sessions");
	}
	ss->deps = *deps;
	dray_list_init(&ss->pending_clients);
	dray_list_init(&ss->segment_changes.list);
	dray_map_init(&ss->segment_changes.by_name);
	dray_map_init(&ss->dedup.by_key);
	dray_handles_init(&ss->table, (uint32_t)deps->cfg->limits.sessions,
			  DMSG_HANDLE_KIND_SESSION);
	dray_handles_init(&ss->groups, (uint32_t)deps->cfg->limits.sessions, 0);
	dray_handles_init(&ss->remotes, DRAY_HANDLES_MAX, DMSG_HANDLE_KIND_REMOTE);
	dray_map_init(&ss->remotes_of_peers);
	dray_map_init(&ss->remote_sources);
	dray_list_init(&ss->ending_sources);
	dray_list_init(&ss->rekeys);
	dray_list_init(&ss->leaving);
	r = sd_event_add_defer(deps->event, &ss->reaper, handle_doomed, ss);
	if (r >= 0)
		r = sd_event_source_set_enabled(ss->reaper, SD_EVENT_OFF);
	if (r >= 0)
		r = remotes_work_init(ss);
	if (r < 0) {
		close_passed(deps);
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for sessions");
	}
	r = data_sockets_open(ss, reterr);
	if (r < 0)
		return r;
	deps->owners->readable = handle_readable;
	deps->owners->arg = ss;
	*ret = dray_take(ss);
	return 0;
}

struct sessions *sessions_free(struct sessions *ss)
{
	if (!ss)
		return NULL;
	ss->deps.owners->readable = NULL;
	data_sockets_close(ss);
	pending_clients_close(ss);
	ss->stopped_source = sd_event_source_disable_unref(ss->stopped_source);
	rekeys_free(ss);
	ss->reaper = sd_event_source_disable_unref(ss->reaper);
	turn_work_deinit(&ss->remote_ends);
	/* workers still use the quotas and rings of these sessions */
	if (ss->table.count) {
		log_warning("session", "%" PRIu32 " sessions have not ended, ignoring",
			    ss->table.count);
		return NULL;
	}
	dray_handles_deinit(&ss->table);
	dray_handles_deinit(&ss->groups);
	dray_handles_deinit(&ss->remotes);
	dray_map_deinit(&ss->remotes_of_peers);
	dray_map_deinit(&ss->remote_sources);
	dray_map_deinit(&ss->dedup.by_key);
	free(ss->dedup.entries);
	segment_changes_deinit(&ss->segment_changes);
	free(ss);
	return NULL;
}

struct session *session_get(struct sessions *ss, dray_handle handle)
{
	struct session *s = dray_handles_get(&ss->table, handle);

	return s && !s->closing ? s : NULL;
}

struct session *session_next(struct sessions *ss, uint32_t *cursor)
{
	struct session *s;

	do
		s = dray_handles_next(&ss->table, cursor, NULL);
	while (s && s->closing);
	return s;
}

/* The group of this owner and name. An empty name stands for a group of its own. */
static struct client_group *group_find(struct sessions *ss, const struct owner *o, const char *name)
{
	struct client_group *g;

	for (uint32_t at = 0; *name && (g = dray_handles_next(&ss->groups, &at, NULL));)
		if (g->owner == o && !strcmp(g->name, name))
			return g;
	return NULL;
}

static int group_join(struct session *s, struct dray_str name_of_group)
{
	struct sessions *ss = s->owner;
	char name[NAME_BYTES];
	struct client_group *g;

	text_copy(name, sizeof(name), name_of_group);
	g = group_find(ss, s->uid_owner, name);
	if (!g) {
		g = calloc(1, sizeof(*g));
		if (!g || dray_handles_add(&ss->groups, g, &g->handle) < 0) {
			free(g);
			return -ENOMEM;
		}
		g->owner = s->uid_owner;
		memcpy(g->name, name, sizeof(g->name));
		quota_init(&g->quota, ss->deps.cfg->limits.transfers_per_group);
		dray_list_init(&g->members);
	}
	s->group = g;
	dray_list_add(&g->members, &s->group_link);
	return 0;
}

static void session_free(struct session *s)
{
	struct client_group *g = s->group;

	if (s->fd >= 0)
		owner_farewell(s->uid_owner, s->fd, dray_take(s->goodbye));
	packet_free(s->goodbye);
	requests_forget(s);
	gpus_announce_end(s->gpu);
	owner_put(s->uid_owner, RESOURCE_SESSIONS, 1);
	/* those that the worker has not sent */
	owner_put(s->uid_owner, RESOURCE_NOTIFICATIONS, atomic_load(&s->shared.notifications));
	owner_unref(s->uid_owner);
	dray_list_del(&s->group_link);
	dray_list_del(&s->leaving);
	if (g && dray_list_empty(&g->members)) {
		dray_handles_del(&s->owner->groups, g->handle);
		free(g);
	}
	dray_handles_del(&s->owner->table, s->handle);
	dray_map_deinit(&s->regions);
	free(s);
}

static void announce_gpu(struct session *s, struct dray_str device)
{
	char name[NAME_BYTES];

	if (!device.n || !s->owner->deps.gpus)
		return;
	text_copy(name, sizeof(name), device);
	s->gpu = gpus_announce(s->owner->deps.gpus, name);
}

static void shared_init(struct session *s)
{
	const struct dray_config *cfg = s->owner->deps.cfg;

	s->shared.session = s->handle;
	s->shared.group = s->group->handle;
	quota_init(&s->shared.own, cfg->limits.transfers_per_session);
	s->shared.group_quota = &s->group->quota;
	s->shared.account = &s->uid_owner->account;
	s->shared.ops_max = (uint32_t)cfg->limits.ops_per_session;
	s->shared.requests_max = (uint32_t)cfg->limits.requests_per_session;
	atomic_init(&s->shared.notifications, 0);
}

int session_open(struct sessions *ss, struct owner *o, const struct ucred *who,
		 const struct dmsg_hello *hello, struct session **ret, struct dray_err *reterr)
{
	struct session *s;
	int r = owner_take(o, RESOURCE_SESSIONS, 1, reterr);

	if (r < 0)
		return r;
	s = calloc(1, sizeof(*s));
	if (s) {
		s->owner = ss;
		s->who = *who;
		s->uid_owner = owner_ref(o);
		s->fd = -1;
		dray_list_init(&s->group_link);
		dray_map_init(&s->regions);
		dray_list_init(&s->remotes);
		dray_list_init(&s->unreleased);
		dray_list_init(&s->leaving);
		dray_list_init(&s->imports);
		dray_list_init(&s->held);
	}
	if (!s || dray_handles_add(&ss->table, s, &s->handle) < 0 ||
	    group_join(s, hello->group) < 0) {
		if (s)
			session_free(s);
		else
			owner_put(o, RESOURCE_SESSIONS, 1);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a session");
	}
	text_copy(s->name, sizeof(s->name), hello->name);
	s->worker = pool_pick(ss->deps.pool);
	s->notifications = hello->flags & DMSG_HELLO_FLAG_NOTIFICATIONS;
	s->segments = hello->flags & DMSG_HELLO_FLAG_SEGMENTS;
	s->segments_seen = ss->segment_changes.last;
	s->early = hello->features & DMSG_FEATURE_REGION_EARLY;
	s->opened_ns = dray_now().ns;
	s->ring.doorbell_fd = s->ring.completion_fd = -1;
	shared_init(s);
	announce_gpu(s, hello->device);
	mailbox_owner_init(&s->mailboxes, s->handle, o->tenant, who->uid, who->gid, s->name,
			   &o->account.budget);
	*ret = s;
	return 0;
}

/* Raises the socket's send buffer for the longest message, if allowed. Returns the bytes of a message that fits. */
static uint32_t send_room(int fd)
{
	/* the kernel counts 32 bytes for each buffer, and doubles the size that it is given */
	const int overhead = 32, wanted = DMSG_MESSAGE_MAX + overhead, told = (wanted + 1) / 2;
	socklen_t n = sizeof(int);
	int bytes = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &n) == 0 && bytes < wanted &&
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &told, sizeof(told)) == 0)
		getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &n);
	return (uint32_t)dray_max(bytes - overhead, 0);
}

bool session_may_log(struct session *s, uint32_t *ret_dropped)
{
	return dray_log_limit_pass(
		&s->log, (uint32_t)s->owner->deps.cfg->limits.log_lines_per_session, ret_dropped);
}

bool sessions_may_log(struct sessions *ss, dray_handle session, uint32_t *ret_dropped)
{
	struct session *s = dray_handles_get(&ss->table, session);
	uint32_t of_owner;

	if (!s || !session_may_log(s, ret_dropped) || !owner_may_log(s->uid_owner, &of_owner))
		return false;
	*ret_dropped += of_owner;
	return true;
}

void session_start(struct session *s, int fd)
{
	struct sessions *ss = s->owner;
	char name[NAME_BYTES], group[NAME_BYTES];

	s->message_max = send_room(fd);
	worker_post(ss->deps.pool->workers[s->worker],
		    &(struct command){ .type = COMMAND_SESSION_ADD,
				       .session = s->handle,
				       .fd = fd,
				       .shared = &s->shared });
	ss->totals.opened++;
	session_log(s, DRAY_LOG_INFO,
		    "opened by %s session=%" PRIu64
		    " group=%s tenant=%s uid=%u gid=%u pid=%d worker=%u",
		    *s->name ? dray_log_word(s->name, name, sizeof(name)) :
			       "a client without a name",
		    s->handle,
		    *s->group->name ? dray_log_word(s->group->name, group, sizeof(group)) : "-",
		    s->uid_owner->tenant, s->who.uid, s->who.gid, s->who.pid, s->worker);
}

void session_discard(struct session *s)
{
	s->closing = s->worker_gone = true;
	s->pidfd_source = sd_event_source_disable_unref(s->pidfd_source);
	session_check(s);
}

void session_close(struct session *s, uint32_t code, const char *message, const char *why)
{
	if (s->closing)
		return;
	s->closing = true;
	if (message)
		s->goodbye = packet_new_error(0, code, message);
	worker_post(s->owner->deps.pool->workers[s->worker],
		    &(struct command){
			    .type = COMMAND_SESSION_CLOSE, .session = s->handle, .code = code });
	session_log(s, DRAY_LOG_INFO,
		    "closing: %s session=%" PRIu64 " regions=%" PRIu32 " remotes=%" PRIu32, why,
		    s->handle, s->n_regions, s->n_remotes);
	s->pidfd_source = sd_event_source_disable_unref(s->pidfd_source);
	segment_changes_trim(s->owner);
	mailbox_owner_end(s->owner->deps.mailboxes, &s->mailboxes);
	session_remotes_close(s);
	session_regions_close(s);
	leases_session_gone(&s->leases);
	if (s->owner->deps.closed)
		s->owner->deps.closed(s->owner->deps.arg, s->handle, s->uid_owner, s->name, why);
}

void session_doom(struct session *s)
{
	if (s->closing)
		return;
	s->doomed = true;
	sd_event_source_set_enabled(s->owner->reaper, SD_EVENT_ONESHOT);
}

static int handle_stopped(sd_event_source *source, void *arg)
{
	struct sessions *ss = arg;

	ss->stopped_source = sd_event_source_disable_unref(ss->stopped_source);
	ss->stopped(ss->stopped_arg);
	return 0;
}

static void stop_check(struct sessions *ss)
{
	int r;

	if (!ss->stopping || ss->table.count || ss->stopped_source)
		return;
	r = sd_event_add_defer(ss->deps.event, &ss->stopped_source, handle_stopped, ss);
	dray_assert(r >= 0);
}

void session_check(struct session *s)
{
	struct sessions *ss = s->owner;

	if (!s->closing || !s->worker_gone || s->regions.n || !dray_list_empty(&s->remotes) ||
	    !dray_list_empty(&s->unreleased) || !dray_list_empty(&s->imports))
		return;
	log_debug("session", "ended session=%" PRIu64, s->handle);
	session_free(s);
	stop_check(ss);
}

void sessions_handle_eof(struct sessions *ss, dray_handle session, uint32_t code,
			 struct packet *goodbye)
{
	struct session *s = session_get(ss, session);

	if (!s) {
		packet_free(goodbye);
		return;
	}
	if (code && code != DRAY_E_SESSION_CLOSED) {
		s->goodbye = goodbye ? goodbye : packet_new_error(0, code, dray_error_doc(code));
		session_log(s, DRAY_LOG_WARNING,
			    "a session ends because of an error: %s session=%" PRIu64 " uid=%u",
			    dray_error_name(code), session, s->who.uid);
		session_close(s, DRAY_E_SESSION_CLOSED, NULL, dray_error_name(code));
		return;
	}
	session_close(s, DRAY_E_SESSION_CLOSED, NULL, "the client closed");
}

void sessions_handle_gone(struct sessions *ss, dray_handle session, int fd)
{
	struct session *s = dray_handles_get(&ss->table, session);

	if (!s) {
		dray_close(fd);
		return;
	}
	if (fd >= 0)
		s->fd = fd;
	s->worker_gone = true;
	session_ring_close(s);
	session_check(s);
}

void sessions_handle_sent(struct sessions *ss, dray_handle session, enum packet_report what)
{
	struct session *s = session_get(ss, session);

	if (s && what == PACKET_REPORT_LETTER)
		mailboxes_handle_sent(ss->deps.mailboxes, &s->mailboxes);
	else if (s)
		segment_changes_sent(s);
}

void sessions_handle_refused(struct sessions *ss, dray_handle session, uint32_t code, int fd)
{
	struct session *s = dray_handles_get(&ss->table, session);

	/* the session stays until its worker has answered the close, which this or an earlier event has caused */
	dray_assert(s);
	s->fd = fd;
	sessions_handle_eof(ss, session, code, NULL);
}

void sessions_handle_fds(struct sessions *ss, dray_handle session, struct packet *packet)
{
	struct session *s = dray_handles_get(&ss->table, session);

	/* it stays until EVENT_SESSION_GONE, the last event of its worker */
	dray_assert(s);
	owner_close_fds(s->uid_owner, packet->fds, packet->n_fds);
	packet_free(packet);
}

void sessions_handle_fault(struct sessions *ss, dray_handle session)
{
	struct session *s = session_get(ss, session);

	if (!s)
		return;
	session_log(s, DRAY_LOG_WARNING,
		    "a page of a client's region is missing (hole punched or huge pages "
		    "exhausted), its session ends session=%" PRIu64 " uid=%u",
		    session, s->who.uid);
	regions_fault(ss->deps.regions, session);
	session_close(
		s, DRAY_E_REGION_FAULT,
		"a page of this session's memory is missing; do not punch holes in registered "
		"memory",
		"region fault");
}

int sessions_close(struct sessions *ss, dray_handle session, const char *why)
{
	struct session *s = session_get(ss, session);

	if (!s)
		return -ENOENT;
	session_close(s, DRAY_E_SESSION_CLOSED, why, why);
	return 0;
}

void sessions_drain(struct sessions *ss, uint32_t deadline_ms)
{
	struct session *s;

	ss->draining = true;
	for (uint32_t at = 0; (s = session_next(ss, &at));)
		session_send(s, 0, DMSG_DRAINING,
			     &(union dmsg_body){ .draining = { deadline_ms } });
}

void sessions_resume(struct sessions *ss)
{
	ss->draining = false;
}

void sessions_stop(struct sessions *ss, void (*done)(void *arg), void *arg)
{
	struct session *s;

	ss->stopping = true;
	ss->stopped = done;
	ss->stopped_arg = arg;
	data_sockets_close(ss);
	pending_clients_close(ss);
	for (uint32_t at = 0; (s = session_next(ss, &at));)
		session_close(s, DRAY_E_SESSION_CLOSED, "the agent stops; connect to its successor",
			      "the agent stops");
	stop_check(ss);
}

void sessions_each(struct sessions *ss, void (*fn)(void *arg, const struct dray_dbus_session *s),
		   void *arg)
{
	int64_t now = dray_now().ns;
	struct session *s;

	for (uint32_t at = 0; (s = session_next(ss, &at));) {
		const struct session_shared *shared = &s->shared;

		fn(arg, &(struct dray_dbus_session){
				.session = s->handle,
				.name = s->name,
				.group = s->group->name,
				.tenant = s->uid_owner->tenant,
				.uid = s->who.uid,
				.gid = s->who.gid,
				.pid = (uint32_t)s->who.pid,
				.worker = s->worker,
				.regions = s->n_regions,
				.remotes = s->n_remotes,
				.tokens = s->tokens,
				.ring = s->ring.ring,
				.transfers = atomic_load_explicit(&shared->transfers_ended,
								  memory_order_relaxed),
				.bytes = atomic_load_explicit(&shared->bytes_moved,
							      memory_order_relaxed),
				.age_ns = dray_span(now - s->opened_ns),
			});
	}
}

struct sessions_totals sessions_totals(struct sessions *ss)
{
	struct sessions_totals t = ss->totals;

	t.remotes = ss->remotes.count;
	for (uint32_t at = 0; session_next(ss, &at);)
		t.open++;
	return t;
}

int session_worker(struct sessions *ss, dray_handle session)
{
	struct session *s = session_get(ss, session);

	return s ? (int)s->worker : -1;
}
