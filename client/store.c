/* SPDX-License-Identifier: Apache-2.0 */
/* The store of this node's agent: batches of keys, and objects that are read in place. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/internal.h"
#include "lib/memfd.h"

/*
 * A segment of the store, mapped for reading while a session has it, or a lease that has not been released. Leases of an earlier session
 * have ended, but their callers may still read.
 */
struct file {
	struct dray_list link;
	uint64_t number; /* 0: of an earlier session */
	uint64_t bytes;
	const uint8_t *base;
	uint32_t leases;
	bool kept; /* by the caller, who unmaps it */
};

/* A lease of an object that is read in place. */
struct reading {
	struct dray_map_node by_number;
	uint64_t number;
	struct file *file;
};

/* The results of a batch. */
struct answer {
	struct dray_store_results results;
	struct dray_store_result v[];
};

/* Copies of fewer bytes say nothing about the rate. */
#define COPY_LEAST (64U << 10)

/* The lists of a batch in wire form. */
struct lists {
	uint8_t keys[DMSG_STORE_KEYS_MAX * (DRAY_STORE_KEY_MAX + 1)];
	uint8_t items[DMSG_STORE_KEYS_MAX * DMSG_STORE_ITEM_SIZE];
	uint8_t ranges[DRAY_STORE_RANGES_MAX * DMSG_STORE_RANGE_SIZE];
	uint32_t keys_n, ranges_n;
	uint64_t bytes; /* of the ranges */
};

static const uint16_t types[] = {
	[DRAY_STORE_PUT] = DMSG_STORE_PUT,       [DRAY_STORE_GET] = DMSG_STORE_GET,
	[DRAY_STORE_EXISTS] = DMSG_STORE_EXISTS, [DRAY_STORE_REMOVE] = DMSG_STORE_REMOVE,
	[DRAY_STORE_PIN] = DMSG_STORE_PIN,       [DRAY_STORE_UNPIN] = DMSG_STORE_UNPIN,
	[DRAY_STORE_READ] = DMSG_STORE_READ,
};

static bool has_ranges(uint16_t type)
{
	return type == DMSG_STORE_PUT || type == DMSG_STORE_GET;
}

static void file_free(struct file *f)
{
	dray_list_del(&f->link);
	if (!f->kept)
		munmap((void *)(uintptr_t)f->base, f->bytes);
	free(f);
}

static void file_free_unused(struct file *f)
{
	if (!f->number && !f->leases)
		file_free(f);
}

/* 0, or a negated code. */
static int lease_add(struct dray *d, uint64_t number, struct file *f)
{
	struct reading *l = calloc(1, sizeof(*l));

	if (!l)
		return -DRAY_E_NO_MEMORY;
	l->number = number;
	l->file = f;
	f->leases++;
	dray_map_add(&d->store_leases, &l->by_number, &l->number, sizeof(l->number));
	return 0;
}

/* One that is not known has ended already. */
static void lease_end(struct dray *d, uint64_t number)
{
	struct reading *l = dray_map_entry(dray_map_find(&d->store_leases, &number, sizeof(number)),
					   struct reading, by_number);

	if (!l)
		return;
	dray_map_del(&d->store_leases, &l->by_number);
	l->file->leases--;
	file_free_unused(l->file);
	free(l);
}

void dc_store_init(struct dray *d)
{
	dray_list_init(&d->files);
	dray_map_init(&d->store_leases);
}

void dc_store_lost(struct dray *d)
{
	dray_list_for_each(&d->files, f, struct file, link) {
		f->number = 0;
		file_free_unused(f);
	}
}

void dc_store_free(struct dray *d)
{
	dray_map_for_each(&d->store_leases, l, struct reading, by_number)
		free(l);
	dray_map_deinit(&d->store_leases);
	dray_list_for_each(&d->files, f, struct file, link)
		file_free(f);
}

