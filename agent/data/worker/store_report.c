/* SPDX-License-Identifier: Apache-2.0 */
/* What the log says about a batch of the store: its keys by what became of them, and by the tier that had them. */
#include <stdio.h>
#include <stdlib.h>

#include "agent/data/worker/store_batch.h"

static void keys_add(struct store_keys *k, uint64_t bytes)
{
	k->n++;
	k->bytes += bytes;
}

static void result_count(struct store_report *p, const struct dmsg_store_result *r)
{
	switch (r->status) {
	case DMSG_STORE_STATUS_OK:
		keys_add(&p->ok, r->length);
		if (r->tier < DRAY_ARRAY_SIZE(p->tiers))
			keys_add(&p->tiers[r->tier].keys, r->length);
		break;
	case DMSG_STORE_STATUS_EXISTS:
		keys_add(&p->existed, r->length);
		break;
	case DMSG_STORE_STATUS_NOT_FOUND:
		keys_add(&p->unknown, 0);
		break;
	default:
		keys_add(&p->failed, r->length);
	}
}

/* All bytes are copied from memory, when the last of them has come there. */
static void times_fill(struct store_report *p, const struct batch *b, int64_t now_ns)
{
	/* of a PUT they come from its client */
	int64_t there_ns = batch_puts(b) ? 0 : dray_max(b->wait.disk_ns, b->agents_ns);

	there_ns = dray_max(there_ns, b->begin_ns);
	p->took_ns = now_ns - b->begin_ns;
	p->tiers[DMSG_STORE_TIER_MEMORY].ns =
		b->n_ops ? (b->copied_ns ? b->copied_ns : now_ns) - there_ns : 0;
	if (b->wait.disk_ns)
		p->tiers[DMSG_STORE_TIER_DISK].ns = b->wait.disk_ns - b->begin_ns;
	p->turns = b->wait.share.n;
	if (b->agents_ns)
		p->tiers[DMSG_STORE_TIER_AGENT].ns = b->agents_ns - b->begin_ns;
}

void batch_report(struct wsession *s, const struct store_call *q, const struct store_member *member,
		  const struct dmsg_store_result *results, uint32_t n, const struct batch *b,
		  uint32_t code)
{
	struct worker *w = s->worker;
	struct store_report *p = worker_has_room(w) ? calloc(1, sizeof(*p)) : NULL;

	if (!p) {
		core_count(w->core.counters, DRAY_METRIC_REPORTS_DROPPED_TOTAL, 1);
		return;
	}
	p->session = s->xs.handle;
	p->request = q->request_id;
	p->type = q->type;
	p->code = code;
	snprintf(p->space, sizeof(p->space), "%s", store_member_space(member));
	for (uint32_t i = 0; i < n; i++)
		result_count(p, &results[i]);
	if (b)
		times_fill(p, b, dray_now().ns);
	worker_event(w, &(struct event){ .type = EVENT_STORE_REPORT, .store_report = p });
}
