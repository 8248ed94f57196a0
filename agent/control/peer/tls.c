/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/peer/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <string.h>

#include "schema/gen/errors.h"

#define INSECURE_IDENTITY "dray-insecure"

/* Public: it keeps the code path the same and protects nothing. */
static const uint8_t insecure_key[] = "dray without a key proves nothing";

/* TLS_AES_128_GCM_SHA256: a pre-shared key is tied to the hash of its cipher suite. */
static const uint8_t cipher_id[] = { 0x13, 0x01 };

/*
 * Keeps the first byte that is received, which shows if the other side speaks TLS, and the binder of a client. OpenSSL calls this before
 * psk_find(). The binder of a second ClientHello covers more than that message.
 */
static void on_record(int sent, int version, int type, const void *buf, size_t n, SSL *ssl,
		      void *arg)
{
	struct tls_conn *c = arg;
	const uint8_t *p = buf;

	if (sent || !n)
		return;
	if (type == SSL3_RT_HEADER && !c->first)
		c->first = *p;
	if (type != SSL3_RT_HANDSHAKE || *p != SSL3_MT_CLIENT_HELLO)
		return;
	c->binder.known = false;
	if (++c->hellos == 1)
		binder_read(&c->binder, p, n);
}

static SSL_SESSION *psk_session(SSL *ssl, const struct tls *t, const struct tls_key *key)
{
	struct tls_conn *c = SSL_get_app_data(ssl);
	const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, cipher_id);
	SSL_SESSION *s = SSL_SESSION_new();

	if (!cipher || !s || !SSL_SESSION_set1_master_key(s, key->bytes, key->n) ||
	    !SSL_SESSION_set_cipher(s, cipher) ||
	    !SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION)) {
		SSL_SESSION_free(s);
		return NULL;
	}
	memcpy(c->key_id, key->id, sizeof(c->key_id));
	return s;
}

static int psk_offer(SSL *ssl, const EVP_MD *md, const unsigned char **ret_id, size_t *ret_n,
		     SSL_SESSION **ret)
{
	const struct tls *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
	SSL_SESSION *s;

	*ret = NULL;
	*ret_id = NULL;
	*ret_n = 0;
	/* after a retry request the server has chosen the hash: our key works with SHA-256 only */
	if (md && !EVP_MD_is_a(md, "SHA256"))
		return 1;
	s = psk_session(ssl, t, &t->keys.k[0]);
	if (!s)
		return 0;
	*ret_id = (const unsigned char *)t->identity;
	*ret_n = strlen(t->identity);
	*ret = s;
	return 1;
}

static int psk_find(SSL *ssl, const unsigned char *id, size_t n, SSL_SESSION **ret)
{
	const struct tls *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
	const struct tls_conn *c = SSL_get_app_data(ssl);
	const struct tls_key *key = &t->keys.k[0];

	*ret = NULL;
	/* with an unknown identity the handshake fails, because there is neither key nor certificate */
	if (n != strlen(t->identity) || memcmp(id, t->identity, n) != 0)
		return 1;
	for (unsigned i = 1; i < t->keys.n; i++)
		if (binder_is_of(&c->binder, t->keys.k[i].bytes, t->keys.k[i].n))
			key = &t->keys.k[i];
	*ret = psk_session(ssl, t, key);
	return *ret != NULL;
}

static int ctx_setup(SSL_CTX *ctx)
{
	int groups[] = { NID_X25519, NID_X9_62_prime256v1 };

	SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
					 SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
	SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
				      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	/* a read ends after a message of TLS itself: a peer that sends nothing else must not keep this thread */
	SSL_CTX_clear_mode(ctx, SSL_MODE_AUTO_RETRY);
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_psk_use_session_callback(ctx, psk_offer);
	SSL_CTX_set_psk_find_session_callback(ctx, psk_find);
	return SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) &&
	       SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) &&
	       SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") &&
	       SSL_CTX_set1_groups(ctx, groups, DRAY_ARRAY_SIZE(groups)) &&
	       SSL_CTX_set_num_tickets(ctx, 0) && SSL_CTX_set_max_early_data(ctx, 0);
}

int tls_new(struct tls **ret, const struct tls_keys *keys, const char *identity,
	    struct dray_err *reterr)
{
	dray_auto(tls_free) struct tls *t = calloc(1, sizeof(*t));

	if (!t)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for TLS");
	if (keys && (!*identity || strlen(identity) > TLS_IDENTITY_MAX))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "peer.key_identity must have 1 to %d bytes", TLS_IDENTITY_MAX);
	if (keys) {
		t->keys = *keys;
		t->identity = identity;
	} else {
		t->keys.n = 1;
		t->keys.k[0].n = sizeof(insecure_key) - 1;
		memcpy(t->keys.k[0].bytes, insecure_key, t->keys.k[0].n);
		t->identity = INSECURE_IDENTITY;
	}
	t->ctx = SSL_CTX_new(TLS_method());
	if (!t->ctx || !ctx_setup(t->ctx)) {
		ERR_clear_error();
		return dray_err_set(
			reterr, -EIO, DRAY_E_UNSUPPORTED,
			"OpenSSL does not support TLS 1.3 with TLS_AES_128_GCM_SHA256 and X25519 here");
	}
	SSL_CTX_set_app_data(t->ctx, t);
	*ret = dray_take(t);
	return 0;
}