int dray_store_keep(struct dray *d, const void *data, void **ret_base, uint64_t *ret_length)
{
	/* NULL in a forked child, which has one thread and may go on */
	struct dray *in dray_auto(dc_leave) = dc_enter(d);

	(void)in;
	dray_list_for_each(&d->files, f, struct file, link) {
		if ((uintptr_t)data - (uintptr_t)f->base >= f->bytes)
			continue;
		f->kept = true;
		*ret_base = (void *)(uintptr_t)f->base;
		*ret_length = f->bytes;
		return 0;
	}
	return dc_fail(d, DRAY_E_NOT_FOUND, "no object that was read in place is at this address");
}

int dc_store_encode(struct dray *d, const struct request *r, const char **ret_why)
{
	if (r->needs_store_at && !d->store_at) {
		*ret_why = "the agent is too old to put objects at other agents; upgrade it";
		return -DRAY_E_UNSUPPORTED;
	}
	memcpy(d->out, r->data, r->length);
	if (has_ranges(r->type)) {
		const struct region *g = dc_region_find(d, r->region);

		if (!g || !g->agent)
			return g && g->code ? g->code : -DRAY_E_NOT_FOUND;
		dray_le_put64(d->out + DMSG_HEADER_SIZE, g->agent);
	}
	return (int)r->length;
}

bool dc_store_submit(struct dray *d, struct request *r, size_t n)
{
	uint32_t room = (uint32_t)(r->number + 1) * DMSG_STORE_ANSWER_ROOM;
	uint32_t bytes = dray_max((uint32_t)n, room);
	uint64_t offset;

	if (r->type < DMSG_STORE_PUT || r->type > DMSG_STORE_RELEASE || !d->store_ring ||
	    !d->ring.base || dc_ring_room(&d->ring, &d->loss) <= 0 ||
	    !dc_arena_alloc(&d->arena, bytes, &offset))
		return false;
	r->epoch = d->epoch;
	r->arena_offset = offset;
	r->arena_bytes = bytes;
	r->on_ring = true;
	r->ring_index = d->ring.sq_tail;
	memcpy(d->arena_base + offset, d->out, n);
	dc_ring_put_message(&d->ring, &(struct dmsg_sqe_message){ .user_data = r->id,
								  .flags = DMSG_ENTRY_FLAG_MESSAGE,
								  .length = (uint32_t)n,
								  .room = room,
								  .offset = offset });
	return true;
}

void dc_store_take_back(struct dray *d)
{
	uint32_t head = d->ring.base ? dc_ring_taken(&d->ring) : 0;
	struct dray_list *last = &d->requests.queued;

	/* leases end with the session, and the next one may give their numbers again */
	dray_list_for_each(&d->requests.sent, r, struct request, link)
		if (r->on_ring && r->type != DMSG_TRANSFER && r->type != DMSG_STORE_RELEASE &&
		    !r->abandoned && (int32_t)(r->ring_index - head) >= 0) {
			dc_request_take_back(d, r, last);
			last = &r->link;
		}
}

void dc_copy_sent(struct requests *q, uint64_t bytes, int64_t now)
{
	if (!q->copies_n++)
		q->copies_since_ns = now;
	q->copies_bytes += bytes;
}

void dc_copy_ended(struct requests *q, uint64_t bytes, int64_t now)
{
	q->copies_n--;
	q->copies_bytes -= bytes;
	q->copies_since_ns = now;
}

int64_t dc_copies_left(const struct requests *q, int64_t now)
{
	int64_t took = now - q->copies_since_ns;

	/* a wait may be for one of the others */
	if (!q->copies_n || q->copies_n != q->in_flight_n)
		return 0;
	/* somewhat later than it took the last time: a wait that begins too late is worth nothing */
	return dray_max((int64_t)(q->copies_bytes / 1024 * q->copy_ns_a_mib / 1024 * 9 / 8) - took,
			(int64_t)0);
}

/* A PUT or GET has ended in this time. */
static void learn_rate(struct requests *q, uint64_t bytes, uint64_t took_ns)
{
	if (bytes >= COPY_LEAST && took_ns)
		q->copy_ns_a_mib = (3 * q->copy_ns_a_mib + took_ns * 1024 / (bytes / 1024)) / 4;
}

