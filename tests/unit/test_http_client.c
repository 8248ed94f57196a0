/* SPDX-License-Identifier: Apache-2.0 */
/* URLs, and GET requests to a server whose answers the test sets. */
#include "agent/placement/net/http_client.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/placement/net/http_answer.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/net_rig.h"

#define LONG_NS (60 * DRAY_NS_PER_SEC)
#define SHORT_NS (500 * DRAY_NS_PER_MS)
#define BODY_MAX 100000

/* --- URLs ----------------------------------------------------------------------------------------- */

static struct http_url url_of(const char *s)
{
	struct http_url url;
	struct dray_err err = DRAY_ERR_NULL;

	if (http_url_parse(s, &url, &err) < 0)
		fail_msg("%s", err.msg);
	return url;
}

static void assert_url(const char *s, const char *host, unsigned port, const char *target,
		       const char *authority)
{
	struct http_url url = url_of(s);
	char buf[HTTP_AUTHORITY_MAX];

	assert_string_equal(url.host, host);
	assert_int_equal(url.port, port);
	assert_string_equal(url.target, target);
	assert_string_equal(http_url_authority(&url, buf, sizeof(buf)), authority);
}

static void test_url(void **state)
{
	assert_url("http://10.0.0.9:9003", "10.0.0.9", 9003, "/", "10.0.0.9:9003");
	assert_url("HTTP://Master.ns.svc/", "Master.ns.svc", 80, "/", "Master.ns.svc:80");
	assert_url("http://m.test.:1/a/b?c=d&e=%20", "m.test.", 1, "/a/b?c=d&e=%20", "m.test.:1");
	assert_url("http://m?x", "m", 80, "/?x", "m:80");
	assert_url("http://[2001:db8::9]:9003/metrics", "2001:db8::9", 9003, "/metrics",
		   "[2001:db8::9]:9003");
}

static void assert_no_url(const char *s, const char *words)
{
	struct http_url url = { .port = 7 };
	struct dray_err err = DRAY_ERR_NULL;

	if (http_url_parse(s, &url, &err) != -EINVAL)
		fail_msg("\"%s\" is taken", s);
	assert_int_equal(err.code, DRAY_E_INVALID);
	assert_int_equal(url.port, 7);
	if (!strstr(err.msg, words))
		fail_msg("\"%s\" does not contain \"%s\"", err.msg, words);
	for (const char *p = err.msg; *p; p++)
		assert_in_range(*p, ' ', '~');
}

static void test_url_refused(void **state)
{
	char longest[HTTP_TARGET_MAX + 32] = "http://m/";

	assert_no_url("https://m/", "TLS");
	assert_no_url("m:9003", "write http://");
	assert_no_url("", "write http://");
	assert_no_url("ftp://m/", "write http://");
	assert_no_url("http://", "not a URL");
	assert_no_url("http:///x", "not a URL");
	assert_no_url("http://m:x/", "not a URL");
	assert_no_url("http://m:65536/", "not a URL");
	assert_no_url("http://m:0/", "port");
	assert_no_url("http://u:p@m/", "user names");
	assert_no_url("http://m/#x", "#");
	assert_no_url("http://m/a b", "escaped");
	assert_no_url("http://m/\xc3\xa9", "escaped");
	assert_no_url("http://m/\r\nX: y", "escaped");
	assert_no_url("http://a..b/", "host name");
	assert_no_url("http://10.0.0.300/", "host name");
	assert_no_url("http://[::1%lo]/", "IPv6");
	assert_no_url("http://[::1/", "not a URL");
	assert_no_url("http://[1.2.3.4]/", "");
	memset(longest + 9, 'a', sizeof(longest) - 10);
	assert_no_url(longest, "too long");
	memset(longest + 7, 'a', HTTP_HOST_MAX + 1);
	memcpy(longest + 7 + HTTP_HOST_MAX + 1, "/", 2);
	assert_no_url(longest, "too long");
}

/* --- pages ---------------------------------------------------------------------------------------- */

struct rig {
	sd_event *event;
	struct page_server *server;
	struct resolver *resolver;
	struct dns_server *dns;
	struct page_reply reply;
	char request[4096];
};

struct got {
	struct rig *rig;
	unsigned called;
	unsigned status;
	char *body;
	size_t n;
	struct dray_err err;
	bool free_resolver;
};

