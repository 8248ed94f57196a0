/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing the pages of a Mooncake master, and reading them from a server that can fail. */
#include "agent/placement/master/master.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/master/object.h"
#include "agent/placement/net/http_client.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/net_rig.h"

#define MS DRAY_NS_PER_MS

/* --- pages ------------------------------------------------------------------------------------------ */

typedef int (*page_parse_fn)(const char *body, size_t n, struct master_list *ret,
			     struct dray_err *reterr);

/* Prints each segment as "name endpoint status protocol capacity allocated;". */
static void show(const struct master_segment *v, size_t n, char *buf, size_t max)
{
	size_t used = 0;

	*buf = '\0';
	for (size_t i = 0; i < n && used < max; i++)
		used += (size_t)snprintf(buf + used, max - used, "%s %s %s %s %lld %lld;",
					 v[i].name, v[i].endpoint, v[i].status, v[i].protocol,
					 (long long)v[i].capacity, (long long)v[i].allocated);
}

static void assert_page(page_parse_fn fn, const char *page, size_t left_out, const char *segments)
{
	struct master_list l = MASTER_LIST_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	char shown[2048];

	if (fn(page, strlen(page), &l, &err) < 0)
		fail_msg("%s", err.msg);
	show(l.v, l.n, shown, sizeof(shown));
	assert_string_equal(shown, segments);
	assert_int_equal(l.left_out, left_out);
	master_list_deinit(&l);
}

static void assert_bad(page_parse_fn fn, const char *page, const char *words)
{
	struct master_list l = MASTER_LIST_NULL;
	struct dray_err err = DRAY_ERR_NULL;

	if (fn(page, strlen(page), &l, &err) != -EPROTO)
		fail_msg("%s is taken", page);
	assert_int_equal(err.code, DRAY_E_PROTOCOL);
	if (!strstr(err.msg, words))
		fail_msg("\"%s\" does not contain \"%s\"", err.msg, words);
	master_list_deinit(&l);
}

#define DETAIL_PAGE                                                                              \
	"{\"total_segments\":2,\"segments\":["                                                   \
	"{\"segment_name\":\"10.0.0.6:12345\",\"segment_id\":\"1-2\",\"client_id\":\"3-4\","     \
	"\"base_address\":\"0x7f0000000000\",\"size_bytes\":4294967296,\"size_human\":\"4 GB\"," \
	"\"te_endpoint\":\"10.0.0.6:15001\",\"protocol\":\"rdma\",\"status\":\"OK\","            \
	"\"allocator_used_bytes\":4096,\"allocator_capacity_bytes\":4294967296,"                 \
	"\"allocator_usage_percent\":0.0001},"                                                   \
	"{\"segment_name\":\"10.0.0.5:12345\",\"size_bytes\":1024,\"te_endpoint\":"              \
	"\"10.0.0.5:15001\",\"protocol\":\"tcp\",\"status\":\"DRAINING\","                       \
	"\"allocator_used_bytes\":0}]}"
#define DETAIL_SEGMENTS                                      \
	"10.0.0.5:12345 10.0.0.5:15001 DRAINING tcp 1024 0;" \
	"10.0.0.6:12345 10.0.0.6:15001 OK rdma 4294967296 4096;"

static void test_detail(void **state)
{
	char piece[1024], page[1200];

	assert_page(master_page_detail, DETAIL_PAGE, 0, DETAIL_SEGMENTS);
	assert_page(master_page_detail, "{\"total_segments\":0,\"segments\":[]}", 0, "");
	assert_page(master_page_detail,
		    " {\n\"x\" : [1, {\"segments\": 2}] ,\t\"segments\"\r: [ {\"size_bytes\":1 , "
		    "\"segment_name\" : \"a.b:1\"} ] , \"y\" : null }\n ",
		    0, "a.b:1    1 -1;");
	/* several pieces of one owner; one usable piece is enough */
	assert_page(
		master_page_detail,
		"{\"segments\":[{\"segment_name\":\"a:1\",\"size_bytes\":5,\"status\":\"DRAINING\","
		"\"allocator_used_bytes\":2},{\"segment_name\":\"b:1\",\"size_bytes\":1},"
		"{\"segment_name\":\"a:1\",\"size_bytes\":7,\"status\":\"OK\",\"te_endpoint\":"
		"\"h:9\",\"allocator_used_bytes\":3},{\"segment_name\":\"a:1\",\"size_bytes\":1,"
		"\"status\":\"UNMOUNTING\"}]}",
		0, "a:1 h:9 OK  13 5;b:1    1 -1;");
	/* invalid segment names, and unknown words */
	assert_page(
		master_page_detail,
		"{\"segments\":[{\"segment_name\":\"a\\\"b\\\\c\",\"size_bytes\":1},"
		"{\"segment_name\":\"host\",\"size_bytes\":1},{\"segment_name\":\"\",\"size_bytes\":1},"
		"{\"segment_name\":\"0.0.0.0:1\",\"size_bytes\":1},"
		"{\"segment_name\":\"a:1\",\"size_bytes\":1,\"te_endpoint\":\"/x\",\"status\":\"O K\","
		"\"protocol\":null}]}",
		4, "a:1    1 -1;");
	/* numbers and text at the end of the buffer, and a value longer than a segment */
	memset(piece, ' ', sizeof(piece) - 1);
	piece[sizeof(piece) - 1] = '\0';
	snprintf(page, sizeof(page), "{\"a\":12%s,\"b\":\"x\",\"segments\":[]}", piece);
	assert_page(master_page_detail, page, 0, "");
}

