/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/region/internal.h"
#include "agent/control/region/region.h"
#include "agent/model/handle.h"
#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/random.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* The segment follows the fixed part: a 32-bit length and the text. */
#define SEGMENT_AT (PMSG_TOKEN_SIZE + 4)
_Static_assert(SEGMENT_AT + PMSG_TOKEN_SEGMENT_MAX <= DMSG_TOKEN_MAX, "a token fits");

/* Index of a handle that no grant has: the table of grants is smaller. */
#define NO_GRANT DRAY_HANDLES_MAX

static const uint8_t nobody[AGENT_ID_BYTES];

static int malformed(struct dray_err *reterr, const char *why)
{
	return dray_err_set(reterr, -EINVAL, DRAY_E_TOKEN_INVALID, "the token %s", why);
}

int token_parse(const uint8_t *p, size_t n, struct pmsg_token *ret, char *ret_segment,
		struct dray_err *reterr)
{
	char segment[PMSG_TOKEN_SEGMENT_MAX + 1];
	struct pmsg_token t;
	uint32_t length;

	if (n < SEGMENT_AT)
		return malformed(reterr, "is too short");
	pmsg_token_get(p, &t);
	length = dray_le_get32(p + PMSG_TOKEN_SIZE);
	if (t.version != PMSG_TOKEN_VERSION)
		return malformed(reterr, "has a version that this agent does not know");
	if (length > PMSG_TOKEN_SEGMENT_MAX || n != SEGMENT_AT + length)
		return malformed(reterr, "has a length that does not fit its content");
	if (!t.access || t.access & ~DMSG_ACCESS_ALL || !t.length ||
	    t.length > UINT64_MAX - t.offset)
		return malformed(reterr, "has an impossible range or access");
	memcpy(segment, p + SEGMENT_AT, length);
	segment[length] = 0;
	if (strlen(segment) != length || (length && !dray_endpoint_valid(segment)))
		return malformed(reterr, "has a malformed segment");
	memcpy(ret_segment, segment, length + 1);
	*ret = t;
	return 0;
}

static void remember_dead(struct regions *r, const struct token *t, uint32_t code)
{
	struct dead_token *g = &r->dead[r->dead_at++ % DEAD_TOKENS];

	dray_map_del(&r->dead_tokens, &g->node);
	g->token = t->handle;
	memcpy(g->capability, t->capability, CAPABILITY_BYTES);
	g->code = code;
	dray_map_add(&r->dead_tokens, &g->node, &g->token, sizeof(g->token));
}

static uint32_t dead_code(const struct regions *r, dray_handle token, const uint8_t *capability)
{
	const struct dead_token *g = dray_map_entry(
		dray_map_find(&r->dead_tokens, &token, sizeof(token)), struct dead_token, node);

	if (g && !CRYPTO_memcmp(g->capability, capability, CAPABILITY_BYTES))
		return g->code;
	return DRAY_E_TOKEN_INVALID;
}

bool token_is_covered(const struct token *t)
{
	return t->region->ending || t->born < t->region->revoked_all;
}

/* Neither its own end has begun nor that of all tokens. */
static bool is_live(const struct token *t)
{
	return !t->revoked && t->born >= t->region->revoked_all;
}

static void token_free(struct token *t, uint32_t code)
{
	struct region *region = t->region;
	struct regions *r = region->regions;
	struct revocation *end;

	remember_dead(r, t, code);
	region->n_all--;
	region->n_live -= is_live(t);
	if (region->unreached == &t->link)
		region->unreached = t->link.next;
	dray_list_del(&t->link);
	dray_list_del(&t->unended);
	if (t->lease) {
		lease_free(t);
	} else {
		dray_handles_del(&r->tokens, t->handle);
		dray_heap_del(&r->expiry, &t->expiry);
		region->n_tokens--;
		owner_put(region->owner.uid_owner, RESOURCE_TOKENS, 1);
		if (region->owner.tokens)
			(*region->owner.tokens)--;
	}
	while ((end = dray_list_pop(&t->ends, struct revocation, end_link)))
		revocation_step(end);
	dray_list_for_each(&region->revocations, v, struct revocation, link)
		if (t->born < v->number)
			revocation_step(v);
	free(t);
}

