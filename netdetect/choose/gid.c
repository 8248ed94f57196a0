/* SPDX-License-Identifier: Apache-2.0 */
/* Which GID of a port to use, and why. */
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/err.h"
#include "netdetect/rdma/gid.h"

/* Parts of a score: a stronger rule outweighs all weaker ones together. */
#define SCORE_FIXED 100000
#define SCORE_ROCE_V2 1000
#define SCORE_NO_CONTAINER 500
#define SCORE_ROUTABLE 100
#define SCORE_FAMILY 10
#define SCORE_USABLE 1
/* Routable InfiniBand: with a FLID the second GID carries it, otherwise the first is the port's own. */
#define INDEX_FLID 1

__attribute__((format(printf, 2, 3))) static void say(struct nd_gid *g, const char *fmt, ...)
{
	size_t at = strlen(g->reason);
	va_list args;

	va_start(args, fmt);
	vsnprintf(g->reason + at, sizeof(g->reason) - at, fmt, args);
	va_end(args);
}

/* Of bridges that container runtimes make, and of what hangs on them. */
static bool of_containers(const struct nd_gid *g)
{
	static const char *const prefixes[] = { "docker", "cni",     "br-",   "virbr",
						"veth",   "flannel", "cali",  "cilium",
						"kube-",  "lxc",     "vxlan", "tunl" };

	for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
		if (!strncmp(g->netdev, prefixes[i], strlen(prefixes[i])))
			return true;
	return false;
}

/* NULL: nothing against it. */
static const char *objection(const struct nd_gid *g, const struct nd_gid_choice *c)
{
	if (g->index > ND_GID_INDEX_MAX)
		return "verbs cannot name an index above 255";
	if (!c->infiniband && !g->netdev[0])
		return "no netdev in this network namespace";
	if (!c->infiniband && !g->netdev_up)
		return "its netdev is down";
	if (g->proof == ND_PROOF_FAILED)
		return "the device refused an address handle";
	return NULL;
}

static bool is_family(const struct nd_gid *g, uint8_t family)
{
	bool v4 = IN6_IS_ADDR_V4MAPPED(&g->gid);

	/* IPv4 first, where nobody asked */
	return family == AF_INET6 ? !v4 : v4;
}

static int score_ethernet(const struct nd_gid *g, const struct nd_gid_choice *c)
{
	return (g->type == ND_GID_ROCE_V2 ? SCORE_ROCE_V2 : 0) +
	       (g->class != ND_GID_LINK_LOCAL ? SCORE_ROUTABLE : 0) +
	       (is_family(g, c->family) ? SCORE_FAMILY : 0) +
	       (of_containers(g) ? 0 : SCORE_NO_CONTAINER);
}

static int score_infiniband(const struct nd_gid *g, const struct nd_gid_choice *c)
{
	uint32_t wanted = c->flid ? INDEX_FLID : 0;

	return g->index == wanted ? SCORE_ROUTABLE : SCORE_USABLE;
}

static void describe(struct nd_gid *g, const struct nd_gid_choice *c)
{
	char text[INET6_ADDRSTRLEN];

	say(g, "%s, %s%s", nd_gid_type_name(g->type),
	    IN6_IS_ADDR_V4MAPPED(&g->gid) ? "IPv4 " :
	    c->infiniband                 ? "" :
					    "IPv6 ",
	    nd_gid_text(&g->gid, text));
	if (g->netdev[0])
		say(g, " on %s, %s", g->netdev, g->netdev_up ? "up" : "down");
	if (!c->infiniband && g->class == ND_GID_LINK_LOCAL)
		say(g, "; link-local: reaches one link only");
	if (!c->infiniband && of_containers(g))
		say(g, "; an interface of containers");
	if (c->infiniband && c->flid && g->index == INDEX_FLID)
		say(g, "; carries the FLID");
	if (g->proof == ND_PROOF_OK)
		say(g, "; proved by an address handle");
}

static void judge(struct nd_gid *g, const struct nd_gid_choice *c)
{
	const char *against = objection(g, c);
	bool fixed = c->fixed_index >= 0 && g->index == (uint32_t)c->fixed_index;

	g->reason[0] = '\0';
	g->rejected = against && !fixed;
	g->score = g->rejected ? -1 : c->infiniband ? score_infiniband(g, c) : score_ethernet(g, c);
	if (g->rejected) {
		say(g, "rejected: %s", against);
		if (g->proof == ND_PROOF_FAILED && g->proof_error)
			say(g, " (%s)", dray_errno_text(g->proof_error));
		return;
	}
	if (fixed) {
		g->score += SCORE_FIXED;
		say(g, "fixed by configuration%s%s: ", against ? " although " : "",
		    against ? against : "");
	}
	describe(g, c);
}

static int by_score(const void *x, const void *y)
{
	const struct nd_gid *a = x, *b = y;

	if (a->score != b->score)
		return a->score > b->score ? -1 : 1;
	if (!a->rejected && a->type != ND_GID_IB) {
		/* indices move when a port flaps; addresses do not */
		int r = memcmp(&a->gid, &b->gid, sizeof(a->gid));

		if (r)
			return r;
	}
	return a->index < b->index ? -1 : a->index > b->index;
}

static bool has_index(const struct nd_gids *g, int index)
{
	for (size_t i = 0; i < g->n; i++)
		if (g->v[i].index == (uint32_t)index)
			return true;
	return false;
}

/* Another than the one the operator wants would be used behind the operator's back. */
static void reject_others(struct nd_gid *g, int index)
{
	g->rejected = true;
	g->score = -1;
	g->reason[0] = '\0';
	say(g, "rejected: configuration fixes index %d, where there is no GID", index);
}

void nd_gids_rank(struct nd_gids *g, const struct nd_gid_choice *choice)
{
	bool missing = choice->fixed_index >= 0 && !has_index(g, choice->fixed_index);

	for (size_t i = 0; i < g->n; i++) {
		judge(&g->v[i], choice);
		if (missing && !g->v[i].rejected)
			reject_others(&g->v[i], choice->fixed_index);
	}
	if (g->n)
		qsort(g->v, g->n, sizeof(*g->v), by_score);
}