static void test_detail_types(void **state)
{
	static const char *const strings[] = { "segment_name", "te_endpoint", "status",
					       "protocol" };
	static const char *const numbers[] = { "size_bytes", "allocator_used_bytes" };
	static const char *const no_string[] = { "1", "1.5", "true", "[]", "{}", "[\"a:1\"]" };
	static const char *const no_number[] = { "\"1\"", "1.5", "1e3", "false", "[]", "{}" };
	char page[256], words[64];

	/* the other fields of the object are valid */
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(strings); i++) {
		snprintf(words, sizeof(words), "segments[0].%s is not a string", strings[i]);
		for (size_t j = 0; j < DRAY_ARRAY_SIZE(no_string); j++) {
			snprintf(page, sizeof(page),
				 "{\"segments\":[{%s\"size_bytes\":1,\"%s\":%s}]}",
				 i ? "\"segment_name\":\"a:1\"," : "", strings[i], no_string[j]);
			assert_bad(master_page_detail, page, words);
		}
	}
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(numbers); i++) {
		for (size_t j = 0; j < DRAY_ARRAY_SIZE(no_number); j++) {
			snprintf(words, sizeof(words), "segments[0].%s is not a whole number",
				 numbers[i]);
			snprintf(page, sizeof(page),
				 "{\"segments\":[{\"segment_name\":\"a:1\",%s\"%s\":%s}]}",
				 i ? "\"size_bytes\":1," : "", numbers[i], no_number[j]);
			assert_bad(master_page_detail, page, words);
		}
		snprintf(words, sizeof(words), "segments[0].%s is below zero", numbers[i]);
		snprintf(page, sizeof(page),
			 "{\"segments\":[{\"segment_name\":\"a:1\",%s\"%s\":-1}]}",
			 i ? "\"size_bytes\":1," : "", numbers[i]);
		assert_bad(master_page_detail, page, words);
	}
	assert_bad(master_page_detail, "{\"segments\":[{\"size_bytes\":1}]}",
		   "segments[0].segment_name is missing");
	assert_bad(
		master_page_detail,
		"{\"segments\":[{\"segment_name\":\"a:1\",\"size_bytes\":1},{\"segment_name\":\"a:1\"}]}",
		"segments[1].size_bytes is missing");
	assert_bad(master_page_detail, "{\"segments\":[{\"segment_name\":null,\"size_bytes\":1}]}",
		   "segments[0].segment_name is not a string");
	assert_bad(
		master_page_detail,
		"{\"segments\":[{\"segment_name\":\"a:1\",\"size_bytes\":18446744073709551616}]}",
		"not JSON");
	assert_bad(master_page_detail,
		   "{\"segments\":[{\"segment_name\":\"a:1\",\"size_bytes\":9223372036854775807},"
		   "{\"segment_name\":\"a:1\",\"size_bytes\":1}]}",
		   "of a:1 overflows");
}

static void test_detail_refused(void **state)
{
	static const char *const outer[] = { "", " ", "[]", "1", "\"segments\"", "null", "<html>" };
	char long_one[20000];
	size_t n;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(outer); i++)
		assert_bad(master_page_detail, outer[i], "not a JSON object");
	assert_bad(master_page_detail, "{}", "no \"segments\"");
	assert_bad(master_page_detail, "{\"success\":false,\"error_code\":-1}", "no \"segments\"");
	assert_bad(master_page_detail, "{\"segments\":{}}", "not an array");
	assert_bad(master_page_detail, "{\"segments\":null}", "not an array");
	assert_bad(master_page_detail, "{\"segments\":[1]}", "segments[0] is not an object");
	assert_bad(master_page_detail, "{\"segments\":[],\"segments\":[]}", "twice");
	assert_bad(master_page_detail, "{\"segments\":[{\"a\":1,\"a\":2}]}", "twice");
	assert_bad(master_page_detail, "{\"segments\":[]} x", "follows the page");
	assert_bad(master_page_detail, "{\"segments\":[],}", "not JSON");
	assert_bad(master_page_detail, "{\"segments\":[{},]}", "segment_name is missing");
	assert_bad(master_page_detail, "{1:2}", "not a string");
	assert_bad(master_page_detail, "{\"a\" 1}", "a colon is missing");
	assert_bad(master_page_detail, "{\"a\":1 \"b\":2}", "a comma is missing");
	assert_bad(master_page_detail, "{\"a\":\"\xff\"}", "not JSON");
	assert_bad(master_page_detail, "{\"a\":'b'}", "not JSON");
	/* a segment of 17 KiB; arrays nested too deeply */
	n = (size_t)snprintf(long_one, sizeof(long_one), "{\"segments\":[{\"segment_name\":\"");
	memset(long_one + n, 'x', 17000);
	snprintf(long_one + n + 17000, 8, "\"}]}");
	assert_bad(master_page_detail, long_one, "too long");
	n = (size_t)snprintf(long_one, sizeof(long_one), "{\"a\":");
	memset(long_one + n, '[', 15000);
	long_one[n + 15000] = '\0';
	assert_bad(master_page_detail, long_one, "not JSON");
}

