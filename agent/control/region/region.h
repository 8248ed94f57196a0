/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions, their tokens, and grants: ranges of regions that peers have imported by a token. Control thread only; workers
 * see views. Every callback runs exactly once, never inside the call, unless its comment says so.
 *
 * A token ends when it is revoked, its region is removed, it expires, or its single use is spent. Expiry and single use limit
 * importing: imports made before stay usable until they are released or revoked. The owner's clock alone decides; the time
 * in the token is information for people.
 *
 * The end of an export is a fence. For each grant of the token every worker here stops serving it, and the peer acknowledges
 * or is lost. For each remote of this agent every worker stops using it. REVOKE and REMOVE are answered after all of that.
 * A lease (lease.c) is a token with ranges, whose expiry is the end of all use, and whose holders are counted.
 *
 * An urgent end, for the region of a dead session, does not wait for the peers: the workers here refuse their requests, so
 * the memory is released at once, and the grants stay known until their peers have acknowledged.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/control/gpu/gpus.h"
#include "agent/control/owner/owner.h"
#include "agent/data/data.h"
#include "lib/err.h"
#include "lib/list.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus.h"
#include "schema/gen/peer.h"

struct mooncake_server;
struct peers;
struct rails;
struct ranges;
struct regions;
struct sessions;

struct regions_upcalls {
	/* Send FENCE to the peer; ends by grant_fenced(), inside the call if the peer is gone, or by grants_peer_gone(). */
	void (*fence)(struct peers *peers, dray_handle peer, dray_handle grant, uint32_t code);
	/* Drop this remote, since its token has ended; ends by local_remote_gone(), not inside the call. */
	void (*revoke_local)(struct sessions *sessions, dray_handle remote, uint32_t code,
			     bool urgent);
	/*
	 * Register the region's memory with RDMA devices. dmabufs: of each of the view's extents for device memory; else
	 * NULL. Both last until `removed` is done. REGION_RDMA: ends by region_registered(), unless it returns -ENOMEM: then no
	 * device will have the memory.
	 */
	int (*added)(struct rails *rails, const struct region_view *view,
		     const struct region_dmabuf *dmabufs);
	/* Deregister the region, then run done(done_arg), possibly inside the call. */
	void (*removed)(struct rails *rails, dray_handle region, void (*done)(void *arg),
			void *done_arg);
	/*
	 * Tokens of the region were revoked, and their importers acknowledged that. End every key of the region that peers have
	 * seen, then run done(done_arg), not inside the call. False: there is none, and done() does not run.
	 */
	bool (*revoked)(struct rails *rails, dray_handle region, void (*done)(void *arg),
			void *done_arg);
	/*
	 * Over RDMA (regions_mooncake_open()): a range was exported to Mooncake's engines. Register it for them; ends by
	 * mooncake_ended.
	 */
	void (*mooncake_added)(struct rails *rails, const struct grant_view *grant);
	/* The range ends. Deregister it; ends by grant_fenced() with MOONCAKE_PEER, possibly inside the call. */
	void (*mooncake_ended)(struct rails *rails, dray_handle grant);
	/* regions_mooncake_changes() has changed; only after regions_mooncake_open(). */
	void (*mooncake_changed)(struct mooncake_server *server);
	/* A lease has ended, and no holder can access its ranges any more. The session may be gone. */
	void (*lease_ended)(struct sessions *sessions, dray_handle session,
			    const struct dmsg_lease_ended *m);
};

struct regions_deps {
	sd_event *event; /* for the expiry of leases; NULL: the caller calls leases_expire() */
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct gpus *gpus; /* NULL: kinds cuda_ipc and cuda_vmm are refused */
	const uint8_t *agent_id;
	uint64_t incarnation;
	const struct regions_upcalls *up;
	/* set before the first upcall */
	struct peers *const *peers;
	struct sessions *const *sessions;
	struct rails *const *rails;
	struct mooncake_server *const *mooncake;
};

int regions_new(struct regions **ret, const struct regions_deps *deps);
struct regions *regions_free(struct regions *r);

/*
 * The session of a request. The caller counts its use of quotas, except for tokens and leases, which may end by themselves:
 * `tokens` counts the live ones of the session's regions, `leases` its leases. They must stay valid while the session has regions, and until
 * leases_session_gone(). NULL: no limit.
 */
struct region_owner {
	dray_handle session, group;
	uint32_t *tokens;
	struct lease_counts *leases;
	struct owner *uid_owner; /* whose budgets count regions' memory, tokens and leases */
};

/* Starts as zeros. */
struct lease_counts {
	uint32_t leases, ranges;
	struct dray_list list; /* of the leases, unless they are none */
};

struct region_spec {
	const struct region_owner *owner;
	const struct dmsg_region_add *m;
	int *fds; /* counted at the owner; those that the region takes are set to -1 and counted anew */
	unsigned n_fds;
	bool early; /* transfers may use memory of a GPU as soon as region_add() returns */
	/*
	 * For a pending region, which all but pools are: it is usable (err NULL), or removed with the error. One that is used early ends with
	 * the error, but its handle stays until region_remove(). Never inside the call.
	 */
	void (*added)(void *arg, const struct dray_err *err);
	void *arg;
};

