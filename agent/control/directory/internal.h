/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder. */
#pragma once

#include "agent/config/directory_url.h"
#include "agent/control/directory/answer.h"
#include "agent/control/directory/directory.h"
#include "agent/control/directory/link.h"
#include "agent/control/directory/login.h"
#include "agent/control/directory/name.h"
#include "lib/list.h"

/* find.c */
struct finds {
	struct dray_list all; /* struct directory_find, the oldest first */
	sd_event_source *timer;
};

/* entries.c: what this agent has, as the directory is told. */
struct entries {
	sd_event_source *timer;           /* of the next turn of the listing */
	char segment[DRAY_ADDR_TEXT_MAX]; /* empty: nothing is entered */
	char ttl[24];                     /* of a key, in milliseconds */
	struct store_listing at;
	bool listing;
	bool again;         /* a change was lost: another listing is needed */
	bool more;          /* changes may wait */
	bool warned;        /* that nothing is entered */
	int64_t refused_ns; /* when the server has refused an entry last */
	uint64_t listed, expected;
	int64_t began_ns;
	int64_t period_ns; /* of this listing; 0: as fast as it may be */
	uint64_t lost;     /* changes, at the last look */
	uint32_t waiting;  /* entries and removals without an answer */
	/* of the commands that are being made */
	struct link_op *op;
	bool op_adds;
	char end_ms[24], now_ms[24];
};

struct directory {
	struct directory_deps deps;
	struct directory_url url;
	struct login login;
	struct names names;
	struct resolver *resolver;
	struct link *link;
	struct finds finds;
	struct entries entries;
	enum directory_state state;
	struct dray_err why; /* of the state */
	/* Until then, by the server's clock, what the directory does not name may be there all the same: agents are still entering it. */
	int64_t incomplete_ms;
	struct directory_totals totals;
};

/* directory.c */
void directory_set(struct directory *d, enum directory_state s, const struct dray_err *why);
/* An answer is none that a command should have; enters: that of an entry. */
void directory_refused(struct directory *d, const redisReply *r, bool enters);
/* The directory has an entry for whatever other agents have had for a while. */
bool directory_is_complete(const struct directory *d);

/* find.c. 0 or -errno. */
int finds_init(struct directory *d);
void finds_deinit(struct directory *d);

/* entries.c. 0 or -errno. */
int entries_init(struct directory *d);
void entries_deinit(struct directory *d);
/* The directory is up: all objects are entered. */
void entries_begin(struct directory *d);
/* It is not any more. */
void entries_pause(struct directory *d);
/* It has refused an entry. Before the state is set. */
void entries_refused(struct directory *d);