void dc_store_completed(struct dray *d, struct request *r, const struct dmsg_cqe *e)
{
	uint64_t bytes = e->bytes;

	if (bytes > r->arena_bytes || (!bytes && !e->status && r->type != DMSG_STORE_READ)) {
		dc_session_defect(d, "the ring's answer to %s has %llu bytes",
				  dmsg_type_name(r->type), (unsigned long long)bytes);
		return;
	}
	/* the agent could change it meanwhile */
	memcpy(d->in_ring, d->arena_base + r->arena_offset, bytes);
	dc_transfer_ended(d, r);
	r->copy_took_ns = e->duration_ns;
	if (bytes) {
		dc_receive_answer(d, r, bytes);
	} else if (e->status) {
		dc_receive_refusal(d, r, e->status);
	} else {
		/* with descriptors: by the socket */
		r->on_ring = false;
		d->requests.store_n++;
	}
}

static struct file *file_find(struct dray *d, uint64_t number)
{
	dray_list_for_each(&d->files, f, struct file, link)
		if (f->number == number)
			return f;
	return NULL;
}

/* Maps a segment that the agent has sent. NULL: no memory or addresses. */
static struct file *file_add(struct dray *d, const struct dmsg_store_place *p, int fd)
{
	struct file *f = calloc(1, sizeof(*f));
	void *base;

	if (!f)
		return NULL;
	base = dray_map_shared(fd, 0, p->file_bytes, PROT_READ);
	if (base == MAP_FAILED) {
		free(f);
		return NULL;
	}
	f->number = p->file;
	f->bytes = p->file_bytes;
	f->base = base;
	dray_list_add(&d->files, &f->link);
	return f;
}

static struct answer *answer_new(struct request *r, uint32_t n)
{
	struct answer *a = calloc(1, sizeof(*a) + n * sizeof(a->v[0]));

	r->answer = a;
	if (a)
		a->results = (struct dray_store_results){ .n = n, .v = a->v };
	return a;
}

/* Agents that have the object of a PUT: the agent says it if there may be several. */
static unsigned int copies_of(const struct dmsg_store_result *m, const struct dray_blob *copies,
			      uint32_t i)
{
	if (i < copies->n)
		return copies->p[i];
	return m->status == DMSG_STORE_STATUS_OK || m->status == DMSG_STORE_STATUS_EXISTS;
}

/* copies: of PUT; else NULL. */
static int results_take(struct dray *d, struct request *r, const struct dray_vec *results,
			const struct dray_blob *copies)
{
	struct answer *a;
	uint64_t bytes = 0;

	if (results->n != r->number)
		return dc_session_defect(d, "the agent's answer has %u results for %llu keys",
					 results->n, (unsigned long long)r->number);
	a = answer_new(r, results->n);
	for (uint32_t i = 0; a && i < results->n; i++) {
		struct dmsg_store_result m;

		dmsg_store_result_get(results->p + (size_t)i * DMSG_STORE_RESULT_SIZE, &m);
		a->v[i] = (struct dray_store_result){
			.status = m.status,
			.wait_ms = m.wait_ms,
			.length = m.length,
			.tier = m.tier,
			.copies = copies ? copies_of(&m, copies, i) : 0,
		};
		bytes += m.status ? 0 : m.length;
	}
	if (r->copy_bytes)
		learn_rate(&d->requests, bytes, r->copy_took_ns);
	return a ? 0 : -DRAY_E_NO_MEMORY;
}

/* 0, or a negated code. */
static int place_take(struct dray *d, const struct dmsg_store_place *p, const struct dray_fds *fds,
		      struct dray_store_result *ret)
{
	struct file *f;

