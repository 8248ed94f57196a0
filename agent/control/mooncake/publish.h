/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the keys of the agent's own segment at the metadata server true: they are compared every mooncake.interval, the descriptor is sent
 * when buffers have changed, and both keys are removed when the segment may not be used any more. One request is in progress at a
 * time. Failed ones are repeated, with growing pauses.
 */
#pragma once

#include "agent/control/mooncake/internal.h"

struct publisher;

/* 0, or -errno with reterr. */
int publisher_new(struct publisher **ret, struct mooncake_server *s, struct dray_err *reterr);
/* Takes NULL, as all others do. Returns NULL. */
struct publisher *publisher_free(struct publisher *p);

/* The descriptor may have changed. */
void publisher_wake(struct publisher *p);
/* on: the keys shall be there; otherwise they are removed. */
void publisher_set(struct publisher *p, bool on);
/* Removes the keys. gone() runs when they are, or when there is no more time; possibly inside the call. */
void publisher_stop(struct publisher *p, void (*gone)(void *arg), void *arg);
