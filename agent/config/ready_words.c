/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/ready_words.h"

#include <errno.h>
#include <string.h>

#include "lib/addr.h"
#include "schema/gen/errors.h"

#define SEGMENT "segment:"

const char *ready_word_segment(const char *word)
{
	return strncmp(word, SEGMENT, strlen(SEGMENT)) ? NULL : word + strlen(SEGMENT);
}

static const char *segment_fault(const char *segment)
{
	struct dray_addr addr;

	switch (dray_addr_parse(segment, &addr)) {
	case 0:
		return dray_endpoint_valid(segment) ?
			       NULL :
			       "is not a segment that the agent can connect to";
	case -EAFNOSUPPORT:
		return "has a name, and names are not resolved: write segment:10.0.0.1:7411";
	default:
		return "has no address and port: write segment:10.0.0.1:7411 or "
		       "segment:[2001:db8::1]:7411";
	}
}

static const char *word_fault(const char *word)
{
	const char *segment = ready_word_segment(word);

	if (segment)
		return segment_fault(segment);
	if (!strcmp(word, "rdma") || !strcmp(word, "tcp"))
		return NULL;
	return "is not allowed (allowed: rdma, tcp, segment:HOST:PORT)";
}

int ready_check_words(const struct dray_strv *words, struct dray_err *reterr)
{
	if (words->n > READY_REQUIRE_MAX)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "%zu words are too many, %d are allowed", words->n,
				    READY_REQUIRE_MAX);
	for (size_t i = 0; i < words->n; i++) {
		const char *fault = word_fault(words->v[i]);

		for (size_t k = 0; k < i && !fault; k++)
			if (!strcmp(words->v[k], words->v[i]))
				fault = "is there twice";
		if (fault)
			return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "\"%.80s\" %s",
					    words->v[i], fault);
	}
	return 0;
}
