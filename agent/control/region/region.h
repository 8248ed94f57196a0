/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions, their tokens, and the grants made from them. The control thread owns all of it;
 * workers see views. Asynchronous ends run their callback exactly once, never inside the call.
 *
 * A token lives until it is revoked, its region is removed, its time is over, or its single use
 * is over. Expiry and single use limit importing: what was imported before stays usable until it
 * is released or revoked. The owner's clock alone decides (the time in the token is for people).
 *
 * Ending an export is a fence. For each grant made from the token two things must happen: every
 * worker here stops serving it, and the peer acknowledges (or is lost). For each remote within
 * this agent: every worker stops using it. REVOKE and REMOVE are done when all of that is. An
 * urgent end, of a dead session's region, does not wait for the peers: workers here refuse by
 * themselves, so the memory can go at once, and the grants stay known until their peers have
 * answered.
 */
#ifndef DRAY_AGENT_CONTROL_REGION_REGION_H
#define DRAY_AGENT_CONTROL_REGION_REGION_H

#include "agent/control/gpu/gpus.h"
#include "agent/control/region/grant.h"
#include "agent/data/data.h"
#include "lib/err.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"
#include "schema/gen/peer.h"

struct regions;

struct regions_upcalls {
	/*
	 * Send FENCE to the peer; ends by grant_fenced() or grants_peer_gone(), not inside the
	 * call.
	 */
	void (*fence)(void *arg, dray_handle peer, dray_handle grant, uint32_t code);
	/*
	 * A token died: this remote must go; call local_remote_gone() once it is dropped, not
	 * inside the call.
	 */
	void (*revoke_local)(void *arg, dray_handle remote, uint32_t code, bool urgent);
	/*
	 * The region's memory may be registered with RDMA devices. dmabufs: of each of the view's extents, where that is
	 * device memory; else NULL. Both last until `removed` is done. REGION_RDMA: ends by region_registered().
	 */
	void (*added)(void *arg, const struct region_view *view,
		      const struct region_dmabuf *dmabufs);
	/* Nobody uses it: devices let go of it, then done(done_arg), possibly inside the call. */
	void (*removed)(void *arg, dray_handle region, void (*done)(void *arg), void *done_arg);
	/* All its tokens were revoked, and no importer is left. */
	void (*revoked)(void *arg, dray_handle region);
};

struct regions_deps {
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct gpus *gpus; /* NULL: kinds cuda_ipc and cuda_vmm are refused */
	const uint8_t *agent_id;
	uint64_t incarnation;
	const struct regions_upcalls *up;
	void *arg;
};

int regions_new(struct regions **ret, const struct regions_deps *deps);
struct regions *regions_free(struct regions *r);

/*
 * Who asks: what the region module must know of a session. Quota use is kept by the caller
 * (session), but for tokens, which end by themselves: `tokens` counts the live ones made from the
 * session's regions. It must stay valid while the session has regions; NULL: not counted, no
 * limit.
 */
struct region_owner {
	dray_handle session, group;
	uint32_t *tokens;
};

struct region_spec {
	const struct region_owner *owner;
	const struct dmsg_region_add *m;
	const int *fds; /* stay the caller's: the region duplicates what it keeps */
	unsigned n_fds;
	/* Of a pending one: it is usable (err NULL), or gone with what it was refused for. Never inside the call. */
	void (*added)(void *arg, const struct dray_err *err);
	void *arg;
};

struct region_added {
	dray_handle region;
	uint64_t length;
	int pool_fd;  /* -1, or the memfd of a pool to pass to the client; the region's */
	bool pending; /* added() comes */
};

/*
 * Checks and maps the extents. Memory of devices is opened or registered in the background: until added() its handle
 * is good for region_remove() alone, after which added() will not run. Errors as REGION_ADD lists.
 */
int region_add(struct regions *r, const struct region_spec *spec, struct region_added *ret,
	       struct dray_err *reterr);

/* RDMA devices have its memory (usable), or none of them: then why. Not inside `added` of the upcalls. */
void region_registered(struct regions *r, dray_handle region, bool usable, const char *why);

/*
 * A GPU is lost: regions on it end with gpu_lost, and their memory is closed. Their handles stay until they are
 * removed.
 */
void regions_gpu_lost(struct regions *r, unsigned device);

/* GPU that a live region's memory is on; -1: none. */
int region_gpu(struct regions *r, dray_handle region);

/*
 * Proof of stop, then unmapped and forgotten, then done(arg). urgent: its session died. -ENOENT
 * if not this session's, or being removed already.
 */
int region_remove(struct regions *r, dray_handle region, dray_handle session, bool urgent,
		  void (*done)(void *arg), void *arg);

/* The session of a region that is being removed died: from now on that is urgent. */
void region_hurry(struct regions *r, dray_handle region);

/*
 * Closes client descriptors without making the caller wait, and sets them to -1. What is not a
 * memory file may block for ever when it is closed.
 */
void regions_close_fds(struct regions *r, int *fds, unsigned n);

/*
 * Any member of the region's group may export it. Binary token into ret_token (DMSG_TOKEN_MAX
 * bytes). segment: what goes in.
 */
int region_export(struct regions *r, const struct region_owner *owner,
		  const struct dmsg_region_export *m, const char *segment, uint64_t *ret_token_id,
		  uint8_t *ret_token, uint32_t *ret_token_length, struct dray_err *reterr);

/*
 * Any member of the region's group may revoke. token_id 0: all of the region's. done(arg, count)
 * when nobody can use them any more; that includes tokens whose revocation was under way.
 */
int region_revoke(struct regions *r, dray_handle region, const struct region_owner *who,
		  uint64_t token_id, void (*done)(void *arg, uint32_t count), void *arg,
		  struct dray_err *reterr);

/*
 * Parses a binary token; checks form only. segment: at least 256 bytes. 0 or -EINVAL with
 * token_invalid.
 */
int token_parse(const uint8_t *p, size_t n, struct pmsg_token *ret, char *ret_segment,
		struct dray_err *reterr);

/*
 * Import within this agent: checks like grant_import, ties `remote` (a handle of the session
 * module) to the token, and tells region, offset, length and access. local_remote_gone() ends the
 * tie.
 */
int token_import_local(struct regions *r, const struct pmsg_token *token, dray_handle remote,
		       dray_handle *ret_region, uint64_t *ret_offset, uint64_t *ret_length,
		       uint16_t *ret_access, struct dray_err *reterr);
void local_remote_gone(struct regions *r, uint64_t token_id, dray_handle remote);

/* Group that owns a live region, 0 if unknown. */
dray_handle region_group(struct regions *r, dray_handle region, dray_handle *ret_session);

/* New exports and imports are refused. */
void regions_drain(struct regions *r, bool on);

struct region_info {
	dray_handle region, session;
	const char *name, *kind, *state;
	uint16_t access;
	uint32_t extents, tokens, grants;
	uint64_t length;
	int gpu; /* index of the GPU it lies on; -1: on none */
};

void regions_each(struct regions *r, void (*fn)(void *arg, const struct region_info *info),
		  void *arg);
void regions_totals(struct regions *r, uint64_t *ret_regions, uint64_t *ret_bytes,
		    uint64_t *ret_tokens);

#endif
