/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read asks for the detail page, and for the metrics of a master that has no such page (404). Any other failure
 * ends the read: metrics know neither where a segment's engine is nor whether it serves, and who took them in the
 * place of a page that is no good would know less than before.
 */
#include "agent/placement/master/master.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backoff.h"
#include "agent/placement/net/http_client.h"
#include "lib/random.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#define DETAIL "/get_segments_detail"
#define METRICS "/metrics"
#define RETRY_MIN_NS DRAY_NS_PER_SEC
#define RETRY_MAX_NS (60 * DRAY_NS_PER_SEC)
#define URL_MAX (HTTP_AUTHORITY_MAX + HTTP_TARGET_MAX + 8)

struct master {
	struct master_deps deps;
	struct http_url base; /* target: what pages are appended to, without a slash at its end */
	char url[URL_MAX];
	sd_event_source *timer; /* of the next read */
	struct http_get *get;   /* the page under way */
	uint32_t failed;        /* reads in a row */
	struct master_totals totals;
};

/* --- reads ------------------------------------------------------------------------------------------ */

static void schedule(struct master *m, int64_t pause_ns)
{
	sd_event_source_set_time_relative(m->timer, (uint64_t)pause_ns / 1000);
	sd_event_source_set_enabled(m->timer, SD_EVENT_ONESHOT);
}

static int64_t pause_next(struct master *m)
{
	int64_t interval = m->deps.limits.interval_ns, tenth = interval / 10;
	int64_t longest = dray_max(interval, RETRY_MAX_NS);

	if (m->failed)
		return backoff_spread(
			backoff_pause(m->failed, dray_min(interval, RETRY_MIN_NS), longest));
	return interval - tenth + (int64_t)(dray_random() % (uint64_t)(2 * tenth + 1));
}

/* Nothing may be touched after that. */
static void end_read(struct master *m, const struct master_list *l, const struct dray_err *why)
{
	m->totals.reads++;
	m->totals.failures += why != NULL;
	m->failed = why ? m->failed + 1 : 0;
	schedule(m, pause_next(m));
	m->deps.up(m->deps.arg, m, l ? l->v : NULL, l ? l->n : 0, why);
}

static void page_err(const struct master *m, const char *page, const struct dray_err *why,
		     struct dray_err *ret)
{
	*ret = DRAY_ERR_NULL;
	dray_err_set(ret, 0, why->code, "%.80s%s: %.130s", m->url, page, why->msg);
}

static void status_err(const struct master *m, const char *page, unsigned status,
		       struct dray_err *ret)
{
	*ret = DRAY_ERR_NULL;
	if (status == 503)
		dray_err_set(ret, 0, DRAY_E_BUSY,
			     "%.80s%s: this master is not the leader, or not ready yet (503)",
			     m->url, page);
	else
		dray_err_set(ret, 0, DRAY_E_PROTOCOL,
			     "%.80s%s: HTTP status %u; is that the master's admin port?", m->url,
			     page, status);
}

/* True: the read has ended well. */
static bool use_page(struct master *m, const struct http_response *r, bool metrics,
		     struct dray_err *ret_why)
{
	struct master_list l = MASTER_LIST_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	int ret = metrics ? master_page_metrics(r->body, r->n, &l, &err) :
			    master_page_detail(r->body, r->n, &l, &err);

	if (ret == 0) {
		m->totals.left_out = l.left_out;
		m->totals.from_metrics = metrics;
		end_read(m, &l, NULL);
	} else {
		page_err(m, metrics ? METRICS : DETAIL, &err, ret_why);
	}
	master_list_deinit(&l);
	return ret == 0;
}

static void on_metrics(void *arg, const struct http_response *response, const struct dray_err *why)
{
	struct master *m = arg;
	struct dray_err err;

	m->get = NULL;
	if (why) {
		end_read(m, NULL, why);
		return;
	}
	if (response->status == 200 && use_page(m, response, true, &err))
		return;
	if (response->status != 200)
		status_err(m, METRICS, response->status, &err);
	end_read(m, NULL, &err);
}

