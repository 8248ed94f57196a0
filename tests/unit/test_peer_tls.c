/* SPDX-License-Identifier: Apache-2.0 */
/* TLS with a pre-shared key over a socket pair, and key files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/control/peer/tls.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

/* --- keys ----------------------------------------------------------------------------------------- */

static int parse(const char *text, size_t n, struct tls_key *k, struct dray_err *err)
{
	*err = DRAY_ERR_NULL;
	return tls_key_parse((const uint8_t *)text, n, k, err);
}

static void test_key_forms(void **state)
{
	struct dray_err err;
	struct tls_key k;

	/* hexadecimal text, with and without a line end, in both cases */
	assert_int_equal(parse("000102030405060708090a0b0c0d0e0f", 32, &k, &err), 0);
	assert_int_equal(k.n, 16);
	assert_int_equal(k.bytes[10], 10);
	assert_int_equal(parse("000102030405060708090A0B0C0D0E0F\n", 33, &k, &err), 0);
	assert_int_equal(k.n, 16);
	assert_int_equal(k.bytes[15], 15);
	/* other text is the key itself */
	assert_int_equal(parse("a pass phrase for us\n", 21, &k, &err), 0);
	assert_int_equal(k.n, 20);
	/* raw bytes, the last of which can be a line end */
	assert_int_equal(parse("\x80\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\n", 16,
			       &k, &err),
			 0);
	assert_int_equal(k.n, 16);
}

static void test_key_lengths(void **state)
{
	char text[200];
	struct dray_err err;
	struct tls_key k;

	memset(text, 'f', sizeof(text));
	/* 31 and 30 digits are too short for hexadecimal, but long enough as bytes */
	assert_int_equal(parse(text, 30, &k, &err), 0);
	assert_int_equal(k.n, 30);
	assert_int_equal(parse(text, 32, &k, &err), 0);
	assert_int_equal(k.n, 16);
	assert_int_equal(parse(text, 128, &k, &err), 0);
	assert_int_equal(k.n, 64);
	assert_true(parse(text, 130, &k, &err) < 0);
	assert_true(parse(text, 15, &k, &err) < 0);
	assert_non_null(strstr(err.msg, "16 to 64 bytes"));
	assert_true(parse(text, 0, &k, &err) < 0);
	memset(text, 'x', sizeof(text));
	assert_true(parse(text, 65, &k, &err) < 0);
	assert_int_equal(parse(text, 64, &k, &err), 0);
	assert_int_equal(k.n, 64);
}

/* Loads the key as this user; returns the error code. */
static int load_as(uid_t id, const char *path)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct tls_key k;
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		if (setgid(id) < 0 || setuid(id) < 0)
			_exit(255);
		_exit(tls_key_load("peer.key_file", path, &k, &err) < 0 ? err.code : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void test_key_file(void **state)
{
	char dir[] = "/tmp/dray-key-XXXXXX", path[64];
	static const mode_t modes[] = { 0620, 0644, 0601, 0640 };
	struct dray_err err = DRAY_ERR_NULL;
	struct tls_key k;
	int fd;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/key", dir);
	assert_true(tls_key_load("peer.key_file", path, &k, &err) < 0);
	assert_int_equal(err.code, DRAY_E_NOT_FOUND);
	assert_non_null(strstr(err.msg, path));

	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "0123456789abcdef0123456789abcdef\n", 33), 33);
	close(fd);
	err = DRAY_ERR_NULL;
	assert_int_equal(tls_key_load("peer.key_file", path, &k, &err), 0);
	assert_int_equal(k.n, 16);
	/* The group may read a file of root, as in a pod with fsGroup. */
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(modes) - (geteuid() == 0); i++) {
		char text[8];

		err = DRAY_ERR_NULL;
		snprintf(text, sizeof(text), "%04o", modes[i]);
		chmod(path, modes[i]);
		assert_true(tls_key_load("peer.key_file", path, &k, &err) < 0);
		assert_int_equal(err.code, DRAY_E_DENIED);
		assert_non_null(strstr(err.msg, text));
		assert_non_null(strstr(err.msg, "chmod 600 "));
		assert_non_null(strstr(err.msg, path));
	}
	if (geteuid() == 0) {
		assert_int_equal(chown(path, 4711, 0), 0);
		chmod(path, 0600);
		err = DRAY_ERR_NULL;
		assert_true(tls_key_load("peer.key_file", path, &k, &err) < 0);
		assert_int_equal(err.code, DRAY_E_DENIED);
		assert_non_null(strstr(err.msg, "chown 0 "));
		/* a secret as Kubernetes mounts it */
		chmod(dir, 0755);
		assert_int_equal(chown(path, 0, 4711), 0);
		chmod(path, 0440);
		assert_int_equal(load_as(4711, path), 0);
		assert_int_equal(tls_key_load("peer.key_file", path, &k, &err), 0);
		assert_int_equal(k.readers, 4711);
		chmod(path, 0400);
		assert_int_equal(tls_key_load("peer.key_file", path, &k, &err), 0);
		assert_int_equal(k.readers, 0);
		chmod(path, 0460);
		assert_int_equal(load_as(4711, path), DRAY_E_DENIED);
	}
	unlink(path);

	err = DRAY_ERR_NULL;
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_true(tls_key_load("peer.key_file", path, &k, &err) < 0);
	assert_non_null(strstr(err.msg, "regular"));
	unlink(path);
	rmdir(dir);
}

