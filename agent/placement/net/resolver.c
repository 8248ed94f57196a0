/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name is in the table during its lookup and while its result is cached; it holds its queries. When the result is
 * known, the name joins `ready`, and one query is answered per turn of the loop: the callback may free the resolver,
 * so nothing is touched after it.
 */
#include "agent/placement/net/resolver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/process/turn_work.h"
#include "lib/addr.h"
#include "lib/list.h"
#include "lib/map.h"
#include "lib/time.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

/* limits of all names, of lookups in progress, and of cached names without a query */
#define NAMES_MAX 4096
#define LOOKUPS_MAX 256
#define CACHED_MAX 512
#define KEEP_MIN_S 5
#define KEEP_MAX_S 30
#define KEEP_FAILURE_S 2

struct name {
	struct dray_map_node node; /* of by_host, unless it needs no lookup */
	struct dray_list queue;    /* waiting, in_flight, ready or cached */
	struct dray_list queries;
	struct resolver *resolver;
	bool known; /* addrs or err are valid */
	int64_t until_ns;
	struct dray_addr *addrs;
	unsigned n;
	struct dray_err err;
	char key[DRAY_HOST_MAX]; /* of node */
	char host[];
};

struct resolver_query {
	struct dray_list link;
	struct name *name;
	unsigned port;
	int64_t timeout_ns;
	sd_event_source *timer; /* NULL if the result is known */
	resolver_fn fn;
	void *arg;
};

struct resolver {
	sd_event *event;
	const char *servers, *resolv_conf;
	struct dray_map by_host; /* struct name */
	struct dray_list waiting, ready, cached, in_flight;
	unsigned n_names, n_in_flight, n_cached;
	struct dns *dns; /* may be NULL */
	struct turn_work answers;
};

static struct name *name_find(struct resolver *r, const char *host)
{
	char key[DRAY_HOST_MAX];

	return dray_map_entry(dray_map_find(&r->by_host, key, dray_host_key(host, key)),
			      struct name, node);
}

static struct name *name_new(struct resolver *r, const char *host, bool listed)
{
	size_t n = strlen(host) + 1;
	struct name *name = calloc(1, sizeof(*name) + n);

	if (!name)
		return NULL;
	memcpy(name->host, host, n);
	name->resolver = r;
	dray_list_init(&name->queue);
	dray_list_init(&name->queries);
	if (listed)
		dray_map_add(&r->by_host, &name->node, name->key, dray_host_key(host, name->key));
	r->n_names++;
	return name;
}

static void name_free(struct name *n)
{
	n->resolver->n_names--;
	dray_map_del(&n->resolver->by_host, &n->node);
	dray_list_del(&n->queue);
	free(n->addrs);
	free(n);
}

static void cached_free(struct name *n)
{
	n->resolver->n_cached--;
	name_free(n);
}

/* Caches the name, which has no queries any more. */
static void name_cache(struct name *n)
{
	struct resolver *r = n->resolver;

	dray_list_del(&n->queue);
	if (!dray_map_has(&n->node))
		return name_free(n);
	dray_list_add(&r->cached, &n->queue);
	if (++r->n_cached > CACHED_MAX)
		cached_free(dray_list_entry(r->cached.next, struct name, queue));
}

static void name_ready(struct name *n, int64_t keep_s)
{
	n->known = true;
	n->until_ns = dray_now().ns + keep_s * DRAY_NS_PER_SEC;
	dray_list_del(&n->queue);
	if (dray_list_empty(&n->queries))
		return name_cache(n);
	dray_list_add(&n->resolver->ready, &n->queue);
	turn_work_go_on(&n->resolver->answers);
}

/* Closes the channel. Lookups in progress begin again on the next one. */
static void dns_close(struct resolver *r)
{
	r->dns = dns_free(r->dns);
	dray_list_splice(&r->waiting, &r->in_flight);
	r->n_in_flight = 0;
	turn_work_go_on(&r->answers);
}

static int dns_ready(struct resolver *r, struct dray_err *reterr)
{
	if (r->dns && !dns_outdated(r->dns))
		return 0;
	dns_close(r);
	return dns_new(&r->dns, r->event, r->servers, r->resolv_conf, reterr);
}