static void test_detail_truncated(void **state)
{
	char part[sizeof(DETAIL_PAGE)];

	for (size_t n = 1; n < strlen(DETAIL_PAGE); n++) {
		snprintf(part, sizeof(part), "%.*s", (int)n, DETAIL_PAGE);
		assert_bad(master_page_detail, part, "byte ");
	}
}

#define METRICS_PAGE                                                       \
	"# TYPE segment_total_capacity_bytes gauge\n"                      \
	"segment_total_capacity_bytes{segment=\"10.0.0.6:12345\"} 4096\n"  \
	"segment_total_capacity_bytes{segment=\"10.0.0.5:12345\"} 1024\n"  \
	"# TYPE segment_allocated_bytes gauge\n"                           \
	"segment_allocated_bytes{segment=\"10.0.0.5:12345\"} 24\n"         \
	"nof_segment_total_capacity_bytes{segment=\"10.0.0.7:12345\"} 7\n" \
	"master_value_size_bytes_bucket{le=\"+Inf\"} 3\n"                  \
	"master_key_count 0\n"
#define METRICS_SEGMENTS "10.0.0.5:12345    1024 24;10.0.0.6:12345    4096 -1;"

static void test_metrics(void **state)
{
	assert_page(master_page_metrics, METRICS_PAGE, 0, METRICS_SEGMENTS);
	assert_page(master_page_metrics, "", 0, "");
	assert_page(master_page_metrics, "master_key_count 0\n", 0, "");
	/* several labels in any order; a name shared with other clusters */
	assert_page(
		master_page_metrics,
		"segment_total_capacity_bytes{cluster=\"a\",segment=\"a:1\"} 5\n"
		"segment_total_capacity_bytes{segment=\"a:1\", cluster=\"b\",} 6e0 1700000000123\n",
		0, "a:1    11 -1;");
	/* the remaining chunks of an owner after one has gone */
	assert_page(master_page_metrics,
		    "segment_allocated_bytes{segment=\"10.0.0.5:12345\"} -4096\n", 0,
		    "10.0.0.5:12345    -1 -1;");
	assert_page(
		master_page_metrics,
		"segment_total_capacity_bytes 5\nsegment_total_capacity_bytes{segment=\"host\"} 5\n"
		"segment_total_capacity_bytes{segment=\"a\\\"b\\\\c:1\"} 5\n",
		3, "");
	assert_bad(master_page_metrics, "segment_total_capacity_bytes{segment=\"a:1\"} 1.5\n",
		   "segment_total_capacity_bytes is not a number of bytes");
	assert_bad(master_page_metrics, "segment_allocated_bytes{segment=\"a:1\"} NaN\n",
		   "segment_allocated_bytes is not a number of bytes");
	assert_bad(master_page_metrics,
		   "x 1\nsegment_total_capacity_bytes{segment=\"a\"b\\c\"} 5\n", "line 2");
	assert_bad(master_page_metrics, "segment_total_capacity_bytes{segment=\"a:1\"} 42",
		   "line 1");
	assert_bad(master_page_metrics,
		   "segment_allocated_bytes{segment=\"a:1\"} 9223372036854775807\n"
		   "segment_allocated_bytes{segment=\"a:1\",x=\"y\"} 1\n",
		   "of a:1 overflows");
}

/* --- reading ---------------------------------------------------------------------------------------- */

struct rig {
	sd_event *event;
	struct page_server *server;
	struct resolver *resolver;
	struct master *master;
	struct dray_config cfg;
	struct page_reply detail, metrics;
	char asked[4096]; /* paths of the requests, separated by blanks */
	char shown[2048];
	size_t n;
	unsigned good, failed;
	struct dray_err err;
	bool free_master;
};

static void on_request(void *arg, const char *request, struct page_reply *ret)
{
	struct rig *r = arg;
	char path[128];
	size_t n = strlen(r->asked);

	if (!request)
		return;
	assert_int_equal(sscanf(request, "GET %127s HTTP/1.1\r\n", path), 1);
	snprintf(r->asked + n, sizeof(r->asked) - n, "%s ", path);
	*ret = strstr(path, "/get_segments_detail") ? r->detail : r->metrics;
}

static void on_read(void *arg, const struct master_list *list, const struct dray_err *why)
{
	struct rig *r = arg;

	if (why) {
		assert_null(list);
		assert_true(why->code && *why->msg);
		r->failed++;
		r->err = *why;
	} else {
		r->good++;
		r->n = list->n;
		show(list->v, list->n, r->shown, sizeof(r->shown));
	}
	if (r->free_master)
		r->master = master_free(r->master);
}

static struct page_reply reply(const char *text)
{
	return (struct page_reply){ .bytes = text, .n = strlen(text) };
}

#define OK_HEAD "HTTP/1.1 200 OK\r\n\r\n"
#define NOT_FOUND "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
#define UNAVAILABLE                                                      \
	"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 60\r\n\r\n" \
	"{\"success\":false,\"error_code\":-1,\"error_message\":\"inactive\"}"

