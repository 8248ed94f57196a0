/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store and forward: a relay copies blocks from a producer into memory of its own, and a consumer
 * fetches them later, when the producer is gone. Each is a process; they pass tokens through
 * sockets.
 *
 *     cc -O2 -Wall relay.c $(pkg-config --cflags --libs dray) -o relay
 *     ./relay SOCKET [SOCKET OF THE PRODUCER'S AGENT]
 */
#include <dray/dray.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK (64u << 10)
#define BLOCKS 32u
#define PATIENCE_MS 30000

/* After a failed call: prints the name of the error, its text and the next step, and exits. */
static void check(const char *what, struct dray *d, int error)
{
	if (error < 0)
		errx(1, "%s: %s: %s\n  fix: %s", what, dray_strerrorname(error),
		     d ? dray_last_error(d) : dray_strerror(error), dray_strerrorfix(error));
}

static struct dray *connect_agent(const char *socket, const char *group)
{
	struct dray_options options = { .socket = socket, .group = group };
	struct dray *d;
	char why[256];
	int error = dray_connect(&options, &d, why, sizeof(why));

	if (error)
		errx(1, "%s: %s: %s\n  fix: %s", group, dray_strerrorname(error), why,
		     dray_strerrorfix(error));
	return d;
}

/* Sends a token to another process. */
static void token_send(int to, struct dray *d, dray_region region, const struct dray_export *what)
{
	struct dray_token token;

	check("export", d, dray_region_export(d, region, what, &token));
	if (write(to, token.text, sizeof(token.text)) != sizeof(token.text))
		err(1, "sending a token");
}

/* Imports the next token of another process. */
static dray_remote token_receive(int from, struct dray *d)
{
	char text[DRAY_TOKEN_TEXT_MAX];
	struct dray_token token;
	dray_remote remote;

	if (read(from, text, sizeof(text)) != sizeof(text))
		errx(1, "there is no further token");
	check("token", NULL, dray_token_parse(text, &token));
	check("import", d, dray_remote_import(d, &token, PATIENCE_MS, &remote));
	return remote;
}

/* Offers one block after the other, each by a token for one import. */
static void produce(const char *socket, int relay)
{
	struct dray *d = connect_agent(socket, "producer");
	struct dray_memory memory;
	dray_region region;
	char stored;

	check("memory", NULL, dray_memory_alloc((uint64_t)BLOCK * BLOCKS, 0, &memory));
	check("region", d, dray_region_add_memory(d, &memory, DRAY_READ, &region));
	for (unsigned int i = 0; i < BLOCKS; i++) {
		struct dray_export one = { .offset = (uint64_t)i * BLOCK,
					   .length = BLOCK,
					   .access = DRAY_READ,
					   .single_use = 1 };

		memset((char *)memory.address + (size_t)i * BLOCK, (int)i + 1, BLOCK);
		token_send(relay, d, region, &one);
		if (read(relay, &stored, 1) != 1)
			errx(1, "the relay has not stored block %u", i);
	}
	/* Nothing reads the memory any more, and it can be reused. */
	check("remove", d, dray_region_remove(d, region));
	dray_memory_free(&memory);
	dray_disconnect(d);
}

/* Fetches all blocks at once. */
static void consume(const char *socket, int relay)
{
	struct dray *d = connect_agent(socket, "consumer");
	struct dray_transfer transfers[BLOCKS];
	struct dray_op ops[BLOCKS];
	struct dray_memory memory;
	dray_region region;
	uint64_t ids[BLOCKS];
	int started = 0;

	check("memory", NULL, dray_memory_alloc((uint64_t)BLOCK * BLOCKS, 0, &memory));
	check("region", d, dray_region_add_memory(d, &memory, DRAY_WRITE, &region));
	for (unsigned int i = 0; i < BLOCKS; i++) {
		ops[i] = (struct dray_op){ .local = (uint64_t)i * BLOCK, .length = BLOCK };
		transfers[i] = (struct dray_transfer){ .local = region,
						       .remote = token_receive(relay, d),
						       .direction = DRAY_DIRECTION_READ,
						       .ops = &ops[i],
						       .count = 1,
						       .deadline_ms = PATIENCE_MS };
	}
	started = dray_submit_many(d, transfers, BLOCKS, ids);
	check("read", d, started);
	if (started < (int)BLOCKS)
		errx(1, "only %d transfers were started: %s", started, dray_last_error(d));
	for (unsigned int i = 0; i < BLOCKS; i++) {
		struct dray_completion c;

		check("wait", d, dray_wait(d, ids[i], -1, &c));
		if (c.status)
			errx(1, "block %u: %s: %s\n  fix: %s", i, dray_strerrorname(c.status),
			     c.message, dray_strerrorfix(c.status));
		if (((unsigned char *)memory.address)[(size_t)i * BLOCK] != i + 1)
			errx(1, "block %u is wrong", i);
	}
	check("remove", d, dray_region_remove(d, region));
	dray_memory_free(&memory);
	dray_disconnect(d);
}

/* Reads each block that the producer offers into a pool; offers the copies when all are there. */
static void store(const char *socket, int producer, int consumer, pid_t producer_pid)
{
	struct dray *d = connect_agent(socket, "relay");
	dray_region pool;
	int status;

	/* A pool is memory of the agent. */
	check("pool", d,
	      dray_region_add_pool(d, (uint64_t)BLOCK * BLOCKS, DRAY_READ | DRAY_WRITE, 0, &pool));
	for (unsigned int i = 0; i < BLOCKS; i++) {
		struct dray_op op = { .local = (uint64_t)i * BLOCK, .length = BLOCK };
		struct dray_transfer t = { .local = pool,
					   .remote = token_receive(producer, d),
					   .direction = DRAY_DIRECTION_READ,
					   .ops = &op,
					   .count = 1,
					   .deadline_ms = PATIENCE_MS };

		check("store", d, dray_run(d, &t, NULL));
		check("release", d, dray_remote_release(d, t.remote));
		if (write(producer, "", 1) != 1)
			err(1, "answering the producer");
	}
	if (waitpid(producer_pid, &status, 0) < 0 || status)
		errx(1, "the producer has failed");

	for (unsigned int i = 0; i < BLOCKS; i++) {
		struct dray_export one = { .offset = (uint64_t)i * BLOCK,
					   .length = BLOCK,
					   .access = DRAY_READ,
					   .ttl_ms = 600000 };

		token_send(consumer, d, pool, &one);
	}
	/* The consumer closes its end when it has all blocks. */
	if (read(consumer, &status, 1) != 0)
		errx(1, "the consumer has sent something");
	check("remove", d, dray_region_remove(d, pool));
	dray_disconnect(d);
}

/* Starts a process with a socket to it, before any session is open. */
static pid_t spawn(void (*role)(const char *, int), const char *socket, int *ret_socket)
{
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		err(1, "socketpair");
	pid = fork();
	if (pid < 0)
		err(1, "fork");
	if (pid == 0) {
		close(pair[0]);
		role(socket, pair[1]);
		exit(0);
	}
	close(pair[1]);
	*ret_socket = pair[0];
	return pid;
}

int main(int argc, char **argv)
{
	int to_producer, to_consumer, status;
	pid_t producer, consumer;

	if (argc < 2)
		errx(2, "usage: relay SOCKET [SOCKET OF THE PRODUCER'S AGENT]");
	producer = spawn(produce, argv[argc - 1], &to_producer);
	consumer = spawn(consume, argv[1], &to_consumer);
	store(argv[1], to_producer, to_consumer, producer);
	if (waitpid(consumer, &status, 0) < 0 || status)
		errx(1, "the consumer has failed");
	puts("copied");
	return 0;
}
