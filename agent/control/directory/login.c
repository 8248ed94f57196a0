/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/directory/login.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>

#include "agent/config/secret_file.h"
#include "schema/gen/errors.h"

#define PASSWORD "store.directory_password_file"
#define KEY "store.directory_key_file"
#define KEY_BYTES 16384

static int password_read(struct login *l, const char *path, struct dray_err *reterr)
{
	gid_t readers;
	size_t n;
	int r = secret_file_read(PASSWORD, path, "a password", (uint8_t *)l->password,
				 sizeof(l->password), &n, &readers, reterr);

	if (r < 0)
		return r;
	/* the end of the line, which editors add */
	if (n && l->password[n - 1] == '\n')
		n--;
	if (n && l->password[n - 1] == '\r')
		n--;
	if (!n || n > PASSWORD_MAX)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    PASSWORD " %s: a password has 1 to %d bytes", path,
				    PASSWORD_MAX);
	l->link.password = l->password;
	l->link.n_password = n;
	return 0;
}

/* A file of the configuration that OpenSSL does not take. */
static int refused(const char *setting, const char *path, struct dray_err *reterr)
{
	const char *why = ERR_reason_error_string(ERR_peek_error());
	char text[100];

	snprintf(text, sizeof(text), "%s", why ? why : "it has nothing of use");
	ERR_clear_error();
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "%s %s: %s", setting, path, text);
}

/* Nobody can be asked for it. */
static int on_passphrase(char *buf, int size, int writes, void *arg)
{
	bool *asked = arg;

	*asked = true;
	return -1;
}

static int key_take(struct login *l, const char *path, const uint8_t *text, size_t n,
		    struct dray_err *reterr)
{
	BIO *bio = BIO_new_mem_buf(text, (int)n);
	bool asked = false;
	EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, on_passphrase, &asked) : NULL;
	/* also whether it is that of the certificate */
	bool ok = key && SSL_CTX_use_PrivateKey(l->tls, key);

	EVP_PKEY_free(key);
	BIO_free(bio);
	if (ok)
		return 0;
	if (!asked)
		return refused(KEY, path, reterr);
	ERR_clear_error();
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
			    KEY " %s has a passphrase, for which nobody can be asked; run: openssl "
				"pkey -in %s -out FILE, and use that one",
			    path, path);
}

static int key_read(struct login *l, const char *path, struct dray_err *reterr)
{
	uint8_t text[KEY_BYTES];
	gid_t readers;
	size_t n;
	int r = secret_file_read(KEY, path, "a key", text, sizeof(text), &n, &readers, reterr);

	if (r < 0)
		return r;
	r = key_take(l, path, text, n, reterr);
	OPENSSL_cleanse(text, sizeof(text));
	return r;
}

static int tls_init(struct login *l, const struct dray_config *cfg, struct dray_err *reterr)
{
	const char *ca = cfg->store.directory_ca_file, *cert = cfg->store.directory_cert_file;

	ERR_clear_error();
	l->tls = SSL_CTX_new(TLS_client_method());
	if (!l->tls)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for TLS");
	SSL_CTX_set_mode(l->tls, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
					 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	/* a read ends after a message of TLS itself: a server that sends nothing else must not keep this thread */
	SSL_CTX_clear_mode(l->tls, SSL_MODE_AUTO_RETRY);
	SSL_CTX_set_min_proto_version(l->tls, TLS1_2_VERSION);
	SSL_CTX_set_session_cache_mode(l->tls, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_verify(l->tls, SSL_VERIFY_PEER, NULL);
	if (*ca ? !SSL_CTX_load_verify_file(l->tls, ca) : !SSL_CTX_set_default_verify_paths(l->tls))
		return refused("store.directory_ca_file", ca, reterr);
	if (*cert && !SSL_CTX_use_certificate_chain_file(l->tls, cert))
		return refused("store.directory_cert_file", cert, reterr);
	/* there is a key then, too */
	return *cert ? key_read(l, cfg->store.directory_key_file, reterr) : 0;
}

int login_init(struct login *l, const struct dray_config *cfg, bool tls, const char *user,
	       unsigned database, struct dray_err *reterr)
{
	const char *path = cfg->store.directory_password_file;
	int r = 0;

	*l = (struct login){ .link = { .user = user, .database = database } };
	if (*path)
		r = password_read(l, path, reterr);
	if (r >= 0 && tls)
		r = tls_init(l, cfg, reterr);
	return r;
}

void login_deinit(struct login *l)
{
	SSL_CTX_free(l->tls);
	OPENSSL_cleanse(l->password, sizeof(l->password));
}
