/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/directory/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/directory/answer.h"
#include "lib/assert.h"
#include "lib/backoff.h"
#include "lib/time.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

#define PAUSE_MIN_NS (100 * DRAY_NS_PER_MS)
#define PAUSE_MAX_NS (5 * DRAY_NS_PER_SEC)
/* A server that is silent for so much longer than a late one is lost, and so much longer connecting may take. */
#define SILENCE 20
#define SILENCE_MIN_NS (2 * DRAY_NS_PER_SEC)
/* Between questions for the server's time: its clock may be set, and this agent's stands still while a machine is suspended. */
#define TIME_NS DRAY_NS_PER_SEC
/* Words of a command. */
#define WORDS_MAX 8

struct link_op {
	struct dray_list link;
	link_answer_fn fn; /* NULL: nobody needs the answers */
	void *arg;
	uint32_t n, answered;
	int64_t sent_ns;
};

struct link {
	struct link_config cfg;
	struct stream *stream; /* NULL: the timer runs */
	struct answers *answers;
	struct dray_list ops; /* without all answers, the oldest first */
	bool up;
	bool failing;
	struct dray_err why; /* failing */
	unsigned failures;   /* one after the other */
	sd_event_source *timer;
	int64_t up_ns;     /* when it has come up */
	int64_t heard_ns;  /* the last whole answer */
	int64_t asked_ns;  /* for the server's time, the last time */
	int64_t server_ms; /* that time minus this agent's clock */
};

static int64_t silence_ns(const struct link *l)
{
	return dray_max(SILENCE * l->cfg.late_ns, SILENCE_MIN_NS);
}

static void wake_in(struct link *l, int64_t ns)
{
	sd_event_source_set_time_relative(l->timer, (uint64_t)ns / 1000);
	sd_event_source_set_enabled(l->timer, SD_EVENT_ONESHOT);
}

/* --- answers ------------------------------------------------------------------------------------------ */

static void op_free(struct link_op *op)
{
	dray_list_del(&op->link);
	free(op);
}

/* No answer comes any more. */
static void ops_end(struct link *l)
{
	struct link_op *op;

	while ((op = dray_list_pop(&l->ops, struct link_op, link))) {
		if (op->fn)
			op->fn(op->arg, op->answered, NULL);
		op_free(op);
	}
}

/* The connection has ended. Nothing may be touched after this call. */
static void end(struct link *l, const struct dray_err *why)
{
	struct dray_err copy = *why;

	l->stream = stream_close(l->stream);
	l->answers = answers_free(l->answers);
	/* a server that greets and breaks off again and again is none that works */
	if (l->up && dray_now().ns - l->up_ns > PAUSE_MAX_NS)
		l->failures = 0;
	l->up = l->failing = false;
	l->failures++;
	wake_in(l, backoff_spread(backoff_pause(l->failures, PAUSE_MIN_NS, PAUSE_MAX_NS)));
	ops_end(l);
	l->cfg.down(l->cfg.arg, &copy);
}

void link_fail(struct link *l, int code, const char *why)
{
	if (l->failing || !l->stream)
		return;
	l->failing = true;
	l->why = dray_err_of(code, "%s", why);
	wake_in(l, 0);
}

/* Gives the answer to the command that waits for it. False: none does. */
static bool give(struct link *l, const redisReply *r)
{
	struct link_op *op = dray_list_first(&l->ops, struct link_op, link);

	if (!op)
		return false;
	l->heard_ns = dray_now().ns;
	if (op->fn)
		op->fn(op->arg, op->answered, r);
	if (++op->answered == op->n)
		op_free(op);
	return true;
}

static int read_answers(struct link *l, const void *p, size_t n, struct dray_err *reterr)
{
	redisReply *r;
	int ret = answers_feed(l->answers, p, n, reterr);

	while (ret >= 0 && !l->failing) {
		ret = answers_next(l->answers, &r, reterr);
		if (ret < 0 || !r)
			return ret;
		if (!give(l, r))
			ret = dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
					   "it sends an answer to nothing that was asked");
		freeReplyObject(r);
	}
	return ret;
}

static bool on_received(void *arg, const void *p, size_t n)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct link *l = arg;

	if (read_answers(l, p, n, &err) >= 0)
		return true;
	end(l, &err);
	return false;
}

static void on_ended(void *arg, const struct dray_err *why)
{
	end(arg, why);
}

/* --- commands ----------------------------------------------------------------------------------------- */

static struct link_op *op_new(struct link *l, link_answer_fn fn, void *arg)
{
	struct link_op *op = malloc(sizeof(*op));

	if (!op)
		return NULL;
	*op = (struct link_op){ .fn = fn, .arg = arg, .sent_ns = dray_now().ns };
	if (dray_list_empty(&l->ops) && !l->failing)
		wake_in(l, silence_ns(l));
	dray_list_add(&l->ops, &op->link);
	return op;
}