static bool expired(const struct token *t)
{
	return t->expiry.key <= dray_now().ns;
}

static bool spent(const struct token *t)
{
	if (t->lease)
		return lease_is_taken(t);
	return t->used && t->flags & DMSG_EXPORT_FLAG_SINGLE_USE;
}

void token_check(struct token *t)
{
	if (!dray_list_empty(&t->grants) || !dray_list_empty(&t->local_imports))
		return;
	if (t->revoked)
		token_free(t, t->lease ? lease_dead_code(t) : DRAY_E_REVOKED);
	else if (t->lease)
		return;
	else if (expired(t))
		token_free(t, DRAY_E_TOKEN_EXPIRED);
	else if (spent(t))
		token_free(t, DRAY_E_TOKEN_USED);
}

static int on_turn(sd_event_source *s, uint64_t usec, void *arg)
{
	tokens_expire(arg);
	return 0;
}

int tokens_init(struct regions *r)
{
	return r->deps.event ? turn_work_init(&r->expiries, r->deps.event, TOKENS_EXPIRE_PER_TURN,
					      on_turn, r) :
			       0;
}

/* A token with importers stays until the last one has released it. */
bool tokens_expire(struct regions *r)
{
	int64_t now = dray_now().ns;
	struct dray_heap_node *e;

	while ((e = dray_heap_first(&r->expiry)) && e->key <= now) {
		if (!turn_work_has_room(&r->expiries)) {
			turn_work_go_on(&r->expiries);
			return false;
		}
		r->expiries.done++;
		dray_heap_del(&r->expiry, e);
		token_check(dray_container_of(e, struct token, expiry));
	}
	return true;
}

int token_allowed(const struct region *region, uint32_t access, size_t segment_length,
		  struct dray_err *reterr)
{
	uint32_t allowed = region_view_of(region)->o.access;

	if (access & ~allowed)
		return dray_err_set(reterr, -EACCES, DRAY_E_DENIED,
				    "the region allows only %s; add it with more access",
				    allowed & DMSG_ACCESS_READ ? "reading" : "writing");
	if (segment_length > PMSG_TOKEN_SEGMENT_MAX)
		return dray_err_set(
			reterr, -ENAMETOOLONG, DRAY_E_UNSUPPORTED,
			"this agent's segment has more than %d bytes; shorten peer.advertise",
			PMSG_TOKEN_SEGMENT_MAX);
	return 0;
}

static int check_export(struct regions *r, const struct region *region,
			const struct dmsg_region_export *m, size_t segment_length,
			struct dray_err *reterr)
{
	const struct object_view *o = &region_view_of(region)->o;
	uint32_t max = (uint32_t)r->deps.cfg->limits.tokens_per_session;
	int ret;

	if (!m->access || !m->length)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "an export needs a length, and read or write access");
	if (m->offset > o->length || m->length > o->length - m->offset)
		return dray_err_set(reterr, -ERANGE, DRAY_E_RANGE,
				    "%" PRIu64 " bytes at offset %" PRIu64
				    " pass the end of the region, which has %" PRIu64,
				    m->length, m->offset, o->length);
	ret = token_allowed(region, m->access, segment_length, reterr);
	if (ret < 0)
		return ret;
	if (region->owner.tokens && *region->owner.tokens >= max)
		return dray_err_set(
			reterr, -ENOSPC, DRAY_E_QUOTA,
			"the region's session has %" PRIu32
			" live tokens (limits.tokens_per_session); revoke some or give them a ttl",
			max);
	return 0;
}

struct token *token_new(struct region *region, const struct dmsg_region_export *m, bool is_lease,
			struct dray_err *reterr)
{
	struct token *t dray_auto_free = calloc(1, sizeof(*t));
	struct regions *r = region->regions;
	struct dray_handles *table = is_lease ? &r->leases : &r->tokens;

