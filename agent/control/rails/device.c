/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: opened for their rails, closed when they have no users left, and their asynchronous events. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "agent/control/rails/internal.h"
#include "lib/assert.h"
#include "lib/ballast.h"
#include "lib/log.h"

/* Initial size; a completion queue grows with its queue pairs. */
#define CQ_ENTRIES 256
/* RXE_VENDOR_ID of drivers/infiniband/sw/rxe/rxe_param.h. */
#define SOFT_ROCE_VENDOR 0xffffff

static struct rail *rail_of(struct dray_job *j)
{
	return dray_container_of(j, struct rail, job);
}

static int open_context(struct device *d, const char **ret_step)
{
	const struct verbs *v = d->rails->verbs;
	int r;

	*ret_step = "open";
	r = v->open(d->name, &d->context);
	if (r < 0)
		return r;
	*ret_step = "query";
	r = v->query_device(d->context, &d->attr);
	d->soft_roce = d->attr.vendor_id == SOFT_ROCE_VENDOR;
	if (r == 0) {
		*ret_step = "protection domain";
		r = v->alloc_pd(d->context, &d->pd);
	}
	if (r == 0) {
		*ret_step = "completion queue";
		r = v->create_cq(d->context, 1, NULL, &d->serve_cq);
	}
	if (r == 0 && (guests_wanted(d->rails) || engines_wanted(d->rails))) {
		*ret_step = "protection domain for Mooncake's engines";
		r = v->alloc_pd(d->context, &d->guest_pd);
	}
	if (r == 0 && guests_wanted(d->rails)) {
		*ret_step = "completion queue for mooncake.protocol";
		r = v->create_cq(d->context,
				 dray_min((int)d->rails->cfg->mooncake.queue_pairs,
					  d->attr.max_cqe),
				 NULL, &d->guest_cq);
	}
	if (r < 0)
		return r;
	*ret_step = "memory region";
	d->flush = mmap(NULL, FLUSH_BYTES, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (d->flush == MAP_FAILED)
		d->flush = NULL;
	if (!d->flush)
		return -ENOMEM;
	r = v->reg_mr(d->pd, d->flush, -1, 0, FLUSH_BYTES, (uintptr_t)d->flush,
		      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, &d->flush_mr);
	if (r == 0 && engines_wanted(d->rails))
		r = v->reg_mr(d->guest_pd, d->flush, -1, 0, FLUSH_BYTES, (uintptr_t)d->flush,
			      IBV_ACCESS_LOCAL_WRITE, &d->engine_flush_mr);
	return r;
}

static void close_context(struct device *d)
{
	const struct verbs *v = d->rails->verbs;

	if (d->flush_mr)
		v->dereg_mr(d->flush_mr);
	if (d->engine_flush_mr)
		v->dereg_mr(d->engine_flush_mr);
	if (d->flush)
		munmap(d->flush, FLUSH_BYTES);
	if (d->guest_cq)
		v->destroy_cq(d->guest_cq);
	if (d->guest_pd)
		v->dealloc_pd(d->guest_pd);
	if (d->serve_cq)
		v->destroy_cq(d->serve_cq);
	if (d->pd)
		v->dealloc_pd(d->pd);
	if (d->context)
		v->close(d->context);
	d->flush_mr = NULL;
	d->engine_flush_mr = NULL;
	d->flush = NULL;
	d->serve_cq = NULL;
	d->guest_pd = NULL;
	d->guest_cq = NULL;
	d->pd = NULL;
	d->context = NULL;
}

static void close_cqs(struct rail *rail)
{
	const struct verbs *v = rail->rails->verbs;

	for (unsigned i = 0; i < WORKERS_MAX; i++) {
		struct rdma_cq *q = &rail->cqs[i];

		if (q->cq)
			v->destroy_cq(q->cq);
		if (q->channel)
			v->destroy_channel(q->channel);
		*q = (struct rdma_cq){ NULL, NULL };
	}
}

static int open_cqs(struct rail *rail)
{
	const struct verbs *v = rail->rails->verbs;
	struct device *d = rail->device;
	int r = 0;

	for (unsigned i = 0; r == 0 && i < rail->rails->deps.pool->n; i++) {
		r = v->create_channel(d->context, &rail->cqs[i].channel);
		if (r == 0)
			r = v->create_cq(d->context, dray_min(CQ_ENTRIES, d->attr.max_cqe),
					 rail->cqs[i].channel, &rail->cqs[i].cq);
	}
	return r;
}

static void open_run(struct dray_job *j)
{
	struct rail *rail = rail_of(j);
	struct device *d = rail->device;
	const char *step = "completion queue";

	rail->open_error = d->context ? 0 : open_context(d, &step);
	if (rail->open_error < 0) {
		close_context(d);
	} else {
		step = "completion queue";
		rail->open_error = open_cqs(rail);
	}
	rail->open_step = step;
	if (rail->open_error < 0)
		close_cqs(rail);
}

static struct qp *qp_by_pointer(struct rails *r, const struct ibv_qp *qp)
{
	struct qp *q;

	for (uint32_t at = 0; (q = dray_handles_next(&r->qps, &at, NULL));)
		/* in the other states a job may be writing q->qp */
		if (q->state != QP_CREATING && q->state != QP_DYING && q->qp == qp)
			return q;
	return NULL;
}

void device_lost(struct device *d, const char *why)
{
	dray_list_for_each(&d->used_by, rail, struct rail, device_link)
		rail_event(rail, RAIL_EVENT_GONE, "%s", why);
}

static void handle_event(struct device *d, const struct ibv_async_event *e)
{
	struct qp *q;

	/* netdetect's monitor reports ports that come up and changes of GIDs and P_Keys */
	if (e->event_type == IBV_EVENT_DEVICE_FATAL) {
		device_lost(d, "the device reports a fatal error");
	} else if (e->event_type == IBV_EVENT_CQ_ERR) {
		/* it completes nothing any more, and all queue pairs of a worker and rail would get it again */
		device_lost(d, "a completion queue has failed");
	} else if (e->event_type == IBV_EVENT_PORT_ERR) {
		dray_list_for_each(&d->used_by, rail, struct rail, device_link) {
			if (rail->port != (uint32_t)e->element.port_num || !rail->usable)
				continue;
			rail->usable = false;
			rail_event(rail, RAIL_EVENT_UNUSABLE,
				   "the device reports that the port is down");
		}
	} else if (e->event_type == IBV_EVENT_QP_FATAL || e->event_type == IBV_EVENT_QP_REQ_ERR ||
		   e->event_type == IBV_EVENT_QP_ACCESS_ERR) {
		if (guests_queue_pair_failed(d, e->element.qp, ibv_event_type_str(e->event_type)))
			return;
		q = qp_by_pointer(d->rails, e->element.qp);
		log_limited(DRAY_LOG_WARNING, AREA, "%s on a queue pair that %s device=%s",
			    ibv_event_type_str(e->event_type), q ? "posts" : "serves a peer",
			    d->name);
		if (q)
			connect_lose(q);
	}
}

static int on_async(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct device *d = arg;
	struct ibv_async_event e;

	/* the kernel sends no more events */
	if (revents & (EPOLLHUP | EPOLLERR)) {
		sd_event_source_set_enabled(source, SD_EVENT_OFF);
		device_lost(d, "the kernel has removed the device");
		return 0;
	}
	while (ibv_get_async_event(d->context, &e) == 0) {
		handle_event(d, &e);
		ibv_ack_async_event(&e);
	}
	return 0;
}

static void opened(struct device *d)
{
	if (d->open)
		return;
	d->open = true;
	if (sd_event_add_io(d->rails->deps.event, &d->async, d->context->async_fd, EPOLLIN,
			    on_async, d) < 0)
		log_warning(AREA, "the events of the device cannot be watched, ignoring device=%s",
			    d->name);
	registrations_device_up(d);
}

static void device_leave(struct rail *rail)
{
	rail->device = NULL;
	dray_list_del(&rail->device_link);
}

static void open_done(struct dray_job *j)
{
	struct rail *rail = rail_of(j);
	struct device *d = rail->device;

	d->jobs--;
	if (rail->open_error < 0 && rail->state == RAIL_OPENING) {
		device_leave(rail);
		rail_event(rail, RAIL_EVENT_OPEN_FAILED, "%s: %s", rail->open_step,
			   dray_errno_text(rail->open_error));
		device_close(d);
		return;
	}
	if (rail->open_error == 0 && !d->closing)
		opened(d);
	if (rail->state == RAIL_OPENING) {
		for (unsigned i = 0; i < rail->rails->deps.pool->n; i++)
			rails_tell(rail->rails, i, RDMA_RAIL_UP, 0, rail->number, &rail->cqs[i]);
		rail->cqs_told = true;
		rail_event(rail, RAIL_EVENT_OPENED, "%s", rail->gid.reason);
	}
	device_check(d);
}

static struct device *device_get(struct rails *r, const char *name)
{
	struct device *d;

	dray_list_for_each(&r->devices, it, struct device, link)
		if (!it->closing && !strcmp(it->name, name))
			return it;
	d = dray_calloc_sure(1, sizeof(*d));
	d->rails = r;
	dray_list_init(&d->used_by);
	dray_list_init(&d->stuck);
	snprintf(d->name, sizeof(d->name), "%s", name);
	dray_list_add(&r->devices, &d->link);
	return d;
}

void device_job(struct device *d, struct dray_jobs *js, struct dray_job *j,
		void (*run)(struct dray_job *j), void (*done)(struct dray_job *j))
{
	d->jobs++;
	dray_jobs_add(js, j, run, done);
}

void device_open(struct rail *rail)
{
	struct device *d = device_get(rail->rails, rail->device_name);

	rail->device = d;
	dray_list_add(&d->used_by, &rail->device_link);
	device_job(d, rail->rails->slow, &rail->job, open_run, open_done);
}

static void device_free(struct device *d)
{
	dray_list_del(&d->link);
	free(d);
}

void device_end(struct device *d)
{
	d->async = sd_event_source_disable_unref(d->async);
	dray_list_for_each(&d->used_by, rail, struct rail, device_link)
		close_cqs(rail);
	close_context(d);
	device_free(d);
}

static void close_run(struct dray_job *j)
{
	struct device *d = dray_container_of(j, struct device, job);

	/* a closing device gets no rails, and keeps those that it has until close_done() */
	dray_list_for_each(&d->used_by, rail, struct rail, device_link)
		close_cqs(rail);
	close_context(d);
}

static void close_done(struct dray_job *j)
{
	struct device *d = dray_container_of(j, struct device, job);
	struct rails *r = d->rails;

	log_info(AREA, "closed device=%s", d->name);
	qps_device_closed(d);
	guests_device_closed(d);
	rail_regions_device_closed(d);
	registrations_device_closed(d);
	dray_list_for_each(&d->used_by, rail, struct rail, device_link) {
		device_leave(rail);
		memset(rail->cq_used, 0, sizeof(rail->cq_used));
		rail_event(rail, RAIL_EVENT_CLOSED, "%s",
			   rail->present ? "the device was closed" : "the device is gone");
	}
	device_free(d);
	/* the last scan may have found its ports again */
	if (r->scan)
		rails_follow(r, r->scan);
}

/* Withdraws the completion queues from the workers. True when all have released them. */
static bool cqs_gone(struct device *d)
{
	struct worker_pool *pool = d->rails->deps.pool;
	bool gone = true;

	dray_list_for_each(&d->used_by, rail, struct rail, device_link) {
		if (rail->cqs_told) {
			rail->cqs_told = false;
			rail->cqs_in_use = pool->n;
			pool_message(pool,
				     &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
								  .type = RDMA_RAIL_DOWN,
								  .id = rail->number });
		}
		gone &= !rail->cqs_in_use;
	}
	return gone;
}

void device_check(struct device *d)
{
	if (!d->closing || d->close_begun)
		return;
	registrations_device_down(d);
	if (d->qps || !cqs_gone(d) || d->mrs || d->jobs)
		return;
	d->close_begun = true;
	/* before the context closes its descriptor */
	d->async = sd_event_source_disable_unref(d->async);
	dray_jobs_add(d->rails->slow, &d->job, close_run, close_done);
}

void device_close(struct device *d)
{
	if (d->closing)
		return;
	/* if only this rail failed to open, another one may use the device */
	dray_list_for_each(&d->used_by, rail, struct rail, device_link)
		if (rail->state != RAIL_CLOSING)
			return;
	d->closing = true;
	atomic_store(&d->hurry, true);
	device_check(d);
}