struct region_added {
	dray_handle region;
	uint64_t length;
	int pool_fd;  /* -1, or the memfd of a pool to pass to the client; the region's */
	bool pending; /* added() follows */
	bool early;   /* and transfers may use it */
};

/*
 * Checks the extents. They are mapped, opened or registered in the background: until added() the region's handle is only
 * good for region_remove(), after which added() does not run, and for transfers, if it is used early: each waits for the allocations that it
 * touches. Errors as REGION_ADD lists.
 */
int region_add(struct regions *r, const struct region_spec *spec, struct region_added *ret,
	       struct dray_err *reterr);

/* The `arg` of the group's region that is used early and whose memory is being opened; NULL: it is not. */
void *region_early(struct regions *r, dray_handle region, dray_handle group);

/* Sum of the lengths of the request's extents. Error `range` if it overflows, `invalid` without extents, or if one is empty. */
int extents_length(const struct dmsg_region_add *m, uint64_t *ret_length, struct dray_err *reterr);

/* An RDMA device has registered the region (usable), or none can, because of `why`. Not inside `added` of the upcalls. */
void region_registered(struct regions *r, dray_handle region, bool usable, const char *why);

/* A GPU is lost: ends regions on it with gpu_lost and closes their memory. Their handles stay until region_remove(). */
void regions_gpu_lost(struct regions *r, unsigned device);

/* The region is live and on a GPU. */
bool region_is_gpu(struct regions *r, dray_handle region);

/* Makes earlier writes of RDMA devices to the region visible to its GPU, if it has one. False: the GPU is lost. */
bool region_flush_rdma(struct regions *r, dray_handle region);

/*
 * Ends all use of the region, releases its memory and its handle, then runs done(arg). urgent: its session is dead. -ENOENT
 * if it is a region of another session, or is being removed already.
 */
int region_remove(struct regions *r, dray_handle region, dray_handle session, bool urgent,
		  void (*done)(void *arg), void *arg);

/* A page of the session's memory is missing: rights to its regions that still exist end with region_fault. */
void regions_fault(struct regions *r, dray_handle session);

/* The session of a region that is being removed is dead: makes the removal urgent. */
void region_hurry(struct regions *r, dray_handle region);

/* For struct gpus_upcalls: closes duplicates of descriptors of the region's client, and sets them to -1. */
void region_close_fds(void *region, int *fds, unsigned n);
/* Likewise: a part of the region's memory is open. Any thread. */
void region_part_opened(void *region, unsigned device, unsigned part, uint64_t address);

/*
 * Makes a token with this segment, in binary form, in ret_token (DMSG_TOKEN_MAX bytes). Any member of the region's group may
 * export it.
 */
int region_export(struct regions *r, const struct region_owner *owner,
		  const struct dmsg_region_export *m, const char *segment, uint64_t *ret_token_id,
		  uint8_t *ret_token, uint32_t *ret_token_length, struct dray_err *reterr);

/*
 * Revokes a token, or all of the region (token_id 0). Any member of the region's group may do so. done(arg, count) when
 * these tokens, some of which may be revoked already, cannot be used any more. Nobody can import them after the call.
 */
int region_revoke(struct regions *r, dray_handle region, const struct region_owner *owner,
		  uint64_t token_id, void (*done)(void *arg, uint32_t count), void *arg,
		  struct dray_err *reterr);

/*
 * Leases ranges of a region to the holders of the token, whose form and segment are as in region_export(). Any member of the region's
 * group may do so. Ends by the upcall lease_ended, possibly inside another call of this module.
 */
int lease_new(struct regions *r, const struct region_owner *owner, const struct dmsg_lease *m,
	      const char *segment, uint64_t *ret_lease, uint8_t *ret_token,
	      uint32_t *ret_token_length, struct dray_err *reterr);

/* Ends a lease of this session. done(arg, count) when its holders cannot use it any more; lease_ended comes before. */
int lease_end(struct regions *r, dray_handle lease, const struct region_owner *owner,
	      void (*done)(void *arg, uint32_t count), void *arg, struct dray_err *reterr);

/* The session ends: so do its leases on regions of other members of its group, and its counts are not used any more. */
void leases_session_gone(struct lease_counts *counts);

/* A holder at this agent, whose handle the session module has set: as token_import_local(). */
int lease_acquire_local(struct regions *r, const struct pmsg_token *token,
			struct remote_view *remote, uint32_t *ret_expiry_ms,
			struct dray_err *reterr);

/*
 * A holder at a peer: checks the capability, makes a grant and publishes it to the workers. unasked: the peer has not requested
 * it; such a grant is also the answer to a later request, which may have been sent before the grant arrived. Then 1 with
 * ret->grant alone. Otherwise 0 with all of *ret but the rails, and *ret_ranges, borrowed until the next call of this module. Errors as of
 * grant_import().
 */
