/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges that Mooncake's engines reach, each at an address that its owner chose. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "agent/control/region/internal.h"
#include "agent/control/region/region.h"

/* No address of a process is above; readers of signed integers can read it, too. */
#define ADDRESS_MAX ((uint64_t)1 << 62)

struct overlap {
	uint64_t address, length;
	const struct grant_view *found;
};

static void find_overlap(void *arg, const struct grant_view *g)
{
	struct overlap *o = arg;

	if (o->address < g->mooncake + g->o.length && g->mooncake < o->address + o->length)
		o->found = g;
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
	struct overlap overlap = { .address = m->mooncake, .length = m->length };

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
	if (grants_count(r, MOONCAKE_PEER) >= r->mooncake_max)
		return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
				    "%" PRIu32 " ranges are exported to Mooncake's engines "
				    "(mooncake.buffers); revoke some, or raise it",
				    r->mooncake_max);
	regions_mooncake_each(r, find_overlap, &overlap);
	if (overlap.found)
		return dray_err_set(reterr, -EEXIST, DRAY_E_INVALID,
				    "the addresses overlap with another export, perhaps of another "
				    "client; revoke its token first");
	return 0;
}

void regions_mooncake_open(struct regions *r, uint32_t max)
{
	r->mooncake_max = max;
}