	*ret = (struct dray_store_result){
		.status = p->status, .wait_ms = p->wait_ms, .length = p->length, .lease = p->lease
	};
	if (p->status)
		return 0;
	f = file_find(d, p->file);
	if (!f && p->fd_index < fds->n)
		f = file_add(d, p, fds->fd[p->fd_index]);
	if (!f)
		return p->fd_index < fds->n ? -DRAY_E_NO_MEMORY : -DRAY_E_NO_FDS;
	if (p->offset > f->bytes || p->length > f->bytes - p->offset)
		return dc_session_defect(d, "the agent's answer has an object outside its memfd");
	ret->data = f->base + p->offset;
	ret->tier = DRAY_STORE_TIER_MEMORY;
	return lease_add(d, p->lease, f);
}

static int places_take(struct dray *d, struct request *r, const struct dray_vec *places,
		       const struct dray_fds *fds)
{
	struct answer *a;
	int error = 0;

	if (places->n != r->number)
		return dc_session_defect(d, "the agent's answer has %u places for %llu keys",
					 places->n, (unsigned long long)r->number);
	a = answer_new(r, places->n);
	if (!a)
		return -DRAY_E_NO_MEMORY;
	/* all of them, also after an error: their leases are to end */
	for (uint32_t i = 0; i < places->n; i++) {
		struct dmsg_store_place p;
		int code;

		dmsg_store_place_get(places->p + (size_t)i * DMSG_STORE_PLACE_SIZE, &p);
		code = place_take(d, &p, fds, &a->v[i]);
		error = error ? error : code;
	}
	return error;
}

int dc_store_answered(struct dray *d, struct request *r, const union dmsg_body *m,
		      const struct dray_fds *fds)
{
	uint32_t code = m->store_put_reply.status;
	int error;

	switch (r->type) {
	case DMSG_STORE_PUT:
	case DMSG_STORE_GET:
		error = results_take(d, r, &m->store_put_reply.results,
				     r->type == DMSG_STORE_PUT ? &m->store_put_reply.copies : NULL);
		return error || !code ? error : -(int)dray_min(code, 0xffffu);
	case DMSG_STORE_READ:
		return places_take(d, r, &m->store_read_reply.places, fds);
	case DMSG_STORE_RELEASE:
		r->bytes = m->store_release_reply.count;
		return 0;
	default:
		return results_take(d, r, &m->store_exists_reply.results, NULL);
	}
}

/* 0, or a negated code. */
static int item_pack(struct dray *d, struct lists *l, const struct dray_store_item *item,
		     uint32_t i, bool ranges)
{
	struct dmsg_store_item m = { (uint32_t)item->ranges_n, item->cost_us };

	if (!item->key_length || item->key_length > DRAY_STORE_KEY_MAX)
		return dc_fail(d, DRAY_E_INVALID, "key %u has %zu bytes; 1 to %d are allowed", i,
			       item->key_length, DRAY_STORE_KEY_MAX);
	l->keys[l->keys_n++] = (uint8_t)item->key_length;
	memcpy(l->keys + l->keys_n, item->key, item->key_length);
	l->keys_n += (uint32_t)item->key_length;
	if (!ranges)
		return 0;
	if (item->ranges_n > DRAY_STORE_RANGES_MAX - l->ranges_n)
		return dc_fail(d, DRAY_E_TOO_LARGE, "a batch has at most %d ranges",
			       DRAY_STORE_RANGES_MAX);
	dmsg_store_item_put(l->items + (size_t)i * DMSG_STORE_ITEM_SIZE, &m);
	for (size_t k = 0; k < item->ranges_n; k++) {
		const struct dray_store_range *from = &item->ranges[k];
		struct dmsg_store_range range = { from->offset, from->length };
		uint64_t steps;

		if (__builtin_mul_overflow(item->block, from->step, &steps) ||
		    __builtin_add_overflow(range.offset, steps, &range.offset))
			return dc_fail(d, DRAY_E_RANGE,
				       "the offset of range %zu of item %u has "
				       "more than 64 bits",
				       k, i);
		l->bytes += range.length;
		dmsg_store_range_put(l->ranges + (size_t)l->ranges_n++ * DMSG_STORE_RANGE_SIZE,
				     &range);
	}
	return 0;
}

