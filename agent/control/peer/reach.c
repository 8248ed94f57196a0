/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/peer/reach.h"

#include <stdlib.h>
#include <string.h>

#include "lib/time.h"

struct reach_client {
	struct dray_map_node node; /* in reaches->clients */
	struct peer_client client;
	uint32_t n; /* places */
};

struct place {
	struct dray_map_node node; /* in reaches->places */
	struct dray_list link;
	struct reach_client *of;
	int64_t since_ns;
	char segment[]; /* the key */
};

void reaches_init(struct reaches *r)
{
	dray_map_init(&r->places);
	dray_map_init(&r->clients);
	dray_list_init(&r->oldest);
}

static void place_free(struct reaches *r, struct place *p)
{
	dray_map_del(&r->places, &p->node);
	dray_list_del(&p->link);
	if (!--p->of->n) {
		dray_map_del(&r->clients, &p->of->node);
		free(p->of);
	}
	free(p);
}

void reaches_deinit(struct reaches *r)
{
	dray_list_for_each(&r->oldest, p, struct place, link)
		place_free(r, p);
	dray_map_deinit(&r->places);
	dray_map_deinit(&r->clients);
}

static struct reach_client *client_get(struct reaches *r, const struct peer_client *client)
{
	size_t n = strlen(client->name);
	struct reach_client *u = dray_map_entry(dray_map_find(&r->clients, client->name, n),
						struct reach_client, node);

	if (u)
		return u;
	u = calloc(1, sizeof(*u));
	if (!u)
		return NULL;
	u->client = *client;
	dray_map_add(&r->clients, &u->node, u->client.name, n);
	return u;
}

static void expire(struct reaches *r, int64_t now_ns)
{
	struct place *p;

	while ((p = dray_list_first(&r->oldest, struct place, link)) &&
	       now_ns - p->since_ns >= REACH_NS)
		place_free(r, p);
}

static struct place *find(struct reaches *r, const struct peer_client *client, const char *segment)
{
	dray_map_for_each_of(&r->places, segment, strlen(segment), p, struct place, node)
		if (!strcmp(p->of->client.name, client->name))
			return p;
	return NULL;
}

static enum reach_result place_new(struct reaches *r, struct reach_client *u, const char *segment,
				   int64_t now_ns)
{
	size_t n = strlen(segment);
	struct place *p = calloc(1, sizeof(*p) + n + 1);

	if (!p) {
		if (!u->n) {
			dray_map_del(&r->clients, &u->node);
			free(u);
		}
		return REACH_NO_MEMORY;
	}
	memcpy(p->segment, segment, n);
	p->of = u;
	u->n++;
	p->since_ns = now_ns;
	dray_map_add(&r->places, &p->node, p->segment, n);
	dray_list_add(&r->oldest, &p->link);
	return REACH_OK;
}

enum reach_result reach_take(struct reaches *r, const struct peer_client *client,
			     const char *segment, uint32_t max, int64_t now_ns)
{
	struct reach_client *u;
	struct place *p;

	expire(r, now_ns);
	p = find(r, client, segment);
	if (p) {
		p->since_ns = now_ns;
		dray_list_move(&r->oldest, &p->link);
		return REACH_OK;
	}
	u = client_get(r, client);
	if (!u)
		return REACH_NO_MEMORY;
	return u->n >= max ? REACH_FULL : place_new(r, u, segment, now_ns);
}

void reach_proved(struct reaches *r, const char *segment)
{
	dray_map_for_each_of(&r->places, segment, strlen(segment), p, struct place, node)
		place_free(r, p);
}