/* --- connections ---------------------------------------------------------------------------------- */

struct pair {
	struct tls *ts, *tc;
	struct tls_conn s, c;
	int fd[2];
	int rs, rc; /* results of the handshake */
	struct dray_err es, ec;
};

/* Keys of 16 bytes each. */
static struct tls_keys keys_of(const char *text)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct tls_keys keys = { .n = 0 };

	for (; *text; text += 16)
		assert_int_equal(tls_key_parse((const uint8_t *)text, 16, &keys.k[keys.n++], &err),
				 0);
	return keys;
}

static void pair_open(struct pair *p, const char *server_key, const char *server_id,
		      const char *client_key, const char *client_id)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct tls_keys k;

	memset(p, 0, sizeof(*p));
	k = keys_of(server_key ? server_key : "");
	assert_int_equal(tls_new(&p->ts, server_key ? &k : NULL, server_id, &err), 0);
	k = keys_of(client_key ? client_key : "");
	assert_int_equal(tls_new(&p->tc, client_key ? &k : NULL, client_id, &err), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, p->fd), 0);
	assert_int_equal(tls_open(&p->s, p->ts, p->fd[0], true, &err), 0);
	assert_int_equal(tls_open(&p->c, p->tc, p->fd[1], false, &err), 0);
	p->rs = p->rc = TLS_E_AGAIN;
	for (unsigned i = 0; i < 20; i++) {
		if (p->rc == TLS_E_AGAIN)
			p->rc = tls_handshake(&p->c, &p->ec);
		if (p->rs == TLS_E_AGAIN)
			p->rs = tls_handshake(&p->s, &p->es);
	}
}

static void pair_close(struct pair *p)
{
	tls_close(&p->s);
	tls_close(&p->c);
	tls_free(p->ts);
	tls_free(p->tc);
	close(p->fd[0]);
	close(p->fd[1]);
}

static const char key_a[] = "0123456789abcdef", key_b[] = "0123456789abcdeF";

static void test_same_key(void **state)
{
	uint8_t a[32], b[32];
	struct dray_err err = DRAY_ERR_NULL;
	char buf[64];
	struct pair p;
	size_t n;

	pair_open(&p, key_a, "dray", key_a, "dray");
	if (p.rs || p.rc)
		print_error("server: %s, client: %s\n", p.es.msg, p.ec.msg);
	assert_int_equal(p.rs, 0);
	assert_int_equal(p.rc, 0);
	assert_string_equal(SSL_get_version(p.c.ssl), "TLSv1.3");
	assert_string_equal(SSL_get_cipher_name(p.c.ssl), "TLS_AES_128_GCM_SHA256");
	/* only the handshake: no session ticket follows */
	assert_int_equal(tls_read(&p.c, buf, sizeof(buf), &n, &err), TLS_E_AGAIN);

	assert_int_equal(tls_write(&p.c, "hello", 5, &n, &err), 0);
	assert_int_equal(n, 5);
	assert_int_equal(tls_read(&p.s, buf, sizeof(buf), &n, &err), 0);
	assert_memory_equal(buf, "hello", 5);

	/* the key for streams is the same on both sides, and differs for each context */
	assert_int_equal(tls_export(&p.s, "EXPORTER-x", "ctx", 3, a, 32), 0);
	assert_int_equal(tls_export(&p.c, "EXPORTER-x", "ctx", 3, b, 32), 0);
	assert_memory_equal(a, b, 32);
	assert_int_equal(tls_export(&p.c, "EXPORTER-x", "ctX", 3, b, 32), 0);
	assert_memory_not_equal(a, b, 32);

	tls_goodbye(&p.c);
	assert_int_equal(tls_read(&p.s, buf, sizeof(buf), &n, &err), TLS_E_EOF);
	pair_close(&p);
}

