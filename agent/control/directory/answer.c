/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/directory/answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/plain.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

/* A time before the year 2242 has less. */
#define SECONDS_MAX (1ll << 33)

#if HIREDIS_MAJOR == 0
typedef int element_count;
#else
typedef size_t element_count;
#endif

struct answers {
	redisReader *reader;
	redisReplyObjectFunctions functions; /* the reader's, with a bound */
	void *(*array)(const redisReadTask *task, element_count n);
	size_t unfinished; /* bytes since the last answer */
};

/* The reader takes NULL as a lack of memory, and fails. */
static void *array_new(const redisReadTask *task, element_count n)
{
	const struct answers *a = task->privdata;

	if (task->parent || n < 0 || n > ANSWER_ELEMENTS_MAX)
		return NULL;
	return a->array(task, n);
}

struct answers *answers_new(void)
{
	struct answers *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->reader = redisReaderCreate();
	if (!a->reader)
		return answers_free(a);
	a->functions = *a->reader->fn;
	a->array = a->functions.createArray;
	a->functions.createArray = array_new;
	a->reader->fn = &a->functions;
	a->reader->privdata = a;
	return a;
}

struct answers *answers_free(struct answers *a)
{
	if (!a)
		return NULL;
	if (a->reader)
		redisReaderFree(a->reader);
	free(a);
	return NULL;
}

static int malformed(struct dray_err *reterr)
{
	return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
			    "its answer is none of Redis or Valkey to what was asked; is it such a "
			    "server, and does store.directory say whether it wants TLS?");
}

int answers_feed(struct answers *a, const void *p, size_t n, struct dray_err *reterr)
{
	a->unfinished += n;
	if (redisReaderFeed(a->reader, p, n) != REDIS_OK)
		return malformed(reterr);
	return 0;
}

int answers_next(struct answers *a, redisReply **ret, struct dray_err *reterr)
{
	void *r = NULL;

	*ret = NULL;
	if (redisReaderGetReply(a->reader, &r) != REDIS_OK)
		return malformed(reterr);
	if (r)
		a->unfinished = a->reader->len - a->reader->pos;
	else if (a->unfinished > ANSWER_BYTES_MAX)
		return malformed(reterr);
	*ret = r;
	return 0;
}

enum refusal answer_refusal(const redisReply *r)
{
	static const struct {
		const char *word;
		enum refusal refusal;
	} words[] = {
		{ "ERR max number of clients", REFUSAL_CLIENTS },
		{ "DENIED", REFUSAL_HOST },
		{ "NOAUTH", REFUSAL_AUTH },
		{ "WRONGPASS", REFUSAL_AUTH },
		{ "ERR AUTH", REFUSAL_AUTH },
		{ "ERR invalid password", REFUSAL_AUTH },
		{ "NOPERM", REFUSAL_DENIED },
		{ "OOM", REFUSAL_FULL },
		{ "MISCONF", REFUSAL_FULL },
		{ "WRONGTYPE", REFUSAL_TYPE },
		{ "LOADING", REFUSAL_LOADING },
		{ "BUSY", REFUSAL_SCRIPT },
		{ "READONLY", REFUSAL_REPLICA },
		{ "MASTERDOWN", REFUSAL_REPLICA },
		{ "NOREPLICAS", REFUSAL_REPLICA },
		{ "MOVED", REFUSAL_MOVED },
		{ "ASK", REFUSAL_ASK },
		{ "CLUSTERDOWN", REFUSAL_CLUSTER },
		{ "TRYAGAIN", REFUSAL_CLUSTER },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(words); i++) {
		size_t n = strlen(words[i].word);

		if ((size_t)r->len > n && !memcmp(r->str, words[i].word, n) && r->str[n] == ' ')
			return words[i].refusal;
	}
	return REFUSAL_OTHER;
}

const char *answer_text(const redisReply *r, char *buf, size_t n)
{
	dray_plain(buf, n, r->str, (size_t)r->len);
	return buf;
}

static bool is_text(const redisReply *r)
{
	return r->type == REDIS_REPLY_STRING || r->type == REDIS_REPLY_STATUS;
}

/* An address that is written in one way alone, so that texts can be compared. */
static bool address_get(const redisReply *r, char ret[DRAY_ADDR_TEXT_MAX])
{
	struct dray_addr a;

	if (!is_text(r) || !r->len || (size_t)r->len >= DRAY_ADDR_TEXT_MAX ||
	    memchr(r->str, '\0', (size_t)r->len) || dray_addr_parse(r->str, &a) < 0 ||
	    !dray_addr_port(&a))
		return false;
	dray_addr_show(&a, ret, DRAY_ADDR_TEXT_MAX);
	return true;
}

int answer_owners(const redisReply *r, struct answer_owner ret[ANSWER_OWNERS_MAX])
{
	int n = 0;

	if (r->type != REDIS_REPLY_ARRAY)
		return -EINVAL;
	for (size_t i = 0; i + 1 < r->elements && n < ANSWER_OWNERS_MAX; i += 2) {
		if (!address_get(r->element[i], ret[n].segment))
			continue;
		if (answer_number(r->element[i + 1], &ret[n].until_ms) < 0 || ret[n].until_ms < 0)
			ret[n].until_ms = 0;
		n++;
	}
	return n;
}

int answer_number(const redisReply *r, int64_t *ret)
{
	if (r->type == REDIS_REPLY_INTEGER) {
		*ret = r->integer;
		return 0;
	}
	if (!is_text(r) || memchr(r->str, '\0', (size_t)r->len) || *r->str < '0' || *r->str > '9')
		return -EINVAL;
	return dray_int_parse(r->str, 0, ret) < 0 ? -EINVAL : 0;
}

int answer_time(const redisReply *r, int64_t *ret_ms)
{
	int64_t seconds, us;

	if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
	    answer_number(r->element[0], &seconds) < 0 || answer_number(r->element[1], &us) < 0 ||
	    seconds < 0 || seconds > SECONDS_MAX || us < 0 || us > 999999)
		return -EINVAL;
	*ret_ms = seconds * 1000 + us / 1000;
	return 0;
}
