/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/choose/gid.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/err.h"

/* Parts of a score. Each outweighs all weaker ones together. */
#define SCORE_ROCE_V2 1000
#define SCORE_NO_CONTAINER 500
#define SCORE_ROUTABLE 100
#define SCORE_FAMILY 10
#define SCORE_USABLE 1
/* Drivers put the GID of routable InfiniBand here; the GID at 0 is the port's own. */
#define INDEX_FLID 1

__attribute__((format(printf, 2, 3))) static void add_reason(struct nd_gid *g, const char *fmt, ...)
{
	size_t at = strlen(g->reason);
	va_list args;

	va_start(args, fmt);
	vsnprintf(g->reason + at, sizeof(g->reason) - at, fmt, args);
	va_end(args);
}

/* By the names that container runtimes give to bridges and to their ports. */
static bool is_of_containers(const struct nd_gid *g)
{
	static const char *const prefixes[] = { "docker", "cni",     "br-",   "virbr",
						"veth",   "flannel", "cali",  "cilium",
						"kube-",  "lxc",     "vxlan", "tunl" };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(prefixes); i++)
		if (!strncmp(g->netdev, prefixes[i], strlen(prefixes[i])))
			return true;
	return false;
}

/* NULL: the GID can be used. */
static const char *defect_of(const struct nd_gid *g, const struct nd_gid_choice *c)
{
	if (g->index > ND_GID_INDEX_MAX)
		return "verbs cannot address an index above 255";
	if (!c->infiniband && !g->netdev[0])
		return "no netdev in this network namespace";
	if (!c->infiniband && !g->netdev_up)
		return "its netdev is down";
	if (g->proof == ND_PROOF_FAILED)
		return "the device refused an address handle";
	return NULL;
}

static int score_ethernet(const struct nd_gid *g, const struct nd_gid_choice *c)
{
	bool is_v6 = !IN6_IS_ADDR_V4MAPPED(&g->gid);

	return (g->type == ND_GID_ROCE_V2 ? SCORE_ROCE_V2 : 0) +
	       (g->class != ND_GID_LINK_LOCAL ? SCORE_ROUTABLE : 0) +
	       (is_v6 == (c->family == AF_INET6) ? SCORE_FAMILY : 0) +
	       (is_of_containers(g) ? 0 : SCORE_NO_CONTAINER);
}

static int score_infiniband(const struct nd_gid *g, const struct nd_gid_choice *c)
{
	uint32_t wanted = c->flid ? INDEX_FLID : 0;

	return g->index == wanted ? SCORE_ROUTABLE : SCORE_USABLE;
}

static void describe(struct nd_gid *g, const struct nd_gid_choice *c)
{
	char text[INET6_ADDRSTRLEN];

	add_reason(g, "%s, %s%s", nd_gid_type_name(g->type),
		   IN6_IS_ADDR_V4MAPPED(&g->gid) ? "IPv4 " :
		   c->infiniband                 ? "" :
						   "IPv6 ",
		   nd_gid_text(&g->gid, text));
	if (g->netdev[0])
		add_reason(g, " on %s, %s", g->netdev, g->netdev_up ? "up" : "down");
	if (!c->infiniband && g->class == ND_GID_LINK_LOCAL)
		add_reason(g, "; link-local: reaches one link only");
	if (!c->infiniband && is_of_containers(g))
		add_reason(g, "; an interface of containers");
	if (c->infiniband && c->flid && g->index == INDEX_FLID)
		add_reason(g, "; carries the FLID");
	if (g->proof == ND_PROOF_OK)
		add_reason(g, "; proved by an address handle");
}

static void reject(struct nd_gid *g)
{
	g->rejected = true;
	g->score = -1;
	snprintf(g->reason, sizeof(g->reason), "rejected: ");
}

static void rate(struct nd_gid *g, const struct nd_gid_choice *c)
{
	const char *defect = defect_of(g, c);
	bool fixed = c->fixed_index >= 0 && g->index == (uint32_t)c->fixed_index;

	if (defect && !fixed) {
		reject(g);
		add_reason(g, "%s", defect);
		if (g->proof == ND_PROOF_FAILED && g->proof_error)
			add_reason(g, " (%s)", dray_errno_text(g->proof_error));
		return;
	}
	g->rejected = false;
	g->reason[0] = '\0';
	g->score = c->infiniband ? score_infiniband(g, c) : score_ethernet(g, c);
	if (fixed)
		add_reason(g, "fixed by configuration%s%s: ", defect ? " although " : "",
			   defect ? defect : "");
	describe(g, c);
}

static int by_score(const void *x, const void *y)
{
	const struct nd_gid *a = x, *b = y;
	int r = dray_compare(b->score, a->score);

	/* a port that flaps may get other indices, but the same addresses */
	if (!r && !a->rejected && a->type != ND_GID_IB)
		r = memcmp(&a->gid, &b->gid, sizeof(a->gid));
	return r ? r : dray_compare(a->index, b->index);
}

static bool has_index(const struct nd_gids *g, int index)
{
	for (size_t i = 0; i < g->n; i++)
		if (g->v[i].index == (uint32_t)index)
			return true;
	return false;
}

void nd_gids_rank(struct nd_gids *g, const struct nd_gid_choice *choice)
{
	int fixed = choice->fixed_index;
	bool missing = fixed >= 0 && !has_index(g, fixed);

	for (size_t i = 0; i < g->n; i++) {
		struct nd_gid *x = &g->v[i];

		rate(x, choice);
		/* no other GID replaces the one that the operator fixed */
		if (fixed >= 0 && x->index != (uint32_t)fixed && !x->rejected) {
			reject(x);
			add_reason(x, "configuration fixes index %d%s", fixed,
				   missing ? ", which has no GID" : "");
		}
	}
	if (g->n)
		qsort(g->v, g->n, sizeof(*g->v), by_score);
}

uint32_t nd_gids_flid(const struct nd_gids *g)
{
	for (size_t i = 0; i < g->n; i++) {
		const uint8_t *b = g->v[i].gid.s6_addr;

		/* fec0:0000:FLID:subnet */
		if (g->v[i].index == INDEX_FLID && b[0] == 0xfe && b[1] == 0xc0 && !b[2] && !b[3])
			return (uint32_t)b[4] << 8 | b[5];
	}
	return 0;
}