/* A peer that changes its keys again and again, and sends no bytes, does not keep the reader from other work. */
static void test_key_updates(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	int r, all, left;
	char buf[64];
	struct pair p;
	size_t n;

	pair_open(&p, key_a, "dray", key_a, "dray");
	for (unsigned i = 0; i < 64; i++) {
		assert_int_equal(SSL_key_update(p.c.ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
		assert_int_equal(SSL_do_handshake(p.c.ssl), 1);
	}
	assert_int_equal(tls_write(&p.c, "hello", 5, &n, &err), 0);
	assert_int_equal(ioctl(p.fd[0], FIONREAD, &all), 0);
	assert_int_equal(tls_read(&p.s, buf, sizeof(buf), &n, &err), TLS_E_AGAIN);
	assert_int_equal(ioctl(p.fd[0], FIONREAD, &left), 0);
	assert_in_range(left, all - all / 32, all - 1);
	do {
		r = tls_read(&p.s, buf, sizeof(buf), &n, &err);
	} while (r == TLS_E_AGAIN && ioctl(p.fd[0], FIONREAD, &left) == 0 && left);
	assert_int_equal(r, 0);
	assert_memory_equal(buf, "hello", 5);
	pair_close(&p);
}

static void test_keys_differ_each_time(void **state)
{
	uint8_t a[32], b[32];
	struct pair p;

	pair_open(&p, key_a, "dray", key_a, "dray");
	assert_int_equal(tls_export(&p.s, "EXPORTER-x", "c", 1, a, 32), 0);
	pair_close(&p);
	pair_open(&p, key_a, "dray", key_a, "dray");
	assert_int_equal(tls_export(&p.s, "EXPORTER-x", "c", 1, b, 32), 0);
	pair_close(&p);
	assert_memory_not_equal(a, b, 32);
}

static void expect_refusal(const char *sk, const char *si, const char *ck, const char *ci)
{
	struct pair p;

	pair_open(&p, sk, si, ck, ci);
	assert_int_equal(p.rs, TLS_E_FAILED);
	assert_int_equal(p.es.code, DRAY_E_PEER_DENIED);
	assert_int_equal(p.rc, TLS_E_FAILED);
	assert_int_equal(p.ec.code, DRAY_E_PEER_DENIED);
	assert_true(*p.es.msg && *p.ec.msg);
	pair_close(&p);
}

static void test_wrong_key(void **state)
{
	expect_refusal(key_a, "dray", key_b, "dray");
	expect_refusal(key_a, "dray", key_a, "other");
	expect_refusal(key_a, "dray", NULL, NULL);
	expect_refusal(NULL, NULL, key_a, "dray");
}

static void test_no_key(void **state)
{
	struct pair p;

	pair_open(&p, NULL, NULL, NULL, NULL);
	assert_int_equal(p.rs, 0);
	assert_int_equal(p.rc, 0);
	pair_close(&p);
}

/* The server finds out which of its keys a client offers, in each order; both know its id. */
static void test_two_keys(void **state)
{
	static const char ab[] = "0123456789abcdef0123456789abcdeF",
			  ba[] = "0123456789abcdeF0123456789abcdef";
	static const struct {
		const char *server, *client, *used;
	} cases[] = {
		{ ab, key_a, key_a }, { ab, key_b, key_b }, { key_a, ab, key_a },
		{ ab, ba, key_b },    { ba, ab, key_a },    { ab, ab, key_a },
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		struct tls_keys used = keys_of(cases[i].used);
		struct pair p;

		pair_open(&p, cases[i].server, "dray", cases[i].client, "dray");
		assert_int_equal(p.rs, 0);
		assert_int_equal(p.rc, 0);
		assert_string_equal(p.s.key_id, used.k[0].id);
		assert_string_equal(p.c.key_id, used.k[0].id);
		pair_close(&p);
	}
	/* what is accepted is not offered */
	expect_refusal(key_b, "dray", ab, "dray");
	expect_refusal(ab, "dray", "0123456789abcdeg", "dray");
}

/* A connection with a key that is replaced works on; a new one needs the new key. */
static void test_keys_are_replaced(void **state)
{
	struct tls_keys b = keys_of(key_b);
	struct dray_err err = DRAY_ERR_NULL;
	char buf[8];
	struct pair p, q;
	size_t n;

	pair_open(&p, key_a, "dray", key_a, "dray");
	tls_set_keys(p.ts, &b);
	assert_int_equal(tls_write(&p.c, "hello", 5, &n, &err), 0);
	assert_int_equal(tls_read(&p.s, buf, sizeof(buf), &n, &err), 0);
	assert_string_equal(p.s.key_id, keys_of(key_a).k[0].id);
	q = (struct pair){ .rs = TLS_E_AGAIN, .rc = TLS_E_AGAIN };
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, q.fd), 0);
	assert_int_equal(tls_open(&q.s, p.ts, q.fd[0], true, &err), 0);
	assert_int_equal(tls_open(&q.c, p.tc, q.fd[1], false, &err), 0);
	assert_int_equal(tls_handshake(&q.c, &q.ec), TLS_E_AGAIN);
	assert_int_equal(tls_handshake(&q.s, &q.es), TLS_E_FAILED);
	pair_close(&q);
	pair_close(&p);
}

