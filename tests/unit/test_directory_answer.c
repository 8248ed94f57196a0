/* SPDX-License-Identifier: Apache-2.0 */
/* URLs of the directory, names of objects in it, and its answers: what is taken over, and what ends the connection. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cm.h"
#include "agent/config/directory_url.h"
#include "agent/control/directory/answer.h"
#include "agent/control/directory/cluster.h"
#include "agent/control/directory/name.h"
#include "schema/gen/errors.h"

/* --- URLs ----------------------------------------------------------------------------------------- */

static void assert_url(const char *s, bool tls, const char *user, const char *host, unsigned port,
		       unsigned database)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct directory_url url;

	if (directory_url_parse(s, &url, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(url.tls, tls);
	assert_string_equal(url.user, user);
	assert_false(url.sentinel);
	assert_int_equal(url.n_hosts, 1);
	assert_string_equal(url.hosts[0].host, host);
	assert_int_equal(url.hosts[0].port, port);
	assert_int_equal(url.database, database);
}

static void test_urls(void **state)
{
	assert_url("redis://10.0.0.9", false, "", "10.0.0.9", 6379, 0);
	assert_url("valkey://dir.test:1/", false, "", "dir.test", 1, 0);
	assert_url("rediss://dray@dir.test/15", true, "dray", "dir.test", 6379, 15);
	assert_url("valkeys://[2001:db8::9]:7000/0", true, "", "2001:db8::9", 7000, 0);
	assert_url("redis://[::1]", false, "", "::1", 6379, 0);
}

static void test_sentinels(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct directory_url url;

	assert_int_equal(
		directory_url_parse("rediss-sentinel://dray@a,[::1]:7,10.0.0.1/3#my-service", &url,
				    &err),
		0);
	assert_true(url.tls && url.sentinel);
	assert_int_equal(url.n_hosts, 3);
	assert_string_equal(url.hosts[0].host, "a");
	assert_int_equal(url.hosts[0].port, 26379);
	assert_string_equal(url.hosts[1].host, "::1");
	assert_int_equal(url.hosts[1].port, 7);
	assert_string_equal(url.hosts[2].host, "10.0.0.1");
	assert_string_equal(url.user, "dray");
	assert_string_equal(url.service, "my-service");
	assert_int_equal(url.database, 3);
	assert_int_equal(directory_url_parse("valkey-sentinel://a#s", &url, &err), 0);
	assert_int_equal(url.database, 0);
}

static void assert_no_url(const char *s, const char *words)
{
	struct directory_url url = { .n_hosts = 7 };
	struct dray_err err = DRAY_ERR_NULL;

	if (directory_url_parse(s, &url, &err) != -EINVAL)
		fail_msg("\"%s\" is taken", s);
	assert_int_equal(err.code, DRAY_E_INVALID);
	assert_int_equal(url.n_hosts, 7);
	if (!strstr(err.msg, words))
		fail_msg("\"%s\" does not contain \"%s\"", err.msg, words);
	assert_null(strstr(err.msg, "secret"));
	for (const char *p = err.msg; *p; p++)
		assert_in_range(*p, ' ', '~');
}

static void test_urls_that_are_refused(void **state)
{
	char text[400] = "redis://";

	assert_no_url("10.0.0.9:6379", "write redis://");
	assert_no_url("http://m/", "write redis://");
	assert_no_url("redis://", "HOST:PORT");
	assert_no_url("redis://m:0", "1 to 65535");
	assert_no_url("redis://m:x", "HOST:PORT");
	assert_no_url("redis://a..b", "host name");
	assert_no_url("redis://[::1", "HOST:PORT");
	assert_no_url("redis://m/x", "number of a database");
	assert_no_url("redis://m/65536", "number of a database");
	assert_no_url("redis://m/1/2", "number of a database");
	assert_no_url("redis://:secret@m", "store.directory_password_file");
	assert_no_url("redis://u:secret@m:1/0", "store.directory_password_file");
	assert_no_url("redis://u:secret@secret@m", "store.directory_password_file");
	assert_no_url("redis://@m", "user");
	assert_no_url("redis://a b@m", "user");
	assert_no_url("redis://a%20b@m", "user");
	assert_no_url("redis://m#x", "redis-sentinel://");
	assert_no_url("redis://m,n", "host name");
	assert_no_url("redis-sentinel://m", "#mymaster");
	assert_no_url("redis-sentinel://m/1", "#mymaster");
	assert_no_url("redis-sentinel://m#", "1 to 64");
	assert_no_url("redis-sentinel://m,#s", "HOST:PORT");
	assert_no_url("redis-sentinel://,m#s", "HOST:PORT");
	assert_no_url("redis-sentinel://m/x#s", "number of a database");
	assert_no_url("redis-sentinel://m#a b", "ASCII");
	assert_no_url("redis-sentinel://a,b,c,d,e,f,g,h,i#s", "too many");
	assert_no_url("redis-sentinel://u:secret@a,b#s", "store.directory_password_file");
	assert_no_url("redis://\xc3\xa9", "");
	memset(text + 8, 'u', 129);
	memcpy(text + 8 + 129, "@m", 3);
	assert_no_url(text, "1 to 128");
	memset(text + 8, 'h', 300);
	assert_no_url(text, "too long");
}

static void test_prefixes(void **state)
{
	char longest[DIRECTORY_PREFIX_MAX + 2] = "";

	memset(longest, 'p', DIRECTORY_PREFIX_MAX);
	assert_int_equal(directory_prefix_check("dray", NULL), 0);
	assert_int_equal(directory_prefix_check("{a}:b", NULL), 0);
	assert_int_equal(directory_prefix_check(longest, NULL), 0);
	longest[DIRECTORY_PREFIX_MAX] = 'p';
	assert_int_equal(directory_prefix_check(longest, NULL), -EINVAL);
	assert_int_equal(directory_prefix_check("", NULL), -EINVAL);
	assert_int_equal(directory_prefix_check("a b", NULL), -EINVAL);
}

/* --- names ---------------------------------------------------------------------------------------- */

static struct names names;

static const char *name(const char *space, const char *key)
{
	static char text[2][NAME_DIGEST + 1];
	static unsigned i;
	char *ret = text[++i % 2];

	assert_true(name_of(&names, space, (const uint8_t *)key, strlen(key), ret));
	return ret;
}

/* No key of one name space has the name of a key of another one. */
static void test_names(void **state)
{
	assert_int_equal(names_init(&names, "dray"), 0);
	assert_string_equal(name("kv", "key"), "635db1af4a80bca141c6f0c4fbd7c0bcba614be1");
	assert_string_equal(name("kv", "key"), name("kv", "key"));
	assert_string_not_equal(name("kv", "key"), name("kv", "kez"));
	assert_string_not_equal(name("kv", "key"), name("k", "vkey"));
	assert_string_not_equal(name("kv", "key"), name("kvk", "ey"));
	names_deinit(&names);
}

/* --- answers -------------------------------------------------------------------------------------- */

static redisReply *reply;

/* The answer in the text, in two pieces. */
static const redisReply *answer(const char *text)
{
	struct answers *a = answers_new();
	struct dray_err err = DRAY_ERR_NULL;
	size_t n = strlen(text);

	assert_non_null(a);
	assert_int_equal(answers_feed(a, text, n / 2, &err), 0);
	assert_int_equal(answers_next(a, &reply, &err), 0);
	assert_null(reply);
	assert_int_equal(answers_feed(a, text + n / 2, n - n / 2, &err), 0);
	assert_int_equal(answers_next(a, &reply, &err), 0);
	assert_non_null(reply);
	answers_free(a);
	return reply;
}

static void release(void)
{
	freeReplyObject(reply);
}

static void test_owners(void **state)
{
	struct answer_owner owners[ANSWER_OWNERS_MAX];

	assert_int_equal(answer_owners(answer("*0\r\n"), owners), 0);
	release();
	/* in one form alone; what is no address or has no time is left out */
	assert_int_equal(answer_owners(answer("*13\r\n$4\r\nhost\r\n$2\r\n10\r\n:7\r\n$2\r\n11\r\n"
					      "$-1\r\n$2\r\n12\r\n$10\r\n10.0.0.2:1\r\n"
					      "$13\r\n1795000000000\r\n$17\r\n[2001:DB8:0::1]:2\r\n"
					      "$3\r\ninf\r\n$10\r\n10.0.0.2:0\r\n$2\r\n13\r\n"
					      "$10\r\n10.0.0.2:3\r\n"),
				       owners),
			 2);
	assert_string_equal(owners[0].segment, "10.0.0.2:1");
	assert_int_equal(owners[0].until_ms, 1795000000000);
	assert_string_equal(owners[1].segment, "[2001:db8::1]:2");
	assert_int_equal(owners[1].until_ms, 0);
	release();
	/* no server sends such a time */
	assert_int_equal(answer_owners(answer("*2\r\n$9\r\n1.1.1.1:1\r\n:-5\r\n"), owners), 1);
	assert_int_equal(owners[0].until_ms, 0);
	release();
	/* the sixth is left out */
	assert_int_equal(answer_owners(answer("*12\r\n$9\r\n1.1.1.1:1\r\n$1\r\n1\r\n"
					      "$9\r\n1.1.1.1:2\r\n$1\r\n2\r\n"
					      "$9\r\n1.1.1.1:3\r\n$1\r\n3\r\n"
					      "$9\r\n1.1.1.1:4\r\n$1\r\n4\r\n"
					      "$9\r\n1.1.1.1:5\r\n$1\r\n5\r\n"
					      "$9\r\n1.1.1.1:6\r\n$1\r\n6\r\n"),
				       owners),
			 ANSWER_OWNERS_MAX);
	assert_int_equal(owners[4].until_ms, 5);
	release();
	assert_int_equal(answer_owners(answer("$10\r\n10.0.0.2:1\r\n"), owners), -EINVAL);
	release();
	assert_int_equal(answer_owners(answer("-WRONGTYPE other\r\n"), owners), -EINVAL);
	release();
}

static void assert_refusal(const char *text, enum refusal want)
{
	char shown[20];
	const redisReply *r = answer(text);

	assert_int_equal(answer_refusal(r), want);
	assert_true(strlen(answer_text(r, shown, sizeof(shown))) < sizeof(shown));
	release();
}

static void test_refusals(void **state)
{
	assert_refusal("-NOAUTH Authentication required.\r\n", REFUSAL_AUTH);
	assert_refusal("-WRONGPASS invalid\r\n", REFUSAL_AUTH);
	assert_refusal("-ERR AUTH <password> called without any password\r\n", REFUSAL_AUTH);
	assert_refusal("-NOPERM no\r\n", REFUSAL_DENIED);
	assert_refusal("-OOM command not allowed\r\n", REFUSAL_FULL);
	assert_refusal("-MISCONF disk\r\n", REFUSAL_FULL);
	assert_refusal("-WRONGTYPE other\r\n", REFUSAL_TYPE);
	assert_refusal("-LOADING data\r\n", REFUSAL_LOADING);
	assert_refusal("-BUSY Redis is busy running a script.\r\n", REFUSAL_SCRIPT);
	assert_refusal("-BUSYGROUP other\r\n", REFUSAL_OTHER);
	assert_refusal("-ERR max number of clients reached\r\n", REFUSAL_CLIENTS);
	assert_refusal("-DENIED Redis is running in protected mode\r\n", REFUSAL_HOST);
	assert_refusal("-READONLY replica\r\n", REFUSAL_REPLICA);
	assert_refusal("-MOVED 1 10.0.0.1:1\r\n", REFUSAL_MOVED);
	assert_refusal("-ASK 1 10.0.0.1:1\r\n", REFUSAL_ASK);
	assert_refusal("-CLUSTERDOWN down\r\n", REFUSAL_CLUSTER);
	assert_refusal("-OOMX other\r\n", REFUSAL_OTHER);
	assert_refusal("-OOM\r\n", REFUSAL_OTHER);
	assert_refusal("-\xff\x01\r\n", REFUSAL_OTHER);
}

static void assert_time(const char *text, int want, int64_t ms)
{
	int64_t got = -1;

	assert_int_equal(answer_time(answer(text), &got), want);
	assert_int_equal(got, ms);
	release();
}

static void test_times(void **state)
{
	assert_time("*2\r\n$10\r\n1795000000\r\n$6\r\n123456\r\n", 0, 1795000000123);
	assert_time("*2\r\n:0\r\n:999999\r\n", 0, 999);
	assert_time("*2\r\n:0\r\n:1000000\r\n", -EINVAL, -1);
	assert_time("*2\r\n$10\r\n9999999999\r\n:0\r\n", -EINVAL, -1);
	assert_time("*2\r\n$2\r\n-1\r\n:0\r\n", -EINVAL, -1);
	assert_time("*2\r\n$0\r\n\r\n:0\r\n", -EINVAL, -1);
	assert_time("*1\r\n:0\r\n", -EINVAL, -1);
	assert_time(":0\r\n", -EINVAL, -1);
}

/* False: it ends the connection. */
static bool is_taken(const char *text, size_t n)
{
	struct answers *a = answers_new();
	struct dray_err err = DRAY_ERR_NULL;
	int r = answers_feed(a, text, n, &err);

	while (r >= 0) {
		r = answers_next(a, &reply, &err);
		if (r < 0 || !reply)
			break;
		freeReplyObject(reply);
	}
	answers_free(a);
	assert_int_equal(r < 0, *err.msg != 0);
	return r >= 0;
}

/* What one connection makes the agent keep is bounded, however it is packed. */
static void test_bounds(void **state)
{
	static char large[2 * ANSWER_BYTES_MAX];
	size_t n = 0;

	assert_true(is_taken("*64\r\n", 5));
	assert_false(is_taken("*65\r\n", 5));
	assert_false(is_taken("*1\r\n*0\r\n", 8));
	assert_false(is_taken("*2147483647\r\n", 13));
	assert_false(is_taken("HTTP/1.1 400\r\n\r\n", 16));
	memset(large, 'x', sizeof(large));
	memcpy(large, "$100000\r\n", 9);
	assert_true(is_taken(large, ANSWER_BYTES_MAX));
	assert_false(is_taken(large, ANSWER_BYTES_MAX + 1));
	/* short answers without end are fine */
	while (n + 4 <= sizeof(large)) {
		memcpy(large + n, ":1\r\n", 4);
		n += 4;
	}
	assert_true(is_taken(large, n));
}

/* --- clusters ------------------------------------------------------------------------------------- */

static unsigned slot(const char *key)
{
	return cluster_slot(key, strlen(key));
}

/* As the specification of clusters gives them. */
static void test_slots(void **state)
{
	assert_int_equal(slot("123456789"), 0x31c3);
	assert_int_equal(slot(""), 0);
	assert_int_equal(slot("{user1000}.following"), slot("{user1000}.followers"));
	assert_int_equal(slot("{user1000}.following"), slot("user1000"));
	assert_int_equal(slot("foo{bar}{zap}"), slot("bar"));
	assert_int_equal(slot("foo{{bar}}zap"), slot("{bar"));
	assert_int_not_equal(slot("foo{}{bar}"), slot("bar"));
	assert_int_not_equal(slot("foo{bar"), slot("bar"));
}

static void assert_redirection(const char *text, unsigned want, const char *host, unsigned port)
{
	struct directory_host at;
	unsigned got;

	assert_int_equal(cluster_redirection(answer(text), "10.0.0.7", &got, &at), 0);
	assert_int_equal(got, want);
	assert_string_equal(at.host, host);
	assert_int_equal(at.port, port);
	release();
}

static void assert_no_redirection(const char *text)
{
	struct directory_host at;
	unsigned got;

	assert_int_equal(cluster_redirection(answer(text), "10.0.0.7", &got, &at), -EINVAL);
	release();
}

static void test_redirections(void **state)
{
	assert_redirection("-MOVED 3999 127.0.0.1:6381\r\n", 3999, "127.0.0.1", 6381);
	assert_redirection("-ASK 16383 ::1:1\r\n", 16383, "::1", 1);
	assert_redirection("-MOVED 0 redis-2.test:65535\r\n", 0, "redis-2.test", 65535);
	assert_redirection("-MOVED 5 :7000\r\n", 5, "10.0.0.7", 7000);
	assert_no_redirection("-MOVED 16384 10.0.0.1:1\r\n");
	assert_no_redirection("-MOVED -1 10.0.0.1:1\r\n");
	assert_no_redirection("-MOVED 1 10.0.0.1:0\r\n");
	assert_no_redirection("-MOVED 1 10.0.0.1:65536\r\n");
	assert_no_redirection("-MOVED 1 10.0.0.1\r\n");
	assert_no_redirection("-MOVED 1 a..b:1\r\n");
	assert_no_redirection("-MOVED 1\r\n");
	assert_no_redirection("-MOVED\r\n");
	assert_no_redirection("+MOVED 1 10.0.0.1:1\r\n");
}

static void test_maps(void **state)
{
	static const char nodes[] =
		"a 127.0.0.1:30004@31004,h slave e7d1 0 1426238317239 4 connected\n"
		"b 127.0.0.1:30002@31002 master - 0 1426238316232 2 connected 5461-10922\n"
		"c :30003@31003 myself,master - 0 0 3 connected 10923-16383 [5-<-b] 7 x 9-8 99999\n"
		"d no-port master - 0 0 1 connected 9\n"
		"e 127.0.0.1:1 master\n";
	static struct cluster_map map;
	char text[sizeof(nodes) + 20];

	snprintf(text, sizeof(text), "$%zu\r\n%s\r\n", strlen(nodes), nodes);
	assert_int_equal(cluster_nodes(answer(text), "10.0.0.7", &map), 0);
	release();
	assert_int_equal(map.n, 2);
	assert_string_equal(map.servers[0].host, "127.0.0.1");
	assert_int_equal(map.servers[0].port, 30002);
	assert_string_equal(map.servers[1].host, "10.0.0.7");
	for (unsigned i = 0; i < CLUSTER_SLOTS; i++)
		assert_int_equal(map.of[i], i == 7 ? 2 : i < 5461 ? 0 : i < 10923 ? 1 : 2);
	assert_int_equal(cluster_nodes(answer("$4\r\nnone\r\n"), "h", &map), -EINVAL);
	release();
	assert_int_equal(cluster_nodes(answer("-ERR cluster support disabled\r\n"), "h", &map),
			 -EINVAL);
	release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_urls),         cmocka_unit_test(test_urls_that_are_refused),
		cmocka_unit_test(test_sentinels),    cmocka_unit_test(test_prefixes),
		cmocka_unit_test(test_names),        cmocka_unit_test(test_owners),
		cmocka_unit_test(test_refusals),     cmocka_unit_test(test_times),
		cmocka_unit_test(test_bounds),       cmocka_unit_test(test_slots),
		cmocka_unit_test(test_redirections), cmocka_unit_test(test_maps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
