/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Letters from a client of one agent to a mailbox of a client of another one, one at a time. Both clients are in this
 * process.
 *
 *   bench_post --from SOCKET --to SOCKET --size BYTES
 *
 * Answers
 *   trip COUNT   from dray_post_start() to the receiver's event
 */
#include <getopt.h>
#include <poll.h>

#include "tests/bench/bench_session.h"

static struct dray *from, *to;
static char segment[257];
static size_t size;

static void post(const uint8_t *payload, struct bench_samples *samples)
{
	struct dray_completion c;
	struct dray_event e;
	int64_t began = bench_ns();
	uint64_t id;

	if (dray_post_start(from, segment, "bench", payload, size, 0, NULL, &id))
		bench_die("post: %s", dray_last_error(from));
	while (!dray_next_event(to, &e))
		dray_process(to, -1);
	bench_sample(samples, (double)(bench_ns() - began));
	if (e.type != DRAY_EVENT_LETTER || e.length != size)
		bench_die("event %d of %zu bytes instead of the letter", e.type, e.length);
	if (dray_wait(from, id, -1, &c) || c.status)
		bench_die("post: %s", dray_last_error(from));
}

static void trip(uint64_t count)
{
	static struct bench_samples samples;
	static uint8_t payload[DRAY_NOTIFY_MAX];

	if (!samples.v)
		bench_samples_init(&samples);
	for (uint64_t i = 0; i < count; i++)
		post(payload, &samples);
	bench_samples_say(&samples);
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "from", required_argument, NULL, 'f' },
						 { "to", required_argument, NULL, 't' },
						 { "size", required_argument, NULL, 's' },
						 { 0 } };
	struct dray_info info;
	dray_mailbox box;
	uint64_t number;
	char word[16];

	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		if (c == 'f')
			from = bench_session_open(optarg, DRAY_OPTION_NO_RING);
		else if (c == 't')
			to = bench_session_open(optarg, DRAY_OPTION_NO_RING);
		else if (c == 's')
			size = bench_number(optarg);
		else
			return 2;
	}
	if (!from || !to || size > DRAY_NOTIFY_MAX)
		bench_die("--from and --to are needed, and --size up to %d", DRAY_NOTIFY_MAX);
	if (dray_mailbox_open(to, "bench", 0, &box) || dray_get_info(to, &info))
		bench_die("mailbox: %s", dray_last_error(to));
	snprintf(segment, sizeof(segment), "%s", info.segment);
	bench_say("{}");
	while (bench_command(word, &number))
		if (!strcmp(word, "trip"))
			trip(number);
		else
			bench_die("no command %s", word);
	dray_disconnect(from);
	dray_disconnect(to);
	return 0;
}
