/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read gets the detail page, or the metrics of a master without such a page (404). Any other failure ends the read:
 * metrics tell neither where the engine of a segment is nor whether it serves, so they must not replace a detail page
 * that was read before.
 */
#include "agent/placement/master/master.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/net/http_client.h"
#include "lib/backoff.h"
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
	struct http_url base; /* pages are appended to its target, which has no slash at its end */
	char url[URL_MAX];
	sd_event_source *timer; /* of the next read */
	struct http_call *get;  /* the page in progress */
	uint32_t failed;        /* failed reads in a row */
};

static void schedule(struct master *m, int64_t pause_ns)
{
	sd_event_source_set_time_relative(m->timer, (uint64_t)pause_ns / 1000);
	sd_event_source_set_enabled(m->timer, SD_EVENT_ONESHOT);
}

static int64_t pause_next(struct master *m)
{
	int64_t interval = m->deps.cfg->mooncake.interval, tenth = interval / 10;
	int64_t longest = dray_max(interval, RETRY_MAX_NS);

	if (m->failed)
		return backoff_spread(
			backoff_pause(m->failed, dray_min(interval, RETRY_MIN_NS), longest));
	return interval - tenth + (int64_t)(dray_random() % (uint64_t)(2 * tenth + 1));
}

/* Nothing may be touched after this call. */
static void end_read(struct master *m, const struct master_list *l, const struct dray_err *why)
{
	m->failed = why ? m->failed + 1 : 0;
	schedule(m, pause_next(m));
	m->deps.up(m->deps.arg, l, why);
}

/* Nothing may be touched after this call. */
static void fail_read(struct master *m, int code, const char *page, const char *why)
{
	struct dray_err err = dray_err_of(code, "%.80s%s: %.130s", m->url, page, why);

	end_read(m, NULL, &err);
}

/* Nothing may be touched after this call. */
static void use_page(struct master *m, const struct http_answer *r, const char *page)
{
	struct master_list l = MASTER_LIST_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	int ret = !strcmp(page, METRICS) ? master_page_metrics(r->body, r->n, &l, &err) :
					   master_page_detail(r->body, r->n, &l, &err);

	if (ret == 0)
		end_read(m, &l, NULL);
	else
		fail_read(m, err.code, page, err.msg);
	master_list_deinit(&l);
}

static void on_page(struct master *m, const char *page, const struct http_answer *r,
		    const struct dray_err *why)
{
	char text[80];

	m->get = NULL;
	if (why) {
		end_read(m, NULL, why);
	} else if (r->status == 200) {
		use_page(m, r, page);
	} else if (r->status == 503) {
		fail_read(m, DRAY_E_BUSY, page,
			  "this master is not the leader, or not ready yet (503)");
	} else {
		snprintf(text, sizeof(text), "HTTP status %u; is this the master's admin port?",
			 r->status);
		fail_read(m, DRAY_E_PROTOCOL, page, text);
	}
}

static void on_metrics(void *arg, const struct http_answer *response, const struct dray_err *why)
{
	on_page(arg, METRICS, response, why);
}

int master_request(const struct master *m, const char *page, struct http_request *ret)
{
	size_t n = strlen(m->base.target);

	*ret = (struct http_request){ .event = m->deps.event,
				      .resolver = m->deps.resolver,
				      .url = m->base,
				      .timeout_ns = m->deps.cfg->mooncake.timeout,
				      .body_bytes = (size_t)m->deps.cfg->mooncake.page_bytes };
	if (n + strlen(page) >= sizeof(ret->url.target))
		return -EINVAL;
	snprintf(ret->url.target + n, sizeof(ret->url.target) - n, "%s", page);
	return 0;
}

const char *master_url(const struct master *m)
{
	return m->url;
}

static void get(struct master *m, const char *page, http_call_fn fn)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct http_request request;

	/* base_set() has seen that the pages of this file fit */
	master_request(m, page, &request);
	request.fn = fn;
	request.arg = m;
	if (http_start(&m->get, &request, &err) < 0)
		end_read(m, NULL, &err);
}

static void on_detail(void *arg, const struct http_answer *response, const struct dray_err *why)
{
	struct master *m = arg;

	/* its request has ended, and the next one may not begin */
	m->get = NULL;
	/* masters before 0.3.12 have no such page */
	if (response && response->status == 404)
		get(m, METRICS, on_metrics);
	else
		on_page(m, DETAIL, response, why);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *arg)
{
	struct master *m = arg;

	get(m, DETAIL, on_detail);
	return 0;
}

/* A URL of one of these pages is taken as the URL of its master. */
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
			"\"%.120s\": the URL of a master has no query: write http://HOST:PORT",
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
	http_call_cancel(m->get);
	sd_event_source_disable_unref(m->timer);
	free(m);
	return NULL;
}

void master_reconfigured(struct master *m)
{
	uint64_t due, soonest;
	int on;

	/* off: a read is in progress, and the next one follows after the new interval */
	if (sd_event_source_get_enabled(m->timer, &on) < 0 || on == SD_EVENT_OFF ||
	    sd_event_source_get_time(m->timer, &due) < 0)
		return;
	soonest = (uint64_t)(dray_now().ns + pause_next(m)) / 1000;
	if (soonest < due)
		sd_event_source_set_time(m->timer, soonest);
}