static struct rig *rig_start(void)
{
	struct rig *r = calloc(1, sizeof(*r));
	struct dray_err err = DRAY_ERR_NULL;

	assert_non_null(r);
	assert_true(sd_event_new(&r->event) >= 0);
	r->server = page_server_new(r->event, false, 0, on_request, r);
	assert_int_equal(resolver_new(&r->resolver, r->event, &err), 0);
	r->detail = reply(OK_HEAD DETAIL_PAGE);
	r->metrics = reply(OK_HEAD METRICS_PAGE);
	return r;
}

static void rig_stop(struct rig *r)
{
	master_free(r->master);
	page_server_free(r->server);
	resolver_free(r->resolver);
	sd_event_unref(r->event);
	free(r);
}

/* mooncake.interval, timeout and page_bytes. */
struct limits {
	int64_t interval_ns, timeout_ns, page_bytes;
};

static void set_limits(struct rig *r, struct limits limits)
{
	r->cfg.mooncake.interval = limits.interval_ns;
	r->cfg.mooncake.timeout = limits.timeout_ns;
	r->cfg.mooncake.page_bytes = limits.page_bytes;
}

static void read_with(struct rig *r, const char *path, struct limits limits)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct master_deps deps = {
		.event = r->event, .resolver = r->resolver, .cfg = &r->cfg, .up = on_read, .arg = r
	};
	char url[128];

	set_limits(r, limits);
	r->master = master_free(r->master);
	r->good = r->failed = 0;
	r->n = 0;
	*r->asked = *r->shown = '\0';
	r->err = DRAY_ERR_NULL;
	snprintf(url, sizeof(url), "http://127.0.0.1:%u%s", page_server_port(r->server), path);
	deps.url = url;
	if (master_new(&r->master, &deps, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(r->good + r->failed, 0);
	assert_true(net_until(r->event, r->good + r->failed));
}

#define ONCE(timeout_ns) ((struct limits){ 3600 * DRAY_NS_PER_SEC, timeout_ns, 4000000 })

static void read_once(struct rig *r)
{
	read_with(r, "", ONCE(10000 * MS));
}

static void assert_good(struct rig *r, const char *segments, const char *asked)
{
	read_once(r);
	if (!r->good)
		fail_msg("%s", r->err.msg);
	assert_string_equal(r->shown, segments);
	assert_string_equal(r->asked, asked);
}

static void assert_failed(struct rig *r, int code, const char *words)
{
	read_once(r);
	if (!r->failed || r->err.code != code || !strstr(r->err.msg, words))
		fail_msg("error %d, \"%s\", does not contain \"%s\"", r->err.code, r->err.msg,
			 words);
}

#define DETAIL "/get_segments_detail "
#define METRICS "/metrics "

static void test_read(void **state)
{
	struct rig *r = rig_start();

	assert_good(r, DETAIL_SEGMENTS, DETAIL);
	r->detail = reply(NOT_FOUND);
	assert_good(r, METRICS_SEGMENTS, DETAIL METRICS);
	/* in chunks, and slowly */
	r->detail = reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
			  "2f\r\n{\"segments\":[{\"segment_name\":\"a:1\",\"size_bytes\"\r\n"
			  "5\r\n:5}]}\r\n0\r\n\r\n");
	r->detail.piece = 40;
	r->detail.pause_us = 2000;
	assert_good(r, "a:1    5 -1;", DETAIL);
	rig_stop(r);
}

/* Requests that begin until there is no memory for another one, by --wrap; 0: no limit. */
static unsigned requests_left;

int __real_http_start(struct http_call **ret, const struct http_request *request,
		      struct dray_err *reterr);
int __wrap_http_start(struct http_call **ret, const struct http_request *request,
		      struct dray_err *reterr);