int lease_acquire(struct regions *r, dray_handle peer, const uint8_t peer_agent_id[16],
		  const struct pmsg_lease_key *key, bool unasked, struct pmsg_lease_granted *ret,
		  const struct ranges **ret_ranges, struct dray_err *reterr);

/* A holder renews a lease: by its token at this agent, or by its grant. *ret_ms: time until it expires. -ENOENT: it has ended. */
int lease_renew_local(struct regions *r, uint64_t token_id, uint32_t ms, uint32_t *ret_ms);
int lease_renew(struct regions *r, dray_handle peer, dray_handle grant, uint32_t ms,
		uint32_t *ret_ms);

/* Ends leases whose time is over at `now_ns`, some of them if they are many. */
void leases_expire(struct regions *r, int64_t now_ns);

/* The next lease; start with *cursor = 0. Leases may come and go between calls. False: there are no more. */
bool leases_next(struct regions *r, uint32_t *cursor,
		 void (*fn)(void *arg, const struct dray_dbus_lease *lease), void *arg);

struct leases_totals {
	uint64_t leases, holders; /* now */
	uint64_t made, renewed;   /* since the start */
	uint64_t ended[DMSG_LEASE_OUTCOME_PEER_LOST + 1];
};
struct leases_totals leases_totals(const struct regions *r);

/* Parses a binary token and checks only its form. ret_segment: 256 bytes. 0 or -EINVAL with token_invalid. */
int token_parse(const uint8_t *p, size_t n, struct pmsg_token *ret, char *ret_segment,
		struct dray_err *reterr);

/*
 * Import by a remote of this agent, whose handle the session module has set: the same checks as grant_import(). Sets the
 * range and the access of the remote. It lasts until local_remote_gone().
 */
int token_import_local(struct regions *r, const struct pmsg_token *token,
		       struct remote_view *remote, struct dray_err *reterr);
void local_remote_gone(struct regions *r, uint64_t token_id, dray_handle remote,
		       enum pmsg_release_how how);

/* The group that owns a live region; 0 for an unknown region. ret_session may be NULL. */
dray_handle region_group(struct regions *r, dray_handle region, dray_handle *ret_session);

/* on: refuses new regions, exports and imports. */
void regions_drain(struct regions *r, bool on);

/*
 * Checks the capability of a token for this peer, makes a grant and publishes it to the workers. Sets all of *ret but the
 * rails. Errors: token_invalid, token_expired, token_used, token_audience, incarnation, revoked, quota, draining.
 */
int grant_import(struct regions *r, dray_handle peer, const uint8_t peer_agent_id[16],
		 const struct pmsg_import *m, struct pmsg_import_reply *ret,
		 struct dray_err *reterr);

/* The peer has released the grant. Ignores unknown grants and grants of other peers. */
void grant_release(struct regions *r, dray_handle peer, dray_handle grant,
		   enum pmsg_release_how how);

/* The peer has acknowledged the fence (or cannot use the grant any more). */
void grant_fenced(struct regions *r, dray_handle peer, dray_handle grant);

/* The peer has RDMA keys of the range, so an urgent end waits for its acknowledgement, too. */
void grant_expose(struct regions *r, dray_handle peer, dray_handle grant);
/* Grants whose peers may still use keys of the region; also those that end, until the peer has acknowledged that. */
void grants_with_keys(struct regions *r, dray_handle region,
		      void (*fn)(void *arg, const struct grant_view *grant), void *arg);

/* Runs fn for each live grant of the region. */
void grants_of_region(struct regions *r, dray_handle region,
		      void (*fn)(void *arg, const struct grant_view *grant), void *arg);

/* A live grant of this peer. NULL: there is none. */
const struct grant_view *grant_find(struct regions *r, dray_handle peer, dray_handle grant);

/* The peer is lost: all its grants end, and their fences count as acknowledged. */
void grants_peer_gone(struct regions *r, dray_handle peer);

/* The region of a live grant of this peer, which receives its notifications; 0: none. */
dray_handle grant_region(struct regions *r, dray_handle peer, dray_handle grant);

uint32_t grants_count(struct regions *r, dray_handle peer);

/* From now on ranges may be exported to Mooncake's engines, at most so many at once. rdma: they are reached by queue pairs. */
void regions_mooncake_open(struct regions *r, uint32_t max, bool rdma);
/* Runs fn for each range that is exported to Mooncake's engines now. */
void regions_mooncake_each(struct regions *r, void (*fn)(void *arg, const struct grant_view *grant),
			   void *arg);

/* Another number after each change of these ranges. */
uint64_t regions_mooncake_changes(const struct regions *r);

/* Grants of all peers, without those for Mooncake's engines, which hold nothing. */
uint32_t grants_total(struct regions *r);

/* Fills every field but rdma. */
void regions_each(struct regions *r, void (*fn)(void *arg, const struct dray_dbus_region *region),
		  void *arg);
void regions_totals(struct regions *r, uint64_t *ret_regions, uint64_t *ret_bytes,
		    uint64_t *ret_tokens);
