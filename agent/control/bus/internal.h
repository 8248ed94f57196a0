/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the control socket share. */
#ifndef DRAY_AGENT_CONTROL_BUS_INTERNAL_H
#define DRAY_AGENT_CONTROL_BUS_INTERNAL_H

#include <systemd/sd-bus.h>

#include "agent/control/socket/acceptor.h"
#include "agent/control/agent.h"
#include "agent/control/bus/access.h"
#include "agent/control/ready.h"
#include "agent/control/socket/unix_listener.h"
#include "lib/list.h"

/* Longest text of a value; names are limited to 64 bytes, reasons to an error's sentence. */
#define CONTROL_TEXT_MAX 256

/* Sender of everything the agent says. The connections are :1.1 and up. */
#define CONTROL_SENDER ":1.0"

/* listing.c: calls that the listing under way answers, and later ones. */
struct control_listing {
	struct control *control;
	struct dray_list asked, waiting;
	bool ended; /* of transfers that ended */
	bool busy;
};

struct control {
	struct agent *agent;
	struct unix_listener listener;
	struct acceptor acceptor;
	sd_event_source *reaper;
	struct control_rules rules;
	struct dray_list conns;
	unsigned n_conns, n_readers; /* readers: those who may not change anything */
	uint64_t last_number;

	struct control_listing in_flight, ended;
	struct dray_list health_calls; /* health.c */
};

struct control_conn {
	struct dray_list link;
	struct control *control;
	sd_bus *bus;
	struct control_who who;
	uint64_t number;
	bool hello;
	bool doomed;   /* to be freed from the loop */
	size_t unread; /* bytes of lists sent since it had last read everything; an estimate */
	unsigned n_listings, n_cancels, n_healths; /* calls that wait for their answer */
	struct dray_list cancels;
};

/* --- control.c --- */

/*
 * May m be answered with a list? 0; 1 where no answer is wanted; < 0, and the error is set, where too much waits to
 * be read by the client.
 */
int control_conn_check_list(struct control_conn *c, sd_bus_message *m, sd_bus_error *reterr);

/* Sends a reply of about that many bytes. */
int control_conn_send(struct control_conn *c, sd_bus_message *reply, size_t bytes);

/* --- call.c: a call that is answered later --- */

struct control_call {
	struct dray_list link;
	struct control_conn *conn;
	sd_bus_message *m;
	unsigned *count; /* of those like it that its connection has */
};

/*
 * Holds m. bytes: of a structure that begins with one, zeroed. Where the connection has max of them already, which
 * the error calls what, or without memory: NULL, and the error is set.
 */
void *control_call_new(size_t bytes, struct control_conn *c, sd_bus_message *m, unsigned *count,
		       unsigned max, const char *what, struct dray_list *list,
		       sd_bus_error *reterr);
struct control_call *control_call_free(struct control_call *call);

/* --- driver.c: what clients expect of a bus --- */
int control_driver_add(struct control_conn *c);

/* --- object.c: dev.dray.Agent1 --- */
int control_object_add(struct control_conn *c);

/* --- changes.c --- */
/* May this connection change things? 0, or < 0 with the error set. */
int control_may_change(const struct control_conn *c, const char *what, sd_bus_error *reterr);
void control_cancels_forget(struct control_conn *c);

/* --- listing.c: lists of transfers, whose answer the workers give later --- */
void control_listing_init(struct control *control);
int control_listing_ask(struct control_conn *c, bool ended, sd_bus_message *m,
			sd_bus_error *reterr);
void control_listing_forget(struct control_conn *c);
void control_listing_stop(struct control *control);

/* --- health.c: Health, likewise --- */
int control_health_ask(struct control_conn *c, sd_bus_message *m, sd_bus_error *reterr);
void control_health_forget(struct control_conn *c);

/* --- gpus.c --- */
/* UUID of the device with that index; "" where there is none, or it is below 0. Good as long as the plug-in. */
const char *control_gpu_uuid(struct agent *a, int index);

/* --- rows.c --- */
/* D-Bus refuses a whole message for one bad byte, and names are the clients' own words: a clean copy. */
const char *control_text(const char *s, char buf[CONTROL_TEXT_MAX]);

/* --- records.c, gpus.c, placement.c: the dictionaries of the list methods. m: the call, whose arguments they read --- */
int control_records_sessions(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			     size_t *ret_bytes);
int control_records_regions(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			    size_t *ret_bytes);
int control_records_peers(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			  size_t *ret_bytes);
int control_records_rails(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			  size_t *ret_bytes);
int control_records_paths(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			  size_t *ret_bytes);
int control_records_gpus(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			 size_t *ret_bytes);
int control_records_events(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			   size_t *ret_bytes);
int control_records_settings(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			     size_t *ret_bytes);
int control_records_segments(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			     size_t *ret_bytes);
int control_records_candidates(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			       size_t *ret_bytes);
int control_records_hints(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			  size_t *ret_bytes);
int control_records_environment(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
				size_t *ret_bytes);
/* Are the profiles of this call known? 0, or < 0 with the error set. */
int control_environment_check(struct agent *a, sd_bus_message *m, sd_bus_error *reterr);
int control_records_transfers(struct snapshot *const *snapshots, unsigned n, sd_bus_message *reply,
			      size_t *ret_bytes);
int control_records_ended(struct agent *a, struct snapshot *const *snapshots, unsigned n,
			  sd_bus_message *reply, size_t *ret_bytes);
int control_records_conditions(const struct ready *ready, sd_bus_message *reply, size_t *ret_bytes);

#endif
