/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands about keys: their words, and whose business their answers are. Where another server has a key, its commands are sent again
 * to that one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/directory/internal.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#define HOPS_MAX 4
#define NUMBER_BYTES 24
/* Commands for which a batch has room at first. */
#define FIRST 4

struct batch {
	struct dray_list link; /* in d->batches */
	struct server *server;
	struct link_op *op;
	struct directory_find *find; /* NULL: nobody needs the answers of KEY_FIND */
	char segment[DRAY_ADDR_TEXT_MAX];
	char now_ms[NUMBER_BYTES], end_ms[NUMBER_BYTES], expiry_ms[NUMBER_BYTES];
	uint32_t n, size;
	uint32_t at;     /* the command that waits for its answer */
	unsigned part;   /* how many answers it has had */
	bool redirected; /* the further ones do not count */
	struct key_command *v;
};

static void batch_free(struct batch *b)
{
	dray_list_del(&b->link);
	free(b->v);
	free(b);
}

/* --- answers ------------------------------------------------------------------------------------------ */

/* Answers to one command, without that to ASKING. */
static unsigned parts_of(enum key_kind kind)
{
	return kind == KEY_ENTER ? 3 : kind == KEY_SINCE ? 2 : 1;
}

/* The decisive answer to a command; NULL: it will never come. */
static void decide(struct batch *b, const struct key_command *k, const redisReply *r)
{
	switch (k->kind) {
	case KEY_FIND:
		if (b->find)
			find_answer(b->server, b->find, k->i, r);
		break;
	case KEY_ENTER:
	case KEY_REMOVE:
		entry_answer(b->server, k, r);
		break;
	case KEY_FORGET:
		if (r && r->type != REDIS_REPLY_INTEGER)
			directory_refused(b->server, r, true);
		break;
	case KEY_SINCE:
		/* only NULL: another server of the cluster, which was to answer that, is lost */
		directory_used(b->server->d);
		break;
	case KEY_NODES:
		servers_answer(b->server, r);
		break;
	case KEY_CHECK:
		directory_check_answer(b->server, r);
		break;
	}
}

/* True: another server is asked instead. */
static bool redirect(struct batch *b, const struct key_command *k, const redisReply *r)
{
	enum refusal refusal = r->type == REDIS_REPLY_ERROR ? answer_refusal(r) : REFUSAL_OTHER;
	struct key_command again = *k;
	struct server *to;
	struct batch *other;

	if ((refusal != REFUSAL_MOVED && refusal != REFUSAL_ASK) || k->hops >= HOPS_MAX)
		return false;
	again.hops++;
	again.asks = refusal == REFUSAL_ASK;
	to = server_redirected(b->server, r, again.asks);
	other = to ? batch_new(to, b->find, b->segment) : NULL;
	if (!other)
		return false;
	batch_add(other, &again);
	/* each of many commands may be redirected */
	link_send_soon(to->link);
	return true;
}

static void take(struct batch *b, const struct key_command *k, const redisReply *r)
{
	unsigned part = b->part - k->asks;

	if (b->redirected)
		return;
	if (part == 0 && redirect(b, k, r)) {
		b->redirected = true;
		return;
	}
	if (k->kind == KEY_SINCE)
		directory_since(b->server, part, r);
	else if (part == 0)
		decide(b, k, r);
	else if (r->type != REDIS_REPLY_INTEGER)
		directory_refused(b->server, r, true);
}

/* The commands from the current one on get no answer. */
static void lose(struct batch *b)
{
	/* the first answer of this one has decided */
	bool decided = b->at < b->n && (b->redirected || b->part > b->v[b->at].asks);

	for (b->at += decided; b->at < b->n; b->at++)
		decide(b, &b->v[b->at], NULL);
	batch_free(b);
}

static void on_answer(void *arg, uint32_t i, const redisReply *r)
{
	struct batch *b = arg;
	const struct key_command *k = &b->v[b->at];

	if (!r) {
		lose(b);
		return;
	}
	/* that to ASKING means nothing */
	if (b->part >= k->asks)
		take(b, k, r);
	if (++b->part < parts_of(k->kind) + k->asks)
		return;
	b->part = 0;
	b->redirected = false;
	if (++b->at == b->n)
		batch_free(b);
}

void batches_forget(struct directory *d, const struct directory_find *find)
{
	dray_list_for_each(&d->batches, b, struct batch, link)
		if (b->find == find)
			b->find = NULL;
}

static struct batch *batch_at(const struct server *s)
{
	dray_list_for_each(&s->d->batches, b, struct batch, link)
		if (b->server == s)
			return b;
	return NULL;
}

