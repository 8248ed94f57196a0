/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of the store's name spaces. Their number is bounded, because each owner has one. */
#include <stdio.h>
#include <stdlib.h>

#include "agent/control/agent.h"
#include "agent/control/status/gather.h"
#include "agent/store/store.h"

#define SPACES_SHOWN 128

struct store_shown {
	struct store_space_info spaces[SPACES_SHOWN];
	unsigned n;
	bool has_disk;
};

static void show(void *arg, const struct store_space_info *i)
{
	struct store_shown *s = arg;

	if (s->n < SPACES_SHOWN)
		s->spaces[s->n++] = *i;
}

static uint64_t memory_value(const struct store_space_info *i, enum dray_family f)
{
	return f == DRAY_FAMILY_STORE_SPACE_OBJECTS         ? i->memory_objects :
	       f == DRAY_FAMILY_STORE_SPACE_BYTES           ? i->bytes :
	       f == DRAY_FAMILY_STORE_SPACE_HITS_TOTAL      ? i->hits - i->disk_hits :
	       f == DRAY_FAMILY_STORE_SPACE_EVICTIONS_TOTAL ? i->evictions :
							      i->evicted_cost_us;
}

static uint64_t disk_value(const struct store_space_info *i, enum dray_family f)
{
	return f == DRAY_FAMILY_STORE_SPACE_OBJECTS         ? i->disk_objects :
	       f == DRAY_FAMILY_STORE_SPACE_BYTES           ? i->disk_bytes :
	       f == DRAY_FAMILY_STORE_SPACE_HITS_TOTAL      ? i->disk_hits :
	       f == DRAY_FAMILY_STORE_SPACE_EVICTIONS_TOTAL ? i->disk_evictions :
							      i->disk_evicted_cost_us;
}

struct store_shown *store_show(struct agent *a)
{
	struct store_shown *s = malloc(sizeof(*s));

	if (!s)
		return NULL;
	s->n = 0;
	s->has_disk = store_totals(a->store).has_disk;
	/* the names stay until the control thread forgets the name spaces */
	store_each(a->store, show, s);
	return s;
}

void store_samples(const struct store_shown *spaces, struct metrics_text *t, enum dray_family f)
{
	for (unsigned k = 0; spaces && k < spaces->n; k++) {
		const struct store_space_info *i = &spaces->spaces[k];
		char uid[16] = "";

		if (!i->name[0])
			snprintf(uid, sizeof(uid), "%u", i->uid);
		if (f == DRAY_FAMILY_STORE_SPACE_MISSES_TOTAL) {
			metrics_sample(t, (const char *[]){ i->name, i->tenant, uid }, i->misses);
			continue;
		}
		metrics_sample(t, (const char *[]){ i->name, i->tenant, uid, "memory" },
			       memory_value(i, f));
		if (spaces->has_disk)
			metrics_sample(t, (const char *[]){ i->name, i->tenant, uid, "disk" },
				       disk_value(i, f));
		/* other agents have objects of name spaces with a name alone */
		if (f == DRAY_FAMILY_STORE_SPACE_HITS_TOTAL && i->name[0])
			metrics_sample(t, (const char *[]){ i->name, i->tenant, uid, "agent" },
				       i->remote_hits);
	}
}
