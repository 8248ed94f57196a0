/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bench/ceilings.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "lib/err.h"
#include "lib/time.h"
#include "schema/gen/data.h"

/* Defaults of tcp.streams and tcp.latency_streams. */
#define STREAMS_BULK 2
#define STREAMS_LATENCY 1
/* A system call of the bare loop moves about as much as one of the agent. */
#define CALL_BYTES (1u << 20)

struct bench_ceiling_ops {
	const char *name, *text;
	unsigned transport;
	enum ceiling_echo_way way; /* of round trips; CEILING_ECHO_N: measures throughput */
	/* 0 or a negated errno; may be NULL */
	int (*open)(struct bench_ceilings *c, struct bench_ceiling *one);
	/* As much work as in the lap of dray; *ret: bytes per second, or nanoseconds. */
	int (*round)(struct bench_ceilings *c, struct bench_ceiling *one,
		     const struct bench_lap *dray, double *ret);
};

static bool is_latency(const struct bench_ceiling_ops *kind)
{
	return kind->way != CEILING_ECHO_N;
}

static int copy_round(struct bench_ceilings *c, struct bench_ceiling *one,
		      const struct bench_lap *dray, double *ret)
{
	int64_t began = dray_now().ns;
	uint64_t bytes = ceiling_copy(&c->work, c->plan->direction, &c->at,
				      dray_max(dray->transfers, (uint64_t)1) * c->plan->ops);

	*ret = bench_per_second(bytes, dray_now().ns - began);
	return 0;
}

static int tcp_open(struct bench_ceilings *c, struct bench_ceiling *one)
{
	const struct bench_plan *p = c->plan;
	uint64_t batch = dray_max(CALL_BYTES / p->size, (uint64_t)1), bytes;
	int ret;

	one->loop = (struct ceiling_loop){
		.work = c->work,
		.local = p->direction == DRAY_DIRECTION_WRITE,
		.streams = p->priority == DRAY_PRIORITY_LATENCY ? STREAMS_LATENCY : STREAMS_BULK,
		.batch = (unsigned)dray_min(batch, (uint64_t)CEILING_LOOP_BATCH_MAX),
	};
	ret = ceiling_loop_open(&one->loop);
	/* A pass over the list fills the child's page tables, so that the first round need not. */
	return ret ? ret : ceiling_loop_send(&one->loop, c->work.n, &bytes);
}

static int tcp_round(struct bench_ceilings *c, struct bench_ceiling *one,
		     const struct bench_lap *dray, double *ret)
{
	uint64_t wanted = dray_max(dray->transfers, (uint64_t)1) * c->plan->ops, bytes;
	int64_t began = dray_now().ns;
	int err = ceiling_loop_send(&one->loop, wanted, &bytes);

	*ret = bench_per_second(bytes, dray_now().ns - began);
	return err;
}

static int echo_open(struct bench_ceilings *c, struct bench_ceiling *one)
{
	return ceiling_echo_open(&one->echo, one->kind->way, c->plan->size);
}

/* As many trips as transfers of dray, or for the same time. */
static int echo_round(struct bench_ceilings *c, struct bench_ceiling *one,
		      const struct bench_lap *dray, double *ret)
{
	struct ctl_histogram *h = calloc(1, sizeof(*h));
	unsigned group = ceiling_echo_group(&one->echo);
	int64_t began = dray_now().ns, last = began;
	int err = h ? 0 : -ENOMEM;

	ceiling_echo_resume(&one->echo);
	for (uint64_t i = 0;
	     !err && (!i || (i < dray->transfers && last - began < dray->duration_ns));
	     i += group) {
		int64_t now;

		err = ceiling_echo_trips(&one->echo, group);
		now = dray_now().ns;
		/* In tenths, because whole nanoseconds are too coarse for fast trips. */
		if (!err)
			ctl_histogram_add(h, (uint64_t)(now - last) * 10 / group);
		last = now;
	}
	ceiling_echo_pause(&one->echo);
	if (!err)
		*ret = (double)ctl_histogram_quantile(h, 0.5) / 10;
	free(h);
	return err;
}

static const struct bench_ceiling_ops kinds[] = {
	{ "memcpy", "memcpy in one thread", DMSG_TRANSPORT_LOCAL, CEILING_ECHO_N, NULL,
	  copy_round },
	{ "socket_loop", "bare socket loop", DMSG_TRANSPORT_TCP, CEILING_ECHO_N, tcp_open,
	  tcp_round },
	{ "tcp_echo", "bare TCP request and answer", DMSG_TRANSPORT_TCP, CEILING_ECHO_TCP,
	  echo_open, echo_round },
	{ "memory_echo", "shared-memory ping-pong", DMSG_TRANSPORT_LOCAL, CEILING_ECHO_MEMORY,
	  echo_open, echo_round },
	{ "eventfd_echo", "eventfd ping-pong", DMSG_TRANSPORT_LOCAL, CEILING_ECHO_EVENTFD,
	  echo_open, echo_round },
};

