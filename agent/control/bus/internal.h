/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the D-Bus server. */
#ifndef DRAY_AGENT_CONTROL_BUS_INTERNAL_H
#define DRAY_AGENT_CONTROL_BUS_INTERNAL_H

#include <systemd/sd-bus.h>

#include "agent/control/agent.h"
#include "agent/control/bus/access.h"
#include "agent/control/bus/dictionaries.h"
#include "agent/control/socket/acceptor.h"
#include "agent/control/socket/unix_listener.h"
#include "lib/list.h"

/* Longest text in a signal or property, with its NUL; names have at most 64 bytes, reasons the length of an error. */
#define BUS_TEXT_BYTES 256

/* Sender of every message of the agent. The connections are :1.1 and up. */
#define BUS_SENDER ":1.0"

/* transfer_lists.c: calls that the current query of the workers answers, and calls that the next one answers. */
struct transfer_list {
	struct bus_server *server;
	struct dray_list asked, waiting;
	bool ended; /* lists transfers that have ended */
	bool busy;
};

struct bus_server {
	struct agent *agent;
	struct unix_listener listener;
	struct acceptor acceptor;
	sd_event_source *reaper;
	struct access_rules rules;
	struct dray_list conns;
	unsigned n_conns, n_readers; /* readers: connections that may not change anything */
	uint64_t last_number;

	struct transfer_list in_flight, ended;
	struct dray_list health_calls; /* health_method.c */
};

struct bus_conn {
	struct dray_list link;
	struct bus_server *server;
	sd_bus *bus;
	struct bus_client who;
	uint64_t number;
	bool hello;
	bool doomed;   /* the event loop frees it */
	size_t unread; /* estimated bytes of lists sent since the client had read everything */
	unsigned n_listings, n_cancels, n_healths; /* calls without an answer yet */
	struct dray_list cancels;
};

/* --- bus.c --- */

/* 0; 1 if the client expects no reply to m; < 0 with the error set if the client has too many unread lists. */
int bus_conn_check_list(struct bus_conn *c, sd_bus_message *m, sd_bus_error *reterr);

/* Sends a reply of about that many bytes. */
int bus_conn_send(struct bus_conn *c, sd_bus_message *reply, size_t bytes);

/* --- pending_reply.c: a call that is answered later --- */

struct pending_reply {
	struct dray_list link;
	struct bus_conn *conn;
	sd_bus_message *m;
	unsigned *count; /* the connection's pending replies of this kind */
};

/*
 * Keeps m until pending_reply_free(). bytes: size of a struct that begins with struct pending_reply; it is zeroed.
 * NULL with the error set without memory, or if the connection has max pending replies; `what` names them.
 */
void *pending_reply_new(size_t bytes, struct bus_conn *c, sd_bus_message *m, unsigned *count,
			unsigned max, const char *what, struct dray_list *list,
			sd_bus_error *reterr);
struct pending_reply *pending_reply_free(struct pending_reply *reply);

/* --- driver.c: org.freedesktop.DBus, and properties.c: dev.dray.Agent1 --- */
int bus_driver_add(struct bus_conn *c);
int bus_object_add(struct bus_conn *c);

/* --- change_methods.c --- */
/* Reads the arguments of m if this connection may change things. >= 0, or < 0 with the error set. */
int bus_conn_read_change(const struct bus_conn *c, sd_bus_message *m, sd_bus_error *reterr,
			 const char *types, ...);
void cancel_replies_forget(struct bus_conn *c);

/* --- transfer_lists.c: ListTransfers and ListEndedTransfers, which the workers answer --- */
void transfer_lists_init(struct bus_server *server);
void transfer_lists_forget(struct bus_conn *c);
void transfer_lists_stop(struct bus_server *server);

/* --- health_method.c: Health, which waits for the workers --- */
void health_replies_forget(struct bus_conn *c);

/* --- dictionaries.c --- */
/* Copies s without bytes that are not UTF-8, for which D-Bus refuses a message; clients choose some names. */
const char *bus_text(const char *s, char buf[BUS_TEXT_BYTES]);

/* --- list_values.c and placement_methods.c: the records of each list --- */
dictionaries_fn fill_sessions, fill_regions, fill_peers, fill_rails, fill_paths, fill_gpus;
dictionaries_fn fill_conditions, fill_transfers, fill_ended, fill_events, fill_settings;
dictionaries_fn fill_segments, fill_candidates, fill_hints, fill_environment;

#endif
