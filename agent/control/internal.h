/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the control socket share. */
#ifndef DRAY_AGENT_CONTROL_INTERNAL_H
#define DRAY_AGENT_CONTROL_INTERNAL_H

#include <systemd/sd-bus.h>

#include "agent/agent.h"
#include "agent/control/access.h"
#include "agent/unix_listener.h"
#include "lib/list.h"

/* Sender of everything the agent says. The connections are :1.1 and up. */
#define CONTROL_SENDER ":1.0"

struct control {
	struct agent *agent;
	struct unix_listener listener;
	sd_event_source *accept_source, *accept_pause, *reaper;
	struct control_rules rules;
	struct dray_list conns;
	unsigned n_conns, n_readers; /* readers: those who may not change anything */
	uint64_t last_number;

	/* listing.c: calls of ListTransfers that the listing under way answers, and later ones */
	struct dray_list asked, waiting;
	bool listing;
};

struct control_conn {
	struct dray_list link;
	struct control *control;
	sd_bus *bus;
	struct control_who who;
	uint64_t number;
	bool hello;
	bool doomed;    /* to be freed from the loop */
	size_t unread;  /* bytes of lists sent since it had last read everything; an estimate */
	unsigned calls; /* of ListTransfers, not answered yet */
};

/* --- control.c --- */

/* May more be sent to a client that may not be reading? Else sets the error: 0 or -ENOBUFS. */
int control_conn_has_room(struct control_conn *c, sd_bus_error *reterr);

/* Sends a reply of about that many bytes. */
int control_conn_send(struct control_conn *c, sd_bus_message *reply, size_t bytes);

/* --- driver.c: what clients expect of a bus --- */
int control_driver_add(struct control_conn *c);

/* --- object.c: dev.dray.Agent1 --- */
int control_object_add(struct control_conn *c);

/* --- listing.c: ListTransfers, whose answer the workers give later --- */
int control_listing_ask(struct control_conn *c, sd_bus_message *m, sd_bus_error *reterr);
void control_listing_forget(struct control_conn *c);
void control_listing_stop(struct control *control);

/* --- records.c: the dictionaries of the list methods --- */
int control_records_sessions(struct agent *a, sd_bus_message *reply, size_t *ret_bytes);
int control_records_regions(struct agent *a, sd_bus_message *reply, size_t *ret_bytes);
int control_records_peers(struct agent *a, sd_bus_message *reply, size_t *ret_bytes);
int control_records_rails(struct agent *a, sd_bus_message *reply, size_t *ret_bytes);
int control_records_paths(struct agent *a, sd_bus_message *reply, size_t *ret_bytes);
int control_records_transfers(struct snapshot *const *snapshots, unsigned n, sd_bus_message *reply,
			      size_t *ret_bytes);

#endif
