/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/cpu.h"

DRAY_DEFINE_CLEANUP(FILE *, fclose);

/* UINT64_MAX: none, which the file says with "max". */
static uint64_t limit_of(const char *folder)
{
	char path[PATH_MAX + 32];
	dray_auto(fclose) FILE *f = NULL;
	uint64_t bytes;

	snprintf(path, sizeof(path), "%s/memory.max", folder);
	f = fopen(path, "re");
	return f && fscanf(f, "%" SCNu64, &bytes) == 1 ? bytes : UINT64_MAX;
}

uint64_t dray_memory_get(const char *root)
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	uint64_t least = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
	/* all controllers of v2 have one hierarchy */
	struct dray_cpu_limits folders = { 0 };

	dray_cpu_limits_find(&folders, root);
	for (size_t i = 0; i < folders.v2.n; i++)
		least = dray_min(least, limit_of(folders.v2.v[i]));
	dray_cpu_limits_deinit(&folders);
	return least == UINT64_MAX ? 0 : least;
}