static void on_request(void *arg, const char *request, struct page_reply *ret)
{
	struct rig *r = arg;

	if (request)
		snprintf(r->request, sizeof(r->request), "%s", request);
	*ret = r->reply;
}

static struct rig *rig_start(void)
{
	static struct dns_entry table[] = {
		{ .name = "two.test", .v4 = { "127.0.0.1" }, .v6 = { "::1" } },
		{ .name = NULL },
	};
	struct rig *r = calloc(1, sizeof(*r));
	struct dray_err err = DRAY_ERR_NULL;

	assert_non_null(r);
	assert_true(sd_event_new(&r->event) >= 0);
	r->server = page_server_new(r->event, false, 0, on_request, r);
	r->dns = dns_server_new(r->event, table);
	assert_int_equal(resolver_new(&r->resolver, r->event, &err), 0);
	resolver_pretend(r->resolver, dns_server_text(r->dns), NULL);
	return r;
}

static void rig_stop(struct rig *r)
{
	page_server_free(r->server);
	dns_server_free(r->dns);
	resolver_free(r->resolver);
	sd_event_unref(r->event);
	free(r);
}

static void on_got(void *arg, const struct http_answer *response, const struct dray_err *why)
{
	struct got *g = arg;

	g->called++;
	assert_int_equal(response == NULL, why != NULL);
	if (why)
		g->err = *why;
	if (response) {
		g->status = response->status;
		assert_int_equal(response->body[response->n], 0);
		g->n = response->n;
		g->body = malloc(g->n + 1);
		assert_non_null(g->body);
		memcpy(g->body, response->body, g->n + 1);
	}
	if (g->free_resolver)
		g->rig->resolver = resolver_free(g->rig->resolver);
}

