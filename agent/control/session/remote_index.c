/* SPDX-License-Identifier: Apache-2.0 */
/* Remotes of peers by peer and grant, since fences name them so. A hash table that grows. */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/session/internal.h"

#define BUCKETS_MIN 64

static struct dray_list *bucket(const struct remote_index *x, dray_handle peer, uint64_t grant)
{
	uint64_t h = (peer ^ grant << 7) * 0x9e3779b97f4a7c15u;

	return &x->buckets[(h >> 32) & (x->n_buckets - 1)];
}

static int grow(struct remote_index *x)
{
	uint32_t n = x->n_buckets ? x->n_buckets * 2 : BUCKETS_MIN;
	struct remote_index larger = { calloc(n, sizeof(*x->buckets)), n, x->n };

	if (!larger.buckets)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		dray_list_init(&larger.buckets[i]);
	for (uint32_t i = 0; i < x->n_buckets; i++) {
		dray_list_for_each(&x->buckets[i], r, struct remote, index_link) {
			dray_list_del(&r->index_link);
			dray_list_add(bucket(&larger, r->view.peer, r->view.grant), &r->index_link);
		}
	}
	free(x->buckets);
	*x = larger;
	return 0;
}

int remote_index_add(struct remote_index *x, struct remote *r)
{
	/* a table that cannot grow is a slow one */
	if (x->n >= x->n_buckets && grow(x) < 0 && !x->n_buckets)
		return -ENOMEM;
	dray_list_add(bucket(x, r->view.peer, r->view.grant), &r->index_link);
	x->n++;
	return 0;
}

void remote_index_del(struct remote_index *x, struct remote *r)
{
	if (dray_list_empty(&r->index_link))
		return;
	dray_list_del(&r->index_link);
	x->n--;
}

struct remote *remote_index_find(struct remote_index *x, dray_handle peer, uint64_t grant)
{
	if (!x->n_buckets)
		return NULL;
	dray_list_for_each(bucket(x, peer, grant), r, struct remote, index_link)
		if (r->view.peer == peer && r->view.grant == grant)
			return r;
	return NULL;
}

void remote_index_deinit(struct remote_index *x)
{
	free(x->buckets);
	*x = (struct remote_index){ .buckets = NULL };
}
