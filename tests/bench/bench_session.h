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

static inline struct dray_token bench_session_export(struct dray *d, dray_region region)
{
	struct dray_token token;

	if (dray_region_export(d, region, NULL, &token))
		bench_die("export: %s", dray_last_error(d));
	return token;
}

static inline dray_remote bench_session_import(struct dray *d, const struct dray_token *token)
{
	dray_remote remote;

	if (dray_remote_import(d, token, 0, &remote))
		bench_die("import: %s", dray_last_error(d));
	return remote;
}

/* Which transport moves the bytes of the remote. */
static inline const char *bench_session_transport(struct dray *d, dray_remote remote)
{
	struct dray_remote_info info;
	const char *name;

	if (dray_remote_get_info(d, remote, &info))
		bench_die("remote: %s", dray_last_error(d));
	name = dmsg_transport_name((enum dmsg_transport)info.transport);
	return name ? name : "newer";
}
