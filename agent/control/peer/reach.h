/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments that clients name and where no agent has proved the key yet. By importing forged tokens, a client could make
 * the agent connect to any address and port, and find out what listens there. So the clients of one uid have a number of
 * places. A segment takes one from the attempt to reach it until an agent there proves the key, or REACH_NS have passed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/control/peer/client.h"
#include "lib/list.h"
#include "lib/map.h"

#define REACH_NS (60 * DRAY_NS_PER_SEC)

struct reaches {
	struct dray_map places;  /* by segment */
	struct dray_map clients; /* by name */
	struct dray_list oldest; /* places, by the time of their last attempt */
};

enum reach_result { REACH_OK, REACH_FULL, REACH_NO_MEMORY };

void reaches_init(struct reaches *r);
void reaches_deinit(struct reaches *r);

/* A client of the owner has the agent connect to the segment. max: places of an owner. */
enum reach_result reach_take(struct reaches *r, const struct peer_client *client,
			     const char *segment, uint32_t max, int64_t now_ns);
/* An agent at this segment has proved the key. */
void reach_proved(struct reaches *r, const char *segment);
