/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges that Mooncake's engines reach, each at an address that its owner chose. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "agent/control/region/internal.h"
#include "agent/control/region/region.h"
#include "lib/cleanup.h"
#include "lib/share.h"

/* No address of a process is above; readers of signed integers can read it, too. */
#define ADDRESS_MAX ((uint64_t)1 << 62)

/* What the buffers so far mean for a further one. */
struct survey {
	const struct region *region;
	uint64_t address, length;
	bool overlaps;
	uint64_t all, held; /* buffers, and those of the owner of the region */
};

/* Over TCP a buffer may be in several places; a key of RDMA is for one. */
uint32_t mooncake_pieces(const struct region *region, uint64_t offset, uint64_t length)
{
	const struct region_view *v = region_view_of(region);

	if (!region->regions->mooncake_rdma)
		return 1;
	return region_view_find(v, offset + length - 1) - region_view_find(v, offset) + 1;
}

static void survey_one(void *arg, const struct grant_view *g)
{
	struct survey *s = arg;
	const struct region *other = dray_handles_get(&s->region->regions->regions, g->region);

	if (s->address < g->mooncake + g->o.length && g->mooncake < s->address + s->length)
		s->overlaps = true;
	s->all += g->pieces;
	if (other && other->owner.uid_owner == s->region->owner.uid_owner)
		s->held += g->pieces;
}

static int form_check(const struct dmsg_region_export *m, struct dray_err *reterr)
{
	static const uint8_t nobody[AGENT_ID_BYTES];

	if (!(m->flags & DMSG_EXPORT_FLAG_MOONCAKE) || !m->mooncake || m->mooncake > ADDRESS_MAX ||
	    m->length > ADDRESS_MAX - m->mooncake)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"an export to Mooncake's engines needs the flag mooncake, and the "
			"address of the range in its engine");
	if (m->ttl_ms || m->flags & DMSG_EXPORT_FLAG_SINGLE_USE ||
	    memcmp(m->audience, nobody, AGENT_ID_BYTES))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"Mooncake's engines have no identity and no expiry: export without ttl, "
			"audience and single use, and revoke the token");
	return 0;
}

int mooncake_export_check(const struct region *region, const struct dmsg_region_export *m,
			  struct dray_err *reterr)
{
	struct regions *r = region->regions;
	struct survey survey = { .region = region, .address = m->mooncake, .length = m->length };
	uint64_t all, n;

	if (!m->mooncake && !(m->flags & DMSG_EXPORT_FLAG_MOONCAKE))
		return 0;
	if (form_check(m, reterr) < 0)
		return -EINVAL;
	if (!r->mooncake_max)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "this agent does not speak Mooncake's protocol; set "
				    "mooncake.listen and mooncake.allow, and restart it");
	if (region_view_of(region)->memory != REGION_HOST)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_REGION_KIND,
				    "Mooncake's engines reach host memory only; export a memfd or "
				    "a pool");
	regions_mooncake_each(r, survey_one, &survey);
	/* those that end still have their registrations */
	all = dray_max(survey.all, (uint64_t)grants_count(r, MOONCAKE_PEER));
	all = dray_min(all, (uint64_t)r->mooncake_max);
	n = mooncake_pieces(region, m->offset, m->length);
	if (!dray_share_fits(r->mooncake_max - all, survey.held, n))
		return dray_err_set(
			reterr, -ENOSPC, DRAY_E_QUOTA,
			"%" PRIu64 " buffers are exported to Mooncake's engines, %" PRIu64
			" of them by this owner, and this range is %" PRIu64
			"; an owner may have half of what others leave of mooncake.buffers; "
			"revoke some, or raise it",
			all, survey.held, n);
	if (survey.overlaps)
		return dray_err_set(reterr, -EEXIST, DRAY_E_INVALID,
				    "the addresses overlap with another export, perhaps of another "
				    "client; revoke its token first");
	return 0;
}

void regions_mooncake_open(struct regions *r, uint32_t max, bool rdma)
{
	r->mooncake_max = max;
	r->mooncake_rdma = rdma;
}

uint64_t regions_mooncake_changes(const struct regions *r)
{
	return r->mooncake_changes;
}