static void on_looked_up(void *arg, const struct dns_answer *a)
{
	struct name *n = arg;
	struct resolver *r = n->resolver;
	int keep_s = dray_max(a->ttl_s, KEEP_MIN_S);

	keep_s = dray_min(keep_s, KEEP_MAX_S);
	r->n_in_flight--;
	n->addrs = a->n ? malloc(a->n * sizeof(*a->addrs)) : NULL;
	if (n->addrs) {
		memcpy(n->addrs, a->addrs, a->n * sizeof(*a->addrs));
		n->n = a->n;
	} else if (a->n) {
		dray_err_set(&n->err, 0, DRAY_E_NO_MEMORY, "%s: out of memory", n->host);
	} else {
		dray_err_set(&n->err, 0, a->code, "%s: %s", n->host, a->reason);
	}
	name_ready(n, n->n ? keep_s : KEEP_FAILURE_S);
	/* waiting names can use the free place */
	if (!dray_list_empty(&r->waiting))
		turn_work_go_on(&r->answers);
}

static void start_lookups(struct resolver *r)
{
	while (r->n_in_flight < LOOKUPS_MAX && !dray_list_empty(&r->waiting)) {
		struct name *n = dray_list_pop(&r->waiting, struct name, queue);

		/* its queries have been cancelled */
		if (dray_list_empty(&n->queries)) {
			name_free(n);
			continue;
		}
		if (dns_ready(r, &n->err) < 0) {
			name_ready(n, KEEP_FAILURE_S);
			continue;
		}
		r->n_in_flight++;
		dray_list_add(&r->in_flight, &n->queue);
		dns_lookup(r->dns, n->host, on_looked_up, n);
	}
}

static void query_free(struct resolver_query *q)
{
	dray_list_del(&q->link);
	sd_event_source_disable_unref(q->timer);
	free(q);
}

/* Nothing may be touched after this call. */
static void answer(struct resolver_query *q)
{
	struct name *n = q->name;
	struct dray_addr addrs[RESOLVER_ADDRS_MAX];
	struct dray_err err = n->err;
	unsigned count = n->n, port = q->port;
	resolver_fn fn = q->fn;
	void *arg = q->arg;

	for (unsigned i = 0; i < count; i++) {
		addrs[i] = n->addrs[i];
		dray_addr_set_port(&addrs[i], port);
	}
	query_free(q);
	if (dray_list_empty(&n->queries))
		name_cache(n);
	fn(arg, addrs, count, count ? NULL : &err);
}

static int on_timeout(sd_event_source *s, uint64_t usec, void *arg)
{
	struct resolver_query *q = arg;
	struct dray_err err = DRAY_ERR_NULL;
	resolver_fn fn = q->fn;
	void *fn_arg = q->arg;
	char time[32];

	/* its turn was about to come */
	if (q->name->known) {
		answer(q);
		return 0;
	}
	dray_err_set(&err, 0, DRAY_E_TIMEOUT, "%s: no name server answered within %s",
		     q->name->host, dray_duration_show(q->timeout_ns, time, sizeof(time)));
	query_free(q);
	fn(fn_arg, NULL, 0, &err);
	return 0;
}

static int on_turn(sd_event_source *s, uint64_t usec, void *arg)
{
	struct resolver *r = arg;
	struct name *n;

	start_lookups(r);
	n = dray_list_first(&r->ready, struct name, queue);
	if (!n)
		return 0;
	turn_work_go_on(&r->answers);
	answer(dray_list_first(&n->queries, struct resolver_query, link));
	return 0;
}

/* A name outside the table that needs no lookup: an address, or (a NULL) the failure that there are too many names. */
static struct name *name_alone(struct resolver *r, const char *host, const struct dray_addr *a)
{
	struct name *n = name_new(r, host, false);

	if (!n)
		return NULL;
	n->known = true;
	if (!a) {
		dray_err_set(&n->err, 0, DRAY_E_BUSY, "%s: more than %d names are in use", host,
			     NAMES_MAX);
		return n;
	}
	n->addrs = malloc(sizeof(*a));
	if (!n->addrs) {
		name_free(n);
		return NULL;
	}
	*n->addrs = *a;
	n->n = 1;
	return n;
}

/* The name for a new query; NULL without memory. */
static struct name *name_get(struct resolver *r, const char *host)
{
	struct dray_addr a;
	struct name *n;

