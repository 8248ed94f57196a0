/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines copy blocks of a KV cache: one owns them, the other reads them. Each is a process
 * with a session of its own.
 *
 *     cc -O2 -Wall copy_blocks.c $(pkg-config --cflags --libs dray) -o copy_blocks
 *     ./copy_blocks SOCKET [SOCKET OF THE OWNER'S AGENT]
 */
#include <dray/dray.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK (64u << 10)
#define BLOCKS 256u
#define READ_DONE 7u /* tag of the reader's notification */
#define PATIENCE_MS 30000

/* After a failed call: prints the name of the error, its text and the next step, and exits. */
static void check(const char *what, struct dray *d, int error)
{
	if (error < 0)
		errx(1, "%s: %s: %s\n  fix: %s", what, dray_strerrorname(error),
		     d ? dray_last_error(d) : dray_strerror(error), dray_strerrorfix(error));
}

static struct dray *connect_agent(const char *socket, const char *group, unsigned int flags)
{
	struct dray_options options = { .socket = socket, .group = group, .flags = flags };
	struct dray *d;
	char why[256];
	int error = dray_connect(&options, &d, why, sizeof(why));

	if (error)
		errx(1, "%s: %s: %s\n  fix: %s", group, dray_strerrorname(error), why,
		     dray_strerrorfix(error));
	return d;
}

/* Exports the cache, and waits until the reader has what it needs. */
static void own(const char *socket, int to_reader)
{
	struct dray *d = connect_agent(socket, "owner", DRAY_OPTION_NOTIFICATIONS);
	struct dray_export whole = { .access = DRAY_READ, .ttl_ms = 60000 };
	struct dray_memory cache;
	struct dray_token token;
	struct dray_event e;
	dray_region region;

	check("cache", NULL, dray_memory_alloc((uint64_t)BLOCK * BLOCKS, 0, &cache));
	for (unsigned int i = 0; i < BLOCKS; i++)
		memset((char *)cache.address + (size_t)i * BLOCK, (int)i, BLOCK);
	check("cache", d, dray_region_add_memory(d, &cache, DRAY_READ, &region));

	/* The token is a secret text. Engines send it in the metadata of a request. */
	check("export", d, dray_region_export(d, region, &whole, &token));
	if (write(to_reader, token.text, sizeof(token.text)) != sizeof(token.text))
		err(1, "token");

	do {
		int n = dray_process(d, PATIENCE_MS);

		check("notification", d, n);
		if (n == 0)
			errx(1, "the reader has not finished within %d ms", PATIENCE_MS);
	} while (dray_next_event(d, &e) != 1 || e.type != DRAY_EVENT_NOTIFICATION ||
		 e.tag != READ_DONE);

	/* After the removal nothing but this process accesses the memory. */
	check("remove", d, dray_region_remove(d, region));
	dray_memory_free(&cache);
	dray_disconnect(d);
}

/* Reads the blocks 0, 2, 4, ... of the owner into the blocks 0, 1, 2, ... here, in one transfer. */
static void read_blocks(const char *socket, int from_owner)
{
	struct dray *d = connect_agent(socket, "reader", 0);
	struct dray_op ops[BLOCKS / 2];
	struct dray_transfer t = { .direction = DRAY_DIRECTION_READ,
				   .ops = ops,
				   .count = BLOCKS / 2,
				   .deadline_ms = PATIENCE_MS };
	char text[DRAY_TOKEN_TEXT_MAX];
	struct dray_completion c;
	struct dray_memory copy;
	struct dray_token token;

	if (read(from_owner, text, sizeof(text)) != sizeof(text))
		errx(1, "the owner has sent no token");
	check("token", NULL, dray_token_parse(text, &token));
	check("import", d, dray_remote_import(d, &token, PATIENCE_MS, &t.remote));
	check("copy", NULL, dray_memory_alloc((uint64_t)BLOCK * BLOCKS / 2, 0, &copy));
	check("copy", d, dray_region_add_memory(d, &copy, DRAY_WRITE, &t.local));

	for (unsigned int i = 0; i < BLOCKS / 2; i++)
		ops[i] = (struct dray_op){ .local = (uint64_t)i * BLOCK,
					   .remote = (uint64_t)i * 2 * BLOCK,
					   .length = BLOCK };
	check("read", d, dray_run(d, &t, &c));
	for (size_t i = 0; i < copy.length; i++)
		if (((unsigned char *)copy.address)[i] != i / BLOCK * 2)
			errx(1, "byte %zu is wrong", i);
	printf("%llu bytes in %.1f ms\n", (unsigned long long)c.bytes, (double)c.duration_ns / 1e6);

	/* The owner learns that it can use its blocks again. */
	check("notify", d, dray_notify(d, t.remote, READ_DONE, NULL, 0));
	check("release", d, dray_remote_release(d, t.remote));
	check("remove", d, dray_region_remove(d, t.local));
	dray_memory_free(&copy);
	dray_disconnect(d);
}

int main(int argc, char **argv)
{
	int tokens[2], status;
	pid_t owner;

	if (argc < 2)
		errx(2, "usage: copy_blocks SOCKET [SOCKET OF THE OWNER'S AGENT]");
	if (pipe(tokens) < 0)
		err(1, "pipe");
	/* Before any session is open: a child cannot use the session of its parent. */
	owner = fork();
	if (owner < 0)
		err(1, "fork");
	if (owner == 0) {
		close(tokens[0]);
		own(argv[argc - 1], tokens[1]);
		return 0;
	}
	close(tokens[1]);
	read_blocks(argv[1], tokens[0]);
	if (waitpid(owner, &status, 0) < 0 || status != 0)
		errx(1, "the owner has failed");
	puts("copied");
	return 0;
}
