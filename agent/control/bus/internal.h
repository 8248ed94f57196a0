/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the D-Bus server. */
#pragma once

#include <stdio.h>
#include <systemd/sd-bus.h>

#include "agent/control/agent.h"
#include "agent/control/socket/acceptor.h"
#include "agent/control/socket/unix_listener.h"
#include "agent/process/turn_work.h"
#include "lib/list.h"
#include "lib/log.h"
#include "schema/gen/dbus.h"

/* Longest text in a signal or property, with its NUL; names have at most 64 bytes, reasons the length of an error. */
#define BUS_TEXT_BYTES 256

/* Sender of every message of the agent. The connections are :1.1 and up. */
#define BUS_SENDER ":1.0"

/* Root, the owner, and members of the group may change things. The mode of the socket decides which clients may read. */
/* Log lines about connections of one uid in a second. */
#define BUS_LOG_LINES 10

struct access_rules {
	uid_t owner;
	bool has_group;
	gid_t group;
};

/* The client of a connection, as the kernel reports it. */
struct bus_client {
	uid_t uid;
	gid_t gid;
	pid_t pid; /* for log lines; 0 across PID namespaces */
	bool may_change;
};

struct bus_server {
	struct agent *agent;
	struct unix_listener listener;
	struct acceptor acceptor;
	sd_event_source *reaper, *leaver;
	struct access_rules rules;
	struct dray_list conns;
	unsigned n_conns, n_readers; /* readers: connections that may not change anything */
	uint64_t last_number;
	struct dray_log_limits log;  /* by uid */
	struct dray_list long_lists; /* long_lists.c */
	struct turn_work listing;    /* of these */
};

/* Logs a warning that clients of a uid can bring about again and again. */
#define bus_warning(server, uid_, ...)                                                     \
	do {                                                                               \
		char name_[DRAY_LOG_NAME_BYTES];                                           \
		snprintf(name_, sizeof(name_), "about uid=%u", uid_);                      \
		log_within(dray_log_limit_of(&(server)->log, name_), BUS_LOG_LINES, name_, \
			   DRAY_LOG_WARNING, "control", __VA_ARGS__);                      \
	} while (0)

struct bus_conn {
	struct dray_list link;
	struct bus_server *server;
	sd_bus *bus;
	struct bus_client who;
	struct owner *owner;
	struct bus_input *input; /* NULL before it has begun */
	char name[32];           /* unique */
	bool hello;
	bool doomed; /* the event loop frees it */
	/* estimated bytes of lists: sent since the client had read everything, and copied but not sent */
	size_t unread, unsent;
	struct dray_list replies;    /* of struct pending_reply */
	struct store_verify *verify; /* of VerifyStore; NULL: none */
	struct store_trace *trace;   /* of TraceStore; NULL: none */
};

/* --- bus.c --- */

/* 0; 1 if the client expects no reply to m; < 0 with the error set if the client has too many unread lists. */
int bus_conn_check_list(struct bus_conn *c, sd_bus_message *m, sd_bus_error *reterr);

/* Whether a list of that many bytes may be made. 0, or < 0 with the error set if others take too much. */
int bus_conn_check_size(struct bus_conn *c, size_t bytes, sd_bus_error *reterr);

/* Sends a reply of about that many bytes. */
int bus_conn_send(struct bus_conn *c, sd_bus_message *reply, size_t bytes);

/* A call that is answered later. */
struct pending_reply {
	struct dray_list link; /* on conn->replies */
	struct bus_conn *conn;
	sd_bus_message *m;
	const struct reply_kind *kind;
};

struct reply_kind {
	const char *what;                            /* plural, for errors */
	unsigned max;                                /* of one connection */
	void (*cancel)(struct pending_reply *reply); /* the connection has ended; may be NULL */
};

/*
 * Keeps m until pending_reply_free(). bytes: size of a struct that begins with struct pending_reply; it is zeroed. NULL with
 * the error set without memory, or if the connection has too many pending replies of the kind.
 */
void *pending_reply_new(const struct reply_kind *kind, size_t bytes, struct bus_conn *c,
			sd_bus_message *m, sd_bus_error *reterr);
