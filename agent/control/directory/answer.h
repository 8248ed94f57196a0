/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of a server of the directory. They come from outside: no byte of them is believed, and what one connection may make this
 * agent keep is bounded. No answer that this agent asks for has an array in an array.
 */
#pragma once

#include <hiredis/hiredis.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/addr.h"
#include "lib/err.h"

/* Bytes of an answer, and elements. */
#define ANSWER_BYTES_MAX 65536
#define ANSWER_ELEMENTS_MAX 64
/* Agents that have one object, and one more, which may end at the same time as the last one that is used. */
#define ANSWER_OWNERS_USED 4
#define ANSWER_OWNERS_MAX (ANSWER_OWNERS_USED + 1)

struct answers;

/* NULL: no memory. */
struct answers *answers_new(void);
/* NULL is allowed. Returns NULL. */
struct answers *answers_free(struct answers *a);

/* Bytes that came. 0, or -errno with reterr: the connection is of no use any more. At most ANSWER_BYTES_MAX at a time. */
int answers_feed(struct answers *a, const void *p, size_t n, struct dray_err *reterr);
/* The next answer, for freeReplyObject(), or NULL in *ret: more bytes are needed. 0, or -errno with reterr as above. */
int answers_next(struct answers *a, redisReply **ret, struct dray_err *reterr);

/* What an error means to this agent. */
enum refusal {
	REFUSAL_OTHER,
	REFUSAL_CLIENTS, /* others have all connections that it allows */
	REFUSAL_HOST,    /* it allows connections from its own host alone */
	REFUSAL_AUTH,    /* user and password, or the lack of them */
	REFUSAL_DENIED,  /* the user may not do that */
	REFUSAL_FULL,    /* no memory is left */
	REFUSAL_TYPE,    /* something else has the key */
	REFUSAL_LOADING, /* the server starts */
	REFUSAL_SCRIPT,  /* a script keeps it busy */
	REFUSAL_REPLICA, /* it is a replica, or has lost its primary */
	REFUSAL_MOVED,   /* another server of the cluster has the key */
	REFUSAL_ASK,     /* likewise, for this command */
	REFUSAL_CLUSTER, /* no server of the cluster has it now */
	REFUSAL_N
};
enum refusal answer_refusal(const redisReply *r);
/* The text of an error as plain text. Returns buf. */
const char *answer_text(const redisReply *r, char *buf, size_t n);

struct answer_owner {
	char segment[DRAY_ADDR_TEXT_MAX]; /* HOST:PORT as numbers */
	int64_t until_ms;                 /* when its entry ends; 0: not known as a number */
};

/*
 * The answer has up to ANSWER_OWNERS_MAX pairs of an agent and a time, whose addresses are written as dray_addr_show() writes them.
 * What is none, and what exceeds the maximum, is left out. Their number; or -EINVAL: it is no such answer.
 */
int answer_owners(const redisReply *r, struct answer_owner ret[ANSWER_OWNERS_MAX]);

/* A number, as integer or text. 0 or -EINVAL. */
int answer_number(const redisReply *r, int64_t *ret);
/* The answer to TIME, in milliseconds of Unix time. 0 or -EINVAL. */
int answer_time(const redisReply *r, int64_t *ret_ms);
