/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of a server of the directory, in pieces of the length that the first byte says. What is taken over must be addresses and
 * numbers in their one form, servers must have slots, an answer must not be larger than the limit, and a refusal must say why.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/control/directory/answer.h"
#include "agent/control/directory/cluster.h"
#include "lib/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_owners(const redisReply *r)
{
	struct answer_owner owners[ANSWER_OWNERS_MAX];
	char again[DRAY_ADDR_TEXT_MAX];
	int n = answer_owners(r, owners);

	dray_assert(n <= ANSWER_OWNERS_MAX && (n >= 0) == (r->type == REDIS_REPLY_ARRAY));
	for (int i = 0; i < n; i++) {
		struct dray_addr a;

		dray_assert(dray_addr_parse(owners[i].segment, &a) == 0 && dray_addr_port(&a));
		dray_assert(!strcmp(dray_addr_show(&a, again, sizeof(again)), owners[i].segment));
		dray_assert(owners[i].until_ms >= 0);
	}
}

static void check_error(const redisReply *r)
{
	char text[100];

	dray_assert(answer_refusal(r) < REFUSAL_N);
	answer_text(r, text, sizeof(text));
	for (const char *p = text; *p; p++)
		dray_assert(*p >= ' ' && *p <= '~');
}

static void check_address(const struct directory_host *at)
{
	struct dray_addr a;

	dray_assert(at->port && at->port <= UINT16_MAX);
	dray_assert(dray_host_is_address(at->host, &a) || dray_host_is_name(at->host));
}

static void check_cluster(const redisReply *r)
{
	static struct cluster_map map;
	struct directory_host at;
	unsigned slot, slots = 0;

	if (cluster_redirection(r, "10.0.0.1", &slot, &at) == 0) {
		dray_assert(r->type == REDIS_REPLY_ERROR && slot < CLUSTER_SLOTS);
		check_address(&at);
	}
	if (r->type == REDIS_REPLY_STRING)
		dray_assert(cluster_slot(r->str, (size_t)r->len) < CLUSTER_SLOTS);
	if (cluster_nodes(r, "10.0.0.1", &map) < 0)
		return;
	dray_assert(map.n && map.n <= CLUSTER_SERVERS_MAX);
	for (unsigned i = 0; i < map.n; i++)
		check_address(&map.servers[i]);
	for (unsigned i = 0; i < CLUSTER_SLOTS; i++) {
		dray_assert(map.of[i] <= map.n);
		slots += map.of[i] != 0;
	}
	dray_assert(slots);
}

static void check(const redisReply *r)
{
	int64_t n;

	check_cluster(r);

	dray_assert(r->type != REDIS_REPLY_ARRAY || r->elements <= ANSWER_ELEMENTS_MAX);
	check_owners(r);
	if (r->type == REDIS_REPLY_ERROR)
		check_error(r);
	if (answer_time(r, &n) == 0)
		dray_assert(n >= 0 && r->elements == 2);
	answer_number(r, &n);
	for (size_t i = 0; r->type == REDIS_REPLY_ARRAY && i < r->elements; i++)
		dray_assert(r->element[i]->type != REDIS_REPLY_ARRAY);
}

/* False: the connection would be closed. */
static bool take_all(struct answers *a, struct dray_err *err)
{
	redisReply *r;

	while (answers_next(a, &r, err) >= 0) {
		if (!r)
			return true;
		check(r);
		freeReplyObject(r);
	}
	return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct answers *a = answers_new();
	size_t piece = size ? 1 + data[0] : 1;
	struct dray_err err = DRAY_ERR_NULL;

	dray_assert(a);
	for (size_t at = 1; at < size; at += piece) {
		size_t n = size - at < piece ? size - at : piece;

		if (answers_feed(a, data + at, n, &err) < 0 || !take_all(a, &err)) {
			dray_assert(err.code && *err.msg);
			break;
		}
	}
	answers_free(a);
	return 0;
}
