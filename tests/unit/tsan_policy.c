/* SPDX-License-Identifier: Apache-2.0 */
/* One thread uses an object, and others read how many bytes it has, as checksums of objects are computed while they are lent. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "agent/store/policy/policy.h"
#include "lib/assert.h"

#define BYTES ((UINT64_C(7) << 32) + 5)
#define USES 100000

static struct policy_entry entry;
static _Atomic bool begun;

static void *read_bytes(void *arg)
{
	for (unsigned i = 0; i < USES; i++) {
		dray_assert(policy_bytes(&entry) == BYTES);
		atomic_store_explicit(&begun, true, memory_order_relaxed);
	}
	return NULL;
}

int main(void)
{
	struct policy *p;
	pthread_t reader;

	dray_assert(policy_new(&p, POLICY_VALUE, NULL) == 0);
	dray_assert(policy_add(p, &entry, BYTES, 1, 1) == 0);
	dray_assert(pthread_create(&reader, NULL, read_bytes, NULL) == 0);
	while (!atomic_load_explicit(&begun, memory_order_relaxed))
		;
	for (unsigned i = 0; i < USES; i++) {
		policy_use(p, &entry);
		policy_hold(p, &entry);
		policy_release(p, &entry);
	}
	pthread_join(reader, NULL);
	policy_remove(p, &entry, false);
	policy_free(p);
	printf("ok - bytes of an object that is used\n");
	return 0;
}
