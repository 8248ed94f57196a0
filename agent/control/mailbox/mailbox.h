/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mailboxes: names that sessions opened, and the letters for them. Control thread only.
 *
 * A letter is delivered when it is in the queue of the session that owns the mailbox. A few letters at a time go to the
 * session's worker; the others wait here. So a client that does not read fills its own mailboxes alone, and the agent
 * knows every letter that was not read.
 *
 * Limits count letters and memory. Each is divided fairly: a sender may add to what it already holds only while that is
 * less than what it would leave free. One agent alone so fills half of a mailbox, and the next one half of the rest; the
 * same holds for the uids within the part of one agent, and for owners of mailboxes within limits.letter_bytes.
 *
 * Each tenant has names of its own: a letter reaches mailboxes of the tenant of its sender, at any agent.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "agent/config/tenant.h"
#include "agent/model/message.h"
#include "lib/err.h"
#include "lib/handle.h"
#include "lib/list.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus.h"

struct mailboxes;
struct sessions;

/* Calls to the sessions. */
struct mailboxes_upcalls {
	/* Sends an event; mailboxes_handle_sent() follows unless the session ends. The packet is consumed. */
	void (*send)(struct sessions *sessions, dray_handle session, struct packet *packet);
	/* The last letter of a mailbox was sent after mailbox_close(). May run inside mailbox_close(). */
	void (*closed)(struct sessions *sessions, dray_handle session, uint64_t request_id);
};

struct mailboxes_deps {
	sd_event *event; /* NULL: nothing waits for a later turn */
	const struct dray_config *cfg;
	const struct mailboxes_upcalls *up;
	struct sessions *const *sessions; /* set before the first mailbox */
};

/* 0 or -ENOMEM. */
int mailboxes_new(struct mailboxes **ret, const struct mailboxes_deps *deps);
/* After every owner has ended. */
struct mailboxes *mailboxes_free(struct mailboxes *m);

/* The mailboxes of one session. */
struct mailbox_owner {
	dray_handle session;
	const char *tenant;
	uid_t uid;
	gid_t gid;
	const char *name; /* of the session */
	struct budget_account *budget;
	struct dray_list list;    /* struct mailbox */
	struct dray_list letters; /* that wait, oldest first */
	struct dray_list sent;    /* that its worker has, oldest first */
	uint32_t n_sent;
};

/* The owner must stay at its address until mailbox_owner_end(), and so must the texts. */
void mailbox_owner_init(struct mailbox_owner *o, dray_handle session, const char *tenant, uid_t uid,
			gid_t gid, const char *name, struct budget_account *budget);
/* The session ends: its mailboxes end at once; their letters are freed soon. Their names stay reserved for the tenant and uid. */
void mailbox_owner_end(struct mailboxes *m, struct mailbox_owner *o);

/* capacity: letters, 0: the limit of the configuration; *ret_capacity: as granted. 0, or -errno with reterr. */
int mailbox_open(struct mailboxes *m, struct mailbox_owner *o, struct dray_str name,
		 uint32_t capacity, dray_handle *ret, uint32_t *ret_capacity,
		 struct dray_err *reterr);
/* The name is free at once. up->closed follows when the owner was sent every letter. 0, or -errno with reterr. */
int mailbox_close(struct mailboxes *m, const struct mailbox_owner *o, dray_handle handle,
		  uint64_t request_id, struct dray_err *reterr);

struct mailbox_sender {
	uint8_t agent_id[16];
	uint64_t incarnation;
	struct dray_str tenant;
	uint32_t uid, gid;
};

/* 0: the letter is in the queue of the owner's session. Else -errno with reterr. */
int mailbox_deliver(struct mailboxes *m, const struct mailbox_sender *from, struct dray_str name,
		    struct dray_blob payload, struct dray_err *reterr);

/* The owner's worker has sent the oldest of the letters that it has. */
void mailboxes_handle_sent(struct mailboxes *m, struct mailbox_owner *o);

/* Open mailboxes in the order of their opening, then reserved names. */
void mailboxes_each(struct mailboxes *m, void (*fn)(void *arg, const struct dray_dbus_mailbox *b),
		    void *arg);

struct mailboxes_totals {
	uint64_t open, letters, bytes; /* now */
	uint64_t delivered, refused;   /* since the start */
};
struct mailboxes_totals mailboxes_totals(const struct mailboxes *m);