static struct http_call *start_with(struct rig *r, const char *url_text, int64_t timeout_ns,
				    struct got *g, const char *method, const char *content,
				    size_t n)
{
	struct http_request request = { .event = r->event,
					.resolver = r->resolver,
					.url = url_of(url_text),
					.method = method,
					.content = content,
					.content_n = n,
					.timeout_ns = timeout_ns,
					.body_bytes = BODY_MAX,
					.fn = on_got,
					.arg = g };
	struct dray_err err = DRAY_ERR_NULL;
	struct http_call *get = NULL;

	free(g->body);
	*g = (struct got){ .rig = r };
	if (http_start(&get, &request, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(g->called, 0);
	return get;
}

static struct http_call *start(struct rig *r, const char *url_text, int64_t timeout_ns,
			       struct got *g)
{
	return start_with(r, url_text, timeout_ns, g, NULL, NULL, 0);
}

static void fetch(struct rig *r, int64_t timeout_ns, struct got *g)
{
	char url[64];

	snprintf(url, sizeof(url), "http://127.0.0.1:%u/page?x=1", page_server_port(r->server));
	start(r, url, timeout_ns, g);
	assert_true(net_until(r->event, g->called));
	assert_int_equal(g->called, 1);
}

static void reply(struct rig *r, const char *text, enum page_end end)
{
	r->reply = (struct page_reply){ .bytes = text, .n = strlen(text), .end = end };
}

static void assert_got(struct rig *r, const char *text, enum page_end end, unsigned status,
		       const char *body)
{
	struct got g = { .body = NULL };

	reply(r, text, end);
	fetch(r, LONG_NS, &g);
	if (g.err.code)
		fail_msg("%s", g.err.msg);
	assert_int_equal(g.status, status);
	assert_string_equal(g.body, body);
	free(g.body);
}

static void assert_why(struct rig *r, int64_t timeout_ns, int code, const char *words)
{
	struct got g = { .body = NULL };

	fetch(r, timeout_ns, &g);
	if (g.err.code != code || !strstr(g.err.msg, words))
		fail_msg("error %d, \"%s\", does not contain \"%s\"", g.err.code, g.err.msg, words);
	assert_int_equal(strncmp(g.err.msg, "http://127.0.0.1:", 17), 0);
	free(g.body);
}

static void assert_fails(struct rig *r, const char *text, enum page_end end, int code,
			 const char *words)
{
	reply(r, text, end);
	assert_why(r, LONG_NS, code, words);
}

#define PLAIN "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
#define LENGTH PLAIN "Content-Length: 5\r\n\r\nhello"
#define CHUNKED \
	PLAIN "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"

static void test_complete(void **state)
{
	struct rig *r = rig_start();
	struct got g = { .body = NULL };

	assert_got(r, LENGTH, PAGE_CLOSE, 200, "hello");
	assert_non_null(strstr(r->request, "GET /page?x=1 HTTP/1.1\r\n"));
	assert_non_null(strstr(r->request, "\r\nHost: 127.0.0.1:"));
	assert_non_null(strstr(r->request, "\r\nConnection: close\r\n"));
	/* the length is reached, so the end of the connection is not needed */
	assert_got(r, LENGTH, PAGE_HOLD, 200, "hello");
	assert_got(r, CHUNKED, PAGE_HOLD, 200, "hello");
	assert_got(r, PLAIN "\r\nhello", PAGE_CLOSE, 200, "hello");
	assert_got(r, "HTTP/1.0 200 OK\r\n\r\nhello", PAGE_CLOSE, 200, "hello");
	assert_got(r, "HTTP/1.1 204 No Content\r\n\r\n", PAGE_HOLD, 204, "");
	assert_got(r, PLAIN "Content-Length: 0\r\n\r\n", PAGE_HOLD, 200, "");
	assert_got(r, LENGTH "and more that belongs to nothing", PAGE_CLOSE, 200, "hello");
	/* every status is an answer; a redirect is not followed */
	assert_got(r, "HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno", PAGE_CLOSE, 503, "no");
	assert_got(r,
		   "HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
		   PAGE_CLOSE, 302, "");
	assert_got(r, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n" LENGTH,
		   PAGE_HOLD, 200, "hello");
	assert_got(r, PLAIN "Content-Length: 4\r\n\r\n\xff\xfe\xc3\xa9", PAGE_HOLD, 200,
		   "\xff\xfe\xc3\xa9");
	reply(r,
	      "HTTP/1.1 200 OK\r\ncONTENT-tYPE: text/plain; version=0.0.4\r\nContent-Typ: x\r\n"
	      "Content-Type-Not: y\r\nContent-Length: 3\r\n\r\na\0b",
	      PAGE_CLOSE);
	r->reply.n += 2;
	fetch(r, LONG_NS, &g);
	assert_int_equal(g.n, 3);
	assert_memory_equal(g.body, "a\0b", 4);
	free(g.body);
	rig_stop(r);
}

/* The content follows the head as it is, and a server may answer before it has read it. */
static void test_content(void **state)
{
	struct rig *r = rig_start();
	struct got g = { .body = NULL };
	size_t n = 8 << 20;
	char *big = calloc(1, n);
	char url[64];

	assert_non_null(big);
	snprintf(url, sizeof(url), "http://127.0.0.1:%u/k", page_server_port(r->server));
	reply(r, LENGTH, PAGE_CLOSE);
	start_with(r, url, LONG_NS, &g, "PUT", "{\"a\":1}", 7);
	assert_true(net_until(r->event, g.called));
	assert_int_equal(g.status, 200);
	assert_int_equal(strncmp(r->request, "PUT /k HTTP/1.1\r\n", 17), 0);
	assert_non_null(strstr(r->request, "\r\nContent-Length: 7\r\n"));
	assert_string_equal(strstr(r->request, "\r\n\r\n"), "\r\n\r\n{\"a\":1}");
	start_with(r, url, LONG_NS, &g, "PUT", "", 0);
	assert_true(net_until(r->event, g.called));
	assert_non_null(strstr(r->request, "\r\nContent-Length: 0\r\n"));
	start_with(r, url, LONG_NS, &g, "DELETE", NULL, 0);
	assert_true(net_until(r->event, g.called));
	assert_int_equal(strncmp(r->request, "DELETE /k HTTP/1.1\r\n", 20), 0);
	assert_null(strstr(r->request, "Content-Length"));
	r->reply.unread = true;
	r->reply.end = PAGE_HOLD;
	start_with(r, url, LONG_NS, &g, "PUT", big, n);
	assert_true(net_until(r->event, g.called));
	assert_int_equal(g.status, 200);
	free(g.body);
	free(big);
	rig_stop(r);
}

static void test_split_anywhere(void **state)
{
	static const char *const texts[] = { LENGTH, CHUNKED,
					     "HTTP/1.1 100 Continue\r\n\r\n" LENGTH,
					     PLAIN "\r\nhello" };
	struct rig *r = rig_start();
	struct got g = { .body = NULL };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(texts); i++) {
		/* in two parts at each position, then byte by byte */
		for (size_t at = 0; at < strlen(texts[i]); at++) {
			reply(r, texts[i], PAGE_CLOSE);
			r->reply.first = at;
			r->reply.piece = at ? 0 : 1;
			fetch(r, LONG_NS, &g);
			assert_int_equal(g.status, 200);
			assert_string_equal(g.body, "hello");
		}
	}
	free(g.body);
	rig_stop(r);
}

static void test_truncated(void **state)
{
	struct rig *r = rig_start();
	struct got g = { .body = NULL };
	char part[sizeof(CHUNKED)];

	for (size_t n = 1; n < strlen(CHUNKED); n++) {
		snprintf(part, sizeof(part), "%.*s", (int)n, CHUNKED);
		assert_fails(r, part, PAGE_CLOSE, DRAY_E_PEER_LOST, "cut off");
	}
	for (size_t n = 1; n < strlen(LENGTH); n++) {
		snprintf(part, sizeof(part), "%.*s", (int)n, LENGTH);
		assert_fails(r, part, PAGE_CLOSE, DRAY_E_PEER_LOST, "cut off");
	}
	assert_fails(r, "", PAGE_CLOSE, DRAY_E_PEER_LOST, "without a response");
	assert_fails(r, "HTTP/1.1 100 Continue\r\n\r\n", PAGE_CLOSE, DRAY_E_PEER_LOST, "");
	assert_fails(r, PLAIN "Content-Length: 9\r\n\r\nhello", PAGE_RESET, DRAY_E_PEER_LOST, "");
	free(g.body);
	rig_stop(r);
}

static void test_reset(void **state)
{
	struct rig *r = rig_start();

	reply(r, "", PAGE_RESET);
	r->reply.unread = true;
	assert_why(r, LONG_NS, DRAY_E_PEER_LOST, "");
	/* a server that answers without reading */
	reply(r, LENGTH, PAGE_CLOSE);
	r->reply.unread = true;
	r->reply.first = 10;
	r->reply.piece = 10;
	r->reply.end = PAGE_HOLD;
	{
		struct got g = { .body = NULL };

		fetch(r, LONG_NS, &g);
		assert_string_equal(g.body, "hello");
		free(g.body);
	}
	rig_stop(r);
}

static void test_slow(void **state)
{
	struct rig *r = rig_start();

	reply(r, "", PAGE_HOLD);
	assert_why(r, SHORT_NS, DRAY_E_TIMEOUT, "no response to the request within 500ms");
	reply(r, PLAIN "Content-Length: 9\r\n\r\nhello", PAGE_HOLD);
	assert_why(r, SHORT_NS, DRAY_E_TIMEOUT, "incomplete after 500ms: ");
	/* bytes that arrive slowly do not extend the limit */
	reply(r, CHUNKED CHUNKED CHUNKED, PAGE_HOLD);
	r->reply.piece = 1;
	r->reply.pause_us = 20000;
	assert_why(r, SHORT_NS, DRAY_E_TIMEOUT, "incomplete after 500ms: ");
	rig_stop(r);
}

static void test_endless(void **state)
{
	struct rig *r = rig_start();
	char *big = malloc(BODY_MAX + 200);
	struct got g = { .body = NULL };
	int head;

	assert_non_null(big);
	reply(r, "HTTP/1.1 100 Continue\r\nX-Filler: 0123456789\r\n\r\n", PAGE_REPEAT);
	assert_why(r, LONG_NS, DRAY_E_TOO_LARGE, "head");
	/* as much as is allowed, and one byte more: declared, in chunks, until the end */
	head = snprintf(big, BODY_MAX, PLAIN "\r\n");
	memset(big + head, 'x', BODY_MAX + 1);
	r->reply = (struct page_reply){ .bytes = big, .n = (size_t)head + BODY_MAX };
	fetch(r, LONG_NS, &g);
	assert_int_equal(g.n, BODY_MAX);
	free(g.body);
	r->reply.n++;
	assert_why(r, LONG_NS, DRAY_E_TOO_LARGE, "100kB");
	reply(r, PLAIN "Content-Length: 100001\r\n\r\n", PAGE_HOLD);
	assert_why(r, LONG_NS, DRAY_E_TOO_LARGE, "more than");
	reply(r, PLAIN "Content-Length: 99999999999999999999999\r\n\r\n", PAGE_HOLD);
	assert_why(r, LONG_NS, DRAY_E_PROTOCOL, "");
	reply(r, PLAIN "Transfer-Encoding: chunked\r\n\r\nfffff\r\n", PAGE_HOLD);
	big = realloc(big, 0x100000);
	assert_non_null(big);
	head = snprintf(big, 0x1000, PLAIN "Transfer-Encoding: chunked\r\n\r\nfff00\r\n");
	memset(big + head, 'x', 0x100000 - (size_t)head);
	r->reply = (struct page_reply){ .bytes = big, .n = 0x100000, .end = PAGE_HOLD };
	assert_why(r, LONG_NS, DRAY_E_TOO_LARGE, "more than");
	free(big);
	rig_stop(r);
}

static void test_garbage(void **state)
{
	struct rig *r = rig_start();
	size_t n = HTTP_HEAD_BYTES_MAX + 100;
	char *head = malloc(n + 1);

	assert_non_null(head);
	assert_fails(r, "SSH-2.0-OpenSSH_9.2\r\n", PAGE_HOLD, DRAY_E_PROTOCOL, "not HTTP");
	assert_fails(r, "\x16\x03\x01\x02", PAGE_HOLD, DRAY_E_PROTOCOL, "not HTTP");
	assert_fails(r, "HTTP/1.1 abc\r\n\r\n", PAGE_HOLD, DRAY_E_PROTOCOL, "not HTTP");
	assert_fails(r, PLAIN "Transfer-Encoding: chunked\r\n\r\nzz\r\n", PAGE_HOLD,
		     DRAY_E_PROTOCOL, "not HTTP");
	assert_fails(r, PLAIN "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
		     PAGE_HOLD, DRAY_E_PROTOCOL, "not HTTP");
	assert_fails(r, "HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", PAGE_HOLD,
		     DRAY_E_PROTOCOL, "101");
	n = (size_t)snprintf(head, n, "HTTP/1.1 200 OK\r\nX: ");
	memset(head + n, 'x', HTTP_HEAD_BYTES_MAX);
	head[n + HTTP_HEAD_BYTES_MAX] = '\0';
	assert_fails(r, head, PAGE_HOLD, DRAY_E_TOO_LARGE, "head");
	free(head);
	rig_stop(r);
}

/* --- connections ---------------------------------------------------------------------------------- */

static unsigned closed_port(void)
{
	struct dray_addr a;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(dray_addr_parse("127.0.0.1:0", &a), 0);
	assert_int_equal(bind(fd, &a.sa, a.len), 0);
	assert_int_equal(getsockname(fd, &a.sa, &a.len), 0);
	close(fd);
	return dray_addr_port(&a);
}

static void test_unreachable(void **state)
{
	struct rig *r = rig_start();
	struct got g = { .body = NULL };
	char url[64];

	snprintf(url, sizeof(url), "http://127.0.0.1:%u", closed_port());
	start(r, url, LONG_NS, &g);
	assert_true(net_until(r->event, g.called));
	assert_int_equal(g.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(g.err.msg, "connecting to 127.0.0.1:"));
	start(r, "http://none.test:1/", LONG_NS, &g);
	assert_true(net_until(r->event, g.called));
	assert_int_equal(g.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(g.err.msg, "there is no such name"));
	/*
	 * no socket may send to this address: the call itself detects that, but reports it from the
	 * loop
	 */
	start(r, "http://255.255.255.255:1/", LONG_NS, &g);
	assert_true(net_until(r->event, g.called));
	assert_int_equal(g.err.code, DRAY_E_PEER_UNREACHABLE);
	rig_stop(r);
}

/* A listener whose queue is full does not answer. */
static void test_no_answer(void **state)
{
	struct rig *r = rig_start();
	struct got g = { .body = NULL };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fill[8];
	struct dray_addr a;
	char url[64];

	assert_int_equal(dray_addr_parse("127.0.0.1:0", &a), 0);
	assert_int_equal(bind(fd, &a.sa, a.len), 0);
	assert_int_equal(listen(fd, 0), 0);
	assert_int_equal(getsockname(fd, &a.sa, &a.len), 0);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(fill); i++) {
		fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		connect(fill[i], &a.sa, a.len);
	}
	snprintf(url, sizeof(url), "http://127.0.0.1:%u/", dray_addr_port(&a));
	start(r, url, SHORT_NS, &g);
	assert_true(net_until(r->event, g.called));
	assert_int_equal(g.err.code, DRAY_E_TIMEOUT);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(fill); i++)
		close(fill[i]);
	close(fd);
	rig_stop(r);
}

