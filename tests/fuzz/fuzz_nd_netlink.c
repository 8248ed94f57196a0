/* SPDX-License-Identifier: Apache-2.0 */
/* rtnetlink and sock_diag: parses a buffer of messages, as in a dump, and makes the decisions from them. */
#include <stdlib.h>

#include "netdetect/choose/address.h"
#include "netdetect/net/listener.h"
#include "netdetect/source/netlink.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int take(uint16_t type, const void *payload, size_t n, void *arg)
{
	static struct nd_listeners listeners;
	int r = nd_listener_message(type, payload, n, &listeners);

	nd_listeners_deinit(&listeners);
	return r < 0 ? r : nd_link_message(type, payload, n, arg);
}

static void decide(const struct nd_links *l)
{
	struct nd_candidate *c;
	size_t n;

	if (nd_advertise_rank(l, true, true, &c, &n) < 0)
		return;
	for (size_t i = 0; i < n; i++)
		if (!*c[i].reason || (!c[i].rejected && !c[i].link))
			abort();
	free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct nd_links links = { 0 };

	(void)nd_messages(data, size, take, &links);
	decide(&links);
	nd_links_deinit(&links);
	return 0;
}
