/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/ready.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

void ready_evaluate(const struct ready_facts *f, const struct dray_strv *require, struct ready *ret)
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
