/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS of control connections: version 1.3 only, an external pre-shared key with ephemeral Diffie-Hellman
 * (psk_dhe_ke), no certificates, tickets, early data or renegotiation. An agent offers its first key and accepts all of its keys.
 *
 * Without a key file the key is a public constant and the identity is "dray-insecure": the same code runs and the
 * bytes are encrypted, but no agent is authenticated. An agent with a key and one without cannot connect.
 */
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/control/peer/binder.h"
#include "lib/cleanup.h"
#include "lib/err.h"

#define TLS_KEY_MIN 16
#define TLS_KEY_MAX 64
#define TLS_IDENTITY_MAX 128
/* The one that is offered, and another one during a rotation. */
#define TLS_KEYS_MAX 2
/* Hexadecimal digits, which tell keys apart and prove nothing. */
#define TLS_KEY_ID_BYTES 9

struct tls_key {
	uint8_t bytes[TLS_KEY_MAX];
	size_t n;
	gid_t readers; /* of a file of root: the group that may read it, or 0 */
	char id[TLS_KEY_ID_BYTES];
};

/* The first one is offered. */
struct tls_keys {
	struct tls_key k[TLS_KEYS_MAX];
	unsigned n;
};

/* Reads a key file as secret_file_read(): 16 to 64 bytes, raw or as hexadecimal text. 0, or -errno with reterr. */
int tls_key_load(const char *setting, const char *path, struct tls_key *ret,
		 struct dray_err *reterr);

/* The same from the content of a file. *ret is written only on success. */
int tls_key_parse(const uint8_t *p, size_t n, struct tls_key *ret, struct dray_err *reterr);

/* Keys and settings of all connections. */
struct tls {
	SSL_CTX *ctx;
	struct tls_keys keys;
	const char *identity; /* borrowed */
};

/* keys NULL: none. identity: borrowed, used with a key only. */
int tls_new(struct tls **ret, const struct tls_keys *keys, const char *identity,
	    struct dray_err *reterr);
/* Replaces the keys, of which there must have been some, for handshakes that begin later. */
void tls_set_keys(struct tls *t, const struct tls_keys *keys);
struct tls *tls_free(struct tls *t);

DRAY_DEFINE_CLEANUP(struct tls *, tls_free);

/* One connection over a non-blocking socket. Must not move once opened. The process ignores SIGPIPE. */
struct tls_conn {
	SSL *ssl;
	uint8_t first;   /* first byte received; 0: none yet */
	bool want_write; /* the last call waits for room in the socket, not for input */
	bool failed;     /* or closed by the other side: OpenSSL must not be called any more */
	uint8_t hellos;  /* of a client that were received */
	struct binder binder;
	char key_id[TLS_KEY_ID_BYTES]; /* of the key that is used; empty without a key */
};

enum {
	TLS_E_AGAIN = 1, /* call again when the socket is ready */
	TLS_E_EOF,       /* the other side closed */
	TLS_E_FAILED,    /* reterr says why */
};

int tls_open(struct tls_conn *c, struct tls *t, int fd, bool server, struct dray_err *reterr);
void tls_close(struct tls_conn *c);

/* 0 when complete: both sides have proved that they hold the key. */
int tls_handshake(struct tls_conn *c, struct dray_err *reterr);
int tls_read(struct tls_conn *c, void *buf, size_t cap, size_t *ret_n, struct dray_err *reterr);
int tls_write(struct tls_conn *c, const void *buf, size_t n, size_t *ret_n,
	      struct dray_err *reterr);
/* Sends close_notify if the socket takes it at once. */
void tls_goodbye(struct tls_conn *c);

/* Key material of this connection for label and context (RFC 8446 section 7.5). 0 or -EIO. */
int tls_export(struct tls_conn *c, const char *label, const void *context, size_t n_context,
	       uint8_t *ret, size_t n);