	if (!t || dray_handles_add(table, t, &t->handle) < 0) {
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a token");
		return NULL;
	}
	t->expiry.key = INT64_MAX;
	if (dray_random_fill(t->capability, CAPABILITY_BYTES) < 0)
		dray_err_set(reterr, -EIO, DRAY_E_IO,
			     "the kernel gave no random bytes for the token, try again");
	else if (m->ttl_ms &&
		 dray_heap_set(is_lease ? &r->lease_expiry : &r->expiry, &t->expiry,
			       dray_now().ns + (int64_t)m->ttl_ms * DRAY_NS_PER_MS) < 0)
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a token");
	if (reterr->code) {
		dray_handles_del(table, t->handle);
		return NULL;
	}
	t->region = region;
	t->offset = m->offset;
	t->length = m->length;
	t->access = m->access;
	t->flags = m->flags;
	t->mooncake = is_lease ? 0 : m->mooncake;
	t->mooncake_pieces = t->mooncake ? mooncake_pieces(region, m->offset, m->length) : 0;
	memcpy(t->audience, m->audience, AGENT_ID_BYTES);
	dray_list_init(&t->grants);
	dray_list_init(&t->local_imports);
	dray_list_init(&t->ends);
	dray_list_init(&t->unended);
	t->born = r->revocations;
	dray_list_add(&region->tokens, &t->link);
	if (region->unreached == &region->tokens)
		region->unreached = &t->link;
	region->n_all++;
	region->n_live++;
	if (!is_lease) {
		region->n_tokens++;
		if (region->owner.tokens)
			(*region->owner.tokens)++;
	}
	return dray_take(t);
}

uint32_t token_write(const struct token *t, const char *segment, uint32_t ttl_ms, uint8_t *ret)
{
	const struct regions *r = t->region->regions;
	size_t n = strlen(segment);
	struct pmsg_token w = {
		.version = PMSG_TOKEN_VERSION,
		.flags = t->flags,
		.access = t->access,
		.incarnation = r->deps.incarnation,
		.token_id = t->handle,
		.region = t->region->handle,
		.offset = t->offset,
		.length = t->length,
		.expiry_ms = ttl_ms ? dray_unix_ms() + ttl_ms : 0,
	};

	memcpy(w.agent_id, r->deps.agent_id, AGENT_ID_BYTES);
	memcpy(w.audience, t->audience, AGENT_ID_BYTES);
	memcpy(w.capability, t->capability, CAPABILITY_BYTES);
	pmsg_token_put(ret, &w);
	dray_le_put32(ret + PMSG_TOKEN_SIZE, (uint32_t)n);
	memcpy(ret + SEGMENT_AT, segment, n);
	return (uint32_t)(SEGMENT_AT + n);
}

struct region *region_of_group(struct regions *r, dray_handle handle,
			       const struct region_owner *owner, struct dray_err *reterr)
{
	struct region *region = dray_handles_get(&r->regions, handle);

	if (region && region_view_of(region)->o.group == owner->group) {
		if (region_is_live(region))
			return region;
		if (region->lost.code) {
			*reterr = region->lost;
			return NULL;
		}
	}
	handle_refuse(reterr, handle, DMSG_HANDLE_KIND_REGION, "in this session's group");
	return NULL;
}

int region_export(struct regions *r, const struct region_owner *owner,
		  const struct dmsg_region_export *m, const char *segment, uint64_t *ret_token_id,
		  uint8_t *ret_token, uint32_t *ret_token_length, struct dray_err *reterr)
{
	bool all_expired = tokens_expire(r);
	struct region *region;
	struct token *t;
	int e;

	if (r->draining)
		return dray_err_set(reterr, -ESHUTDOWN, DRAY_E_DRAINING,
				    "the agent is draining and exports nothing new");
	region = region_of_group(r, m->region, owner, reterr);
	if (!region)
		return -ENOENT;
	e = check_export(r, region, m, strlen(segment), reterr);
	if (e >= 0)
		e = mooncake_export_check(region, m, reterr);
	if (e >= 0)
		e = owner_take(region->owner.uid_owner, RESOURCE_TOKENS, 1, reterr);
	if (e < 0 && reterr->code == DRAY_E_QUOTA && !all_expired) {
		*reterr = DRAY_ERR_NULL;
		return dray_err_set(
			reterr, e, DRAY_E_BUSY,
			"the quota of tokens is used up by some that have expired and are being freed; try again");
	}
	if (e < 0)
		return e;
	t = token_new(region, m, false, reterr);
	if (!t) {
		owner_put(region->owner.uid_owner, RESOURCE_TOKENS, 1);
		return -ENOMEM;
	}
	if (t->mooncake && !grant_make(t, MOONCAKE_PEER, reterr)) {
		token_free(t, DRAY_E_REVOKED);
		return -ENOMEM;
	}
	*ret_token_id = t->handle;
	*ret_token_length = token_write(t, segment, m->ttl_ms, ret_token);
	return 0;
}

