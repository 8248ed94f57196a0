/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Upcalls of regions for a node without RDMA devices: nothing is registered, so removal completes
 * at once.
 */
#pragma once

#include "agent/control/region/region.h"

static int no_devices_error; /* of what is added */

static inline int no_devices_added(struct rails *rails, const struct region_view *view,
				   const struct region_dmabuf *dmabufs)
{
	(void)rails;
	(void)view;
	(void)dmabufs;
	return no_devices_error;
}

static inline void no_devices_removed(struct rails *rails, dray_handle region,
				      void (*done)(void *arg), void *done_arg)
{
	(void)rails;
	(void)region;
	done(done_arg);
}

static inline bool no_devices_revoked(struct rails *rails, dray_handle region,
				      void (*done)(void *arg), void *done_arg)
{
	(void)rails;
	(void)region;
	(void)done;
	(void)done_arg;
	return false;
}

/* Nor are there sessions that hear of the end of leases. */
static inline void no_lease_ended(struct sessions *sessions, dray_handle session,
				  const struct dmsg_lease_ended *m)
{
	(void)sessions;
	(void)session;
	(void)m;
}

/* For an initializer of struct regions_upcalls. */
#define NO_DEVICES                                                                               \
	.added = no_devices_added, .removed = no_devices_removed, .revoked = no_devices_revoked, \
	.lease_ended = no_lease_ended
