/* SPDX-License-Identifier: Apache-2.0 */
/* The listening data sockets: data.socket, those of data.tenants, and those that systemd passed. Each belongs to a tenant. */
#include <errno.h>
#include <string.h>

#include "agent/config/tenant.h"
#include "agent/control/session/internal.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

static const struct unix_listener_kind kind = { "data", SOCK_SEQPACKET };

static void accepted(void *arg, int fd, const struct dray_addr *from)
{
	struct data_socket *d = arg;

	pending_client_new(d->owner, d->tenant, fd);
}

/*
 * Descriptors of this tenant that wait to be closed leave too few for the agent and the other tenants. Only clients that
 * hold up the closing of very many descriptors bring this about.
 */
static bool exhausted(void *arg)
{
	const struct data_socket *d = arg;

	return owners_exhausted(d->owner->deps.owners, d->tenant, d->owner->n_sockets);
}

static const struct acceptor_ops acceptor_ops = {
	.area = "session",
	.priority = ACCEPTOR_AFTER_CONNECTIONS,
	.full = exhausted,
	.accepted = accepted,
};

/* A passed descriptor of this tenant, taken from the others; -1: there is none. */
static int take_passed(struct passed_data_socket *passed, unsigned n, const char *tenant)
{
	for (unsigned i = 0; i < n; i++)
		if (passed[i].fd >= 0 && !strcmp(passed[i].tenant, tenant))
			return dray_take_fd(passed[i].fd);
	return -1;
}

/* fd: passed, consumed; -1: the path is bound. */
static int open_socket(struct sessions *ss, const char *tenant, const char *path, int fd,
		       struct dray_err *reterr)
{
	const struct dray_config *cfg = ss->deps.cfg;
	struct data_socket *d = &ss->sockets[ss->n_sockets];
	gid_t group = (gid_t)-1;
	int r;

	if (ss->n_sockets == DATA_SOCKETS_MAX) {
		dray_close(fd);
		return dray_err_set(reterr, -E2BIG, DRAY_E_INVALID,
				    "there are more than %d data sockets; run another agent",
				    DATA_SOCKETS_MAX);
	}
	ss->n_sockets++;
	*d = (struct data_socket){ .owner = ss, .listener = UNIX_LISTENER_NULL };
	memcpy(d->tenant, tenant, strlen(tenant));
	r = fd >= 0 ? 0 : unix_listener_group_parse(kind.section, cfg->data.group, &group, reterr);
	if (r >= 0)
		r = fd >= 0 ? unix_listener_adopt(&d->listener, &kind, fd, reterr) :
			      unix_listener_bind(&d->listener, &kind, path, (mode_t)cfg->data.mode,
						 group, reterr);
	if (r < 0)
		return r;
	r = acceptor_start(&d->acceptor, ss->deps.event, d->listener.fd, &acceptor_ops, d);
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_IO,
				    "the data socket of tenant %s: watching it: %s", tenant,
				    dray_errno_text(r)) :
		       0;
}

int data_sockets_open(struct sessions *ss, struct dray_err *reterr)
{
	const struct dray_config *cfg = ss->deps.cfg;
	struct passed_data_socket passed[DATA_SOCKETS_MAX];
	const struct dray_strv *words = &cfg->data.tenants;
	unsigned n = dray_min(ss->deps.n_passed, (unsigned)DATA_SOCKETS_MAX);
	int r = open_socket(ss, cfg->data.tenant, cfg->data.socket, ss->deps.listen_fd, reterr);

	if (n)
		memcpy(passed, ss->deps.passed, n * sizeof(passed[0]));
	for (size_t i = 0; r >= 0 && i < words->n; i++) {
		struct tenant t;

		r = tenant_parse(words->v[i], &t, reterr);
		if (r >= 0)
			r = open_socket(ss, t.name, t.path, take_passed(passed, n, t.name), reterr);
	}
	/* systemd alone has given these their paths */
	for (unsigned i = 0; i < n; i++) {
		int fd = dray_take_fd(passed[i].fd);

		if (fd >= 0 && r >= 0)
			r = open_socket(ss, passed[i].tenant, "", fd, reterr);
		else
			dray_close(fd);
	}
	return r;
}

void data_sockets_close(struct sessions *ss)
{
	for (unsigned i = 0; i < ss->n_sockets; i++) {
		acceptor_stop(&ss->sockets[i].acceptor);
		unix_listener_close(&ss->sockets[i].listener);
	}
}
