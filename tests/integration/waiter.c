/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that makes small transfers, one at a time: waiter SOCKET [spin_us]. Each line of standard input is a
 * number of transfers. Each line of standard output is JSON: how it waited for them, and the kernel's count of the
 * thread's voluntary context switches. If it cannot connect, the line has the reason.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "client/dray.h"

#define BYTES 65536

static void die(const char *what, const char *why)
{
	fprintf(stderr, "waiter: %s: %s\n", what, why);
	exit(1);
}

static void check(struct dray *d, int error, const char *what)
{
	if (error)
		die(what, dray_last_error(d));
}

static void trips(struct dray *d, struct dray_transfer *t, uint8_t *from, const uint8_t *to,
		  unsigned n)
{
	struct dray_completion c;
	uint64_t id;

	for (unsigned i = 0; i < n; i++) {
		memset(from, (int)(i % 251 + 1), 64);
		check(d, dray_submit(d, t, &id), "submit");
		check(d, dray_wait(d, id, 20000, &c), "wait");
		if (c.status || memcmp(from, to, 64))
			die("transfer", c.status ? c.message : "the bytes did not arrive");
	}
}

int main(int argc, char **argv)
{
	struct dray_options o = { .name = "waiter", .flags = DRAY_OPTION_WAIT };
	struct dray_op op = { .length = 64 };
	struct dray_transfer t = { .direction = DRAY_DIRECTION_WRITE, .ops = &op, .count = 1 };
	struct dray_memory from, to;
	struct dray_token token;
	dray_region theirs;
	char line[64], why[256];
	struct dray *d;

	if (argc < 2)
		die("usage", "waiter SOCKET [SPIN_US]");
	o.socket = argv[1];
	o.spin_us = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
	if (dray_connect(&o, &d, why, sizeof(why))) {
		printf("{\"why\": \"");
		for (const char *p = why; *p; p++)
			printf(*p == '"' ? "\\%c" : "%c", *p);
		printf("\"}\n");
		return 2;
	}
	if (dray_memory_alloc(BYTES, 0, &from) || dray_memory_alloc(BYTES, 0, &to))
		die("memory", "cannot be allocated");
	check(d, dray_region_add_memory(d, &from, DRAY_READ | DRAY_WRITE, &t.local), "region");
	check(d, dray_region_add_memory(d, &to, DRAY_READ | DRAY_WRITE, &theirs), "region");
	check(d, dray_region_export(d, theirs, NULL, &token), "export");
	check(d, dray_remote_import(d, &token, 0, &t.remote), "import");
	while (fgets(line, sizeof(line), stdin)) {
		struct dray_info before, after;
		struct rusage usage[2];

		getrusage(RUSAGE_SELF, &usage[0]);
		check(d, dray_get_info(d, &before), "info");
		trips(d, &t, from.address, to.address, (unsigned)strtoul(line, NULL, 10));
		check(d, dray_get_info(d, &after), "info");
		getrusage(RUSAGE_SELF, &usage[1]);
		printf("{\"spin_ns\": %" PRIu64 ", \"spun\": %" PRIu64 ", \"slept\": %" PRIu64
		       ", \"switches\": %ld}\n",
		       after.spin_ns, after.waits_spun - before.waits_spun,
		       after.waits_slept - before.waits_slept,
		       usage[1].ru_nvcsw - usage[0].ru_nvcsw);
		fflush(stdout);
	}
	dray_disconnect(d);
	dray_memory_free(&from);
	dray_memory_free(&to);
	return 0;
}