void link_command(struct link *l, struct link_op *op, const struct link_word *words, unsigned n)
{
	const char *argv[WORDS_MAX];
	size_t lengths[WORDS_MAX];
	char *text = NULL;
	int bytes;

	dray_assert(n <= WORDS_MAX);
	for (unsigned i = 0; i < n; i++) {
		argv[i] = words[i].p;
		lengths[i] = words[i].n;
	}
	bytes = redisFormatCommandArgv(&text, (int)n, argv, lengths);
	if (bytes < 0 || !stream_put(l->stream, text, (size_t)bytes))
		link_fail(l, DRAY_E_NO_MEMORY, "no memory for a command");
	if (text)
		redisFreeCommand(text);
	op->n++;
}

void link_send(struct link *l)
{
	if (l->stream)
		stream_flush(l->stream);
}

void link_send_soon(struct link *l)
{
	if (l->stream)
		stream_flush_soon(l->stream);
}

void link_op_forget(struct link_op *op)
{
	op->fn = NULL;
}

/* --- connecting --------------------------------------------------------------------------------------- */

enum greeting { GREETING_AUTH, GREETING_SELECT, GREETING_TIME };

static const char *advice(const struct link *l, enum greeting g, const redisReply *r)
{
	static const char *const advices[REFUSAL_N] = {
		[REFUSAL_CLIENTS] =
			"the server has as many clients as it allows: raise its maxclients",
		[REFUSAL_HOST] =
			"the server allows connections from its own host alone: give it a password, or "
			"set its protected-mode to no",
		[REFUSAL_AUTH] =
			"the server refuses this agent: see the user in store.directory, and "
			"the password in store.directory_password_file",
		[REFUSAL_DENIED] =
			"the user in store.directory may not use this command there: see "
			"docs/store.md for the commands that agents need",
		[REFUSAL_LOADING] = "the server is still loading its data",
		[REFUSAL_SCRIPT] = "a script keeps the server busy",
	};
	enum refusal refusal = answer_refusal(r);

	if (refusal == REFUSAL_AUTH && !l->cfg.login->n_password)
		return "the server wants a password: name a file with it in "
		       "store.directory_password_file";
	if (advices[refusal])
		return advices[refusal];
	if (g == GREETING_AUTH)
		return "the server does not take the password as this agent sends it: is it a server of "
		       "Redis or Valkey, and of version 6 or later if store.directory has a user?";
	return g == GREETING_SELECT ? "the server does not have the database in store.directory" :
				      "is it a server of Redis or Valkey?";
}

static void refused(struct link *l, enum greeting g, const redisReply *r)
{
	char text[80], why[DRAY_ERR_MSG_MAX];

	/* some servers repeat what they have been sent */
	if (r->type == REDIS_REPLY_ERROR && g == GREETING_AUTH)
		snprintf(why, sizeof(why), "%s", advice(l, g, r));
	else if (r->type == REDIS_REPLY_ERROR)
		snprintf(why, sizeof(why), "%s (%s)", advice(l, g, r),
			 answer_text(r, text, sizeof(text)));
	else
		snprintf(why, sizeof(why),
			 "its answer to a greeting is malformed; is it a server of "
			 "Redis or Valkey?");
	link_fail(l, DRAY_E_DENIED, why);
}

static bool is_ok(const redisReply *r)
{
	return r->type == REDIS_REPLY_STATUS && !strcmp(r->str, "OK");
}

static void greeted(struct link *l, enum greeting g, const redisReply *r)
{
	int64_t ms = 0;

	if (!r || l->failing)
		return;
	if (g == GREETING_TIME ? answer_time(r, &ms) < 0 : !is_ok(r)) {
		refused(l, g, r);
		return;
	}
	if (g != GREETING_TIME)
		return;
	l->server_ms = ms - dray_now().ns / DRAY_NS_PER_MS;
	if (l->up)
		return;
	l->up = true;
	l->up_ns = dray_now().ns;
	l->cfg.up(l->cfg.arg);
}

static void on_auth(void *arg, uint32_t i, const redisReply *r)
{
	greeted(arg, GREETING_AUTH, r);
}

static void on_select(void *arg, uint32_t i, const redisReply *r)
{
	greeted(arg, GREETING_SELECT, r);
}

static void on_time(void *arg, uint32_t i, const redisReply *r)
{
	greeted(arg, GREETING_TIME, r);
}

/* A sentinel. */
static void on_pong(void *arg, uint32_t i, const redisReply *r)
{
	struct link *l = arg;
	char text[80], why[DRAY_ERR_MSG_MAX];

	if (!r || l->failing)
		return;
	if (r->type != REDIS_REPLY_STATUS || strcmp(r->str, "PONG") != 0) {
		snprintf(why, sizeof(why), "it is no sentinel that answers without a password (%s)",
			 r->type == REDIS_REPLY_ERROR ? answer_text(r, text, sizeof(text)) :
							"its answer is malformed");
		link_fail(l, DRAY_E_DENIED, why);
		return;
	}
	l->up = true;
	l->up_ns = dray_now().ns;
	l->cfg.up(l->cfg.arg);
}