void pending_reply_free(struct pending_reply *reply);
/* ret < 0: replies with that error. Then frees it. */
void pending_reply_end(struct pending_reply *reply, int ret);

/* --- driver.c: org.freedesktop.DBus, and properties.c: dev.dray.Agent1 --- */
int bus_driver_add(struct bus_conn *c);
int bus_object_add(struct bus_conn *c);

/* --- change_methods.c --- */
/* Whether the client may call a method that changes something. 0, or < 0 with the error set. */
int bus_check_change(const struct bus_conn *c, const char *method, sd_bus_error *reterr);

/* Logs a change with the client that made it. */
#define LOG_CHANGE(c, fmt, ...) \
	log_notice("control", fmt " uid=%u pid=%d", ##__VA_ARGS__, (c)->who.uid, (c)->who.pid)

/* The error for a name space that is not there; s NULL: nor is a store. < 0. */
int bus_no_space(const struct store *s, const char *space, const char *tenant, uint32_t uid,
		 sd_bus_error *reterr);

/* --- long_lists.c --- */

/* Records and scopes that one turn of the loop takes for lists, in about 1 ms. A scope has up to 1,024 hints. */
#define LISTED_PER_TURN 256

/* 0 or -errno. */
int long_lists_init(struct bus_server *server);

/* --- access.c --- */
/* fd: a connected Unix socket. 0 or -errno. */
int bus_client_get(int fd, const struct access_rules *rules, struct bus_client *ret);

/* --- dictionaries.c: lists in replies, arrays of dictionaries, made from the structs of records by the schema's tables --- */
struct dictionaries {
	struct agent *agent;
	sd_bus_message *call, *reply;
	sd_bus_error *reterr;              /* NULL: the reply comes later than the call */
	struct snapshot *const *snapshots; /* of the workers, for lists of transfers */
	unsigned n_snapshots;
	const struct peer_check_result *checked; /* of CheckPeer */
	const void *arg;                         /* of the function that fills the list */
	int ret;                                 /* first error */
	size_t bytes; /* estimate of the size of all records kept so far */
	char *kept;   /* copies of records, appended up to `at` */
	size_t n_kept, kept_room, at;
};

/* Keeps the records of one list; reads the arguments of d->call. Errors go to d->ret. */
typedef void dictionaries_fn(struct dictionaries *d);

/* Appends the array that fn fills to d->reply. 0, or the first error. */
int dictionaries_append(struct dictionaries *d, dictionaries_fn *fn);

/* The array of a reply to d->call begins. 0, or < 0: dictionaries_end() follows either. */
int dictionaries_begin(struct dictionaries *d);
/* Sends the reply, unless there was an error. > 0, or the first error. */
int dictionaries_end(struct dictionaries *d, struct bus_conn *c);
/* long_lists.c: replies to d->call with the array that fn fills at once, in this turn of the loop or in later ones. > 0; < 0: there is no reply. */
int list_reply(const struct dictionaries *d, struct bus_conn *c, dictionaries_fn *fn);
/* Drops the reply and what is kept. */
void dictionaries_deinit(struct dictionaries *d);

/*
 * Keeps a copy of a record, which costs a small part of appending it. Texts are cut at 4095 bytes, and bytes that are not UTF-8 become
 * question marks.
 */
void dictionary_keep(struct dictionaries *d, const struct dray_dbus_field *fields, size_t n,
		     const void *record);
/* Appends the first record that is kept. False: there is none, or there was an error. */
bool dictionaries_append_kept(struct dictionaries *d);

/* name: of the record in the schema. record: a struct dray_dbus_NAME. */
#define DICTIONARY_KEEP(d, name, record)                                                          \
	dictionary_keep(d, dray_dbus_##name##_fields, DRAY_ARRAY_SIZE(dray_dbus_##name##_fields), \
			(const struct dray_dbus_##name *){ record })

/* Copies s without bytes that are not UTF-8, for which D-Bus refuses a message; clients choose some names. */
const char *bus_text(const char *s, char buf[BUS_TEXT_BYTES]);
