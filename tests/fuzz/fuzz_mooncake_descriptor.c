/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine with Mooncake says about its segment, its address and its queue pairs, and the statuses of its answers. Buffers that are taken
 * over must be ascending, without overlaps, and found by the search, as their keys; a description that is refused must say why.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/control/mooncake/connection.h"
#include "agent/control/mooncake/descriptor_read.h"
#include "agent/data/transport/mooncake/wire.h"
#include "lib/assert.h"
#include "schema/gen/errors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_buffers(const struct mooncake_buffers *b)
{
	uint64_t end = 0;

	dray_assert(b->n);
	for (uint32_t i = 0; i < b->n; i++) {
		const struct mooncake_buffer *x = &b->v[i];

		dray_assert(x->start && x->start >= end && x->end > x->start);
		dray_assert(mooncake_buffers_end(b, x->start) == x->end);
		dray_assert(mooncake_buffers_end(b, x->end - 1) == x->end);
		if (x->start > end)
			dray_assert(!mooncake_buffers_end(b, x->start - 1));
		end = x->end;
	}
	dray_assert(!mooncake_buffers_end(b, end) && !mooncake_buffers_end(b, 0));
}

/* Every byte of a buffer has a key for each device. */
static void check_keys(const struct mooncake_descriptor *d)
{
	dray_assert(d->n_devices && d->n_devices <= MOONCAKE_DEVICES_MAX && d->keys && *d->server);
	for (unsigned i = 0; i < d->n_devices; i++) {
		dray_assert(*d->devices[i].name && rail_keys_have(d->keys, i));
		for (uint32_t k = 0; k < d->buffers->n; k++) {
			const struct mooncake_buffer *b = &d->buffers->v[k];
			const struct rail_key *first = rail_keys_find(d->keys, i, b->start);
			const struct rail_key *last = rail_keys_find(d->keys, i, b->end - 1);

			dray_assert(first && first == last && first->base == b->start &&
				    first->length == b->end - b->start);
		}
	}
}

static void check_reply(const uint8_t *data, size_t size)
{
	static const struct connection_ends ends = { .ours = "a@b", .theirs = "c:1@d" };
	struct connection_reply reply;
	struct dray_err err = DRAY_ERR_NULL;

	if (connection_answer_read((const char *)data, size, &ends, &reply, &err) < 0)
		dray_assert(err.code && *err.msg);
	else
		dray_assert(!err.code && (*reply.refused || (reply.n && reply.qpn <= 0xffffff)));
}

static void check_descriptor(const uint8_t *data, size_t size)
{
	struct mooncake_descriptor d;
	struct dray_err err = DRAY_ERR_NULL;

	if (mooncake_descriptor_read((const char *)data, size, &d, &err) < 0) {
		dray_assert(err.code && *err.msg && !d.buffers && !d.keys);
		return;
	}
	dray_assert(!err.code && d.port < 65536 && (d.rdma || d.port));
	check_buffers(d.buffers);
	if (d.rdma)
		check_keys(&d);
	mooncake_descriptor_clear(&d);
	if (mooncake_name_host(d.name, d.host, &err) < 0)
		dray_assert(err.code && *err.msg);
	else
		dray_assert(!err.code && *d.host);
}

static void check_address(const uint8_t *data, size_t size)
{
	struct dray_err err = DRAY_ERR_NULL;
	char host[DRAY_HOST_BYTES] = "";
	unsigned port;

	if (mooncake_address_read((const char *)data, size, host, &port, &err) < 0)
		dray_assert(err.code && *err.msg);
	else
		dray_assert(!err.code && *host);
}

static void check_status(const uint8_t *p)
{
	uint8_t again[MOONCAKE_STATUS_BYTES];
	enum mooncake_status status;

	if (mooncake_status_get(p, &status) < 0)
		return;
	mooncake_status_put(again, status);
	dray_assert(!memcmp(p + 4, again + 4, 4));
	dray_assert((status == MOONCAKE_STATUS_OK) == !memcmp(p, again, sizeof(again)) ||
		    status == MOONCAKE_STATUS_REFUSED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_descriptor(data, size);
	check_address(data, size);
	check_reply(data, size);
	if (size >= MOONCAKE_STATUS_BYTES)
		check_status(data);
	return 0;
}