struct tls *tls_free(struct tls *t)
{
	if (!t)
		return NULL;
	SSL_CTX_free(t->ctx);
	OPENSSL_cleanse(&t->keys, sizeof(t->keys));
	free(t);
	return NULL;
}

void tls_set_keys(struct tls *t, const struct tls_keys *keys)
{
	OPENSSL_cleanse(&t->keys, sizeof(t->keys));
	t->keys = *keys;
}

int tls_open(struct tls_conn *c, struct tls *t, int fd, bool server, struct dray_err *reterr)
{
	SSL *ssl = SSL_new(t->ctx);

	if (!ssl || !SSL_set_fd(ssl, fd)) {
		SSL_free(ssl);
		ERR_clear_error();
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for a TLS connection");
	}
	*c = (struct tls_conn){ .ssl = ssl };
	SSL_set_app_data(ssl, c);
	SSL_set_msg_callback(ssl, on_record);
	SSL_set_msg_callback_arg(ssl, c);
	if (server) {
		SSL_set_accept_state(ssl);
	} else {
		SSL_set_connect_state(ssl);
		/* a server with a certificate instead of the key fails: no authority is trusted */
		SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL);
	}
	return 0;
}

void tls_close(struct tls_conn *c)
{
	SSL_free(c->ssl);
	*c = (struct tls_conn){ 0 };
}

/* Before each call of OpenSSL: errno and the error queue show the failure of this call alone. */
static SSL *begin(struct tls_conn *c)
{
	ERR_clear_error();
	errno = 0;
	return c->ssl;
}

/* The result of a call of OpenSSL. r: what the call returned. */
static int outcome(struct tls_conn *c, int r, struct dray_err *reterr)
{
	int err = errno, kind = r == 1 ? SSL_ERROR_NONE : SSL_get_error(c->ssl, r);
	unsigned long e = ERR_peek_error();
	int reason = ERR_GET_LIB(e) == ERR_LIB_SSL ? ERR_GET_REASON(e) : 0;

	ERR_clear_error();
	c->want_write = kind == SSL_ERROR_WANT_WRITE;
	if (kind == SSL_ERROR_NONE)
		return 0;
	if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE)
		return TLS_E_AGAIN;
	c->failed = true;
	if (kind == SSL_ERROR_ZERO_RETURN || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING)
		return TLS_E_EOF;
	if (kind == SSL_ERROR_SYSCALL && err)
		return dray_err_set(reterr, TLS_E_FAILED, DRAY_E_PEER_LOST, "%s",
				    dray_errno_text(err));
	if (reason >= SSL_AD_REASON_OFFSET)
		return dray_err_set(reterr, TLS_E_FAILED, DRAY_E_PEER_DENIED,
				    "the other side ended TLS: %s",
				    SSL_alert_desc_string_long(reason - SSL_AD_REASON_OFFSET));
	return dray_err_set(reterr, TLS_E_FAILED, DRAY_E_PROTOCOL, "TLS: %s",
			    e ? ERR_reason_error_string(e) : "unknown error");
}

int tls_handshake(struct tls_conn *c, struct dray_err *reterr)
{
	struct dray_err why = DRAY_ERR_NULL;
	int r = outcome(c, SSL_do_handshake(begin(c)), &why);

	/* OpenSSL reports an accepted pre-shared key as a reused session */
	if (r == 0 && !SSL_session_reused(c->ssl))
		r = dray_err_set(&why, TLS_E_FAILED, DRAY_E_PEER_DENIED,
				 "the other side did not prove that it holds the key");
	if (r == TLS_E_FAILED && why.code == DRAY_E_PEER_LOST)
		dray_err_set(reterr, 0, why.code, "%s", why.msg);
	else if (r == TLS_E_FAILED)
		/* the key is the only other reason for TLS to fail here, on either side */
		dray_err_set(reterr, 0, DRAY_E_PEER_DENIED,
			     "%s; both agents need the same peer.key_file", why.msg);
	return r;
}

int tls_read(struct tls_conn *c, void *buf, size_t cap, size_t *ret_n, struct dray_err *reterr)
{
	return outcome(c, SSL_read_ex(begin(c), buf, cap, ret_n), reterr);
}

int tls_write(struct tls_conn *c, const void *buf, size_t n, size_t *ret_n, struct dray_err *reterr)
{
	return outcome(c, SSL_write_ex(begin(c), buf, n, ret_n), reterr);
}

void tls_goodbye(struct tls_conn *c)
{
	/* OpenSSL must not be called again after a fatal error */
	if (!c->ssl || c->failed || !SSL_is_init_finished(c->ssl))
		return;
	SSL_shutdown(begin(c));
	ERR_clear_error();
}

int tls_export(struct tls_conn *c, const char *label, const void *context, size_t n_context,
	       uint8_t *ret, size_t n)
{
	if (SSL_export_keying_material(c->ssl, ret, n, label, strlen(label), context, n_context,
				       1) == 1)
		return 0;
	ERR_clear_error();
	return -EIO;
}
