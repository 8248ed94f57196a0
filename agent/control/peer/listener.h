/* SPDX-License-Identifier: Apache-2.0 */
/* Segment listeners: sockets that accept control connections and data streams of other agents. */
#ifndef DRAY_AGENT_CONTROL_PEER_LISTENER_H
#define DRAY_AGENT_CONTROL_PEER_LISTENER_H

#include "agent/control/socket/acceptor.h"
#include "lib/addr.h"
#include "lib/err.h"
#include "lib/list.h"

struct peers;

struct listener {
	struct dray_list link;
	struct peers *p;
	int fd;
	struct dray_addr addr; /* with the port it got */
	struct acceptor acceptor;
};

/*
 * Opens what peer.listen and systemd ask for, or the defaults. Refuses addresses beyond loopback without
 * key and without peer.allow_insecure. Then finds the segment to advertise.
 */
int listeners_open(struct peers *p, struct dray_err *reterr);
void listeners_close(struct peers *p);

#endif
