/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests for queue pairs and their answers, as JSON. Each names both ends by "segment@device", and has the LID, GID and queue pairs
 * of its sender's end; the answer mirrors the request. Mooncake's readers stop their process if a value has another type than they
 * expect. Pure.
 */
#pragma once

#include "agent/control/mooncake/descriptor_read.h"
#include "agent/control/rails/rails.h"
#include "lib/err.h"

/* Bytes of a request for queue pairs, at most: with as many as there may be it has half of that. */
#define MOONCAKE_CONNECTION_MAX (8u << 10)

/* NULL, or why the request is refused. segment: its name. Sets all but `from`. */
const char *connection_parse(const char *text, size_t n, const char *segment,
			     struct rails_guest_request *ret);
/* The answer of the segment. The caller frees it. NULL: no memory. */
char *connection_answer(const char *segment, const struct rails_guest_request *request,
			const struct rails_guest_reply *reply, size_t *ret_n);

/* Our end, and the engine's: plain names. */
struct connection_ends {
	char ours[RAILS_GUEST_PATH], theirs[MOONCAKE_NAME_BYTES + MOONCAKE_DEVICE_BYTES];
};

/*
 * A request to an engine, which takes as many queue pairs as it makes itself. Only the first of them is one here; the others have
 * the number `unused`, because an engine does not replace its ends if it is asked with the same numbers again. The caller frees it.
 * NULL: no memory.
 */
char *connection_request(const struct connection_ends *ends,
			 const struct rails_engine_request *request, unsigned n, uint32_t unused,
			 size_t *ret_n);

struct connection_reply {
	char refused[160]; /* empty: it is not */
	unsigned n;        /* queue pairs of the engine; of a refusal 0 if it does not say */
	uint32_t qpn;      /* the first one; as the next ones, not of a refusal */
	uint16_t lid;
	struct in6_addr gid;
};
/* 0, or -EPROTO with reterr. */
int connection_answer_read(const char *text, size_t n, const struct connection_ends *ends,
			   struct connection_reply *ret, struct dray_err *reterr);
