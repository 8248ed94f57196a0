/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and answers. A request for /healthz is suspended until the workers have answered, or until the time limit;
 * other requests are answered at once.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/http/internal.h"
#include "lib/plain.h"

#define TEXT_TYPE "text/plain; charset=utf-8"
#define JSON_TYPE "application/json"

/* Marks a request whose head MHD has passed once. */
static char head_seen;

/* A request for /healthz, from the second call of page_request() on. */
struct request {
	struct dray_list link;
	struct http_server *server;
	struct http_conn *conn;
	struct MHD_Connection *mhd;
	struct health_check check;
	char fault[DRAY_ERR_MSG_MAX]; /* "" if the agent is alive */
};

static struct http_conn *conn_of(struct MHD_Connection *mhd)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

	return info ? info->socket_context : NULL;
}

static bool headers_add(struct MHD_Response *response, const char *type)
{
	return MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES &&
	       MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store") ==
		       MHD_YES;
}

/* Consumes the response, which may be NULL. */
static enum MHD_Result send_response(struct MHD_Connection *mhd, unsigned status,
				     struct MHD_Response *response, const char *type)
{
	enum MHD_Result r = MHD_NO;

	if (response && headers_add(response, type))
		r = MHD_queue_response(mhd, status, response);
	if (response)
		MHD_destroy_response(response);
	return r;
}

/* Frees text. NULL if text is NULL, or without memory. */
static struct MHD_Response *response_of(char *text, size_t n)
{
	struct MHD_Response *response;

	if (!text)
		return NULL;
	response = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);
	if (!response)
		free(text);
	return response;
}

static struct MHD_Response *text_response(const char *text)
{
	return MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
					       MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result send_text(struct MHD_Connection *mhd, unsigned status, const char *text)
{
	return send_response(mhd, status, text_response(text), TEXT_TYPE);
}

/* Closes the connection, because the bytes that follow cannot be parsed. */
static enum MHD_Result refuse(struct MHD_Connection *mhd, unsigned status, const char *text)
{
	struct MHD_Response *response = text_response(text);

	if (response) {
		MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
		if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
			MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	}
	return send_response(mhd, status, response, TEXT_TYPE);
}

static struct MHD_Response *metrics_response(struct http_server *s)
{
	size_t n = 0;
	char *text = metrics_render(s->agent, &n);
	struct MHD_Response *response = response_of(text, n);

	if (response && !headers_add(response, METRICS_TEXT_TYPE)) {
		MHD_destroy_response(response);
		return NULL;
	}
	return response;
}

static enum MHD_Result metrics_page(struct http_server *s, struct MHD_Connection *mhd)
{
	if (!s->metrics)
		s->metrics = metrics_response(s);
	return s->metrics ? MHD_queue_response(mhd, MHD_HTTP_OK, s->metrics) : MHD_NO;
}

/* Reasons may quote a peer, so bytes that are not plain ASCII are replaced. */
static json_t *text_json(const char *s)
{
	char plain[513];

	dray_plain(plain, sizeof(plain), s, strlen(s));
	return json_string(plain);
}

/* Freed by the caller. NULL without memory. */
static char *ready_json(const struct ready *r)
{
	json_t *all = json_array(),
	       *root = json_pack("{s:b, s:o}", "ready", r->ready, "conditions", all);
	char *text = NULL, *line = NULL;
	int bad = !root;

	for (size_t i = 0; !bad && i < r->n; i++) {
		const struct dray_dbus_condition *c = &r->conditions[i];

		bad = json_array_append_new(all,
					    json_pack("{s:o, s:b, s:b, s:o}", "name",
						      text_json(c->name), "ok", c->ok, "required",
						      c->required, "reason", text_json(c->reason)));
	}
	if (!bad)
		text = json_dumps(root, JSON_INDENT(2));
	if (text && asprintf(&line, "%s\n", text) < 0)
		line = NULL;
	free(text);
	json_decref(root);
	return line;
}

static enum MHD_Result ready_page(struct http_server *s, struct MHD_Connection *mhd)
{
	struct ready ready;
	char *text;