/* The first address of the name has no listener. */
static void test_next_address(void **state)
{
	struct rig *r = rig_start();
	struct page_server *six = page_server_new(r->event, true, closed_port(), on_request, r);
	struct got g = { .body = NULL };
	char url[64];

	reply(r, LENGTH, PAGE_CLOSE);
	snprintf(url, sizeof(url), "http://two.test:%u/", page_server_port(six));
	start(r, url, LONG_NS, &g);
	assert_true(net_until(r->event, g.called));
	assert_int_equal(g.status, 200);
	assert_non_null(strstr(r->request, "\r\nHost: two.test:"));
	page_server_free(six);
	/* then no address has one; the error names the last */
	start(r, url, LONG_NS, &g);
	assert_true(net_until(r->event, g.called));
	assert_int_equal(g.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(g.err.msg, "[::1]:"));
	rig_stop(r);
}

static void test_cancel(void **state)
{
	struct rig *r = rig_start();
	struct got g = { .body = NULL }, after = { .body = NULL };
	char url[64];
	struct http_call *get;

	reply(r, PLAIN "Content-Length: 9\r\n\r\nhello", PAGE_HOLD);
	snprintf(url, sizeof(url), "http://127.0.0.1:%u/", page_server_port(r->server));
	/* during the look-up of the name, and during the answer */
	http_call_cancel(start(r, url, LONG_NS, &g));
	assert_int_equal(page_server_accepted(r->server), 0);
	get = start(r, url, LONG_NS, &g);
	assert_true(net_until(r->event, *r->request));
	assert_null(http_call_cancel(get));
	assert_true(net_until(r->event, page_server_open(r->server) == 0));
	reply(r, LENGTH, PAGE_CLOSE);
	start(r, url, LONG_NS, &after);
	after.free_resolver = true;
	assert_true(net_until(r->event, after.called));
	assert_int_equal(g.called, 0);
	assert_null(http_call_cancel(NULL));
	free(after.body);
	rig_stop(r);
}