int __wrap_http_start(struct http_call **ret, const struct http_request *request,
		      struct dray_err *reterr)
{
	if (requests_left && --requests_left == 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	return __real_http_start(ret, request, reterr);
}

/* There is no memory for the request of the second page. */
static void test_read_without_memory(void **state)
{
	struct rig *r = rig_start();

	r->detail = reply(NOT_FOUND);
	requests_left = 2;
	assert_failed(r, DRAY_E_NO_MEMORY, "out of memory");
	assert_string_equal(r->asked, DETAIL);
	assert_int_equal(requests_left, 0);
	assert_good(r, METRICS_SEGMENTS, DETAIL METRICS);
	rig_stop(r);
}

static void test_read_fails(void **state)
{
	struct rig *r = rig_start();

	r->detail = reply(UNAVAILABLE);
	assert_failed(r, DRAY_E_BUSY, "not the leader");
	assert_string_equal(r->asked, DETAIL);
	/*
	 * the transfer was cut off, which could happen to the other page too, so that is not
	 * requested
	 */
	r->detail = reply("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"segments\":[");
	assert_failed(r, DRAY_E_PEER_LOST, "cut off");
	assert_string_equal(r->asked, DETAIL);
	r->detail = reply("");
	assert_failed(r, DRAY_E_PEER_LOST, "without a response");
	r->detail = reply("");
	r->detail.end = PAGE_HOLD;
	read_with(r, "", ONCE(300 * MS));
	assert_int_equal(r->err.code, DRAY_E_TIMEOUT);
	assert_non_null(strstr(r->err.msg, "300ms"));
	r->detail = reply("220 smtp.test\r\n");
	assert_failed(r, DRAY_E_PROTOCOL, "not HTTP");

	/* cut off in a way that only the page's syntax shows */
	r->detail = reply(OK_HEAD "{\"segments\":[{\"segment_name\":\"a:1\"");
	assert_failed(r, DRAY_E_PROTOCOL, "the page was cut off");
	/* the metrics page is not requested, because it has less information */
	assert_string_equal(r->asked, DETAIL);
	r->detail = reply(OK_HEAD "<html>");
	assert_failed(r, DRAY_E_PROTOCOL, "not a JSON object");
	assert_string_equal(r->asked, DETAIL);
	r->detail = reply("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
	assert_failed(r, DRAY_E_PROTOCOL, "HTTP status 500");
	assert_string_equal(r->asked, DETAIL);
	r->detail = reply(NOT_FOUND);
	r->metrics = reply(NOT_FOUND);
	assert_failed(r, DRAY_E_PROTOCOL, "/metrics: HTTP status 404");
	assert_string_equal(r->asked, DETAIL METRICS);
	r->metrics = reply(OK_HEAD "segment_total_capacity_bytes{segment=\"a:1\"} 42");
	assert_failed(r, DRAY_E_PROTOCOL, "/metrics: line 1: the page ends in the middle");
	r->metrics = reply(OK_HEAD "segment_total_capacity_bytes{segment=\"a\"b\\c\"} 42\n");
	assert_failed(r, DRAY_E_PROTOCOL, "was a quote not escaped?");
	r->metrics = reply("HTTP/1.1 302 Elsewhere\r\nContent-Length: 0\r\n\r\n");
	assert_failed(r, DRAY_E_PROTOCOL, "/metrics: HTTP status 302");
	rig_stop(r);
}

/* An endless page exceeds the limit too. */
static void test_too_large(void **state)
{
	struct rig *r = rig_start();
	char *endless = malloc(200000);

	assert_non_null(endless);
	memset(endless, ' ', 200000);
	memcpy(endless, OK_HEAD, strlen(OK_HEAD));
	r->detail = (struct page_reply){ .bytes = endless, .n = 200000, .end = PAGE_REPEAT };
	assert_failed(r, DRAY_E_TOO_LARGE, "the page has more than");
	assert_string_equal(r->asked, DETAIL);
	r->metrics = r->detail;
	r->detail = reply(NOT_FOUND);
	assert_failed(r, DRAY_E_TOO_LARGE, "the page has more than");
	free(endless);
	rig_stop(r);
}

static void test_many(void **state)
{
	struct rig *r = rig_start();
	size_t max = 5000 * 400, n;
	char *page = malloc(max);

	assert_non_null(page);
	n = (size_t)snprintf(page, max, OK_HEAD "{\"segments\":[");
	for (unsigned i = 0; i < 5000; i++)
		n += (size_t)snprintf(
			page + n, max - n,
			"%s{\"segment_name\":\"10.%u.%u.1:%u\",\"segment_id\":\"%036u\",\"client_id\":\"%036u\","
			"\"base_address\":\"0x7f0000000000\",\"size_bytes\":4294967296,\"size_human\":\"4 GB\","
			"\"te_endpoint\":\"10.0.0.1:15001\",\"protocol\":\"tcp\",\"status\":\"OK\","
			"\"allocator_used_bytes\":1}",
			i ? "," : "", i / 256, i % 256, 12300 + i, i, i);
	snprintf(page + n, max - n, "]}");
	r->detail = reply(page);
	read_once(r);
	if (!r->good)
		fail_msg("%s", r->err.msg);
	assert_int_equal(r->n, 5000);

	n = (size_t)snprintf(page, max, OK_HEAD);
	for (unsigned i = 0; i < 5000; i++)
		n += (size_t)snprintf(
			page + n, max - n,
			"segment_total_capacity_bytes{segment=\"10.%u.%u.1:1\"} 4096\n"
			"segment_allocated_bytes{segment=\"10.%u.%u.1:1\"} %u\n",
			i / 256, i % 256, i / 256, i % 256, i);
	r->detail = reply(NOT_FOUND);
	r->metrics = reply(page);
	read_once(r);
	if (!r->good)
		fail_msg("%s", r->err.msg);
	assert_int_equal(r->n, 5000);
	free(page);
	rig_stop(r);
}

static void test_url(void **state)
{
	static const struct {
		const char *given, *path;
	} same[] = {
		{ "", "" },
		{ "/", "" },
		{ "/metrics", "" },
		{ "/metrics/", "" },
		{ "/metrics/summary", "" },
		{ "/get_segments_detail", "" },
		{ "/health", "" },
		{ "/mooncake", "/mooncake" },
		{ "/mooncake//metrics", "/mooncake" },
	};
	struct master_deps deps = { .up = on_read };
	struct rig *r = rig_start();
	struct dray_err err = DRAY_ERR_NULL;
	char expected[128];

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(same); i++) {
		read_with(r, same[i].given, ONCE(10000 * MS));
		snprintf(expected, sizeof(expected), "%s" DETAIL, same[i].path);
		assert_string_equal(r->asked, expected);
	}
	deps.event = r->event;
	deps.resolver = r->resolver;
	for (const char *const *bad =
		     (const char *const[]){ "", "10.0.0.9:9003", "https://m:9003",
					    "http://m:9003/?x=y", "http://m:9003/metrics?x", NULL };
	     *bad; bad++) {
		struct master *m = NULL;

		deps.url = *bad;
		err = DRAY_ERR_NULL;
		assert_int_equal(master_new(&m, &deps, &err), -EINVAL);
		assert_int_equal(err.code, DRAY_E_INVALID);
		assert_null(m);
	}
	rig_stop(r);
}

/* Reading continues after success and failure, and uses a new interval at once. */
static void test_interval(void **state)
{
	struct rig *r = rig_start();
	struct limits limits = { 5 * MS, 5000 * MS, 4000000 };

	read_with(r, "", limits);
	assert_true(net_until(r->event, r->good == 5));
	r->detail = reply(UNAVAILABLE);
	assert_true(net_until(r->event, r->failed == 3));
	r->detail = reply(OK_HEAD DETAIL_PAGE);
	r->good = 0;
	assert_true(net_until(r->event, r->good == 3));

	/* longer than the test waits */
	limits.interval_ns = 3600 * DRAY_NS_PER_SEC;
	read_with(r, "", limits);
	limits.interval_ns = 5 * MS;
	limits.page_bytes = 10;
	set_limits(r, limits);
	master_reconfigured(r->master);
	assert_true(net_until(r->event, r->failed));
	assert_int_equal(r->err.code, DRAY_E_TOO_LARGE);
	rig_stop(r);
}

static void test_end(void **state)
{
	struct rig *r = rig_start();
	struct limits limits = { 5 * MS, 5000 * MS, 4000000 };

	/* freed from the callback, for each way in which a read ends */
	r->free_master = true;
	read_with(r, "", limits);
	assert_null(r->master);
	r->detail = reply(UNAVAILABLE);
	read_with(r, "", limits);
	r->detail = reply(NOT_FOUND);
	read_with(r, "", limits);
	r->metrics = reply(NOT_FOUND);
	read_with(r, "", limits);
	r->free_master = false;
	/* during the reading of a page */
	r->detail = reply(OK_HEAD "{");
	r->detail.end = PAGE_HOLD;
	read_with(r, "", (struct limits){ 5 * MS, 50 * MS, 4000000 });
	*r->asked = '\0';
	assert_true(net_until(r->event, *r->asked));
	r->good = r->failed = 0;
	r->master = master_free(r->master);
	assert_true(net_until(r->event, page_server_open(r->server) == 0));
	assert_int_equal(r->good + r->failed, 0);
	assert_null(master_free(NULL));
	rig_stop(r);
}

/* --- objects ---------------------------------------------------------------------------------------- */

/* Prints each replica as "segment address length protocol;". */
static void show_object(const struct master_object *o, char *buf, size_t max)
{
	size_t used = 0;

	*buf = '\0';
	for (size_t i = 0; i < o->n && used < max; i++)
		used += (size_t)snprintf(buf + used, max - used, "%s %llu %llu %s;",
					 o->v[i].segment, (unsigned long long)o->v[i].address,
					 (unsigned long long)o->v[i].length, o->v[i].protocol);
}

static void assert_object(const char *page, const char *replicas)
{
	struct master_object o = MASTER_OBJECT_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	char shown[1024];

	if (master_object_page(page, strlen(page), &o, &err) < 0)
		fail_msg("%s", err.msg);
	show_object(&o, shown, sizeof(shown));
	assert_string_equal(shown, replicas);
	master_object_deinit(&o);
}

static void assert_bad_object(const char *page, const char *words)
{
	struct master_object o = MASTER_OBJECT_NULL;
	struct dray_err err = DRAY_ERR_NULL;

	if (master_object_page(page, strlen(page), &o, &err) != -EPROTO)
		fail_msg("%s is taken", page);
	assert_int_equal(err.code, DRAY_E_PROTOCOL);
	if (!strstr(err.msg, words))
		fail_msg("\"%s\" does not contain \"%s\"", err.msg, words);
	master_object_deinit(&o);
}

/* As masters of these releases have sent them. */
#define OBJECT_0_3_7                                           \
	"{\"size_\":5000,\"buffer_address_\":140515827777536," \
	"\"transport_endpoint_\":\"127.0.0.1:15573\"}\n"
#define OBJECT_0_3_9                                                               \
	"{\"size_\":10,\"buffer_address_\":140585973317632,\"protocol_\":\"tcp\"," \
	"\"transport_endpoint_\":\"127.0.0.1:16600\"}\n{\"size_\":10,"             \
	"\"buffer_address_\":139785515565056,\"protocol_\":\"tcp\","               \
	"\"transport_endpoint_\":\"127.0.0.1:15344\"}\n"
#define OBJECT_0_3_13                                                                       \
	"{\"success\":true,\"data\":[{\"size_\":10,\"buffer_address_\":139734126952448,"    \
	"\"protocol_\":\"tcp\",\"transport_endpoint_\":\"127.0.0.1:16811\"},{\"size_\":10," \
	"\"buffer_address_\":139948992757760,\"protocol_\":\"rdma\","                       \
	"\"transport_endpoint_\":\"[fd00::1]:15533\"}]}"

static void test_object(void **state)
{
	char many[1100 * 100];
	size_t n = 0;

	assert_object(OBJECT_0_3_7, "127.0.0.1:15573 140515827777536 5000 ;");
	assert_object(OBJECT_0_3_9, "127.0.0.1:16600 140585973317632 10 tcp;"
				    "127.0.0.1:15344 139785515565056 10 tcp;");
	assert_object(OBJECT_0_3_13, "127.0.0.1:16811 139734126952448 10 tcp;"
				     "[fd00::1]:15533 139948992757760 10 rdma;");
	assert_object("", "");
	assert_object(" \n", "");
	assert_object("{\"success\":true,\"data\":[]}", "");
	assert_object("{\"size_\":1,\"buffer_address_\":1,\"transport_endpoint_\":\"a:1\","
		      "\"protocol_\":null,\"x\":{}}",
		      "a:1 1 1 ;");
	assert_object("{\"size_\":1,\"buffer_address_\":1,\"transport_endpoint_\":\"a:1\","
		      "\"protocol_\":\"a b\"}",
		      "a:1 1 1 ;");

	assert_bad_object("null", "not JSON");
	assert_bad_object("<html>", "not JSON");
	assert_bad_object("[]", "neither replicas nor an array");
	assert_bad_object("{}", "neither replicas nor an array");
	assert_bad_object("{\"data\":{}}", "neither replicas nor an array");
	assert_bad_object("{\"data\":[]} {\"data\":[]}", "something follows");
	assert_bad_object("{\"data\":[1]}", "replica 0 is not an object");
	assert_bad_object(OBJECT_0_3_7 "{}", "replica 1: size_ is missing");
	assert_bad_object("{\"data\":[{\"size_\":1}]}", "replica 0: buffer_address_ is missing");
	assert_bad_object("{\"size_\":0}", "replica 0: size_ is not a whole number above zero");
	assert_bad_object("{\"size_\":-1}", "size_ is not a whole number");
	assert_bad_object("{\"size_\":\"1\"}", "size_ is not a whole number");
	assert_bad_object("{\"size_\":1,\"size_\":1}", "not JSON");
	assert_bad_object("{\"size_\":1,\"buffer_address_\":1}", "transport_endpoint_ is not");
	assert_bad_object(
		"{\"size_\":1,\"buffer_address_\":1,\"transport_endpoint_\":\"0.0.0.0:1\"}",
		"transport_endpoint_ is not HOST:PORT");
	assert_bad_object("{\"size_\":1,\"buffer_address_\":1,\"transport_endpoint_\":\"a:1\","
			  "\"protocol_\":1}",
			  "protocol_ is not a string");
	assert_bad_object("{\"size_\":9223372036854775807,\"buffer_address_\":1,"
			  "\"transport_endpoint_\":\"a:1\"}",
			  "size_ is too large for its address");
	for (unsigned i = 0; i < 1025; i++)
		n += (size_t)snprintf(many + n, sizeof(many) - n,
				      "{\"size_\":1,\"buffer_address_\":%u,"
				      "\"transport_endpoint_\":\"a:1\"}\n",
				      i + 1);
	assert_bad_object(many, "more than 1024 replicas");
	for (n = 1; n < strlen(OBJECT_0_3_13); n++) {
		snprintf(many, sizeof(many), "%.*s", (int)n, OBJECT_0_3_13);
		assert_bad_object(many, "not JSON");
	}
}

static void test_object_refusal(void **state)
{
	static const struct {
		unsigned status;
		const char *body;
		int code;
		const char *words;
	} cases[] = {
		{ 404,
		  "{\"success\":false,\"error_code\":-704,\"error_message\":\"OBJECT_NOT_FOUND\"}",
		  DRAY_E_NOT_FOUND, "no such object" },
		{ 404, "OBJECT_NOT_FOUND", DRAY_E_NOT_FOUND, "no such object" },
		{ 500, "{\"error_message\":\"REPLICA_IS_NOT_READY\"}", DRAY_E_BUSY,
		  "being written" },
		{ 503, "{\"error_message\":\"x\"}", DRAY_E_OUT_OF_ORDER, "not the leader" },
		{ 500, "INTERNAL_ERROR", DRAY_E_PROTOCOL, "says INTERNAL_ERROR, HTTP status 500" },
		{ 404, "404 Not Found", DRAY_E_PROTOCOL, "HTTP status 404; is this" },
		{ 404, "", DRAY_E_PROTOCOL, "HTTP status 404; is this" },
		{ 404, "{\"error_message\":\"\\n\"}", DRAY_E_PROTOCOL, "is this" },
		{ 400, "[]", DRAY_E_PROTOCOL, "is this" },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		struct dray_err e = master_object_refusal(cases[i].status, cases[i].body,
							  strlen(cases[i].body));

		if (e.code != cases[i].code || !strstr(e.msg, cases[i].words))
			fail_msg("%s: error %d, \"%s\"", cases[i].body, e.code, e.msg);
	}
}

struct asked_rig {
	char shown[1024];
	struct dray_err err;
	unsigned calls;
};

static void on_object(void *arg, const struct master_object *o, const struct dray_err *why)
{
	struct asked_rig *a = arg;

	a->calls++;
	a->err = why ? *why : DRAY_ERR_NULL;
	show_object(o, a->shown, sizeof(a->shown));
}

/* A master whose list is not read during the test. */
static struct rig *query_rig(void)
{
	struct rig *r = rig_start();

