/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "lib/congestion.h"
#include "tests/unit/cm.h"

static void expect(int fd, const char *algorithm)
{
	char got[16] = "";
	socklen_t n = sizeof(got);

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, got, &n), 0);
	assert_string_equal(got, algorithm);
}

static int socket_new(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	return fd;
}

static int listener(in_addr_t host, struct dray_addr *ret)
{
	int fd = socket_new();

	*ret = (struct dray_addr){ .in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(host) },
				   .len = sizeof(ret->in) };
	assert_int_equal(bind(fd, &ret->sa, ret->len), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, &ret->sa, &ret->len), 0);
	return fd;
}

static void test_loopback(void **state)
{
	struct dray_addr at;
	int l = listener(INADDR_LOOPBACK, &at), fd = socket_new(), accepted;

	dray_congestion_at(l, &at);
	dray_congestion_at(fd, &at);
	expect(fd, "reno");
	assert_int_equal(connect(fd, &at.sa, at.len), 0);
	accepted = accept(l, NULL, NULL);
	expect(accepted, "reno");
	close(accepted);
	close(fd);
	close(l);
}

/* Others may connect to it, so those on this node change when they are connected. */
static void test_all_addresses(void **state)
{
	struct dray_addr at;
	int l = listener(INADDR_ANY, &at), fd = socket_new(), accepted;
	char usual[16] = "";
	socklen_t n = sizeof(usual);

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, usual, &n), 0);
	dray_congestion_at(l, &at);
	/* the connection's own address is another loopback address than this one */
	at.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
	assert_int_equal(connect(fd, &at.sa, at.len), 0);
	accepted = accept(l, NULL, NULL);
	expect(accepted, usual);
	dray_congestion_connected(accepted);
	expect(accepted, "reno");
	close(accepted);
	close(fd);
	close(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_loopback),
		cmocka_unit_test(test_all_addresses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
