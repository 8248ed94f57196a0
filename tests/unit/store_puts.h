/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of one key that are not divided. */
#pragma once

#include "agent/store/store.h"

static inline enum dmsg_store_status rig_put_begin(struct store_member *m, struct store_key key,
						   uint64_t bytes, uint32_t cost_us,
						   struct store_object **ret)
{
	return store_put_begin(m, key, bytes, cost_us, &(struct store_effort){ 0 }, ret);
}

static inline enum dmsg_store_status rig_forward_put(struct store_member *m, struct store_key key,
						     uint64_t bytes, uint32_t cost_us, bool prefers,
						     struct store_object **ret)
{
	return store_forward_put(m, key, bytes, cost_us, prefers, &(struct store_effort){ 0 }, ret);
}

static inline enum dmsg_store_status rig_copy_begin(struct store_member *m, struct store_key key,
						    uint64_t bytes, uint32_t cost_us,
						    struct store_object **ret)
{
	return store_copy_begin(m, key, bytes, cost_us, &(struct store_effort){ 0 }, ret);
}