static void get(struct master *m, const char *page, http_get_fn fn)
{
	struct http_get_deps deps = { m->deps.event, m->deps.resolver };
	struct http_limits limits = { m->deps.limits.timeout_ns, m->deps.limits.page_bytes };
	struct dray_err err = DRAY_ERR_NULL;
	struct http_url url = m->base;
	size_t n = strlen(url.target);

	snprintf(url.target + n, sizeof(url.target) - n, "%s", page);
	if (http_get(&m->get, &deps, &url, &limits, fn, m, &err) < 0)
		end_read(m, NULL, &err);
}

static void on_detail(void *arg, const struct http_response *response, const struct dray_err *why)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct master *m = arg;

	m->get = NULL;
	if (why) {
		end_read(m, NULL, why);
		return;
	}
	/* a master before 0.3.12; what is merely no good is no reason to know less of the segments */
	if (response->status == 404) {
		get(m, METRICS, on_metrics);
		return;
	}
	if (response->status == 200 && use_page(m, response, false, &err))
		return;
	if (response->status != 200)
		status_err(m, DETAIL, response->status, &err);
	end_read(m, NULL, &err);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *arg)
{
	struct master *m = arg;

	get(m, DETAIL, on_detail);
	return 0;
}

/* --- the master ------------------------------------------------------------------------------------- */

/* Pages that somebody may have meant by the master's URL. */
static const char *const pages[] = { METRICS "/summary", METRICS, DETAIL, "/health" };

static void trim_slashes(char *s)
{
	size_t n = strlen(s);

	while (n && s[n - 1] == '/')
		s[--n] = '\0';
}

static int base_set(struct master *m, struct dray_err *reterr)
{
	char authority[HTTP_AUTHORITY_MAX], *target = m->base.target;
	int r = http_url_parse(m->deps.url, &m->base, reterr);

	if (r < 0)
		return r;
	trim_slashes(target);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(pages); i++) {
		size_t n = strlen(target), page = strlen(pages[i]);

		if (n < page || strcmp(target + n - page, pages[i]) != 0)
			continue;
		target[n - page] = '\0';
		trim_slashes(target);
		break;
	}
	if (strchr(target, '?'))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"\"%.120s\": the URL of a master has no ?: write http://HOST:PORT",
			m->deps.url);
	if (strlen(target) + sizeof(DETAIL) > sizeof(m->base.target))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "\"%.120s...\": the path is too long", m->deps.url);
	snprintf(m->url, sizeof(m->url), "http://%s%s",
		 http_url_authority(&m->base, authority, sizeof(authority)), target);
	return 0;
}

int master_new(struct master **ret, const struct master_deps *deps, struct dray_err *reterr)
{
	dray_auto(master_free) struct master *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	m->deps = *deps;
	r = base_set(m, reterr);
	if (r < 0)
		return r;
	m->deps.url = m->url;
	r = sd_event_add_time_relative(deps->event, &m->timer, CLOCK_MONOTONIC, 0, 1000, on_timer,
				       m);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "%s: %s", m->url,
				    dray_errno_text(r));
	*ret = dray_take(m);
	return 0;
}

struct master *master_free(struct master *m)
{
	if (!m)
		return NULL;
	http_get_cancel(m->get);
	sd_event_source_disable_unref(m->timer);
	free(m);
	return NULL;
}

void master_configure(struct master *m, const struct master_limits *limits)
{
	uint64_t due, soonest;
	int on;

	m->deps.limits = *limits;
	/* off: a read is under way, and what comes after it goes by the new interval */
	if (sd_event_source_get_enabled(m->timer, &on) < 0 || on == SD_EVENT_OFF ||
	    sd_event_source_get_time(m->timer, &due) < 0)
		return;
	soonest = (uint64_t)(dray_now().ns + pause_next(m)) / 1000;
	if (soonest < due)
		sd_event_source_set_time(m->timer, soonest);
}

const char *master_url(const struct master *m)
{
	return m->url;
}

void master_totals(const struct master *m, struct master_totals *ret)
{
	*ret = m->totals;
}
