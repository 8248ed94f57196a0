/* SPDX-License-Identifier: Apache-2.0 */
/* The hints' insides: hints.c (what is asked and put), entry.c, persist.c (what comes from disk), time.c (clocks). */
#ifndef DRAY_AGENT_PLACEMENT_HINT_INTERNAL_H
#define DRAY_AGENT_PLACEMENT_HINT_INTERNAL_H

#include "agent/placement/hint/hints.h"
#include "lib/heap.h"
#include "lib/list.h"
#include "lib/map.h"

#define SOURCE_N (DMSG_HINT_SOURCE_CLIENT + 1)
/* They are looked through one by one. */
#define SCOPE_HINTS_MAX 1024

/* All that live hints say of one scope; strongest first. */
struct scope {
	struct dray_map_node node;
	struct dray_list entries;
	uint32_t n;
	char text[];
};

/* A segment that hints name. */
struct name {
	struct dray_map_node node;
	uint32_t n; /* how many */
	uint32_t given; /* of these, from somebody's mouth: not what the agent found or was started with */
	char text[];
};

/* A uid whose clients have put hints. */
struct owner {
	struct dray_map_node node;
	uint32_t uid, n;
};

struct entry {
	struct dray_list link;
	struct dray_heap_node expiry; /* by the boot clock */
	struct scope *scope;
	struct name *name;
	struct owner *owner; /* of clients; else NULL */
	enum dmsg_hint_source source;
	uint32_t score;
	int64_t put_boot_ms, end_boot_ms; /* put: negative before the machine's start */
};

struct hints {
	struct hints_deps deps;
	struct dray_map scopes, names, owners;
	struct dray_heap expiry[SOURCE_N]; /* of each source */
	uint64_t n;
	sd_event_source *timer, *clock;
	int clock_fd;
	int64_t offset_ms; /* wall clock less boot clock, when last looked at */
	/* since hints_new(): what the disk had */
	uint64_t n_loaded, n_expired, n_future, n_refused;
	bool loading; /* no upcalls */
};

static inline uint32_t entry_uid(const struct entry *e)
{
	return e->owner ? e->owner->uid : 0;
}

/* As much as a hint takes: what hints_put() and hints_load() have in common. */
struct entry_values {
	const char *scope, *segment;
	enum dmsg_hint_source source;
	uint32_t uid, score;
	int64_t put_boot_ms, end_boot_ms;
};

/* NULL: there is none. */
struct scope *hints_scope_find(const struct hints *h, const char *text);
struct name *hints_name_find(const struct hints *h, const char *text);
struct owner *hints_owner_find(const struct hints *h, uint32_t uid);

/* In its heap, and in no list yet. scope: its own, or NULL where there is none. NULL without memory. */
struct entry *hints_entry_new(struct hints *h, const struct entry_values *put, struct scope *scope);

/* In no list any more. tell: where nothing names its segment any more. */
void hints_entry_free(struct hints *h, struct entry *e, bool tell);

/* Scope and segment in order? 0 or -EINVAL with reterr. */
int hints_check_texts(const char *scope, const char *segment, struct dray_err *reterr);

/*
 * Puts it in the place of what it replaces. Upcalls are made, and the state told, unless it comes from there: then one
 * that is younger stays (-EEXIST). As hints_put().
 */
int hints_insert(struct hints *h, const struct entry_values *put, struct dray_err *reterr);

/* Upcalls are made, and the state told. */
void hints_remove(struct hints *h, struct entry *e);

/* What the given one would replace in its scope (NULL: there is no such scope); NULL: nothing. */
struct entry *hints_find(const struct scope *s, const struct entry_values *put);

/* To the state, unless hints of its source are not kept there. */
void hints_save(struct hints *h, const struct entry *e);
void hints_unsave(struct hints *h, const struct entry *e);

int64_t hints_unix_ms(const struct hints *h);
int64_t hints_boot_ms(const struct hints *h);

/* The timer, for what expires first. */
void hints_arm(struct hints *h);

/* 0 or -errno. */
int hints_init_clocks(struct hints *h);
void hints_deinit_clocks(struct hints *h);

#endif
