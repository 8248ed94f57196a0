/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/peers.h"

#include <stdio.h>

enum gpu_link gpu_link_of(const struct gpu_device_info *d, unsigned index, unsigned to)
{
	if (to == index)
		return GPU_LINK_SELF;
	if (to >= GPU_DEVICES_MAX || !(d->peers & 1u << to))
		return GPU_LINK_NONE;
	return d->nvlink & 1u << to ? GPU_LINK_NVLINK : GPU_LINK_PCIE;
}

const char *gpu_link_name(enum gpu_link l)
{
	static const char *const names[] = { "none", "self", "pcie", "nvlink" };

	return names[l];
}

/* Writes the numbers of the set bits, such as "0-2,4". Returns the position behind them. */
static size_t put_ranges(uint32_t bits, char *buf, size_t at, size_t size)
{
	const char *comma = "";

	for (unsigned i = 0; i < GPU_DEVICES_MAX && at < size; i++) {
		unsigned last = i;

		if (!(bits & 1u << i))
			continue;
		while (last + 1 < GPU_DEVICES_MAX && bits & 1u << (last + 1))
			last++;
		at += (size_t)snprintf(buf + at, size - at, "%s%u", comma, i);
		if (last > i && at < size)
			at += (size_t)snprintf(buf + at, size - at, "-%u", last);
		comma = ",";
		i = last;
	}
	return at;
}

const char *gpu_peers_text(const struct gpu_device_info *d, unsigned index,
			   char buf[GPU_PEERS_BYTES])
{
	uint32_t others = index < GPU_DEVICES_MAX ? ~(1u << index) : UINT32_MAX;
	uint32_t nvlink = d->peers & d->nvlink & others, pcie = d->peers & ~d->nvlink & others;
	size_t at = 0;

	snprintf(buf, GPU_PEERS_BYTES, "none");
	if (nvlink) {
		at = (size_t)snprintf(buf, GPU_PEERS_BYTES, "NVLink ");
		at = put_ranges(nvlink, buf, at, GPU_PEERS_BYTES);
	}
	if (pcie && at < GPU_PEERS_BYTES) {
		at += (size_t)snprintf(buf + at, GPU_PEERS_BYTES - at, "%sPCIe ", at ? "; " : "");
		put_ranges(pcie, buf, at, GPU_PEERS_BYTES);
	}
	return buf;
}