	read_once(r);
	*r->asked = '\0';
	return r;
}

static void test_query(void **state)
{
	struct rig *r = query_rig();
	struct dray_err err = DRAY_ERR_NULL;
	struct master_query *q = NULL;
	struct asked_rig a = { .calls = 0 };

	/* the key is sent as it is */
	r->metrics = reply(OK_HEAD OBJECT_0_3_9);
	assert_int_equal(master_query_new(&q, r->master, "a/1?%41+,=\"\\", on_object, &a, &err), 0);
	assert_int_equal(a.calls, 0);
	assert_true(net_until(r->event, a.calls));
	assert_string_equal(r->asked, "/query_key?key=a/1?%41+,=\"\\ ");
	assert_string_equal(a.shown, "127.0.0.1:16600 140585973317632 10 tcp;"
				     "127.0.0.1:15344 139785515565056 10 tcp;");
	assert_int_equal(a.err.code, 0);

	r->metrics = reply("HTTP/1.1 404 No\r\nContent-Length: 16\r\n\r\nOBJECT_NOT_FOUND");
	assert_int_equal(master_query_new(&q, r->master, "a", on_object, &a, &err), 0);
	assert_true(net_until(r->event, a.calls == 2));
	assert_int_equal(a.err.code, DRAY_E_NOT_FOUND);
	assert_non_null(strstr(a.err.msg, "http://127.0.0.1"));
	r->metrics = reply(OK_HEAD "{\"success\":true,\"data\":[]}");
	assert_int_equal(master_query_new(&q, r->master, "a", on_object, &a, &err), 0);
	assert_true(net_until(r->event, a.calls == 3));
	assert_int_equal(a.err.code, DRAY_E_NOT_FOUND);
	assert_non_null(strstr(a.err.msg, "no replica of it in memory"));
	r->metrics = reply(OK_HEAD "{");
	assert_int_equal(master_query_new(&q, r->master, "a", on_object, &a, &err), 0);
	assert_true(net_until(r->event, a.calls == 4));
	assert_int_equal(a.err.code, DRAY_E_PROTOCOL);
	rig_stop(r);
}

static void test_query_ends(void **state)
{
	static const char *const bad[] = { "", "a b", "a&b", "a\nb", "\x7f", "\t" };
	struct rig *r = query_rig();
	struct dray_err err = DRAY_ERR_NULL;
	struct master_query *q = NULL;
	struct asked_rig a = { .calls = 0 };
	char long_key[1024];

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		err = DRAY_ERR_NULL;
		assert_int_equal(master_query_new(&q, r->master, bad[i], on_object, &a, &err),
				 -EINVAL);
		assert_int_equal(err.code, DRAY_E_INVALID);
	}
	memset(long_key, 'k', sizeof(long_key) - 1);
	long_key[sizeof(long_key) - 1] = '\0';
	assert_int_equal(master_query_new(&q, r->master, long_key, on_object, &a, &err), -EINVAL);
	long_key[1023 - strlen("/query_key?key=")] = '\0';
	r->metrics = reply(OK_HEAD OBJECT_0_3_7);
	assert_int_equal(master_query_new(&q, r->master, long_key, on_object, &a, &err), 0);
	assert_true(net_until(r->event, a.calls));
	assert_int_equal(a.err.code, 0);