void batches_lose(struct server *s)
{
	struct batch *b;

	/* they stay on the list, where a find that ends meanwhile looks for its own */
	while ((b = batch_at(s))) {
		link_op_forget(b->op);
		lose(b);
	}
}

void batches_free(struct directory *d)
{
	dray_list_for_each(&d->batches, b, struct batch, link)
		batch_free(b);
}

/* --- commands ----------------------------------------------------------------------------------------- */

struct batch *batch_new(struct server *s, struct directory_find *find, const char *segment)
{
	int64_t expiry = s->d->deps.cfg->store.directory_expiry / DRAY_NS_PER_MS, now;
	struct batch *b = link_is_up(s->link) ? calloc(1, sizeof(*b)) : NULL;

	if (!b)
		return NULL;
	/* so that its first command is added for sure */
	b->v = malloc(FIRST * sizeof(*b->v));
	b->op = b->v ? link_begin(s->link, on_answer, b) : NULL;
	if (!b->op) {
		free(b->v);
		free(b);
		return NULL;
	}
	b->server = s;
	b->find = find;
	b->size = FIRST;
	now = link_time_ms(s->link);
	snprintf(b->segment, sizeof(b->segment), "%s", segment);
	snprintf(b->now_ms, sizeof(b->now_ms), "%" PRId64, now);
	snprintf(b->end_ms, sizeof(b->end_ms), "%" PRId64, now + expiry);
	snprintf(b->expiry_ms, sizeof(b->expiry_ms), "%" PRId64, expiry);
	dray_list_add(&s->d->batches, &b->link);
	return b;
}

static struct link_word word(const char *text)
{
	return (struct link_word){ text, strlen(text) };
}

#define SEND(b, ...)                                                                  \
	link_command((b)->server->link, (b)->op, (struct link_word[]){ __VA_ARGS__ }, \
		     sizeof((struct link_word[]){ __VA_ARGS__ }) / sizeof(struct link_word))

/* Sends the words of a command. */
static void put(struct batch *b, const struct key_command *k)
{
	const struct names *names = &b->server->d->names;
	static const char owners_max[] = { '0' + ANSWER_OWNERS_MAX, 0 };
	char text[NAME_BYTES + 1], until[NUMBER_BYTES];
	struct link_word name = { text, 0 };

	name.n = (size_t)snprintf(text, sizeof(text), "%s:%.*s", names->prefix, k->n_name, k->name);
	if (k->asks)
		SEND(b, word("ASKING"));
	switch (k->kind) {
	case KEY_FIND:
		SEND(b, word("ZREVRANGEBYSCORE"), name, word("+inf"), word(b->now_ms),
		     word("WITHSCORES"), word("LIMIT"), word("0"), word(owners_max));
		break;
	case KEY_ENTER:
		SEND(b, word("ZADD"), name, word(b->end_ms), word(b->segment));
		SEND(b, word("PEXPIRE"), name, word(b->expiry_ms));
		/* entries of agents that have not renewed them */
		SEND(b, word("ZREMRANGEBYSCORE"), name, word("-inf"), word(b->now_ms));
		break;
	case KEY_FORGET:
		/* by its time alone, which is another one if the agent has entered it again */
		snprintf(until, sizeof(until), "%" PRId64, k->until_ms);
		SEND(b, word("ZREMRANGEBYSCORE"), name, word(until), word(until));
		break;
	case KEY_REMOVE:
	case KEY_CHECK:
		SEND(b, word("ZREM"), name, word(b->segment));
		break;
	case KEY_SINCE:
		SEND(b, word("SET"), name, word(b->now_ms), word("NX"));
		SEND(b, word("GET"), name);
		break;
	case KEY_NODES:
		SEND(b, word("CLUSTER"), word("NODES"));
		break;
	}
}

bool batch_add(struct batch *b, const struct key_command *k)
{
	uint32_t size = 2 * b->size;
	struct key_command *v = b->v;

	if (b->n == b->size) {
		v = realloc(v, size * sizeof(*v));
		if (!v) {
			link_fail(b->server->link, DRAY_E_NO_MEMORY, "no memory for a command");
			return false;
		}
		b->v = v;
		b->size = size;
	}
	b->v[b->n++] = *k;
	put(b, k);
	return true;
}

void batch_send(struct batch *b)
{
	link_send(b->server->link);
}

void batches_send(struct directory *d)
{
	for (unsigned i = 0; i < d->servers.n; i++) {
		struct batch *b = dray_take(d->servers.v[i]->making);

		if (b)
			batch_send(b);
	}
}
