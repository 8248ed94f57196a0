/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/ready.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/addr.h"
#include "schema/gen/errors.h"

#define SEGMENT "segment:"

static void __attribute__((format(printf, 5, 6)))
add(struct ready *r, const char *name, bool ok, bool required, const char *fmt, ...)
{
	struct ready_condition *c = &r->conditions[r->n++];
	va_list ap;

	c->name = name;
	c->ok = ok;
	c->required = required;
	va_start(ap, fmt);
	vsnprintf(c->reason, sizeof(c->reason), fmt, ap);
	va_end(ap);
	r->ready &= ok || !required;
}

static bool has_word(const struct dray_strv *words, const char *word)
{
	for (size_t i = 0; i < words->n; i++)
		if (!strcmp(words->v[i], word))
			return true;
	return false;
}

const char *ready_word_segment(const char *word)
{
	return strncmp(word, SEGMENT, strlen(SEGMENT)) ? NULL : word + strlen(SEGMENT);
}

static void add_listener(const struct ready_facts *f, struct ready *r, const char *name,
			 bool required)
{
	if (f->listeners)
		add(r, name, true, required, "%u listener%s for peers", f->listeners,
		    f->listeners == 1 ? "" : "s");
	else
		add(r, name, false, required, "%s",
		    f->wants_listener ? "the listeners for peers are closed" :
					"peer.listen is none");
}

static void add_rdma(const struct ready_facts *f, struct ready *r, bool required)
{
	if (f->rails_up)
		add(r, "rdma", true, required, "%u rail%s up", f->rails_up,
		    f->rails_up == 1 ? "" : "s");
	else
		add(r, "rdma", false, required, "%s",
		    f->rdma_enabled ? "no rail is up; drayctl rails says why" :
				      "rdma.enable is false");
}

void ready_judge(const struct ready_facts *f, const struct dray_strv *require, struct ready *ret)
{
	char reason[READY_REASON_BYTES];

	ret->ready = true;
	ret->n = 0;
	add(ret, "running", f->running, true, "the agent is %s", f->state);
	add_listener(f, ret, "listener", f->wants_listener);
	add_rdma(f, ret, has_word(require, "rdma"));
	add_listener(f, ret, "tcp", has_word(require, "tcp"));
	for (size_t i = 0; i < require->n && ret->n < READY_CONDITIONS_MAX; i++) {
		const char *segment = ready_word_segment(require->v[i]);

		if (segment)
			add(ret, require->v[i], f->segment(f->arg, segment, reason), true, "%s",
			    reason);
	}
}

/* --- words -------------------------------------------------------------------------------------- */

static const char *segment_fault(const char *segment)
{
	struct dray_addr addr;

	switch (dray_addr_parse(segment, &addr)) {
	case 0:
		return dray_segment_valid(segment) ? NULL :
						     "is no segment that could be connected to";
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
				fault = "stands there twice";
		if (fault)
			return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "\"%.80s\" %s",
					    words->v[i], fault);
	}
	return 0;
}
