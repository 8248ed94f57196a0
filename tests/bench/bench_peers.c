/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many peers of one agent in one process: each has an agent id and a connection of its own, and answers heartbeats.
 *
 *     bench_peers --connect ADDRESS:PORT
 *
 * Commands: "join N" connects N more peers at once and waits until all are ready; "busy N" the same, with peers that never rest, so
 * that the agent sends them a heartbeat every second; "leave N" closes the connections of the N that joined last; "wait MS" serves
 * that long; "ended 0" waits until the agent has closed all connections. A refused attempt is repeated as agents do.
 */
#include <signal.h>
#include <systemd/sd-event.h>

#include "agent/control/peer/conn.h"
#include "lib/assert.h"
#include "lib/backoff.h"
#include "lib/time.h"
#include "schema/gen/peer.h"
#include "tests/bench/bench.h"

#define PEERS_MAX 4096
#define REST_MS 15000
#define BACKOFF_MIN (50 * DRAY_NS_PER_MS)
#define BACKOFF_MAX (5 * DRAY_NS_PER_SEC)

static struct peer {
	struct conn *conn;
	sd_event_source *retry;
	unsigned attempts;
	bool busy, ready;
	int64_t heard_ns; /* the last message, of a ready peer */
	uint64_t heartbeats;
} peers[PEERS_MAX];

static struct {
	sd_event *event;
	struct tls *tls;
	struct dray_addr to;
	unsigned n, ready;
	unsigned refused; /* attempts */
	unsigned lost;    /* connections that ended although they were ready */
	uint64_t heard;   /* heartbeats */
	int64_t gap_ns;   /* longest silence of the agent towards a busy peer */
} all;

static void dial(struct peer *p);

static unsigned number(const struct peer *p)
{
	return (unsigned)(p - peers);
}

static void say_hello(struct peer *p)
{
	char segment[32];
	union pmsg_body m = { .hello = {
				      .agent = { .major_min = PMSG_MAJOR,
						 .major_max = PMSG_MAJOR,
						 .incarnation = 1,
						 .version = { "bench", 5 } },
				      .heartbeat_ms = 1000,
				      .features = PMSG_FEATURE_TCP,
			      } };

	m.hello.agent_id[0] =
		0xff; /* above the agent's own id or not: it never connects to a peer */
	m.hello.agent_id[14] = (uint8_t)(number(p) >> 8);
	m.hello.agent_id[15] = (uint8_t)number(p);
	m.hello.segment.p = segment;
	m.hello.segment.n = (uint32_t)snprintf(segment, sizeof(segment), "127.1.%u.%u:7411",
					       number(p) >> 8, number(p) & 0xff);
	conn_send_message(p->conn, PMSG_HELLO, 0, &m);
}

static void answer_heartbeat(struct peer *p, const uint8_t *body, uint32_t n)
{
	struct pmsg_heartbeat h;
	union pmsg_body m = { .heartbeat = { .sequence = ++p->heartbeats } };

	dray_assert(pmsg_heartbeat_decode(body, n, &h, NULL) == 0);
	all.heard++;
	if (h.rest_ms && !p->busy)
		m.heartbeat.rest_ms = REST_MS;
	conn_send_message(p->conn, PMSG_HEARTBEAT, 0, &m);
}

static void on_message(struct conn *c, const struct pmsg_header *h, const uint8_t *body)
{
	struct peer *p = c->owner;
	int64_t now = dray_now().ns;

	if (p->ready && p->busy)
		all.gap_ns = dray_max(all.gap_ns, now - p->heard_ns);
	p->heard_ns = now;
	if (h->type == PMSG_HELLO) {
		say_hello(p);
	} else if (h->type == PMSG_READY) {
		p->ready = true;
		p->attempts = 0;
		all.ready++;
	} else if (h->type == PMSG_HEARTBEAT) {
		answer_heartbeat(p, body, h->length);
	}
}

/* Handshakes that have begun come first, so that the agent does not wait for this process more than for 1,000 hosts. */
static void on_connected(struct conn *c)
{
	conn_set_priority(c, SD_EVENT_PRIORITY_NORMAL - 1);
}

static void on_secured(struct conn *c)
{
	conn_set_priority(c, SD_EVENT_PRIORITY_NORMAL);
}

static int on_retry(sd_event_source *s, uint64_t usec, void *userdata)
{
	struct peer *p = userdata;

	p->retry = sd_event_source_disable_unref(p->retry);
	dial(p);
	return 0;
}

