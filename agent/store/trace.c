/* SPDX-License-Identifier: Apache-2.0 */
/* Records of requests, in a ring that their reader empties. Under the lock of the store. */
#include <errno.h>
#include <stdlib.h>

#include "agent/store/internal.h"
#include "lib/hash.h"
#include "lib/random.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* 2.5 MiB: what comes in a tenth of a second at 600,000 keys a second. */
#define RECORDS 65536u

struct store_trace {
	struct store *store;
	uint64_t secret;
	int64_t begin_ns;
	uint64_t added, taken, lost;
	struct store_traced v[RECORDS];
};

const char *store_operation_name(enum store_operation operation)
{
	static const char *const names[] = {
		[STORE_GET] = "get",       [STORE_PUT] = "put", [STORE_EXISTS] = "exists",
		[STORE_REMOVE] = "remove", [STORE_PIN] = "pin", [STORE_READ] = "read",
	};

	return names[operation];
}

int store_trace_new(struct store_trace **ret, struct store *s, struct dray_err *reterr)
{
	struct store_trace *t;

	if (!s)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED, STORE_ABSENT);
	if (s->trace)
		return dray_err_set(
			reterr, -EBUSY, DRAY_E_BUSY,
			"another trace is being recorded; end that drayctl, or wait for it");
	t = calloc(1, sizeof(*t));
	if (!t)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a trace");
	t->store = s;
	t->secret = dray_random();
	t->begin_ns = dray_now().ns;
	pthread_mutex_lock(&s->lock);
	s->trace = t;
	pthread_mutex_unlock(&s->lock);
	*ret = t;
	return 0;
}

void store_trace_free(struct store_trace *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&t->store->lock);
	t->store->trace = NULL;
	pthread_mutex_unlock(&t->store->lock);
	free(t);
}

void trace_add(struct store_space *sp, enum store_operation operation, struct store_key key,
	       uint64_t bytes, float cost, enum dmsg_store_status status, enum dmsg_store_tier tier)
{
	struct store_trace *t = sp->store->trace;

	if (t->added - t->taken == RECORDS) {
		t->lost++;
		return;
	}
	t->v[t->added++ % RECORDS] = (struct store_traced){
		.ns = dray_now().ns - t->begin_ns,
		.key = dray_hash(dray_hash_mix(t->secret, sp->number + UINT64_C(1)), key.p, key.n),
		.bytes = bytes,
		.cost_us = (uint32_t)dray_min((double)cost, (double)UINT32_MAX),
		.space = sp->number,
		.operation = (uint8_t)operation,
		.status = (uint8_t)status,
		.tier = (uint8_t)tier,
	};
}

uint32_t store_trace_take(struct store_trace *t, struct store_traced *ret, uint32_t max)
{
	uint32_t n = 0;

	pthread_mutex_lock(&t->store->lock);
	for (; n < max && t->taken != t->added; n++)
		ret[n] = t->v[t->taken++ % RECORDS];
	pthread_mutex_unlock(&t->store->lock);
	return n;
}

uint64_t store_trace_lost(struct store_trace *t)
{
	uint64_t lost;

	pthread_mutex_lock(&t->store->lock);
	lost = t->lost;
	pthread_mutex_unlock(&t->store->lock);
	return lost;
}
