/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/record.h"

#include "agent/data/transfer/transport.h"
#include "lib/cleanup.h"

void xfer_enter(struct xfer *x, enum xfer_phase phase, int64_t now_ns)
{
	for (; x->phase < phase; x->phase++) {
		x->phase_ns[x->phase] = now_ns - x->phase_ns[x->phase];
		x->phase_ns[x->phase + 1] = now_ns;
	}
}

void record_make(struct transfer_record *ret, const struct core *c, const struct xfer *x,
		 int64_t now_ns)
{
	const struct remote_view *remote = object_remote(x->remote);

	*ret = (struct transfer_record){
		.session = x->session->handle,
		.peer = remote->is_local ? 0 : remote->peer,
		.request = x->request_id,
		.rails = x->rails,
		.bytes = x->bytes,
		.bytes_done = x->bytes_done,
		.operations = x->n_ops,
		.slices = x->n_slices,
		.resent = x->n_resent,
		.code = x->code,
		.direction = (uint8_t)x->direction,
		.class = (uint8_t)x->class,
		.transport = (uint8_t)(x->n_slices ? c->transports[x->transport_index]->id :
						     DMSG_TRANSPORT_NONE),
		.gpu_path = x->n_slices ? x->gpu_path : DMSG_GPU_PATH_NONE,
		.ended_ns = now_ns,
	};
	for (unsigned i = 0; i < (unsigned)x->phase; i++)
		ret->phase_ns[i] = x->phase_ns[i];
	ret->phase_ns[x->phase] = now_ns - x->phase_ns[x->phase];
}

void records_add(struct records *r, const struct transfer_record *record)
{
	r->v[r->n++ % RECORDS_MAX] = *record;
}

uint32_t records_copy(const struct records *r, struct transfer_record *to, uint32_t max)
{
	uint64_t kept = dray_min(r->n, (uint64_t)RECORDS_MAX);
	uint32_t n = (uint32_t)dray_min(kept, (uint64_t)max);

	for (uint32_t i = 0; i < n; i++)
		to[i] = r->v[(r->n - n + i) % RECORDS_MAX];
	return n;
}
