/* SPDX-License-Identifier: Apache-2.0 */
/* PUTs whose objects go to one agent alone (replicate.c offers them to it): what its answers mean for the client. */
#include "agent/control/exchange/internal.h"
#include "schema/gen/errors.h"

enum dmsg_store_status put_at_why_not(const struct exchange *x, const struct lender *d)
{
	if (!peers_is_up_at(x->deps.peers, d->at))
		return DMSG_STORE_STATUS_UNREACHABLE;
	return peers_at(x->deps.peers, d->at, 0) ? DMSG_STORE_STATUS_UNSUPPORTED :
						   DMSG_STORE_STATUS_BUSY;
}

enum dmsg_store_status put_at_status(uint32_t answer, uint32_t code)
{
	static const enum dmsg_store_status statuses[] = {
		[PMSG_STORE_KEPT_KEPT] = DMSG_STORE_STATUS_OK,
		[PMSG_STORE_KEPT_EXISTS] = DMSG_STORE_STATUS_EXISTS,
		[PMSG_STORE_KEPT_NOT_FOUND] = DMSG_STORE_STATUS_BUSY,
		[PMSG_STORE_KEPT_BUSY] = DMSG_STORE_STATUS_BUSY,
		[PMSG_STORE_KEPT_TOO_LARGE] = DMSG_STORE_STATUS_TOO_LARGE,
		[PMSG_STORE_KEPT_CORRUPT] = DMSG_STORE_STATUS_CORRUPT,
		[PMSG_STORE_KEPT_LOST] = DMSG_STORE_STATUS_BUSY,
	};

	if (!code)
		return answer && answer < DRAY_ARRAY_SIZE(statuses) ? statuses[answer] :
								      DMSG_STORE_STATUS_LOST;
	switch (code) {
	case DRAY_E_TIMEOUT:
	case DRAY_E_PEER_LOST:
		return DMSG_STORE_STATUS_UNREACHABLE;
	case DRAY_E_DENIED:
		return DMSG_STORE_STATUS_DENIED;
	case DRAY_E_UNSUPPORTED:
		return DMSG_STORE_STATUS_UNSUPPORTED;
	default:
		return DMSG_STORE_STATUS_BUSY;
	}
}
