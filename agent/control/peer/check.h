/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of the way to another agent, step by step: `drayctl doctor --peer`. The agent that is asked checks the opposite way
 * in its turn, and lends memory for a trial. Control thread only; nothing blocks.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"
#include "schema/gen/data.h"
#include "schema/gen/peer.h"

struct peers;
struct peer_check;

struct peer_check_note {
	bool back; /* of the other agent */
	enum pmsg_check_step step;
	enum pmsg_check_result result;
	uint64_t took_ns;
	char text[256], remedy[256];
};

/* Of both directions. */
#define PEER_CHECK_NOTES_MAX 20

struct peer_check_result {
	struct peer_check_note v[PEER_CHECK_NOTES_MAX];
	unsigned n;
	uint8_t token[DMSG_TOKEN_MAX]; /* of memory that the other agent lends; n_token 0: none */
	uint32_t n_token;
	char segment[PMSG_TOKEN_SEGMENT_MAX + 1]; /* that the token names */
};

typedef void (*peer_check_fn)(void *arg, const struct peer_check_result *r);

/*
 * fn runs once, not inside this call, unless the check is freed before; it may free the check. back: the opposite way is not checked
 * again. 0; or -EINVAL or -ENOMEM with reterr.
 */
int peer_check_start(struct peer_check **ret, struct peers *p, const char *segment, bool back,
		     peer_check_fn fn, void *arg, struct dray_err *reterr);
struct peer_check *peer_check_free(struct peer_check *c);
