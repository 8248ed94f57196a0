/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile HTTP clients against the real pages, with fake workers. The input is a script: bytes of the client,
 * answers of the workers, the client's timeout, the client's end. Each answer must be HTTP with one of the
 * server's statuses, and nothing may be left at the end, whatever the script did.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/control/agent.h"
#include "agent/control/http/internal.h"
#include "agent/control/status/ready.h"
#include "lib/cleanup.h"
#include "lib/log.h"

/* The script is a sequence of: N up to this number and N bytes that the client sends, or one of the words. */
#define BYTES_MAX 252
#define WORD_PAUSE 253 /* the connection times out */
#define WORD_ANSWER 254
#define WORD_CLOSE 255

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
	struct config config;
	struct agent agent;
	struct http *http;
	struct dray_list asked;
	struct transfers_query *query;
	bool overdue;
} fake;

static void check(bool ok)
{
	if (!ok)
		abort();
}

/* --- the agent ---------------------------------------------------------------------------------- */

void agent_list_transfers(struct agent *a, enum listing_kind kind, struct transfers_query *q)
{
	check(!fake.query);
	fake.query = q;
	dray_list_add(&fake.asked, &q->link);
	a->listings[kind].missing = 1;
}

static void workers_answer(void)
{
	struct snapshot s = { .in_flight = 1,
			      .first_due = { .left_ns = fake.overdue ? -DRAY_NS_PER_SEC : 1 } };
	struct snapshot *one = &s;
	struct transfers_query *q = dray_take(fake.query);

	if (!q)
		return;
	dray_list_del(&q->link);
	q->fn(q, &one, 1);
}

void agent_metrics(struct agent *a, uint64_t v[DRAY_METRIC_N])
{
	for (unsigned m = 0; m < DRAY_METRIC_N; m++)
		v[m] = m;
}

void agent_samples(struct agent *a, enum dray_family f, const struct store_shown *spaces,
		   struct metrics_text *t)
{
	static const char *const labels[DRAY_FAMILY_LABELS_MAX] = { "a\"b\\\n", "", "c", "d" };

	metrics_sample(t, labels, 1);
}

void agent_ready(struct agent *a, struct ready *ret)
{
	*ret = (struct ready){ .ready = !fake.overdue, .n = 1 };
	ret->conditions[0] =
		(struct dray_dbus_condition){ "running", true, true, "\"quoted\" \xff" };
}

/* --- the client --------------------------------------------------------------------------------- */

static void turn(void)
{
	while (sd_event_run(fake.agent.event, 0) > 0)
		;
}

static void answers_check(int fd)
{
	static const char *const served[] = { "200", "400", "404", "405", "408", "411", "413",
					      "414", "417", "431", "501", "503", "505", "100" };
	char buf[65536];
	ssize_t n = recv(fd, buf, sizeof(buf) - 1, MSG_DONTWAIT);
	bool known = false;

	if (n <= 0)
		return;
	buf[n] = '\0';
	check(!strncmp(buf, "HTTP/1.", 7) || !strncmp(buf, "HTTP/1.", (size_t)n));
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(served); i++)
		known |= n > 12 && !strncmp(buf + 9, served[i], 3);
	check(known);
}

static void start(void)
{
	static const struct config_args none = { .file = "" };
	static char address[] = "127.0.0.1:0";
	static char *where[] = { address };
	struct dray_err err = DRAY_ERR_NULL;

	dray_log_set_level(DRAY_LOG_ERROR);
	check(config_load(&fake.config, &none, &err) == 0);
	dray_strv_clear(&fake.config.v.http.listen);
	fake.config.v.http.listen = fake.config.v.http.probe_listen =
		(struct dray_strv){ where, 1 };
	fake.config.v.transfer.slice_timeout = fake.config.v.peer.heartbeat_limit = 1;
	/* short, because only WORD_PAUSE waits for it */
	fake.config.v.http.timeout = 2 * DRAY_NS_PER_MS;
	fake.config.v.health.worker_limit = 60 * DRAY_NS_PER_SEC;
	dray_list_init(&fake.asked);
	fake.agent.config = &fake.config;
	check(sd_event_new(&fake.agent.event) >= 0);
	check(health_new(&fake.agent.health, &fake.agent) >= 0);
	check(http_new(&fake.http, &fake.agent, &err) >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* MHD requires an address, and reads only its family */
	const struct dray_addr from = { .in = { .sin_family = AF_INET }, .len = sizeof(from.in) };
	const uint8_t *p = data, *end = data + size;
	struct http_server *server;
	int pair[2];

	if (!fake.http)
		start();
	if (!size)
		return 0;
	check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	fake.overdue = *p & 2;
	server = *p++ & 1 ? &fake.http->probes : &fake.http->all;
	check(server_add(server, pair[1], &from) == 0);
	server_run(server);
	while (p < end) {
		uint8_t n = *p++;

		if (n == WORD_CLOSE)
			break;
		if (n == WORD_PAUSE)
			usleep(3000);
		if (n == WORD_ANSWER)
			workers_answer();
		if (n <= BYTES_MAX) {
			size_t bytes = dray_min((size_t)n, (size_t)(end - p));

			/* bytes that a closed connection does not accept are lost */
			if (send(pair[0], p, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
				check(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
			p += bytes;
		}
		turn();
	}
	answers_check(pair[0]);
	close(pair[0]);
	/* answers waiting requests, one after the other, until none is left */
	do {
		turn();
		workers_answer();
		turn();
	} while (fake.query);
	return 0;
}