	agent_ready(s->agent, &ready);
	text = ready_json(&ready);
	return send_response(mhd, ready.ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
			     response_of(text, text ? strlen(text) : 0), JSON_TYPE);
}

static void health_answered(struct health_check *check, const char *fault)
{
	struct request *r = dray_container_of(check, struct request, check);

	snprintf(r->fault, sizeof(r->fault), "%s", fault);
	dray_list_del(&r->link);
	conn_touch(r->server, r->conn);
	/* without a listening socket MHD does not wake itself */
	MHD_resume_connection(r->mhd);
	server_wake(r->server, 0);
}

static enum MHD_Result health_ask_first(struct http_server *s, struct MHD_Connection *mhd,
					void **ret)
{
	struct request *r = calloc(1, sizeof(*r));

	if (!r)
		return MHD_NO;
	r->server = s;
	r->conn = conn_of(mhd);
	r->mhd = mhd;
	r->check = HEALTH_CHECK_INIT(r->check, health_answered);
	dray_list_add(&s->requests, &r->link);
	*ret = r;
	MHD_suspend_connection(mhd);
	conn_rest(r->conn);
	health_ask(s->agent->health, &r->check);
	return MHD_YES;
}

static enum MHD_Result health_page(const struct request *r, struct MHD_Connection *mhd)
{
	char text[DRAY_ERR_MSG_MAX + 16];

	if (!*r->fault)
		return send_text(mhd, MHD_HTTP_OK, "alive\n");
	snprintf(text, sizeof(text), "not alive: %s\n", r->fault);
	return send_text(mhd, MHD_HTTP_SERVICE_UNAVAILABLE, text);
}

void pages_stop(struct http_server *s)
{
	struct request *r;

	while ((r = dray_list_first(&s->requests, struct request, link))) {
		health_cancel(&r->check);
		health_answered(&r->check, "the agent stops");
	}
}

static bool has_body(struct MHD_Connection *mhd)
{
	const char *length =
		MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);

	return (length && strcmp(length, "0")) ||
	       MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_TRANSFER_ENCODING);
}

enum MHD_Result page_request(void *cls, struct MHD_Connection *mhd, const char *url,
			     const char *method, const char *version, const char *body,
			     size_t *body_bytes, void **request)
{
	struct http_server *s = cls;

	/* no memory for the connection; its socket is shut down already */
	if (!conn_of(mhd))
		return MHD_NO;
	if (*request && *request != &head_seen)
		return health_page(*request, mhd);
	if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
		return refuse(mhd, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are served\n");
	if (has_body(mhd))
		return refuse(mhd, MHD_HTTP_CONTENT_TOO_LARGE, "a request must not have a body\n");
	/* MHD closes the connection if the answer comes before the end of the head */
	if (!*request) {
		*request = &head_seen;
		return MHD_YES;
	}
	if (!strcmp(url, "/healthz"))
		return health_ask_first(s, mhd, request);
	if (!strcmp(url, "/readyz"))
		return ready_page(s, mhd);
	if (!strcmp(url, "/metrics") && !s->probes_only)
		return metrics_page(s, mhd);
	return send_text(mhd, MHD_HTTP_NOT_FOUND,
			 s->probes_only ? "not found; this address serves /healthz and /readyz\n" :
					  "not found; this address serves /metrics, /healthz and "
					  "/readyz\n");
}

void page_completed(void *cls, struct MHD_Connection *mhd, void **request,
		    enum MHD_RequestTerminationCode how)
{
	struct http_server *s = cls;
	struct http_conn *c = conn_of(mhd);
	struct request *r = *request == &head_seen ? NULL : *request;

	if (r) {
		health_cancel(&r->check);
		dray_list_del(&r->link);
		free(r);
		*request = NULL;
	}
	if (c && how == MHD_REQUEST_TERMINATED_COMPLETED_OK)
		conn_touch(s, c);
}