struct token *token_find(struct regions *r, bool is_lease, const struct pmsg_import *m,
			 const uint8_t importer[AGENT_ID_BYTES], struct dray_err *reterr)
{
	struct token *t = dray_handles_get(is_lease ? &r->leases : &r->tokens, m->token_id);
	uint32_t code = 0;

	/* an importer without the capability learns nothing else about the token */
	if (m->incarnation != r->deps.incarnation)
		code = DRAY_E_INCARNATION;
	else if (!t)
		code = dead_code(r, m->token_id, m->capability);
	else if (CRYPTO_memcmp(t->capability, m->capability, CAPABILITY_BYTES) ||
		 t->region->handle != m->region)
		code = DRAY_E_TOKEN_INVALID;
	else if (memcmp(t->audience, nobody, AGENT_ID_BYTES) &&
		 memcmp(t->audience, importer, AGENT_ID_BYTES))
		code = DRAY_E_TOKEN_AUDIENCE;
	else if (token_is_over(t))
		code = t->lease ? lease_dead_code(t) : DRAY_E_REVOKED;
	else if (expired(t))
		code = DRAY_E_TOKEN_EXPIRED;
	else if (spent(t))
		code = DRAY_E_TOKEN_USED;
	else if (r->draining)
		code = DRAY_E_DRAINING;
	if (!code)
		return t;
	dray_err_set(reterr, -EPERM, (int)code, "%s %s", dray_error_doc(code),
		     dray_error_fix(code));
	return NULL;
}

int token_import_local(struct regions *r, const struct pmsg_token *token,
		       struct remote_view *remote, struct dray_err *reterr)
{
	struct pmsg_import m = { .token_id = token->token_id,
				 .region = token->region,
				 .incarnation = token->incarnation };
	struct token *t;

	memcpy(m.capability, token->capability, CAPABILITY_BYTES);
	t = token_find(r, false, &m, r->deps.agent_id, reterr);
	return t ? token_add_local(t, remote, reterr) : -EPERM;
}

void local_import_free(struct regions *r, struct local_import *import)
{
	dray_list_del(&import->link);
	dray_map_del(&r->local_imports, &import->by_remote);
	free(import);
}

int token_add_local(struct token *t, struct remote_view *remote, struct dray_err *reterr)
{
	struct local_import *import = calloc(1, sizeof(*import));

	if (!import)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a remote");
	import->remote = remote->o.handle;
	dray_list_add(&t->local_imports, &import->link);
	dray_map_add(&t->region->regions->local_imports, &import->by_remote, &import->remote,
		     sizeof(import->remote));
	t->used = true;
	remote->region = t->region->handle;
	remote->offset = t->offset;
	remote->o.length = t->length;
	remote->o.access = t->access;
	return 0;
}

void local_remote_gone(struct regions *r, uint64_t token_id, dray_handle remote,
		       enum pmsg_release_how how)
{
	bool is_lease = dray_handle_kind(token_id) == DMSG_HANDLE_KIND_LEASE;
	struct token *t = dray_handles_get(is_lease ? &r->leases : &r->tokens, token_id);
	struct local_import *import =
		dray_map_entry(dray_map_find(&r->local_imports, &remote, sizeof(remote)),
			       struct local_import, by_remote);
	struct region *region;

	if (!t)
		return;
	region = t->region;
	if (import)
		local_import_free(r, import);
	if (is_lease && !t->revoked)
		lease_holder_gone(t, how);
	else
		token_check(t);
	region_check(region);
}

