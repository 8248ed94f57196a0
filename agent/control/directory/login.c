/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/directory/login.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>

#include "agent/config/secret_file.h"
#include "schema/gen/errors.h"

#define PASSWORD "store.directory_password_file"

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

static int tls_init(struct login *l, const struct dray_config *cfg, struct dray_err *reterr)
{
	const char *ca = cfg->store.directory_ca_file, *cert = cfg->store.directory_cert_file,
		   *key = cfg->store.directory_key_file;

	ERR_clear_error();
	l->tls = SSL_CTX_new(TLS_client_method());
	if (!l->tls)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for TLS");
	SSL_CTX_set_mode(l->tls, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
					 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_CTX_set_min_proto_version(l->tls, TLS1_2_VERSION);
	SSL_CTX_set_session_cache_mode(l->tls, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_verify(l->tls, SSL_VERIFY_PEER, NULL);
	if (*ca ? !SSL_CTX_load_verify_file(l->tls, ca) : !SSL_CTX_set_default_verify_paths(l->tls))
		return refused("store.directory_ca_file", ca, reterr);
	if (*cert && !SSL_CTX_use_certificate_chain_file(l->tls, cert))
		return refused("store.directory_cert_file", cert, reterr);
	if (*key && (!SSL_CTX_use_PrivateKey_file(l->tls, key, SSL_FILETYPE_PEM) ||
		     !SSL_CTX_check_private_key(l->tls)))
		return refused("store.directory_key_file", key, reterr);
	return 0;
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
