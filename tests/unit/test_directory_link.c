/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to a server of the directory: what it says of servers that answer wrongly, slowly or not at all. */
#include "agent/control/directory/link.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/control/directory/login.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/net_rig.h"

#define TIME "*2\r\n$10\r\n1795000000\r\n$1\r\n0\r\n"
#define LATER "*2\r\n$10\r\n1795003600\r\n$1\r\n0\r\n"
#define DRIP_US 20000

/* What the server does with a connection. */
struct manner {
	const char *answer; /* to the first bytes that come */
	bool closes;        /* after it */
	bool drips;         /* one byte after the other, without end */
	bool steps;         /* its clock has been set forward by an hour when it is asked again */
};

struct rig {
	sd_event *event;
	struct resolver *resolver;
	struct link *link;
	struct link_login login;
	/* the server */
	struct manner manner;
	int listener, fd;
	sd_event_source *on_accept, *on_bytes, *drip;
	unsigned port, accepted;
	char got[1000]; /* the last bytes, as text */
	size_t n_got;
	/* what the link has said */
	unsigned ups, downs;
	struct dray_err why;
	unsigned answers, ends;
};

/* --- the server ------------------------------------------------------------------------------------- */

static void server_close(struct rig *r)
{
	r->on_bytes = sd_event_source_disable_unref(r->on_bytes);
	r->fd = dray_close(r->fd);
}

static void server_send(struct rig *r, const char *text)
{
	if (r->fd >= 0 && send(r->fd, text, strlen(text), MSG_NOSIGNAL) < 0)
		server_close(r);
}

static int on_drip(sd_event_source *source, uint64_t usec, void *arg)
{
	struct rig *r = arg;

	if (r->manner.drips)
		server_send(r, "x");
	sd_event_source_set_time_relative(source, DRIP_US);
	sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
	return 0;
}

static int on_bytes(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct rig *r = arg;
	ssize_t n = recv(fd, r->got, sizeof(r->got) - 1, 0);
	bool first = !r->n_got;

	if (n <= 0) {
		server_close(r);
		return 0;
	}
	r->n_got += (size_t)n;
	r->got[n] = '\0';
	if (first)
		server_send(r, r->manner.answer);
	if (first && r->manner.closes)
		server_close(r);
	if (!first && r->manner.steps && strstr(r->got, "TIME"))
		server_send(r, LATER);
	if (!first && strstr(r->got, "PING"))
		server_send(r, ":1\r\n");
	return 0;
}

static int on_accept(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct rig *r = arg;

	server_close(r);
	r->accepted++;
	r->n_got = 0;
	r->fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	assert_true(r->fd >= 0);
	assert_true(sd_event_add_io(r->event, &r->on_bytes, r->fd, EPOLLIN, on_bytes, r) >= 0);
	return 0;
}

static void server_start(struct rig *r)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);

	r->fd = -1;
	r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_return_code(bind(r->listener, (struct sockaddr *)&a, n), 0);
	assert_return_code(listen(r->listener, 8), 0);
	assert_return_code(getsockname(r->listener, (struct sockaddr *)&a, &n), 0);
	r->port = ntohs(a.sin_port);
	assert_true(sd_event_add_io(r->event, &r->on_accept, r->listener, EPOLLIN, on_accept, r) >=
		    0);
	assert_true(sd_event_add_time_relative(r->event, &r->drip, CLOCK_MONOTONIC, DRIP_US, 1,
					       on_drip, r) >= 0);
}

/* --- the link --------------------------------------------------------------------------------------- */

static void on_up(void *arg)
{
	struct rig *r = arg;

	r->ups++;
}

static void on_down(void *arg, const struct dray_err *why)
{
	struct rig *r = arg;

	r->downs++;
	r->why = *why;
}

static void on_answer(void *arg, uint32_t i, const redisReply *reply)
{
	struct rig *r = arg;

	if (reply)
		r->answers++;
	else
		r->ends++;
}

static struct rig *rig_start(struct manner manner, const char *password)
{
	struct rig *r = calloc(1, sizeof(*r));
	struct dray_err err = DRAY_ERR_NULL;