/* Sends a command of the greeting. */
static void greet(struct link *l, link_answer_fn fn, const struct link_word *words, unsigned n)
{
	struct link_op *op = op_new(l, fn, l);

	if (op)
		link_command(l, op, words, n);
	else
		link_fail(l, DRAY_E_NO_MEMORY, "no memory for a command");
}

static struct link_word word(const char *text)
{
	return (struct link_word){ text, strlen(text) };
}

static void time_ask(struct link *l)
{
	l->asked_ns = dray_now().ns;
	greet(l, on_time, (struct link_word[]){ word("TIME") }, 1);
}

static void on_opened(void *arg)
{
	struct link *l = arg;
	const struct link_login *login = l->cfg.login;
	struct link_word password = { login->password, login->n_password };
	char database[16];

	l->heard_ns = dray_now().ns;
	if (l->cfg.is_sentinel) {
		greet(l, on_pong, (struct link_word[]){ word("PING") }, 1);
		stream_flush(l->stream);
		return;
	}
	snprintf(database, sizeof(database), "%u", login->database);
	if (password.n && *login->user)
		greet(l, on_auth, (struct link_word[]){ word("AUTH"), word(login->user), password },
		      3);
	else if (password.n)
		greet(l, on_auth, (struct link_word[]){ word("AUTH"), password }, 2);
	if (login->database)
		greet(l, on_select, (struct link_word[]){ word("SELECT"), word(database) }, 2);
	time_ask(l);
	stream_flush(l->stream);
}

struct link_op *link_begin(struct link *l, link_answer_fn fn, void *arg)
{
	if (!l->up || l->failing || stream_unsent(l->stream) > STREAM_BYTES_MAX / 2)
		return NULL;
	if (!l->cfg.is_sentinel && dray_now().ns > l->asked_ns + TIME_NS)
		time_ask(l);
	return op_new(l, fn, arg);
}

static int start(struct link *l, struct dray_err *reterr)
{
	const struct stream_config cfg = { .event = l->cfg.event,
					   .resolver = l->cfg.resolver,
					   .tls = l->cfg.tls,
					   .host = l->cfg.host,
					   .port = l->cfg.port,
					   .timeout_ns = silence_ns(l),
					   .opened = on_opened,
					   .received = on_received,
					   .ended = on_ended,
					   .arg = l };

	l->answers = answers_new();
	if (!l->answers)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory");
	return stream_open(&l->stream, &cfg, reterr);
}

/* Is the server silent, or when may it be? */
static void check_silence(struct link *l)
{
	const struct link_op *op = dray_list_first(&l->ops, struct link_op, link);
	int64_t since, now = dray_now().ns;
	struct dray_err why;
	char time[32];

	if (!op)
		return;
	since = dray_max(op->sent_ns, l->heard_ns);
	if (now < since + silence_ns(l)) {
		wake_in(l, since + silence_ns(l) - now);
		return;
	}
	why = dray_err_of(DRAY_E_TIMEOUT, "it has not answered for %s",
			  dray_duration_show(silence_ns(l), time, sizeof(time)));
	end(l, &why);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct link *l = arg;

	if (l->failing)
		end(l, &l->why);
	else if (l->stream)
		check_silence(l);
	else if (start(l, &err) < 0)
		end(l, &err);
	return 0;
}

bool link_is_up(const struct link *l)
{
	return l->up && !l->failing;
}

bool link_is_late(const struct link *l)
{
	const struct link_op *op = dray_list_first(&l->ops, struct link_op, link);

	if (!link_is_up(l))
		return true;
	return op && dray_now().ns > op->sent_ns + l->cfg.late_ns;
}

int64_t link_time_ms(const struct link *l)
{
	return l->server_ms + dray_now().ns / DRAY_NS_PER_MS;
}

int link_new(struct link **ret, const struct link_config *cfg, struct dray_err *reterr)
{
	struct link *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory");
	l->cfg = *cfg;
	dray_list_init(&l->ops);
	r = sd_event_add_time_relative(cfg->event, &l->timer, CLOCK_MONOTONIC, 0, 1000, on_timer,
				       l);
	if (r < 0) {
		link_free(l);
		return dray_err_set(reterr, r, DRAY_E_IO, "%s", dray_errno_text(r));
	}
	*ret = l;
	return 0;
}

struct link *link_free(struct link *l)
{
	if (!l)
		return NULL;
	sd_event_source_disable_unref(l->timer);
	stream_close(l->stream);
	answers_free(l->answers);
	dray_list_for_each(&l->ops, op, struct link_op, link)
		op_free(op);
	free(l);
	return NULL;
}
