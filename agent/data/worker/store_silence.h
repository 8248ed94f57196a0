/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Silence of an agent while an object is read from it. The worker looks at the transfer SILENCE_LOOKS times in store.peer_timeout. If
 * so many looks in a row find no new byte of the agent, the transfer ends with `timeout`. A look that comes late, because this
 * thread had no processor, counts once. Bytes of other transfers from the same agent count, too: this one waits behind them.
 */
#pragma once

#include "agent/data/worker/internal.h"

#define SILENCE_LOOKS 4

struct silence {
	struct dray_list link; /* on worker->watched */
	struct wsession *session;
	uint64_t request;  /* the transfer's */
	uint64_t received; /* at the last look */
	int64_t look_ns;   /* the next one */
	unsigned quiet;    /* looks since then that found nothing new */
};

void silence_init(struct silence *q);
/* The session's transfer with this id begins. */
void silence_watch(struct silence *q, struct wsession *s, uint64_t request);
void silence_end(struct silence *q);
