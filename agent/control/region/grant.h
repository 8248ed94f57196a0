/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants: ranges of this agent's regions that peers have imported. A grant ends by the peer's
 * release, by revocation (fenced: the peer acknowledges or is lost), or with the peer. Control
 * thread only.
 */
#ifndef DRAY_AGENT_CONTROL_REGION_GRANT_H
#define DRAY_AGENT_CONTROL_REGION_GRANT_H

#include "agent/model/view.h"
#include "lib/err.h"

struct regions;

/*
 * Checks the capability of a token for this peer and makes a grant, published to the workers.
 * Errors: token_invalid, token_expired, token_used, token_audience, incarnation, revoked, quota,
 * draining.
 */
int grant_import(struct regions *r, dray_handle peer, const uint8_t peer_agent_id[16],
		 uint64_t token_id, dray_handle region, uint64_t incarnation,
		 const uint8_t capability[16], dray_handle *ret_grant, uint64_t *ret_length,
		 uint16_t *ret_access, struct dray_err *reterr);

/* The peer is done with it. Unknown grants, and those of another peer, are ignored. */
void grant_release(struct regions *r, dray_handle peer, dray_handle grant);

/* The peer has acknowledged the fence (or cannot use the grant any more). */
void grant_fenced(struct regions *r, dray_handle peer, dray_handle grant);

/* The peer has keys by which its devices reach the range: an urgent end waits for its acknowledgement, too. */
void grant_expose(struct regions *r, dray_handle peer, dray_handle grant);

/* Runs fn for each live grant of the region. */
void grants_of_region(struct regions *r, dray_handle region,
		      void (*fn)(void *arg, dray_handle peer, dray_handle grant, uint64_t offset,
				 uint64_t length),
		      void *arg);

/* Where a live grant of this peer lies. False if there is none. */
bool grant_range(struct regions *r, dray_handle peer, dray_handle grant, dray_handle *ret_region,
		 uint64_t *ret_offset, uint64_t *ret_length);

/* The peer is gone: all its grants end, and their fences count as acknowledged. */
void grants_peer_gone(struct regions *r, dray_handle peer);

/*
 * Region handle behind a live grant of this peer, 0 if there is none: the target of its
 * notifications.
 */
dray_handle grant_region(struct regions *r, dray_handle peer, dray_handle grant);

uint32_t grants_count(struct regions *r, dray_handle peer);

/* Grants of all peers. */
uint32_t grants_total(struct regions *r);

#endif