static void retry(struct peer *p)
{
	int64_t pause = backoff_spread(backoff_pause(++p->attempts, BACKOFF_MIN, BACKOFF_MAX));

	all.refused++;
	dray_assert(sd_event_add_time_relative(all.event, &p->retry, CLOCK_MONOTONIC,
					       (uint64_t)pause / 1000, 1, on_retry, p) >= 0);
}

static void on_failed(struct conn *c, const struct dray_err *why)
{
	struct peer *p = c->owner;

	p->conn = conn_free(p->conn);
	if (p->ready) {
		p->ready = false;
		all.ready--;
		all.lost++;
		return;
	}
	retry(p);
}

static const struct conn_ops ops = {
	.connected = on_connected, .secured = on_secured, .message = on_message, .failed = on_failed
};

static void dial(struct peer *p)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (conn_dial(&p->conn, all.event, all.tls, &all.to, &ops, p, &err) < 0)
		retry(p);
}

static void join(unsigned n, bool busy)
{
	if (all.n + n > PEERS_MAX)
		bench_die("at most %d peers", PEERS_MAX);
	for (unsigned i = 0; i < n; i++) {
		peers[all.n].busy = busy;
		dial(&peers[all.n++]);
		while (sd_event_run(all.event, 0) > 0)
			;
	}
	while (all.ready < all.n)
		dray_assert(sd_event_run(all.event, UINT64_MAX) >= 0);
}

static void leave(unsigned n)
{
	while (n-- && all.n) {
		struct peer *p = &peers[--all.n];

		p->conn = conn_free(p->conn);
		p->retry = sd_event_source_disable_unref(p->retry);
		all.ready -= p->ready;
		p->ready = false;
	}
}

static void serve(int64_t ms)
{
	int64_t end = dray_now().ns + ms * DRAY_NS_PER_MS, left;

	while ((left = end - dray_now().ns) > 0)
		dray_assert(sd_event_run(all.event, (uint64_t)left / 1000 + 1) >= 0);
}

static bool command(char *word, uint64_t n)
{
	if (!strcmp(word, "join") || !strcmp(word, "busy")) {
		join((unsigned)n, *word == 'b');
	} else if (!strcmp(word, "leave")) {
		leave((unsigned)n);
	} else if (!strcmp(word, "wait")) {
		serve((int64_t)n);
	} else if (!strcmp(word, "ended")) {
		while (all.ready)
			dray_assert(sd_event_run(all.event, UINT64_MAX) >= 0);
	} else {
		return false;
	}
	return true;
}

static void answer(char *line)
{
	int64_t since = dray_now().ns;
	unsigned long long n;
	char word[32];

	if (sscanf(line, "%31s %llu", word, &n) != 2)
		bench_die("not a command: %s", line);
	all.refused = all.lost = 0;
	all.heard = 0;
	all.gap_ns = 0;
	if (!command(word, n))
		bench_die("no command %s", word);
	printf("{\"seconds\": %.6f, \"ready\": %u, \"refused\": %u, \"lost\": %u, \"heartbeats\": %" PRIu64
	       ", \"gap\": %.6f}\n",
	       (double)(dray_now().ns - since) / 1e9, all.ready, all.refused, all.lost, all.heard,
	       (double)all.gap_ns / 1e9);
	fflush(stdout);
}

static int on_input(sd_event_source *s, int fd, uint32_t revents, void *userdata)
{
	*(bool *)userdata = true;
	return 0;
}

int main(int argc, char **argv)
{
	sd_event_source *input;
	struct rlimit files;
	char line[128];
	bool due;

	if (argc != 3 || strcmp(argv[1], "--connect") || dray_addr_parse(argv[2], &all.to) < 0)
		bench_die("usage: bench_peers --connect ADDRESS:PORT");
	signal(SIGPIPE, SIG_IGN);
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	setvbuf(stdin, NULL, _IONBF, 0);
	if (tls_new(&all.tls, NULL, NULL, NULL) < 0 || sd_event_new(&all.event) < 0 ||
	    sd_event_add_io(all.event, &input, STDIN_FILENO, EPOLLIN, on_input, &due) < 0)
		bench_die("no memory");
	do {
		/* peers are served between commands too */
		sd_event_source_set_enabled(input, SD_EVENT_ON);
		due = false;
		while (!due)
			dray_assert(sd_event_run(all.event, UINT64_MAX) >= 0);
		sd_event_source_set_enabled(input, SD_EVENT_OFF);
		if (fgets(line, sizeof(line), stdin))
			answer(line);
	} while (!feof(stdin));
	leave(all.n);
	sd_event_source_unref(input);
	sd_event_unref(all.event);
	tls_free(all.tls);
	return 0;
}
