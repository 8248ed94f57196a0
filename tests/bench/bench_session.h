/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions and regions of programs that measure through libdray. */
#pragma once

#include "client/dray.h"
#include "schema/gen/data.h"
#include "tests/bench/bench.h"

static inline struct dray *bench_session_open(const char *path, unsigned flags)
{
	struct dray_options options = { .socket = path, .name = "bench", .flags = flags };
	struct dray *d;
	char why[256] = "";

	if (dray_connect(&options, &d, why, sizeof(why)))
		bench_die("%s: %s", path, why);
	return d;
}

static inline dray_region bench_session_add(struct dray *d, const struct bench_memory *m)
{
	struct dray_extent extents[BENCH_EXTENTS_MAX];
	struct dray_region_spec spec = { .name = "bench",
					 .access = DRAY_READ | DRAY_WRITE,
					 .extents = extents,
					 .extents_n = m->n };
	dray_region region;

	for (unsigned i = 0; i < m->n; i++)
		extents[i] = (struct dray_extent){ .kind = DRAY_KIND_MEMFD,
						   .fd = m->fd[i],
						   .length = m->length[i] };
	if (dray_region_add(d, &spec, &region))
		bench_die("region: %s", dray_last_error(d));
	return region;
}

static inline const char *bench_transport_name(unsigned transport)
{
	const char *name = dmsg_transport_name((enum dmsg_transport)transport);

	return name ? name : "newer";
}
