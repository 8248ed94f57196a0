/* SPDX-License-Identifier: Apache-2.0 */
/* Imported tokens, and notifications to their owners. */
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"

_Static_assert(DRAY_LEASE_LABEL_MAX == DMSG_LABEL_MAX, "the limit in dray.h is the schema's");

struct remote *dc_remote_find(struct dray *d, dray_remote handle)
{
	return dray_handles_get(&d->remotes, handle.id);
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
	if (dray_handles_add(&d->remotes, m, &m->handle.id) < 0) {
		free(m);
		return NULL;
	}
	return m;
}

static void remote_free(struct dray *d, struct remote *m)
{
	dray_handles_del(&d->remotes, m->handle.id);
	free(m);
}

static int imported(struct dray *d, struct request *r, struct remote what)
{
	struct remote *remote = remote_new(d, what.agent);

	if (!remote)
		return -DRAY_E_NO_MEMORY; /* the agent releases its side when the session ends */
	what.handle = remote->handle;
	*remote = what;
	r->remote = remote->handle;
	return 0;
}

int dc_remote_imported(struct dray *d, struct request *r, const struct dmsg_remote_import_reply *m)
{
	return imported(d, r,
			(struct remote){ .agent = m->remote,
					 .length = m->length,
					 .access = m->access,
					 .transport = m->transport });
}

int dc_remote_acquired(struct dray *d, struct request *r, const struct dmsg_lease_acquire_reply *m)
{
	r->expiry_ms = m->expiry_ms;
	return imported(d, r,
			(struct remote){ .agent = m->remote,
					 .length = m->length,
					 .access = m->access,
					 .transport = m->transport });
}

void dc_remote_ended(struct dray *d, struct request *r)
{
	struct remote *m = dc_remote_find(d, r->remote);

	if (!m)
		return;
	if (r->type != DMSG_REMOTE_RELEASE && r->abandoned) {
		m->releasing = true;
		dc_request_internal(d, DMSG_REMOTE_RELEASE, NO_REGION, m->handle, 0);
	} else if (r->type == DMSG_REMOTE_RELEASE && m->releasing) {
		remote_free(d, m);
	} else if (r->type == DMSG_REMOTE_RELEASE) {
		m->agent = 0; /* a lost one, which the caller has not released yet */
	}
}