	if (dray_host_is_address(host, &a))
		return name_alone(r, host, &a);
	n = name_find(r, host);
	/* an expired result that still serves other queries is good enough */
	if (n && n->known && dray_list_empty(&n->queries)) {
		if (n->until_ns > dray_now().ns) {
			r->n_cached--;
			dray_list_del(&n->queue);
			return n;
		}
		cached_free(n);
		n = NULL;
	}
	if (n)
		return n;
	if (r->n_names >= NAMES_MAX)
		return name_alone(r, host, NULL);
	n = name_new(r, host, true);
	if (n)
		dray_list_add(&r->waiting, &n->queue);
	return n;
}

/* A query needs a timer only while the lookup is in progress. */
static int query_arm(struct resolver *r, struct resolver_query *q)
{
	uint64_t usec = ((uint64_t)q->timeout_ns + 999) / 1000;

	if (q->name->known)
		return 0;
	return sd_event_add_time_relative(r->event, &q->timer, CLOCK_MONOTONIC, usec, 1000,
					  on_timeout, q);
}

int resolver_lookup(struct resolver *r, const char *host, unsigned port, int64_t timeout_ns,
		    resolver_fn fn, void *arg, struct resolver_query **ret, struct dray_err *reterr)
{
	struct resolver_query *q;
	struct dray_addr a;

	if (port > UINT16_MAX || timeout_ns <= 0 ||
	    (!dray_host_is_address(host, &a) && !dray_host_is_name(host)))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"\"%.100s\" is not a host: write a name or an address, such as 10.0.0.9 or 2001:db8::9",
			host);
	q = calloc(1, sizeof(*q));
	if (q) {
		*q = (struct resolver_query){
			.port = port, .timeout_ns = timeout_ns, .fn = fn, .arg = arg
		};
		dray_list_init(&q->link);
		q->name = name_get(r, host);
	}
	if (q && q->name) {
		dray_list_add(&q->name->queries, &q->link);
		if (q->name->known && dray_list_empty(&q->name->queue))
			dray_list_add(&r->ready, &q->name->queue);
	}
	/* also for a new name whose only query fails here: it is freed then */
	turn_work_go_on(&r->answers);
	if (!q || !q->name || query_arm(r, q) < 0) {
		resolver_cancel(q);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "%s: out of memory", host);
	}
	if (ret)
		*ret = q;
	return 0;
}

struct resolver_query *resolver_cancel(struct resolver_query *q)
{
	struct name *n = q ? q->name : NULL;

	if (!q)
		return NULL;
	query_free(q);
	/* a lookup in progress goes on, and its result is cached */
	if (n && n->known && dray_list_empty(&n->queries))
		name_cache(n);
	return NULL;
}

int resolver_new(struct resolver **ret, sd_event *event, struct dray_err *reterr)
{
	struct resolver *r = calloc(1, sizeof(*r));
	int ret_code;

	if (!r)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	r->event = event;
	dray_map_init(&r->by_host);
	dray_list_init(&r->waiting);
	dray_list_init(&r->ready);
	dray_list_init(&r->cached);
	dray_list_init(&r->in_flight);
	ret_code = turn_work_init(&r->answers, event, 1, on_turn, r);
	if (ret_code < 0) {
		resolver_free(r);
		return dray_err_set(reterr, ret_code, DRAY_E_IO, "the resolver: %s",
				    dray_errno_text(ret_code));
	}
	*ret = r;
	return 0;
}

static void names_free(struct dray_list *queue)
{
	dray_list_for_each(queue, n, struct name, queue) {
		dray_list_for_each(&n->queries, q, struct resolver_query, link)
			query_free(q);
		name_free(n);
	}
}

struct resolver *resolver_free(struct resolver *r)
{
	if (!r)
		return NULL;
	/* lookups refer to their names, so they end first */
	dns_free(r->dns);
	names_free(&r->in_flight);
	names_free(&r->waiting);
	names_free(&r->ready);
	names_free(&r->cached);
	turn_work_deinit(&r->answers);
	dray_map_deinit(&r->by_host);
	free(r);
	return NULL;
}

void resolver_pretend(struct resolver *r, const char *servers, const char *resolv_conf)
{
	r->servers = servers;
	r->resolv_conf = resolv_conf;
	dns_close(r);
	dray_list_for_each(&r->cached, n, struct name, queue)
		cached_free(n);
}
