/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of store.directory: which agent has which object, in Redis or Valkey. An entry is a hint. This agent asks the agents that it
 * names, and each of them leases what it still has; without an answer of the directory, it asks all of store.peers. So the loss of
 * the directory costs time alone, and that of its entries costs hits at other agents.
 *
 * An object is a sorted set: its members are the addresses of the agents that have it, with the times, by the clock of the server, at which these
 * entries end. Control thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/store/store.h"
#include "lib/err.h"
#include "schema/gen/config.h"

struct directory;
struct directory_find;

enum directory_state {
	DIRECTORY_DOWN, /* not connected, or not yet */
	DIRECTORY_OK,
	DIRECTORY_REFUSING, /* it does not take entries */
	DIRECTORY_STATE_N
};
const char *directory_state_name(enum directory_state s);

struct directory_deps {
	sd_event *event;
	const struct dray_config *cfg; /* store.directory is set */
	struct store *store;
	/* The address of this agent, under which its objects are entered; empty or a name: none are. Borrowed. */
	const char *segment;
	/* The state, or the reason for it, has changed. why: begins with the server's host and port. */
	void (*changed)(void *arg, enum directory_state s, const struct dray_err *why);
	void *arg;
};

/* Reads the files that store.directory needs, if it is set. 0, or -errno with reterr. */
int directory_files_check(const struct dray_config *cfg, struct dray_err *reterr);

/* Before the workers start; connects later. 0, or -errno with reterr. */
int directory_new(struct directory **ret, const struct directory_deps *deps,
		  struct dray_err *reterr);
/* Its finds have ended. Before the store is freed. NULL is allowed. Returns NULL. */
struct directory *directory_free(struct directory *d);

/* What a find calls; not inside directory_find(). */
struct directory_found {
	/* The directory names this agent, HOST:PORT, for key number i; up to 4 for one key. until_ms: for directory_forget(). */
	void (*named)(void *arg, uint32_t i, const char *segment, int64_t until_ms);
	/* The directory does not say who has this key. */
	void (*unknown)(void *arg, uint32_t i);
	/* All keys have been answered. The find is freed. */
	void (*done)(void *arg);
};

/*
 * Asks who has these keys, for store.directory_timeout at most. The keys are not needed afterwards. NULL: the directory cannot say
 * that now.
 */
struct directory_find *directory_find(struct directory *d, const char *space,
				      const struct store_key *keys, uint32_t n,
				      const struct directory_found *found, void *arg);
/* Nothing is called any more. NULL is allowed. */
void directory_find_cancel(struct directory_find *f);

/*
 * The agent that was named does not have the object: removes its entry, unless the agent has renewed it since, because it has the object
 * again. until_ms: as named; 0: the entry ends by its time.
 */
void directory_forget(struct directory *d, const char *space, struct store_key key,
		      int64_t until_ms);

/*
 * Finds out by a command that changes nothing whether the server takes changes, unless that is being found out. Of a cluster, the one that
 * has the key.
 */
void directory_check(struct directory *d);
struct directory_check {
	enum directory_state state;
	const char *why; /* begins with the server's host and port; "": not known yet. Borrowed. */
	bool pending;    /* the check, or the first connection, has not ended */
};
struct directory_check directory_checked(const struct directory *d);

struct directory_totals {
	enum directory_state state;
	uint64_t asked, named, unknown; /* keys */
	uint64_t wait_ns;               /* of all finds */
	uint64_t stale;                 /* entries of which their agents knew nothing */
	uint64_t entered, removed;      /* entries of this agent */
	uint64_t errors; /* commands that the server has refused, and lost connections */
};
/* NULL is allowed. */
struct directory_totals directory_totals(const struct directory *d);