void dc_remote_lost(struct dray *d, const struct dmsg_remote_lost *m, int code)
{
	struct remote *remote = find_agent(d, m->remote);
	struct dray_event *e;

	/* the remote was released meanwhile, or belongs to another session of the group */
	if (!remote || remote->lost)
		return;
	remote->lost = code;
	/* it is of no use any more; without memory for the request, the session's end releases it */
	if (!remote->releasing && !remote->borrowed)
		dc_request_internal(d, DMSG_REMOTE_RELEASE, NO_REGION, remote->handle, 0);
	e = dc_event_add(d, DRAY_EVENT_REMOTE_LOST, code, m->message);
	if (e)
		e->remote = remote->handle;
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

/* Imports the token of an export, or, with a label, acquires the lease of one. */
static int use_token(struct dray *d, const struct dray_token *token, const char *label,
		     unsigned int timeout_ms, void *arg, uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct dray_blob bytes = { token->data, token->length };
	uint16_t type = label ? DMSG_LEASE_ACQUIRE : DMSG_REMOTE_IMPORT;
	size_t n_label = label ? strlen(label) : 0;
	union dmsg_body m;
	struct request *r;
	int n;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dc_request_start(d, type, arg);
	if (!r)
		return dc_failed();
	if (n_label > DRAY_LEASE_LABEL_MAX)
		return dc_request_refuse(d, r, DRAY_E_TOO_LARGE,
					 "the label has %zu bytes, the limit is %d", n_label,
					 DRAY_LEASE_LABEL_MAX);
	if (label)
		m.lease_acquire = (struct dmsg_lease_acquire){ bytes,
							       timeout_ms,
							       { label, (uint32_t)n_label } };
	else
		m.remote_import = (struct dmsg_remote_import){ bytes, timeout_ms };
	if (!token->length || token->length > sizeof(token->data))
		return dc_request_refuse(d, r, DRAY_E_TOKEN_INVALID, "the token has %u bytes",
					 token->length);
	n = dmsg_body_encode(type, d->out, DMSG_MESSAGE_MAX, r->id, &m);
	if (n < 0)
		return dc_request_refuse(d, r, DRAY_E_INVALID,
					 "the label is not UTF-8 without control characters");
	return dc_request_go_with(d, r, d->out, (size_t)n, ret_id);
}

static int use_token_now(struct dray *d, const struct dray_token *token, const char *label,
			 unsigned int timeout_ms, dray_remote *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct dray_completion c;
	uint64_t id;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = dc_request_wait(d, use_token(d, token, label, timeout_ms, NULL, &id), &id,
				timeout_ms, &c);
	if (!error)
		*ret = c.remote;
	return error;
}

int dray_remote_import_start(struct dray *d, const struct dray_token *token,
			     unsigned int timeout_ms, void *arg, uint64_t *ret_id)
{
	return use_token(d, token, NULL, timeout_ms, arg, ret_id);
}

int dray_remote_import(struct dray *d, const struct dray_token *token, unsigned int timeout_ms,
		       dray_remote *ret)
{
	return use_token_now(d, token, NULL, timeout_ms, ret);
}

int dray_lease_acquire_start(struct dray *d, const struct dray_token *token, const char *label,
			     unsigned int timeout_ms, void *arg, uint64_t *ret_id)
{
	return use_token(d, token, label ? label : "", timeout_ms, arg, ret_id);
}

int dray_lease_acquire(struct dray *d, const struct dray_token *token, const char *label,
		       unsigned int timeout_ms, dray_remote *ret)
{
	return use_token_now(d, token, label ? label : "", timeout_ms, ret);
}

struct request *dc_remote_request(struct dray *d, uint16_t type, dray_remote remote, void *arg,
				  struct remote **ret)
{
	struct request *r = dc_request_start(d, type, arg);

	if (!r)
		return NULL;
	r->remote = remote;
	*ret = dc_remote_find(d, remote);
	if (*ret && !(*ret)->releasing)
		return r;
	dc_no_such(d, remote.id, DMSG_HANDLE_KIND_REMOTE);
	dc_request_free(d, r);
	return NULL;
}

int dray_remote_release_start(struct dray *d, dray_remote remote, void *arg, uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct remote *m;
	struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dc_remote_request(d, DMSG_REMOTE_RELEASE, remote, arg, &m);
	if (!r)
		return dc_failed();
	m->releasing = true;
	if (m->agent && !m->borrowed && !m->lost)
		return dc_request_go(d, r, ret_id);
	dc_request_end(d, r, 0, NO_TEXT);
	return dc_request_started(r, ret_id);
}

int dray_remote_release(struct dray *d, dray_remote remote)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	return dc_request_wait(d, dray_remote_release_start(d, remote, NULL, &id), &id, 0, NULL);
}

int dray_notify_start(struct dray *d, dray_remote remote, uint64_t tag, const void *payload,
		      size_t length, void *arg, uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct remote *m;
	struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dc_remote_request(d, DMSG_NOTIFY, remote, arg, &m);
	if (!r)
		return dc_failed();
	if (m->lost)
		return dc_request_refuse(d, r, -m->lost, "the remote is lost: %s",
					 dray_strerror(m->lost));
	if (length > DRAY_NOTIFY_MAX)
		return dc_request_refuse(d, r, DRAY_E_TOO_LARGE,
					 "%zu bytes of payload, the limit is %d", length,
					 DRAY_NOTIFY_MAX);
	r->number = tag;
	return dc_request_go_with(d, r, payload, length, ret_id);
}

int dray_notify(struct dray *d, dray_remote remote, uint64_t tag, const void *payload,
		size_t length)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = dray_notify_start(d, remote, tag, payload, length, NULL, &id);
	return dc_request_wait(d, error, &id, 0, NULL);
}

int dray_remote_get_info(struct dray *d, dray_remote remote, struct dray_remote_info *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	const struct remote *m;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	m = dc_remote_find(d, remote);
	if (!m)
		return dc_no_such(d, remote.id, DMSG_HANDLE_KIND_REMOTE);
	*ret = (struct dray_remote_info){ m->length, m->access, m->transport, m->lost, m->agent };
	return 0;
}

int dray_remote_borrow(struct dray *d, uint64_t agent_remote, dray_remote *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct remote *m;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	if (!agent_remote)
		return dc_fail(d, DRAY_E_INVALID, "0 is not a remote");
	if (!dc_session_is_up(d))
		return dc_fail(d, DRAY_E_SESSION_CLOSED, "not connected");
	m = remote_new(d, agent_remote);
	if (!m)
		return dc_fail(d, DRAY_E_NO_MEMORY,
			       "no memory for another remote, or over %u of them", REMOTES_MAX);
	m->borrowed = true;
	*ret = m->handle;
	return 0;
}
