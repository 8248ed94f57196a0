/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases from a client of one agent to a client of another one, some at once. Both clients are in this process.
 *
 *   bench_lease --owner SOCKET --holder SOCKET --ranges COUNT [--grant]
 *
 * A lease has COUNT ranges of 32 pieces of 4 KiB, as a request with COUNT blocks that do not join. --grant: it is granted
 * to the holder's agent when it is made. Answers
 *   one COUNT    from the start of a lease to its remote
 *   many COUNT   the same for 64 leases that are started together, until the last remote is there
 */
#include <getopt.h>

#include "tests/bench/bench_session.h"

#define AT_ONCE 64u
#define PIECE 4096ull
#define PIECES 32ull
#define RANGES_MAX 1024ull

static struct dray *owner, *holder;
static dray_region region;
static struct dray_range ranges[RANGES_MAX];
static struct dray_lease_spec spec = { .ranges = ranges, .access = DRAY_READ };

/* Waits for the completion of any request of the handle. */
static struct dray_completion next(struct dray *d)
{
	struct dray_completion c;

	while (!dray_next_completion(d, &c))
		dray_process(d, -1);
	if (c.status)
		bench_die("request %d: %s", c.request, c.message);
	return c;
}

/* Both sides give their leases back: the holder uses them, and the owner hears of their ends. */
static void finish(const dray_remote *remotes, unsigned n)
{
	struct dray_event e;

	for (unsigned i = 0; i < n; i++)
		if (dray_remote_release_start(holder, remotes[i], NULL, NULL))
			bench_die("release: %s", dray_last_error(holder));
	for (unsigned i = 0; i < n; i++)
		next(holder);
	for (unsigned i = 0; i < n; i++) {
		while (!dray_next_event(owner, &e))
			dray_process(owner, -1);
		if (e.type != DRAY_EVENT_LEASE_ENDED || e.outcome != DRAY_LEASE_USED)
			bench_die("event %d with outcome %u", e.type, e.outcome);
	}
}

static void round_of(unsigned n, struct bench_samples *samples)
{
	dray_remote remotes[AT_ONCE];
	int64_t began = bench_ns();

	for (unsigned i = 0; i < n; i++)
		if (dray_region_lease_start(owner, region, &spec, NULL, NULL))
			bench_die("lease: %s", dray_last_error(owner));
	for (unsigned i = 0; i < n; i++)
		if (dray_lease_acquire_start(holder, next(owner).token, NULL, 0, NULL, NULL))
			bench_die("acquire: %s", dray_last_error(holder));
	for (unsigned i = 0; i < n; i++)
		remotes[i] = next(holder).remote;
	bench_sample(samples, (double)(bench_ns() - began));
	finish(remotes, n);
}

static void rounds(unsigned n, uint64_t count)
{
	static struct bench_samples samples;

	if (!samples.v)
		bench_samples_init(&samples);
	for (uint64_t i = 0; i < count; i++)
		round_of(n, &samples);
	bench_samples_say(&samples);
}

static void prepare(void)
{
	/* every second block, so that neighbours do not join */
	uint64_t layer = 2 * spec.ranges_n * PIECE;
	struct dray_info info;

	for (uint64_t i = 0; i < spec.ranges_n; i++)
		ranges[i] = (struct dray_range){ 2 * i * PIECE, PIECE, layer, PIECES };
	if (dray_region_add_pool(owner, PIECES * layer, DRAY_READ, 0, &region))
		bench_die("region: %s", dray_last_error(owner));
	if (dray_get_info(holder, &info))
		bench_die("info: %s", dray_last_error(holder));
	memcpy(spec.audience, info.agent_id, sizeof(spec.audience));
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "owner", required_argument, NULL, 'o' },
						 { "holder", required_argument, NULL, 'h' },
						 { "ranges", required_argument, NULL, 'r' },
						 { "grant", no_argument, NULL, 'g' },
						 { 0 } };
	uint64_t number;
	char word[16];

	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		if (c == 'o')
			owner = bench_session_open(optarg, DRAY_OPTION_NO_RING);
		else if (c == 'h')
			holder = bench_session_open(optarg, DRAY_OPTION_NO_RING);
		else if (c == 'r')
			spec.ranges_n = bench_number(optarg);
		else if (c == 'g')
			spec.grant = 1;
		else
			return 2;
	}
	if (!owner || !holder || !spec.ranges_n || spec.ranges_n > RANGES_MAX)
		bench_die("--owner, --holder, and --ranges up to %llu are needed", RANGES_MAX);
	prepare();
	bench_say("{}");
	while (bench_command(word, &number))
		if (!strcmp(word, "one"))
			rounds(1, number);
		else if (!strcmp(word, "many"))
			rounds(AT_ONCE, number);
		else
			bench_die("no command %s", word);
	dray_disconnect(owner);
	dray_disconnect(holder);
	return 0;
}