	/* cancelled; and one that outlives its master, until its time is over */
	r->metrics = reply(OK_HEAD "{");
	r->metrics.end = PAGE_HOLD;
	assert_int_equal(master_query_new(&q, r->master, "a", on_object, &a, &err), 0);
	q = master_query_free(q);
	r->cfg.mooncake.timeout = 50 * MS;
	assert_int_equal(master_query_new(&q, r->master, "a", on_object, &a, &err), 0);
	r->master = master_free(r->master);
	assert_true(net_until(r->event, a.calls == 2));
	assert_int_equal(a.err.code, DRAY_E_TIMEOUT);
	assert_null(master_query_free(NULL));
	rig_stop(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_detail),
		cmocka_unit_test(test_detail_types),
		cmocka_unit_test(test_detail_refused),
		cmocka_unit_test(test_detail_truncated),
		cmocka_unit_test(test_metrics),
		cmocka_unit_test(test_read),
		cmocka_unit_test(test_read_without_memory),
		cmocka_unit_test(test_read_fails),
		cmocka_unit_test(test_too_large),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_url),
		cmocka_unit_test(test_interval),
		cmocka_unit_test(test_end),
		cmocka_unit_test(test_object),
		cmocka_unit_test(test_object_refusal),
		cmocka_unit_test(test_query),
		cmocka_unit_test(test_query_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
