/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of a Mooncake handshake daemon, or of another program on its port, to a probe. The input arrives in
 * pieces, whose sizes must not matter. The first byte is 0 if the input is framed; otherwise the input is JSON, and
 * the frame is added here.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/probe/mooncake_frame.h"
#include "lib/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *s, size_t max)
{
	size_t n = strlen(s);

	dray_assert(n && n <= max);
	for (size_t i = 0; i < n; i++)
		dray_assert(s[i] >= ' ' && s[i] <= '~');
}

/* Copies to a buffer of exact size, so that the sanitizer detects reads past its end. */
static int parse(const uint8_t *p, size_t n, struct mooncake_segment *s, char *why)
{
	uint8_t *copy = malloc(n ? n : 1);
	int r;

	dray_assert(copy);
	if (n)
		memcpy(copy, p, n);
	r = mooncake_reply_parse(copy, n, s, why);
	free(copy);
	return r;
}

static void reply(const uint8_t *p, size_t n)
{
	struct mooncake_segment s, whole;
	char why[MOONCAKE_WHY_MAX] = "", early[MOONCAKE_WHY_MAX];
	int r = parse(p, n, &whole, why);

	if (r == 0) {
		check_text(whole.name, MOONCAKE_NAME_MAX);
		check_text(whole.protocol, MOONCAKE_PROTOCOL_MAX);
		dray_assert(whole.buffers <= MOONCAKE_LENGTH_MAX / 2);
	} else if (r < 0) {
		dray_assert(*why);
	}
	/* a part of the reply is either incomplete or refused like the whole reply */
	for (size_t part = 0; part < n; part += 1 + part / 2) {
		int q = parse(p, part, &s, early);

		dray_assert(q == MOONCAKE_E_MORE || q == r);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *frame;
	uint64_t length;

	if (!size)
		return 0;
	if (!data[0]) {
		reply(data + 1, size - 1);
		return 0;
	}
	length = size;
	frame = malloc(sizeof(length) + size);
	dray_assert(frame);
	for (unsigned i = 0; i < sizeof(length); i++)
		frame[i] = (uint8_t)(length >> 8 * i);
	frame[8] = 1;
	memcpy(frame + 9, data + 1, size - 1);
	reply(frame, sizeof(length) + size);
	free(frame);
	return 0;
}