/* Bytes of the message in d->out, or a negated code. */
static int batch_encode(struct dray *d, struct lists *l, uint16_t type, uint64_t id,
			const struct dray_store_batch *b)
{
	size_t space_n = b->space ? strlen(b->space) : 0, at_n = b->at ? strlen(b->at) : 0;
	union dmsg_body m = { 0 };
	struct dray_str space;
	struct dray_blob keys;
	int n;

	if (!b->items_n || b->items_n > DMSG_STORE_KEYS_MAX)
		return dc_fail(d, b->items_n ? DRAY_E_TOO_LARGE : DRAY_E_INVALID,
			       "%zu keys; 1 to %d are allowed", b->items_n, DMSG_STORE_KEYS_MAX);
	if (space_n > DMSG_STORE_SPACE_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "the name space has %zu bytes, the limit is %d",
			       space_n, DMSG_STORE_SPACE_MAX);
	if (at_n > DMSG_STORE_AT_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE,
			       "the name of the agent has %zu bytes, the limit is %d", at_n,
			       DMSG_STORE_AT_MAX);
	l->keys_n = l->ranges_n = 0;
	l->bytes = 0;
	for (uint32_t i = 0; i < b->items_n; i++) {
		int error = item_pack(d, l, &b->items[i], i, has_ranges(type));

		if (error)
			return error;
	}
	space = (struct dray_str){ b->space, (uint32_t)space_n };
	keys = (struct dray_blob){ l->keys, l->keys_n };
	if (has_ranges(type))
		m.store_put = (struct dmsg_store_put){
			.deadline_ms = b->deadline_ms,
			.space = space,
			.keys = keys,
			.items = { l->items, (uint32_t)b->items_n },
			.ranges = { l->ranges, l->ranges_n },
			.replicas = type == DMSG_STORE_PUT ? b->replicas : 0,
			.agent = { b->at, type == DMSG_STORE_PUT ? (uint32_t)at_n : 0 },
		};
	else if (type == DMSG_STORE_PIN || type == DMSG_STORE_READ)
		/* both have the same fields */
		m.store_pin = (struct dmsg_store_pin){
			.space = space,
			.keys = keys,
			.deadline_ms = b->deadline_ms,
		};
	else
		m.store_exists = (struct dmsg_store_exists){
			.space = space,
			.keys = keys,
			.flags = b->lease_ms ? DMSG_STORE_EXISTS_FLAG_AGENTS : 0,
			.lease_ms = b->lease_ms,
		};
	n = dmsg_body_encode(type, d->out, DMSG_MESSAGE_MAX, id, &m);
	return n >= 0 ? n :
			dc_fail(d, DRAY_E_INVALID,
				"the name space or agent is not UTF-8, or the keys have more than "
				"128 KiB");
}

int dray_store_start(struct dray *d, enum dray_store_operation operation,
		     const struct dray_store_batch *batch, void *arg, uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct lists *lists;
	uint16_t type;
	struct request *r;
	int n;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	if ((unsigned)operation < DRAY_STORE_PUT || (unsigned)operation > DRAY_STORE_READ)
		return dc_fail(d, DRAY_E_INVALID, "operation %u is unknown", (unsigned)operation);
	type = types[operation];
	if (has_ranges(type) && !dc_region_find(d, batch->region))
		return dc_no_such(d, batch->region.id, DMSG_HANDLE_KIND_REGION);
	if (!d->store_lists)
		d->store_lists = malloc(sizeof(struct lists));
	if (!d->store_lists)
		return dc_fail(d, DRAY_E_NO_MEMORY, "no memory for the batch");
	r = dc_request_start(d, type, arg);
	if (!r)
		return dc_failed();
	lists = d->store_lists;
	n = batch_encode(d, lists, type, r->id, batch);
	if (n < 0) {
		dc_request_free(d, r);
		return n;
	}
	r->region = has_ranges(type) ? batch->region : NO_REGION;
	r->number = batch->items_n;
	r->copy_bytes = lists->bytes;
	r->needs_store_at = type == DMSG_STORE_PUT && batch->at && *batch->at;
	return dc_request_go_with(d, r, d->out, (size_t)n, ret_id);
}

