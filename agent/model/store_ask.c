/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/store_ask.h"

#include <stdlib.h>

#include "agent/model/keys.h"

void store_ask_free(struct store_ask *k)
{
	for (uint32_t i = 0; k && i < k->n_sources; i++) {
		rail_keys_unref(k->sources[i].keys);
		free(k->sources[i].bytes);
	}
	if (k)
		free(k->sources);
	free(k);
}

bool ask_find_source(const struct store_ask *k, dray_handle peer, uint64_t grant,
		     uint32_t *ret_source)
{
	for (uint32_t i = 0; i < k->n_sources; i++) {
		const struct remote_view *v = &k->sources[i].view;

		if (v->peer != peer || v->grant != grant)
			continue;
		*ret_source = i;
		return true;
	}
	return false;
}
