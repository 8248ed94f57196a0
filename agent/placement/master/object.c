/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key goes into the request as it is: the master decodes no escapes there, and ends the key at a blank or at an ampersand. So
 * objects with such keys cannot be asked for. Its other page, for several keys, decodes escapes since 0.3.12, but does not lease.
 */
#include "agent/placement/master/object.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/time.h"
#include "schema/gen/errors.h"

#define PAGE "/query_key?key="
/* Callers of the control socket wait 5 s for an answer, unless they are told otherwise. */
#define TIMEOUT_NS (3 * DRAY_NS_PER_SEC)
/* Room for the replicas that are taken. */
#define BODY_BYTES (512u << 10)

struct master_query {
	struct http_call *get;
	master_query_fn fn;
	void *arg;
	char *url; /* for errors */
};

static void on_page(void *arg, const struct http_answer *answer, const struct dray_err *why)
{
	struct master_object o = MASTER_OBJECT_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct master_query *q = arg;
	master_query_fn fn = q->fn;

	q->get = NULL;
	arg = q->arg;
	if (!why && answer->status != 200)
		err = master_object_refusal(answer->status, answer->body, answer->n);
	else if (!why && master_object_page(answer->body, answer->n, &o, &err) == 0 && !o.n)
		err = dray_err_of(DRAY_E_NOT_FOUND,
				  "the master has the object, but no replica of it in memory");
	if (err.code)
		err = dray_err_of(err.code, "%.80s: %.140s", q->url, err.msg);
	else if (why)
		err = *why; /* it names the host */
	master_query_free(q);
	fn(arg, &o, err.code ? &err : NULL);
	master_object_deinit(&o);
}

static bool can_be_asked(const char *key)
{
	for (const char *p = key; *p; p++)
		if ((unsigned char)*p <= ' ' || *p == '&' || *p == 0x7f)
			return false;
	return *key;
}

int master_query_new(struct master_query **ret, const struct master *m, const char *key,
		     master_query_fn fn, void *arg, struct dray_err *reterr)
{
	dray_auto(master_query_free) struct master_query *q = NULL;
	char page[HTTP_TARGET_MAX + 1];
	struct http_request request;
	int n, r;

	if (!can_be_asked(key))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"Mooncake's masters cannot be asked for a key that is empty, or has "
			"blanks, control characters or &");
	n = snprintf(page, sizeof(page), PAGE "%s", key);
	if (n >= (int)sizeof(page) || master_request(m, page, &request) < 0)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the key is too long to ask a master for it: %zu bytes",
				    strlen(key));
	q = calloc(1, sizeof(*q));
	if (q)
		q->url = strdup(master_url(m));
	if (!q || !q->url)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	q->fn = fn;
	q->arg = arg;
	request.timeout_ns = dray_min(request.timeout_ns, TIMEOUT_NS);
	request.body_bytes = BODY_BYTES;
	request.fn = on_page;
	request.arg = q;
	r = http_start(&q->get, &request, reterr);
	if (r >= 0)
		*ret = dray_take(q);
	return r;
}

struct master_query *master_query_free(struct master_query *q)
{
	if (!q)
		return NULL;
	http_call_cancel(q->get);
	free(q->url);
	free(q);
	return NULL;
}
