/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/session/internal.h"
#include "schema/gen/errors.h"

void quota_init(struct quota *q, int64_t max)
{
	atomic_init(&q->transfers, 0);
	q->transfers_max = (uint32_t)dray_min(max, (int64_t)UINT32_MAX);
}

static struct client_group *group_find(struct sessions *ss, uid_t uid, const char *name)
{
	/* an empty name stands for a group of its own */
	if (!*name)
		return NULL;
	dray_list_for_each(&ss->group_list, g, struct client_group, link)
		if (g->uid == uid && !strcmp(g->name, name))
			return g;
	return NULL;
}

struct client_group *group_join(struct sessions *ss, uid_t uid, const char *name,
				struct dray_err *reterr)
{
	struct client_group *g = group_find(ss, uid, name);

	if (!g) {
		g = calloc(1, sizeof(*g));
		if (!g || dray_handles_add(&ss->groups, g, &g->handle) < 0) {
			free(g);
			dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a group");
			return NULL;
		}
		g->owner = ss;
		g->uid = uid;
		snprintf(g->name, sizeof(g->name), "%s", name);
		quota_init(&g->quota, ss->deps.cfg->limits.transfers_per_group);
		dray_list_init(&g->members);
		dray_list_add(&ss->group_list, &g->link);
	}
	g->n_members++;
	return g;
}

void group_leave(struct session *s)
{
	struct client_group *g = s->group;

	dray_list_del(&s->group_link);
	if (!g || --g->n_members)
		return;
	dray_list_del(&g->link);
	dray_handles_del(&g->owner->groups, g->handle);
	free(g);
}
