/* SPDX-License-Identifier: Apache-2.0 */
/* How packets reach another host: the interface that they leave by, and the largest one that arrives. Nothing blocks. */
#pragma once

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/addr.h"

enum nd_path_proof {
	ND_PATH_PROVED, /* a packet of that size arrived */
	ND_PATH_REPORTED, /* a router says that it forwards no larger one, and one of that size arrived */
	ND_PATH_LOST,   /* larger ones are lost, and no router says so */
	ND_PATH_SILENT, /* the host does not answer even small ones: mtu is what the kernel assumes */
};

struct nd_path {
	struct dray_addr from; /* port 0 */
	char interface[IF_NAMESIZE];
	uint32_t link_mtu;
	enum nd_path_proof proof;
	uint32_t mtu;  /* bytes of an IP packet */
	unsigned sent; /* packets */
	/* private */
	int fd;
	bool v6, known;
	uint32_t size; /* that is tried */
	unsigned tries;
};

#define ND_PATH_NULL ((struct nd_path){ .fd = -1 })
/*
 * The time that a packet has for its answer. Linux answers a burst, and then one packet a second: the second try after this time has an
 * answer, unless the packet is lost.
 */
#define ND_PATH_WAIT_MS 1100

/*
 * Finds the route, and makes fd. 0; or -errno, mostly -ENETUNREACH. The caller closes in any case.
 *
 * The MTU is found by datagrams to a port on which no program receives any: the host answers those that arrive with an ICMP
 * error. `to` has the port of a TCP listener, which is likely to be free for UDP and open in firewalls.
 */
int nd_path_open(struct nd_path *p, const struct dray_addr *to);
void nd_path_close(struct nd_path *p);

/*
 * Sends the next packet, if one is needed. Call it first, then whenever fd has an error (EPOLLERR), and when there was none for
 * ND_PATH_WAIT_MS (late). True: done, `proof` and `mtu` are set.
 */
bool nd_path_step(struct nd_path *p, bool late);