/* Sockets begin at this port of 127.0.0.1, by --wrap; 0: at any. */
static uint16_t port_of_sockets;

int __real_socket(int family, int type, int protocol);
int __wrap_socket(int family, int type, int protocol);

int __wrap_socket(int family, int type, int protocol)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons(port_of_sockets),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = __real_socket(family, type, protocol);

	if (port_of_sockets)
		assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

/* The kernel chose the port that nobody listens at for the other end, too. */
static void test_own_echo(void **state)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct rig *r = rig_start();
	socklen_t len = sizeof(a);
	struct got g = { 0 };
	char url[64];

	assert_int_equal(bind(fd, (struct sockaddr *)&a, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	close(fd);
	snprintf(url, sizeof(url), "http://127.0.0.1:%u/", ntohs(a.sin_port));
	start(r, url, LONG_NS, &g);
	port_of_sockets = ntohs(a.sin_port);
	assert_true(net_until(r->event, g.called));
	port_of_sockets = 0;
	assert_int_equal(g.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(g.err.msg, "Connection refused"));
	rig_stop(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_url),
		cmocka_unit_test(test_url_refused),
		cmocka_unit_test(test_complete),
		cmocka_unit_test(test_content),
		cmocka_unit_test(test_split_anywhere),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_reset),
		cmocka_unit_test(test_slow),
		cmocka_unit_test(test_endless),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_unreachable),
		cmocka_unit_test(test_no_answer),
		cmocka_unit_test(test_next_address),
		cmocka_unit_test(test_own_echo),
		cmocka_unit_test(test_cancel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
