/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine with one session that submits transfers of different sizes at the same time, each of one operation.
 *
 *   bench_fair --socket PATH --owner PATH --local M --remote M --transfers BYTES[xCOUNT][,...] [--write]
 *
 * First line: {"transport": ...}. Then it answers
 *   together   submits all in the given order: seconds from then until each has ended, in this order
 *   whole      one transfer of as many bytes: the same
 */
#include <getopt.h>

#include "tests/bench/bench_session.h"

#define TRANSFERS_MAX 4096u

static struct dray *mine, *owner;
static struct dray_transfer transfer;
static struct dray_op ops[TRANSFERS_MAX];
static unsigned n;
static uint64_t all;

/* Transfers begin at multiples of this, so that none shares a page with another one. */
#define ALIGNED 4096

static void transfers_parse(char *text)
{
	char *rest = NULL;

	for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
		char *times = strchr(one, 'x');
		uint64_t count = 1, bytes;

		if (times) {
			*times = 0;
			count = bench_number(times + 1);
		}
		bytes = bench_number(one);
		if (!bytes || bytes % ALIGNED || !count || count > TRANSFERS_MAX - n)
			bench_die("transfers are whole pages, at most %u", TRANSFERS_MAX);
		for (uint64_t i = 0; i < count; i++) {
			ops[n++] = (struct dray_op){ all, all, bytes };
			all += bytes;
		}
	}
}

static uint64_t submit(const struct dray_op *op)
{
	uint64_t id;

	transfer.ops = op;
	transfer.count = 1;
	if (dray_submit(mine, &transfer, &id))
		bench_die("submit: %s", dray_last_error(mine));
	return id;
}

static void until_ended(const struct dray_op *list, unsigned count)
{
	static uint64_t ids[TRANSFERS_MAX];
	static double seconds[TRANSFERS_MAX];
	struct dray_completion c;
	int64_t begin = bench_ns();

	for (unsigned i = 0; i < count; i++)
		ids[i] = submit(&list[i]);
	for (unsigned left = count; left;) {
		if (dray_process(mine, -1) < 0)
			bench_die("the session was lost: %s", dray_last_error(mine));
		while (dray_next_completion(mine, &c) == 1) {
			unsigned i = 0;

			if (c.status)
				bench_die("transfer: %s: %s", dray_strerrorname(c.status),
					  c.message);
			while (ids[i] != c.id)
				i++;
			seconds[i] = (double)(bench_ns() - begin) / 1e9;
			left--;
		}
	}
	printf("{\"seconds\": [");
	for (unsigned i = 0; i < count; i++)
		printf("%s%.6f", i ? ", " : "", seconds[i]);
	bench_say("]}");
}

static void introduce(const struct bench_memory *local, const struct bench_memory *remote)
{
	struct dray_token token = bench_session_export(owner, bench_session_add(owner, remote));

	transfer.local = bench_session_add(mine, local);
	transfer.remote = bench_session_import(mine, &token);
	bench_say("{\"transport\": \"%s\"}", bench_session_transport(mine, transfer.remote));
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "owner", required_argument, NULL, 'o' },
		{ "local", required_argument, NULL, 'l' },
		{ "remote", required_argument, NULL, 'r' },
		{ "transfers", required_argument, NULL, 't' },
		{ "write", no_argument, NULL, 'w' },
		{ 0 },
	};
	struct bench_memory local = { 0 }, remote = { 0 };
	const char *socket = NULL, *owner_socket = NULL;
	uint64_t number;
	char word[16];
	int option;

	transfer.direction = DRAY_DIRECTION_READ;
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 's':
			socket = optarg;
			break;
		case 'o':
			owner_socket = optarg;
			break;
		case 'l':
			bench_memory_parse(optarg, &local);
			break;
		case 'r':
			bench_memory_parse(optarg, &remote);
			break;
		case 't':
			transfers_parse(optarg);
			break;
		case 'w':
			transfer.direction = DRAY_DIRECTION_WRITE;
			break;
		default:
			return 2;
		}
	}
	if (!socket || !owner_socket || !n || all > local.bytes || all > remote.bytes)
		bench_die("wrong usage; see the head of bench_fair.c");
	mine = bench_session_open(socket, DRAY_OPTION_NO_RECONNECT);
	owner = bench_session_open(owner_socket, DRAY_OPTION_NO_RECONNECT);
	introduce(&local, &remote);
	while (bench_command(word, &number)) {
		if (!strcmp(word, "together"))
			until_ended(ops, n);
		else if (!strcmp(word, "whole"))
			until_ended(&(struct dray_op){ 0, 0, all }, 1);
		else
			bench_die("no command %s", word);
	}
	dray_disconnect(mine);
	dray_disconnect(owner);
	return 0;
}