static bool fits(const struct bench_plan *p, const struct bench_ceiling_ops *kind,
		 unsigned transport)
{
	struct dray_cpus cpus;
	bool can_spin;

	if (kind->transport != transport || !is_latency(kind))
		return kind->transport == transport;
	if (p->batch != 1 || p->ops != 1 || p->sessions != 1)
		return false;
	/* Two processes that spin on one processor would measure its scheduler. */
	dray_cpus_get(&cpus);
	can_spin = dray_cpus_can_spin(&cpus, NULL, 0);
	if (kind->way == CEILING_ECHO_MEMORY)
		return p->wait != CTL_WAIT_METHOD_SLEEP && can_spin;
	return kind->way == CEILING_ECHO_TCP || p->wait != CTL_WAIT_METHOD_SPIN || !can_spin;
}

/* The operations of all sessions in turn, slot by slot. */
static int list_make(struct bench_ceilings *c)
{
	const struct bench_session *sessions = c->sessions;
	const struct bench_plan *p = c->plan;
	uint64_t slots = UINT64_MAX;
	struct dray_op *to;

	for (uint64_t i = 0; i < p->sessions; i++)
		slots = dray_min(slots, sessions[i].slots);
	to = c->list = calloc(slots * p->sessions * p->ops, sizeof(*c->list));
	if (!to)
		return -ENOMEM;
	for (uint64_t slot = 0; slot < slots; slot++)
		for (uint64_t i = 0; i < p->sessions; i++)
			for (uint64_t k = 0; k < p->ops; k++, to++) {
				*to = sessions[i].ops[slot * p->ops + k];
				to->local += (uintptr_t)sessions[i].end.memory.address;
				to->remote += (uintptr_t)c->far->memory.address;
			}
	c->work = (struct ceiling_work){ .ops = c->list, .n = (size_t)(to - c->list) };
	return 0;
}

static int one_open(struct bench_ceilings *c, const struct bench_ceiling_ops *kind)
{
	struct bench_ceiling *one = &c->v[c->n++];

	*one = (struct bench_ceiling){ .kind = kind, .echo = CEILING_ECHO_NULL };
	one->values = calloc(c->plan->rounds, sizeof(*one->values));
	one->dray = calloc(c->plan->rounds, sizeof(*one->dray));
	one->ratios = calloc(c->plan->rounds, sizeof(*one->ratios));
	if (!one->values || !one->dray || !one->ratios)
		return -ENOMEM;
	return kind->open ? kind->open(c, one) : 0;
}

int bench_ceilings_open(struct bench_ceilings *c, const struct bench_plan *p,
			const struct bench_session *sessions, const struct bench_end *far,
			unsigned transport)
{
	int err;

	*c = (struct bench_ceilings){ .plan = p, .sessions = sessions, .far = far };
	if (transport != DMSG_TRANSPORT_LOCAL && transport != DMSG_TRANSPORT_TCP) {
		fprintf(p->ctl->err,
			"drayctl: there is no ceiling for %s here; make bench-vm compares it with "
			"perftest\n",
			dmsg_transport_name(transport));
		return 0;
	}
	err = list_make(c);
	if (err)
		return ctl_failed(p->ctl, "--ceiling failed: %s", dray_errno_text(err));
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(kinds); i++) {
		err = fits(p, &kinds[i], transport) ? one_open(c, &kinds[i]) : 0;
		if (err)
			return ctl_failed(p->ctl, "--ceiling: cannot open %s: %s", kinds[i].text,
					  dray_errno_text(err));
	}
	return 0;
}

void bench_ceilings_close(struct bench_ceilings *c)
{
	for (unsigned i = 0; i < c->n; i++) {
		struct bench_ceiling *one = &c->v[i];

		ceiling_echo_close(&one->echo);
		ceiling_loop_close(&one->loop);
		free(one->values);
		free(one->dray);
		free(one->ratios);
	}
	free(c->list);
	*c = (struct bench_ceilings){ .n = 0 };
}

int bench_ceilings_run(struct bench_ceilings *c, const struct bench_lap *dray)
{
	for (unsigned i = 0; i < c->n; i++) {
		struct bench_ceiling *one = &c->v[i];
		int err = one->kind->round(c, one, dray, &one->values[c->rounds]);

		if (err)
			return ctl_failed(c->plan->ctl, "--ceiling: %s failed: %s", one->kind->text,
					  dray_errno_text(err));
	}
	return 0;
}

void bench_ceilings_compare(struct bench_ceilings *c, const struct bench_lap *dray)
{
	for (unsigned i = 0; i < c->n; i++) {
		struct bench_ceiling *one = &c->v[i];

		one->dray[c->rounds] = is_latency(one->kind) ?
					       (double)ctl_histogram_quantile(&dray->latency, 0.5) :
					       bench_per_second(dray->bytes, dray->duration_ns);
		one->ratios[c->rounds] = one->dray[c->rounds] / one->values[c->rounds];
	}
	c->rounds++;
}

static int by_size(const void *a, const void *b)
{
	return dray_compare(*(const double *)a, *(const double *)b);
}

static double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), by_size);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

void bench_ceilings_result(struct bench_ceilings *c, struct bench_result *ret)
{
	for (unsigned i = 0; i < c->n; i++) {
		struct bench_ceiling *one = &c->v[i];

		ret->ceilings[i] = (struct bench_ceiling_result){
			.name = one->kind->name,
			.text = one->kind->text,
			.latency = is_latency(one->kind),
			.dray = median(one->dray, c->rounds),
			.ceiling = median(one->values, c->rounds),
			.ratio = median(one->ratios, c->rounds),
			.ratio_min = one->ratios[0],
			.ratio_max = one->ratios[c->rounds - 1],
		};
	}
	ret->n_ceilings = c->n;
}
