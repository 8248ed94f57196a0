/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A health page. Mooncake's master also answers 200 while it does not serve, and the body says so. Its client answers
 * 503 and says so in the body too.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/placement/net/http_client.h"
#include "agent/placement/net/lack.h"
#include "agent/placement/probe/internal.h"
#include "lib/cleanup.h"
#include "lib/plain.h"
#include "schema/gen/errors.h"

#define BODY_MAX (64 * 1024)
#define TEXT_MAX 64

/* A value in short, for a reason. Characters that do not print become ?. */
static const char *show(const json_t *v, char *buf, size_t n)
{
	snprintf(buf, n, "%s",
		 json_is_string(v) ? json_string_value(v) :
		 json_is_true(v)   ? "true" :
		 json_is_false(v)  ? "false" :
		 json_is_null(v)   ? "null" :
		 json_is_number(v) ? "a number" :
				     "not a string");
	dray_plain(buf, n, buf, strlen(buf));
	return buf;
}

/* The reason in the body that the target is not ready. Empty: none. */
static void object(const char *body, size_t n, char *why, size_t n_why)
{
	dray_auto(json_decref) json_t *root = NULL;
	char text[TEXT_MAX], syntax[96];
	const json_t *ready, *status, *state;

	*why = '\0';
	if (probe_json_parse(body, n, &root, syntax, sizeof(syntax)) < 0) {
		snprintf(why, n_why, "the body begins like JSON, but %s", syntax);
		return;
	}
	ready = json_object_get(root, "service_ready");
	status = json_object_get(root, "status");
	state = json_object_get(root, "ha_state");
	if (ready && !json_is_true(ready))
		snprintf(why, n_why, "service_ready is %s", show(ready, text, sizeof(text)));
	else if (status &&
		 (!json_is_string(status) || (strcmp(json_string_value(status), "ok") != 0 &&
					      strcmp(json_string_value(status), "healthy") != 0)))
		snprintf(why, n_why, "its status is %s", show(status, text, sizeof(text)));
	if (*why && json_is_string(state)) {
		n = strlen(why);
		snprintf(why + n, n_why - n, " (%s)", show(state, text, sizeof(text)));
	}
}

static void answered(void *arg, const struct http_answer *h, const struct dray_err *why)
{
	struct probe *p = arg;
	char objection[160] = "";
	const char *body;

	/* the request has ended */
	p->http = NULL;
	if (!h) {
		p->result.lacking = net_is_lack(why->code);
		probe_fail(p, "%s", why->msg);
		return;
	}
	body = h->body + strspn(h->body, " \t\r\n");
	if (*body == '{')
		object(body, h->n - (size_t)(body - h->body), objection, sizeof(objection));
	if (h->status < 200 || h->status > 299)
		probe_fail(p, "HTTP status %u%s%s", h->status, *objection ? ", and " : "",
			   objection);
	else if (*objection)
		probe_fail(p, "HTTP status %u, but %s", h->status, objection);
	else
		probe_succeed(p, "HTTP status %u", h->status);
}

static int run(struct probe *p, struct dray_err *reterr)
{
	struct http_request request = { .event = p->deps.event,
					.resolver = p->deps.resolver,
					.url.port = p->target.port,
					.timeout_ns = p->end_ns - p->start_ns,
					.body_bytes = BODY_MAX,
					.fn = answered,
					.arg = p };

	if (!p->deps.resolver)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "http probes need a resolver, and this agent has none");
	snprintf(request.url.host, sizeof(request.url.host), "%s", p->target.host);
	snprintf(request.url.target, sizeof(request.url.target), "%s",
		 *p->target.path ? p->target.path : "/");
	/* the request has its own time limit */
	sd_event_source_set_enabled(p->timer, SD_EVENT_OFF);
	return http_start(&p->http, &request, reterr);
}

static void stop(struct probe *p)
{
	p->http = http_call_cancel(p->http);
}

const struct probe_ops probe_http_ops = {
	.run = run,
	.stop = stop,
};