bool token_revoke(struct token *t)
{
	struct region *region = t->region;
	struct regions *r = region->regions;
	struct local_import *import;
	struct grant *g;

	r->ends.done++;
	if (!t->revoked) {
		if (t->lease)
			lease_set_outcome(t, DMSG_LEASE_OUTCOME_ENDED);
		region->n_live -= is_live(t);
		t->revoked = true;
	}
	while ((g = dray_list_first(&t->grants, struct grant, token_link)) && !g->ending) {
		if (!turn_work_has_room(&r->ends))
			return false;
		grant_end(g, true, region->urgent);
	}
	while ((import = dray_list_first(&t->local_imports, struct local_import, link)) &&
	       !import->ending) {
		if (!turn_work_has_room(&r->ends))
			return false;
		r->ends.done++;
		import->ending = true;
		dray_list_move(&t->local_imports, &import->link);
		r->deps.up->revoke_local(*r->deps.sessions, import->remote,
					 region_rights_code(region), region->urgent);
	}
	token_check(t);
	return true;
}

void token_end(struct token *t)
{
	struct regions *r = t->region->regions;

	if (token_revoke(t))
		return;
	dray_list_move(&r->unended_tokens, &t->unended);
	turn_work_go_on(&r->ends);
}

static void revocation_end(struct revocation *v)
{
	v->done(v->arg, v->count);
	free(v);
}

static void handle_keys_ended(void *arg)
{
	struct revocation *v = arg;
	struct region *region = v->region;

	/* new keys are not published yet */
	region->exposed = false;
	dray_list_for_each(&region->tokens, t, struct token, link)
		t->exposed = false;
	region->barriers--;
	revocation_end(v);
	region_check(region);
}

/* The rights have ended for agents that keep the rules. Then the keys end, for those that do not. */
void revocation_step(struct revocation *v)
{
	struct region *region = v->region;
	const struct regions *r = region->regions;

	if (--v->pending)
		return;
	dray_list_del(&v->link);
	/* the end of a region deregisters it */
	if (v->rekey && !region->ending &&
	    r->deps.up->revoked(*r->deps.rails, region->handle, handle_keys_ended, v))
		region->barriers++;
	else
		revocation_end(v);
}

static void barrier_passed(void *arg)
{
	struct revocation *v = arg;
	struct region *region = v->region;

	region->barriers--;
	revocation_step(v);
	region_check(region);
}

int region_revoke(struct regions *r, dray_handle handle, const struct region_owner *owner,
		  uint64_t token_id, void (*done)(void *arg, uint32_t count), void *arg,
		  struct dray_err *reterr)
{
	struct region *region = region_of_group(r, handle, owner, reterr);
	struct token *only = NULL;

	if (!region)
		return -ENOENT;
	if (token_id) {
		only = dray_handles_get(&r->tokens, token_id);
		if (!only || only->region != region)
			return handle_refuse(reterr, token_id, DMSG_HANDLE_KIND_TOKEN,
					     "of this region; it may have ended already");
	}
	return revocation_start(region, only, done, arg, reterr);
}

int revocation_start(struct region *region, struct token *only,
		     void (*done)(void *arg, uint32_t count), void *arg, struct dray_err *reterr)
{
	struct revocation *v = calloc(1, sizeof(*v));
	struct regions *r = region->regions;

	if (!v)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for a revocation");
	*v = (struct revocation){
		.number = ++r->revocations, .pending = 1, .done = done, .arg = arg, .region = region
	};
	dray_list_init(&v->end_link);
	/* a lease ends without the device, because leases are many: see docs/leases.md */
	v->rekey = only ? only->exposed && !only->lease : region->exposed;
	/* the drop of a grant that does not exist proves that the workers have handled all earlier commands */
	region->barriers++;
	pool_drop(r->deps.pool, OBJECT_GRANT, v->number << 32 | NO_GRANT, DRAY_E_REVOKED, false,
		  barrier_passed, v);
	if (only) {
		/* the token steps it when it ends, which may be now */
		v->pending++;
		v->count = is_live(only);
		dray_list_add(&only->ends, &v->end_link);
		dray_list_add(&region->token_ends, &v->link);
		token_end(only);
		return 0;
	}
	/* each token that there is, also one whose end has begun, steps it when it ends */
	v->pending += region->n_all;
	v->count = region->n_live;
	dray_list_add(&region->revocations, &v->link);
	region->revoked_all = v->number;
	region->n_live = 0;
	region_end_tokens(region);
	return 0;
}
