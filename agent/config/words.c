/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/words.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/addr.h"

#define NUMA_NODE_MAX 4095

bool list_is_none(const struct dray_strv *words)
{
	return words->n == 1 && !strcmp(words->v[0], "none");
}

int numa_node_parse(const char *word)
{
	char *end;
	unsigned long v;

	if (*word < '0' || *word > '9')
		return -EINVAL;
	v = strtoul(word, &end, 10);
	return *end || v > NUMA_NODE_MAX ? -EINVAL : (int)v;
}

#define SEGMENT "segment:"

const char *ready_word_segment(const char *word)
{
	return strncmp(word, SEGMENT, strlen(SEGMENT)) ? NULL : word + strlen(SEGMENT);
}

/* NULL: the agent can connect to it. */
static const char *segment_fault(const char *segment)
{
	struct dray_addr addr;

	switch (dray_addr_parse(segment, &addr)) {
	case 0:
		return dray_endpoint_valid(segment) ?
			       NULL :
			       "is not a segment that the agent can connect to";
	case -EAFNOSUPPORT:
		return "has a name, and names are not resolved";
	default:
		return "has no address and port";
	}
}

/* segment: a part of the word, behind its prefix. */
static int segment_check(const char *word, const char *segment, struct dray_err *reterr)
{
	const char *fault = segment_fault(segment);
	int prefix = (int)(segment - word);

	return fault ? config_invalid(reterr,
				      "\"%.80s\" %s: write such as %.*s10.0.0.1:7411 or "
				      "%.*s[2001:db8::1]:7411",
				      word, fault, prefix, word, prefix, word) :
		       0;
}

int segment_word_check(const char *word, struct dray_err *reterr)
{
	return segment_check(word, word, reterr);
}

int ready_word_check(const char *word, struct dray_err *reterr)
{
	const char *segment = ready_word_segment(word);

	if (segment)
		return segment_check(word, segment, reterr);
	if (!strcmp(word, "rdma") || !strcmp(word, "tcp"))
		return 0;
	return config_invalid(
		reterr, "\"%.80s\" is not allowed (allowed: rdma, tcp, segment:HOST:PORT)", word);
}
