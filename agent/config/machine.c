/* SPDX-License-Identifier: Apache-2.0 */
/* Limits that the machine cannot give. They are warnings: memory and disks may grow, and an agent may never use all of its limit. */
#include "agent/config/machine.h"

#include <sys/statvfs.h>

#include "agent/config/internal.h"
#include "lib/memory.h"
#include "lib/units.h"

#define KEY(name) DRAY_CONFIG_KEY_##name

static int warn_beyond(struct config *c, enum dray_config_key_id key, int64_t limit, uint64_t bytes,
		       const char *has, const char *remedy)
{
	char wanted[32], there[32];

	/* a number of bytes that is no multiple would be hard to read */
	bytes -= bytes % (1 << 20);
	return config_warn(c, "%s: %s is %s, and %s has %s; %s", config_clip(config_origin(c, key)),
			   dray_config_keys[key].path,
			   dray_size_show(limit, wanted, sizeof(wanted)), has,
			   dray_size_show((int64_t)bytes, there, sizeof(there)), remedy);
}

int config_warn_memory(struct config *c)
{
	int64_t limit = c->v.limits.store_bytes;
	uint64_t bytes = limit ? dray_memory_get("") : 0;

	if (!bytes || (uint64_t)limit < bytes)
		return 0;
	return warn_beyond(c, KEY(LIMITS_STORE_BYTES), limit, bytes, "this machine or container",
			   "lower it, or raise the memory: the kernel ends the agent when the "
			   "objects of the store have used all of it");
}

int config_warn_disk(struct config *c)
{
	int64_t limit = c->v.limits.store_bytes ? c->v.limits.store_disk_bytes : 0;
	struct statvfs fs;
	uint64_t bytes;

	if (!limit || !*c->v.store.disk_dir || statvfs(c->v.store.disk_dir, &fs) < 0)
		return 0;
	bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
	if ((uint64_t)limit < bytes)
		return 0;
	return warn_beyond(
		c, KEY(LIMITS_STORE_DISK_BYTES), limit, bytes, "the file system of store.disk_dir",
		"lower it: the disk tier takes no objects while its file system is full");
}