static void test_bad_identity(void **state)
{
	struct tls_keys k = keys_of(key_a);
	struct dray_err err = DRAY_ERR_NULL;
	struct tls *t = NULL;

	assert_true(tls_new(&t, &k, "", &err) < 0);
	assert_non_null(strstr(err.msg, "peer.key_identity"));
	assert_null(t);
}

/* Garbage instead of a handshake, and an end of file in the middle of one. */
static void test_garbage(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	char hello[4096];
	struct tls *t;
	struct tls_conn s, c;
	ssize_t n;
	int fd[2];

	assert_int_equal(tls_new(&t, NULL, NULL, &err), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	assert_int_equal(tls_open(&s, t, fd[0], true, &err), 0);
	assert_int_equal(write(fd[1], "\x16garbage that is no record at all", 34), 34);
	assert_int_equal(tls_handshake(&s, &err), TLS_E_FAILED);
	assert_int_equal(err.code, DRAY_E_PEER_DENIED);
	tls_close(&s);
	close(fd[0]);
	close(fd[1]);

	/* half of a valid hello, then the end */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	assert_int_equal(tls_open(&c, t, fd[1], false, &err), 0);
	assert_int_equal(tls_handshake(&c, &err), TLS_E_AGAIN);
	n = recv(fd[0], hello, sizeof(hello), 0);
	assert_true(n > 50);
	tls_close(&c);
	close(fd[0]);
	close(fd[1]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	assert_int_equal(tls_open(&s, t, fd[0], true, &err), 0);
	assert_int_equal(write(fd[1], hello, (size_t)n / 2), n / 2);
	assert_int_equal(tls_handshake(&s, &err), TLS_E_AGAIN);
	close(fd[1]);
	assert_int_equal(tls_handshake(&s, &err), TLS_E_EOF);
	tls_close(&s);
	close(fd[0]);
	tls_free(t);
}

/* Clients that speak at most TLS 1.2, or have no key, are refused. */
static void test_other_clients(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct tls *t;

	assert_int_equal(tls_new(&t, NULL, NULL, &err), 0);
	for (unsigned i = 0; i < 2; i++) {
		SSL_CTX *ctx = SSL_CTX_new(TLS_method());
		struct tls_conn s;
		int fd[2], r = TLS_E_AGAIN;
		SSL *ssl;

		if (i == 0)
			SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
		assert_int_equal(tls_open(&s, t, fd[0], true, &err), 0);
		ssl = SSL_new(ctx);
		SSL_set_fd(ssl, fd[1]);
		SSL_set_connect_state(ssl);
		for (unsigned k = 0; k < 5 && r == TLS_E_AGAIN; k++) {
			SSL_do_handshake(ssl);
			r = tls_handshake(&s, &err);
		}
		assert_int_equal(r, TLS_E_FAILED);
		assert_int_equal(err.code, DRAY_E_PEER_DENIED);
		SSL_free(ssl);
		SSL_CTX_free(ctx);
		tls_close(&s);
		close(fd[0]);
		close(fd[1]);
	}
	tls_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_key_forms),
		cmocka_unit_test(test_key_lengths),
		cmocka_unit_test(test_key_file),
		cmocka_unit_test(test_same_key),
		cmocka_unit_test(test_key_updates),
		cmocka_unit_test(test_keys_differ_each_time),
		cmocka_unit_test(test_wrong_key),
		cmocka_unit_test(test_two_keys),
		cmocka_unit_test(test_keys_are_replaced),
		cmocka_unit_test(test_no_key),
		cmocka_unit_test(test_bad_identity),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_other_clients),
	};

	signal(SIGPIPE, SIG_IGN); /* as agent_watch_signals() */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
