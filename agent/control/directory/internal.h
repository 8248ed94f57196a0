/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder. */
#pragma once

#include "agent/config/directory_url.h"
#include "agent/control/directory/answer.h"
#include "agent/control/directory/cluster.h"
#include "agent/control/directory/directory.h"
#include "agent/control/directory/link.h"
#include "agent/control/directory/login.h"
#include "agent/control/directory/name.h"
#include "agent/control/directory/sentinel.h"
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
	struct store_listing at;
	bool listing;
	bool begins;        /* the listing: removals that were missed come first */
	bool again;         /* a change was lost: another listing is needed */
	bool more;          /* changes may wait */
	bool warned;        /* that nothing is entered */
	int64_t refused_ns; /* when the server has refused an entry last */
	uint64_t listed, expected;
	int64_t began_ns;
	int64_t period_ns;           /* of this listing; 0: as fast as it may be */
	uint64_t lost;               /* changes, at the last look */
	uint32_t waiting;            /* entries and removals without an answer */
	char (*missed)[NAME_DIGEST]; /* removals that the directory has not got, or may not have */
	uint32_t n_missed;
};

/* A server of the directory. */
struct server {
	struct directory *d;
	struct link *link;
	struct directory_host at;
	struct batch *making; /* commands that are being made, and not sent yet */
};

#define SERVERS_MAX (1 + CLUSTER_SERVERS_MAX)

/* servers.c */
struct servers {
	struct server
		*v[SERVERS_MAX]; /* the first one is that of store.directory, or of its sentinels */
	unsigned n;
	struct cluster_map *map; /* NULL: it is no cluster */
	struct cluster_map
		*said; /* what a server has said last, without redirections; NULL: nothing */
	struct server *mapped[CLUSTER_SERVERS_MAX]; /* those of the map */
	int64_t asked_ns;                           /* when a server was asked for the map */
	unsigned turn;                              /* of the servers: which is asked next */
	sd_event_source *timer;                     /* asks again */
};

struct directory {
	struct directory_deps deps;
	struct directory_url url;
	struct login login;
	struct names names;
	struct resolver *resolver;
	struct sentinels *sentinels; /* NULL: there are none */
	struct servers servers;
	struct dray_list batches; /* that have not got all answers */
	struct finds finds;
	struct entries entries;
	enum directory_state state;
	struct dray_err why; /* of the state */
	unsigned checking;   /* answers to KEY_CHECK to come */
	/* The last state other than ok since the last check began: the next connection may be up already. */
	struct {
		bool any;
		enum directory_state state;
		struct dray_err why;
	} failed;
	/* Until then what the directory does not name may be there all the same: agents are still entering it. */
	int64_t complete_ns; /* INT64_MAX: until it has said since when it has entries */
	int64_t since_ns;    /* when it was asked for that */
	struct directory_totals totals;
};

/* --- batch.c: commands about keys, sent to one server one after the other ------------------------------ */

enum key_kind {
	KEY_FIND,   /* who has it? */
	KEY_ENTER,  /* this agent has it */
	KEY_REMOVE, /* it does not any more */
	KEY_FORGET, /* another agent does not, unless it says so anew */
	KEY_SINCE,  /* since when are there entries? */
	KEY_NODES,  /* the servers of the cluster */
	KEY_CHECK,  /* does the server take changes? */
};

struct key_command {
	enum key_kind kind;
	uint32_t i;       /* KEY_FIND: of the find */
	int64_t until_ms; /* KEY_FORGET: when the entry ends */
	uint8_t hops;     /* redirections that it has followed */
	bool asks;        /* a redirection for this command alone: ASKING precedes it */
	uint8_t n_name;   /* what follows the prefix */
	char name[NAME_DIGEST];
};

/* find: of KEY_FIND. segment: of KEY_ENTER and KEY_REMOVE. NULL: the server cannot be asked, or there is no memory. */
struct batch *batch_new(struct server *s, struct directory_find *find, const char *segment);
/* False: no memory; the connection ends in a turn of its own. */
bool batch_add(struct batch *b, const struct key_command *k);
/* Sends what has been added. The batch frees itself after the last answer. */
void batch_send(struct batch *b);
/* Sends what is being made for all servers. */
void batches_send(struct directory *d);
/* The answers are not needed any more. */
void batches_forget(struct directory *d, const struct directory_find *find);
/* Its commands get no answer. */
void batches_lose(struct server *s);
/* Without a call of anything. */
void batches_free(struct directory *d);

/* --- servers.c ----------------------------------------------------------------------------------------- */

/* 0, or -errno with reterr. */
int servers_init(struct directory *d, struct dray_err *reterr);
void servers_deinit(struct directory *d);
/* The sentinels say that this is the primary. False: it was that before, or there is no memory. */
bool servers_set(struct directory *d, const struct directory_host *at);
/* One of them is up. */
bool servers_are_up(const struct directory *d);
/* The server that has the key, as far as that is known, if it accepts commands. NULL: none does. */
struct server *server_of(struct directory *d, const struct key_command *k);
/* A redirection: another server has the key, for good or (asks) for this command. NULL: it cannot be asked now. */
struct server *server_redirected(struct server *from, const redisReply *r, bool asks);
/* The answer to KEY_NODES; NULL: none. */
void servers_answer(struct server *s, const redisReply *r);

/* --- directory.c --------------------------------------------------------------------------------------- */

void directory_set(struct directory *d, enum directory_state s, const struct dray_err *why);
/* An answer is none that a command should have; enters: that of an entry. */
void directory_refused(struct server *s, const redisReply *r, bool enters);
/* The answer to KEY_CHECK; NULL: none. */
void directory_check_answer(struct server *s, const redisReply *r);
/* The directory has an entry for whatever other agents have had for a while. s: has just answered. */
bool directory_is_complete(struct server *s);
/* A server that is up can be used. */
void directory_used(struct directory *d);
void directory_up(struct server *s);
void directory_down(struct server *s, const struct dray_err *why);
/* An answer to a part of KEY_SINCE. */
void directory_since(struct server *s, unsigned part, const redisReply *r);

/* --- find.c -------------------------------------------------------------------------------------------- */

/* 0 or -errno. */
int finds_init(struct directory *d);
void finds_deinit(struct directory *d);
/* The answer for key number i. NULL: none will come. */
void find_answer(struct server *s, struct directory_find *f, uint32_t i, const redisReply *r);

/* --- entries.c ----------------------------------------------------------------------------------------- */

/* 0 or -errno. */
int entries_init(struct directory *d);
void entries_deinit(struct directory *d);
/* A server is up: all objects are entered. */
void entries_begin(struct directory *d);
/* None is. */
void entries_pause(struct directory *d);
/* It has refused an entry. Before the state is set. */
void entries_refused(struct directory *d);
/* The answer to KEY_ENTER or KEY_REMOVE; NULL: none will come. */
void entry_answer(struct server *s, const struct key_command *k, const redisReply *r);
