/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA netlink: parses a buffer of messages, as in a dump. */
#include <stdlib.h>
#include <string.h>

#include "netdetect/source/netlink.h"
#include "netdetect/rdma/device.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct nd_devices *d)
{
	for (size_t i = 0; i < d->n; i++) {
		const struct nd_device *v = &d->v[i];

		if (!*v->name || strchr(v->name, '/') || v->n_resources > ND_RESOURCES_MAX)
			abort();
		if (!nd_device_by_name(d, v->name))
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct nd_devices devices = { 0 };

	(void)nd_messages(data, size, nd_rdma_message, &devices);
	check(&devices);
	nd_devices_deinit(&devices);
	return 0;
}