	assert_non_null(r);
	r->manner = manner;
	r->login = (struct link_login){ .user = "",
					.password = password,
					.n_password = strlen(password) };
	assert_true(sd_event_new(&r->event) >= 0);
	server_start(r);
	assert_int_equal(resolver_new(&r->resolver, r->event, &err), 0);
	assert_int_equal(link_new(&r->link,
				  &(struct link_config){ .event = r->event,
							 .resolver = r->resolver,
							 .host = "127.0.0.1",
							 .port = r->port,
							 .login = &r->login,
							 .late_ns = DRAY_NS_PER_MS,
							 .up = on_up,
							 .down = on_down,
							 .arg = r },
				  &err),
			 0);
	return r;
}

static void rig_stop(struct rig *r)
{
	link_free(r->link);
	resolver_free(r->resolver);
	server_close(r);
	sd_event_source_disable_unref(r->on_accept);
	sd_event_source_disable_unref(r->drip);
	dray_close(r->listener);
	sd_event_unref(r->event);
	free(r);
}

/* --- tests ------------------------------------------------------------------------------------------ */

/* As redis does for a command that it does not know, and programs that stand before servers of redis. */
static void test_password_in_an_answer(void **state)
{
	struct rig *r = rig_start(
		(struct manner){ .answer = "-ERR unknown command 'AUTH', with args beginning with: "
					   "'opensesame' \r\n" },
		"opensesame");

	assert_true(net_until(r->event, r->downs));
	assert_non_null(strstr(r->got, "opensesame"));
	assert_null(strstr(r->why.msg, "opensesame"));
	assert_non_null(strstr(r->why.msg, "Redis or Valkey"));
	rig_stop(r);
}

/* It answers what it has not read yet, so that this is not about the password. */
static void test_server_without_room(void **state)
{
	static const char *const answers[] = { "-ERR max number of clients reached\r\n",
					       "-DENIED Redis is running in protected mode\r\n" },
				 *const words[] = { "maxclients", "protected-mode" };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(answers); i++) {
		struct rig *r = rig_start((struct manner){ .answer = answers[i] }, "opensesame");

		assert_true(net_until(r->event, r->downs));
		assert_non_null(strstr(r->why.msg, words[i]));
		assert_null(strstr(r->why.msg, "password as this agent sends it"));
		rig_stop(r);
	}
}

/* A server that sends bytes, but no answer, is as silent as one that sends nothing. */
static void test_slow_drip(void **state)
{
	struct rig *r = rig_start((struct manner){ .answer = "$60000\r\n", .drips = true }, "");

	assert_true(net_until(r->event, r->downs));
	assert_int_equal(r->why.code, DRAY_E_TIMEOUT);
	assert_int_equal(r->ups, 0);
	rig_stop(r);
}

/* The pauses between attempts grow for a server that breaks off again and again, although it has greeted each time. */
static void test_greets_and_closes(void **state)
{
	struct rig *r = rig_start((struct manner){ .answer = TIME, .closes = true }, "");
	int64_t least_ns = (100 + 200 + 400 + 800) / 2 * DRAY_NS_PER_MS, began;

	assert_true(net_until(r->event, r->downs == 1));
	began = dray_now().ns;
	assert_true(net_until(r->event, r->downs == 5));
	assert_int_equal(r->ups, 5);
	assert_true(dray_now().ns - began >= least_ns);
	rig_stop(r);
}

/* Whoever has begun commands learns of the end, also if there was no memory for the first one. */
static void test_end_of_an_op_without_commands(void **state)
{
	struct rig *r = rig_start((struct manner){ .answer = TIME }, "");

	assert_true(net_until(r->event, r->ups));
	assert_non_null(link_begin(r->link, on_answer, r));
	link_fail(r->link, DRAY_E_NO_MEMORY, "no memory");
	assert_true(net_until(r->event, r->downs));
	assert_int_equal(r->ends, 1);
	assert_int_equal(r->answers, 0);
	rig_stop(r);
}

static void ping(struct rig *r)
{
	struct link_op *op = link_begin(r->link, on_answer, r);

	assert_non_null(op);
	link_command(r->link, op, &(struct link_word){ "PING", 4 }, 1);
	link_send(r->link);
}

