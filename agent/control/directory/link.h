/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection to a server of the directory, which is made again, after a pause, whenever it ends. Commands are answered in order. What a
 * command is for must not depend on its answer: it may never come. Control thread only.
 */
#pragma once

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/control/directory/stream.h"
#include "lib/list.h"

struct link;

/* Who the agent is to the servers. The texts are borrowed. */
struct link_login {
	const char *user; /* empty: the default user */
	const char *password;
	size_t n_password; /* 0: there is none */
	unsigned database;
};

struct link_config {
	sd_event *event;
	struct resolver *resolver;
	SSL_CTX *tls; /* NULL: without TLS */
	const char *host;
	unsigned port;
	const struct link_login *login;
	bool is_sentinel; /* which has no database and no time */
	int64_t late_ns;  /* an answer that takes longer is late */
	/* It accepts commands now. */
	void (*up)(void *arg);
	/* It does not any more, or an attempt has failed. Commands without an answer get none. May end the link. */
	void (*down)(void *arg, const struct dray_err *why);
	void *arg;
};

/* An argument of a command. */
struct link_word {
	const void *p;
	size_t n;
};

/* Commands of one kind, sent one after the other. */
struct link_op;
/*
 * The answer to command number i of the op. NULL: none will come to this one and those behind it. The answer is freed afterwards. May not
 * end the link.
 */
typedef void (*link_answer_fn)(void *arg, uint32_t i, const redisReply *r);

/* Begins to connect. No function of the configuration is called inside. 0, or -errno with reterr. */
int link_new(struct link **ret, const struct link_config *cfg, struct dray_err *reterr);
/* Ends without a call of a function. NULL is allowed. Returns NULL. */
struct link *link_free(struct link *l);

bool link_is_up(const struct link *l);
/* An answer has been late for a moment, or the link is not up: what is asked now would be late, too. */
bool link_is_late(const struct link *l);
/* Unix time of the server in milliseconds, while the link is up. */
int64_t link_time_ms(const struct link *l);

/* NULL: the link is not up, too much waits to be sent, or there is no memory. */
struct link_op *link_begin(struct link *l, link_answer_fn fn, void *arg);
/* Adds a command. A failure ends the link in a turn of its own. */
void link_command(struct link *l, struct link_op *op, const struct link_word *words, unsigned n);
/* Sends the commands so far. */
void link_send(struct link *l);
/* The same in the next turn, for many commands that come one by one. */
void link_send_soon(struct link *l);
/* Its function is not called any more. */
void link_op_forget(struct link_op *op);

/* Ends the connection in a turn of its own, and makes it again. */
void link_fail(struct link *l, int code, const char *why);
