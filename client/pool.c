/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the agent owns, mapped here. It stays this client's memory when the agent is gone:
 * the region is kept as one memfd extent, which is what it is registered as again.
 */
#include "client/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client/shared_memory.h"
#include "lib/cleanup.h"
#include "lib/memfd.h"

int dc_pool_map(struct region *g, int fd, uint64_t bytes, struct dray_err *reterr)
{
	int memory dray_auto_close = fd;
	int *fds dray_auto_free = malloc(sizeof(*fds));
	struct dmsg_extent e = { .kind = DMSG_KIND_MEMFD, .length = bytes };
	void *p;

	if (!dc_shared_memory_ok(fd, bytes) || bytes < g->length)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				    "the agent's pool is not what was asked for");
	if (!fds)
		return -DRAY_E_NO_MEMORY;
	p = dray_map_shared(fd, 0, bytes, PROT_READ | PROT_WRITE);
	if (p == MAP_FAILED)
		return -dc_code_of_errno(errno);
	dmsg_extent_put(g->extents, &e);
	fds[0] = dray_take_fd(memory);
	g->fds = dray_take(fds);
	g->fds_n = 1;
	g->flags = 0;
	g->map = p;
	g->map_bytes = g->length = bytes;
	return 0;
}

int dray_region_add_pool(struct dray *d, uint64_t bytes, unsigned int access, unsigned int flags,
			 dray_region *ret)
{
	struct dray_region_spec spec = { .access = access, .flags = flags, .pool_bytes = bytes };

	return dray_region_add(d, &spec, ret);
}

int dray_region_map(struct dray *d, dray_region region, void **ret_address, uint64_t *ret_length,
		    int *ret_fd)
{
	const struct region *g;
	int error = dc_enter(d);

	if (error)
		return error;
	g = dc_region_get(d, region);
	if (!g)
		return dc_fail(d, DRAY_E_NOT_FOUND, "no such region");
	if (!g->map)
		return dc_fail(d, DRAY_E_REGION_KIND, "the region is no pool");
	*ret_address = g->map;
	*ret_length = g->map_bytes;
	if (ret_fd)
		*ret_fd = g->fds[0];
	return 0;
}