/* The time of the server is asked for again and again, because it may change, and so may this agent's clock. */
static void test_time_of_the_server(void **state)
{
	struct rig *r = rig_start((struct manner){ .answer = TIME, .steps = true }, "");
	unsigned pings = 0;

	assert_true(net_until(r->event, r->ups));
	assert_in_range(link_time_ms(r->link), 1795000000000, 1795000000000 + NET_LIMIT_MS);
	while (link_time_ms(r->link) < 1795003600000) {
		ping(r);
		pings++;
		assert_true(net_until(r->event, r->answers == pings));
		assert_in_range(link_time_ms(r->link), 1795000000000, 1795003600000 + NET_LIMIT_MS);
		assert_true(link_time_ms(r->link) < 1795000000000 + NET_LIMIT_MS ||
			    link_time_ms(r->link) >= 1795003600000);
	}
	assert_int_equal(r->ups, 1);
	assert_int_equal(r->downs, 0);
	rig_stop(r);
}

static SSL_SESSION *session_new(SSL *ssl)
{
	static const uint8_t id[] = { 0x13, 0x01 }, key[16] = "0123456789abcde";
	SSL_SESSION *s = SSL_SESSION_new();

	assert_int_equal(SSL_SESSION_set1_master_key(s, key, sizeof(key)), 1);
	assert_int_equal(SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, id)), 1);
	assert_int_equal(SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION), 1);
	return s;
}

static int on_use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *n,
		  SSL_SESSION **ret)
{
	*id = (const uint8_t *)"test";
	*n = 4;
	*ret = session_new(ssl);
	return 1;
}

static int on_find(SSL *ssl, const unsigned char *id, size_t n, SSL_SESSION **ret)
{
	*ret = session_new(ssl);
	return 1;
}

/* A server that changes its keys again and again, and answers nothing, does not keep the agent from other work. */
static void test_key_updates(void **state)
{
	char empty[] = "";
	struct dray_config cfg = { .store = { .directory_password_file = empty,
					      .directory_ca_file = empty,
					      .directory_cert_file = empty } };
	struct dray_err err = DRAY_ERR_NULL;
	SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
	struct login login;
	int fd[2], all, left;
	SSL *client, *server;
	char buf[64];
	size_t n;

	assert_int_equal(login_init(&login, &cfg, true, "", 0, &err), 0);
	SSL_CTX_set_psk_use_session_callback(login.tls, on_use);
	SSL_CTX_set_psk_find_session_callback(ctx, on_find);
	assert_int_equal(SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256"), 1);
	SSL_CTX_set_num_tickets(ctx, 0);
	client = SSL_new(login.tls);
	server = SSL_new(ctx);
	assert_return_code(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	SSL_set_fd(client, fd[0]);
	SSL_set_fd(server, fd[1]);
	SSL_set_accept_state(server);
	for (unsigned i = 0; i < 5; i++) {
		SSL_connect(client);
		SSL_do_handshake(server);
	}
	assert_true(SSL_is_init_finished(client) && SSL_is_init_finished(server));
	for (unsigned i = 0; i < 64; i++) {
		assert_int_equal(SSL_key_update(server, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
		assert_int_equal(SSL_do_handshake(server), 1);
	}
	assert_int_equal(ioctl(fd[0], FIONREAD, &all), 0);
	assert_int_equal(SSL_read_ex(client, buf, sizeof(buf), &n), 0);
	assert_int_equal(SSL_get_error(client, 0), SSL_ERROR_WANT_READ);
	assert_int_equal(ioctl(fd[0], FIONREAD, &left), 0);
	assert_in_range(left, all - all / 32, all - 1);
	SSL_free(client);
	SSL_free(server);
	SSL_CTX_free(ctx);
	login_deinit(&login);
	close(fd[0]);
	close(fd[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_password_in_an_answer),
		cmocka_unit_test(test_server_without_room),
		cmocka_unit_test(test_slow_drip),
		cmocka_unit_test(test_greets_and_closes),
		cmocka_unit_test(test_end_of_an_op_without_commands),
		cmocka_unit_test(test_time_of_the_server),
		cmocka_unit_test(test_key_updates),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
