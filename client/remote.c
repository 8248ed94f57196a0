/* SPDX-License-Identifier: Apache-2.0 */
/* Imported tokens, and notifications to their owners. */
#include "client/internal.h"

#include <stdlib.h>
#include <string.h>

struct remote *dc_remote_find(struct dray *d, dray_remote handle)
{
	return dray_handles_get(&d->remotes, handle);
}

static struct remote *find_agent(struct dray *d, uint64_t agent)
{
	uint32_t cursor = 0;
	struct remote *m;

	while ((m = dray_handles_next(&d->remotes, &cursor, NULL)))
		if (m->agent == agent)
			return m;
	return NULL;
}

static struct remote *remote_new(struct dray *d, uint64_t agent)
{
	struct remote *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->agent = agent;
	if (dray_handles_add(&d->remotes, m, &m->handle) < 0) {
		free(m);
		return NULL;
	}
	return m;
}

static void remote_free(struct dray *d, struct remote *m)
{
	dray_handles_del(&d->remotes, m->handle);
	free(m);
}

int dc_remote_imported(struct dray *d, struct request *r, const struct dmsg_remote_import_reply *m)
{
	struct remote *remote = remote_new(d, m->remote);

	if (!remote)
		return -DRAY_E_NO_MEMORY; /* the agent's side goes with the session */
	remote->length = m->length;
	remote->access = m->access;
	remote->transport = m->transport;
	r->remote = remote->handle;
	return 0;
}

/* An import that nobody waits for any more is released; what was released is forgotten. */
void dc_remote_ended(struct dray *d, struct request *r)
{
	struct remote *m = dc_remote_find(d, r->remote);
	struct request *release;

	if (!m)
		return;
	if (r->type == DMSG_REMOTE_RELEASE) {
		remote_free(d, m);
		return;
	}
	if (!r->abandoned)
		return;
	release = dc_request_new(d, DMSG_REMOTE_RELEASE, NULL);
	if (!release)
		return;
	release->internal = true;
	release->remote = m->handle;
	dc_request_queue(d, release);
}

void dc_remote_lost(struct dray *d, const struct dmsg_remote_lost *m, int code)
{
	struct remote *remote = find_agent(d, m->remote);
	struct dray_event *e;

	/* released meanwhile, or another's of the group */
	if (!remote || remote->lost)
		return;
	remote->lost = code;
	e = dc_event_add(d, DRAY_EVENT_REMOTE_LOST, NULL, 0, m->message.p, m->message.n);
	if (e) {
		e->remote = remote->handle;
		e->code = code;
	}
}

void dc_remotes_lost(struct dray *d, int code)
{
	uint32_t cursor = 0;
	struct remote *m;

	while ((m = dray_handles_next(&d->remotes, &cursor, NULL))) {
		m->agent = 0;
		if (!m->lost)
			m->lost = code;
	}
}

void dc_remotes_free(struct dray *d)
{
	uint32_t cursor = 0;
	struct remote *m;

	while ((m = dray_handles_next(&d->remotes, &cursor, NULL)))
		remote_free(d, m);
	dray_handles_deinit(&d->remotes);
}

/* With a copy of what is to be sent. */
static struct request *start_with(struct dray *d, uint16_t type, void *arg, const void *data,
				  size_t length)
{
	struct request *r = dc_request_start(d, type, arg);

	if (!r || !length)
		return r;
	r->data = malloc(length);
	if (!r->data) {
		dc_request_free(d, r);
		return dc_request_refuse(d, DRAY_E_NO_MEMORY, "no memory");
	}
	memcpy(r->data, data, length);
	r->length = (uint32_t)length;
	return r;
}

static struct request *start_import(struct dray *d, const struct dray_token *token,
				    unsigned int timeout_ms, void *arg)
{
	struct request *r;

	if (!dc_requests_admit(d))
		return NULL;
	if (!token->length || token->length > DRAY_TOKEN_MAX)
		return dc_request_refuse(d, DRAY_E_TOKEN_INVALID, "the token has %u bytes",
					 token->length);
	r = start_with(d, DMSG_REMOTE_IMPORT, arg, token->data, token->length);
	if (!r)
		return NULL;
	r->timeout_ms = timeout_ms;
	return dc_request_go(d, r);
}

