/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/owner.h"

#include <errno.h>
#include <stdlib.h>

static struct xfer_owner *find(struct core *c, const struct owner_account *account)
{
	dray_list_for_each(&c->owners, o, struct xfer_owner, link)
		if (o->account == account)
			return o;
	return NULL;
}

int owner_join(struct core *c, struct xfer_session *s)
{
	struct xfer_owner *o = find(c, s->shared->account);

	if (!o) {
		o = calloc(1, sizeof(*o));
		if (!o)
			return -ENOMEM;
		o->account = s->shared->account;
		dray_list_init(&o->ready);
		dray_list_init(&o->polled);
		dray_list_init(&o->waiting);
		dray_list_add(&c->owners, &o->link);
	}
	o->sessions++;
	s->owner = o;
	return 0;
}

void owner_leave(struct xfer_session *s)
{
	struct xfer_owner *o = s->owner;

	s->owner = NULL;
	if (!o || --o->sessions)
		return;
	dray_list_del(&o->link);
	free(o);
}
