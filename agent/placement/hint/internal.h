/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by hints.c (entries, changes, questions), persist.c (rows of the database) and time.c (clocks). */
#pragma once

#include "agent/placement/hint/hints.h"
#include "lib/heap.h"
#include "lib/list.h"
#include "lib/map.h"

#define SOURCE_N (DMSG_HINT_SOURCE_CLIENT + 1)

/* What entries share: a scope, the name of a segment, or an owner, whose key begins with its tenant. It is freed with the last reference. */
struct label {
	struct dray_map_node node;
	struct dray_list entries; /* of a scope; strongest first */
	uint32_t n;               /* references; each entry has one */
	struct dray_list namings; /* of a name */
	char text[];              /* of a scope or name; ends in NUL */
};

struct owner_key {
	char tenant[TENANT_BYTES];
	uint32_t uid;
};

/* An owner has given hints that name a segment. */
struct naming {
	struct dray_map_node node; /* in hints->namings */
	struct dray_list link;     /* in name->namings */
	uint32_t n;                /* hints */
	struct {
		const struct label *name;
		struct owner_key owner;
		uint32_t zero;
	} key;
};

struct entry {
	struct dray_list link;
	struct dray_heap_node expiry; /* by the boot clock */
	struct label *scope, *name;
	struct label *owner;   /* of clients; else NULL */
	struct naming *naming; /* NULL: hint_is_given() does not hold */
	enum dmsg_hint_source source;
	uint32_t uid; /* of clients; else 0 */
	uint32_t score;
	int64_t put_boot_ms, end_boot_ms; /* put: negative before the machine's start */
};

struct hints {
	struct hints_deps deps;
	struct dray_map scopes, names, owners; /* struct label */
	struct dray_map namings;
	struct dray_heap expiry[SOURCE_N]; /* of each source */
	uint64_t n;
	sd_event_source *timer, *clock;
	int clock_fd;
	int64_t offset_ms; /* wall clock minus boot clock, when last read */
	/* rows that hints_load() got */
	uint64_t n_loaded, n_expired, n_future, n_refused;
	bool loading; /* a row is loaded, which is not saved again */
	bool loaded; /* hints_loaded() was called: rows that still come are late, and make upcalls */
	/* what was forgotten or replaced while rows were unread; those rows are dropped when they come */
	struct dray_map superseded;
	uint64_t superseded_bytes;
	bool all_superseded;
};

/* Checks scope and segment. 0 or -EINVAL with reterr. */
int hints_check_texts(const char *scope, const char *segment, struct dray_err *reterr);

/*
 * Adds the hint, which replaces an older one as hints.h says. put_ms, end_ms: by the boot clock. While loading, a younger
 * one stays (-EEXIST). Otherwise makes upcalls and saves it. Errors as of hints_put(); ret_entry may be NULL.
 */
int hints_insert(struct hints *h, const struct hint_put *put, int64_t put_ms, int64_t end_ms,
		 struct entry **ret_entry, struct dray_err *reterr);

/* The entry that this hint replaces; NULL: none. */
struct entry *hints_find(const struct hints *h, const struct hint_put *put);

/* The upcall `named`, unless there is none. */
void hints_tell_named(const struct hints *h, const struct naming *n, bool named);

/* Makes upcalls and drops its row. */
void hints_remove(struct hints *h, struct entry *e);

/* Writes and drops the row of a hint, unless hints of its source are not kept. */
void hints_save(struct hints *h, const struct entry *e);
void hints_unsave(struct hints *h, const struct entry *e);

/*
 * Stored hints that are still unread are forgotten or replaced: those with this scope and segment (NULL: any), and with
 * this source and owner unless the source is 0.
 */
void hints_supersede(struct hints *h, const struct hint_put *rows);
void hints_free_superseded(struct hints *h);

/* Its tenant; "" unless it is of a client. */
static inline const char *entry_tenant(const struct entry *e)
{
	return e->owner ? e->owner->text : "";
}

int64_t hints_unix_ms(const struct hints *h);
int64_t hints_boot_ms(const struct hints *h);

/* Arms the timer for the hint that expires first. */
void hints_arm(struct hints *h);

/* 0 or -errno. */
int hints_init_clocks(struct hints *h);
void hints_deinit_clocks(struct hints *h);