int dray_remote_import_start(struct dray *d, const struct dray_token *token,
			     unsigned int timeout_ms, void *arg, uint64_t *ret_id)
{
	return dc_request_told(d, start_import(d, token, timeout_ms, arg), ret_id);
}

int dray_remote_import(struct dray *d, const struct dray_token *token, unsigned int timeout_ms,
		       dray_remote *ret)
{
	struct dray_completion c;
	int error = dc_request_wait(d, start_import(d, token, timeout_ms, NULL), timeout_ms, &c);

	if (!error)
		*ret = c.handle;
	return error;
}

static struct request *start_release(struct dray *d, dray_remote remote, void *arg)
{
	struct remote *m;
	struct request *r;

	if (!dc_requests_admit(d))
		return NULL;
	m = dc_remote_find(d, remote);
	if (!m || m->releasing)
		return dc_request_refuse(d, DRAY_E_NOT_FOUND, "no such remote");
	r = dc_request_start(d, DMSG_REMOTE_RELEASE, arg);
	if (!r)
		return NULL;
	m->releasing = true;
	r->remote = remote;
	if (m->agent && !m->borrowed)
		return dc_request_go(d, r);
	dc_request_end(d, r, 0, NULL, 0);
	return r;
}

int dray_remote_release_start(struct dray *d, dray_remote remote, void *arg, uint64_t *ret_id)
{
	return dc_request_told(d, start_release(d, remote, arg), ret_id);
}

int dray_remote_release(struct dray *d, dray_remote remote)
{
	struct dray_completion c;

	return dc_request_wait(d, start_release(d, remote, NULL), 0, &c);
}

static struct request *start_notify(struct dray *d, dray_remote remote, uint64_t tag,
				    const void *payload, size_t length, void *arg)
{
	const struct remote *m;
	struct request *r;

	if (!dc_requests_admit(d))
		return NULL;
	m = dc_remote_find(d, remote);
	if (!m || m->releasing)
		return dc_request_refuse(d, DRAY_E_NOT_FOUND, "no such remote");
	if (m->lost)
		return dc_request_refuse(d, -m->lost, "the remote is gone: %s",
					 dray_strerror(m->lost));
	if (length > DRAY_NOTIFY_MAX)
		return dc_request_refuse(d, DRAY_E_TOO_LARGE,
					 "%zu bytes of payload, the limit is %d", length,
					 DRAY_NOTIFY_MAX);
	r = start_with(d, DMSG_NOTIFY, arg, payload, length);
	if (!r)
		return NULL;
	r->remote = remote;
	r->number = tag;
	return dc_request_go(d, r);
}

int dray_notify_start(struct dray *d, dray_remote remote, uint64_t tag, const void *payload,
		      size_t length, void *arg, uint64_t *ret_id)
{
	return dc_request_told(d, start_notify(d, remote, tag, payload, length, arg), ret_id);
}

int dray_notify(struct dray *d, dray_remote remote, uint64_t tag, const void *payload,
		size_t length)
{
	struct dray_completion c;

	return dc_request_wait(d, start_notify(d, remote, tag, payload, length, NULL), 0, &c);
}

int dray_remote_get_info(struct dray *d, dray_remote remote, struct dray_remote_info *ret)
{
	const struct remote *m;
	int error = dc_enter(d);

	if (error)
		return error;
	m = dc_remote_find(d, remote);
	if (!m)
		return dc_fail(d, DRAY_E_NOT_FOUND, "no such remote");
	*ret = (struct dray_remote_info){ m->length, m->access, m->transport, m->lost, m->agent };
	return 0;
}

int dray_remote_borrow(struct dray *d, uint64_t agent_remote, dray_remote *ret)
{
	struct remote *m;
	int error = dc_enter(d);

	if (error)
		return error;
	if (!agent_remote || !dc_session_is_up(d))
		return dc_fail(d, agent_remote ? DRAY_E_SESSION_CLOSED : DRAY_E_INVALID,
			       "not connected, or no remote");
	m = remote_new(d, agent_remote);
	if (!m)
		return dc_fail(d, DRAY_E_NO_MEMORY, "too many remotes");
	m->borrowed = true;
	*ret = m->handle;
	return 0;
}