int dray_store(struct dray *d, enum dray_store_operation operation,
	       const struct dray_store_batch *batch, struct dray_store_result *results)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct dray_completion c = { 0 };
	uint64_t id;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	for (size_t i = 0; i < batch->items_n; i++)
		results[i] = (struct dray_store_result){ .status = DRAY_STORE_NOT_TRIED };
	error = dray_store_start(d, operation, batch, NULL, &id);
	error = dc_request_wait(d, error, &id, batch->deadline_ms, &c);
	if (c.store)
		memcpy(results, c.store->v, c.store->n * sizeof(results[0]));
	return error;
}

/* The message of r in d->out, for at most DMSG_STORE_KEYS_MAX leases. Its bytes. flags: DMSG_STORE_RELEASE_FLAG_*. */
static size_t release_encode(struct dray *d, const struct request *r, const uint64_t *leases,
			     size_t n, uint32_t flags)
{
	uint8_t records[DMSG_STORE_KEYS_MAX * DMSG_STORE_LEASE_SIZE];
	union dmsg_body m = {
		.store_release = { .leases = { records, (uint32_t)n }, .flags = flags },
	};

	for (size_t i = 0; i < n; i++)
		dray_le_put64(records + i * DMSG_STORE_LEASE_SIZE, leases[i]);
	return (size_t)dmsg_body_encode(DMSG_STORE_RELEASE, d->out, DMSG_MESSAGE_MAX, r->id, &m);
}

static void leases_end(struct dray *d, const uint64_t *leases, size_t n)
{
	for (size_t i = 0; i < n; i++)
		lease_end(d, leases[i]);
}

/* Without memory for the request, they end with the session, and what descriptors were lost stays so until then. */
static void release(struct dray *d, const uint64_t *leases, size_t n, uint32_t flags)
{
	struct request *r = dc_request_internal(d, DMSG_STORE_RELEASE, NO_REGION, NO_REMOTE, n);

	leases_end(d, leases, n);
	if (!r)
		return;
	r->length = (uint32_t)release_encode(d, r, leases, n, flags);
	r->data = malloc(r->length);
	if (r->data)
		memcpy(r->data, d->out, r->length);
	else
		dc_request_free(d, r);
}

void dc_store_read_ended(struct dray *d, struct request *r)
{
	struct answer *a = r->abandoned || r->status ? dray_take(r->answer) : NULL;
	uint64_t leases[DMSG_STORE_KEYS_MAX];
	uint32_t flags = 0;
	size_t n = 0;

	for (size_t i = 0; a && i < a->results.n; i++)
		if (a->v[i].lease) {
			leases[n++] = a->v[i].lease;
			flags |= a->v[i].data ? 0 : DMSG_STORE_RELEASE_FLAG_FILES;
		}
	if (n)
		release(d, leases, n, flags);
	free(a);
}

int dray_store_release_start(struct dray *d, const uint64_t *leases, size_t n, void *arg,
			     uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct request *r;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	if (n > DMSG_STORE_KEYS_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "%zu leases, the limit is %d", n,
			       DMSG_STORE_KEYS_MAX);
	r = dc_request_start(d, DMSG_STORE_RELEASE, arg);
	if (!r)
		return dc_failed();
	r->number = n;
	error = dc_request_go_with(d, r, d->out, release_encode(d, r, leases, n, 0), ret_id);
	if (!error)
		leases_end(d, leases, n);
	return error;
}

int dray_store_release(struct dray *d, const uint64_t *leases, size_t n)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = dray_store_release_start(d, leases, n, NULL, &id);
	return dc_request_wait(d, error, &id, 0, NULL);
}
