/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/control/peer/tls.h"
#include "lib/assert.h"
#include "schema/gen/errors.h"

/* The longest key file: the largest key as hexadecimal text, and some white space. */
#define FILE_MAX (2 * TLS_KEY_MAX + 16)

/* A keyed digest, of which so few bits are shown that they lead back to no key. */
static void identify(struct tls_key *k)
{
	static const char about[] = "dray key id";
	uint8_t digest[EVP_MAX_MD_SIZE];

	dray_assert(HMAC(EVP_sha256(), k->bytes, (int)k->n, (const uint8_t *)about,
			 sizeof(about) - 1, digest, NULL));
	snprintf(k->id, sizeof(k->id), "%02x%02x%02x%02x", digest[0], digest[1], digest[2],
		 digest[3]);
}

/* Text may end with a line end, which `echo` and editors add; it is not part of the key. All bytes of a raw key count. */
static size_t trimmed(const uint8_t *p, size_t n)
{
	size_t end = n;

	while (end && (p[end - 1] == '\n' || p[end - 1] == '\r' || p[end - 1] == ' '))
		end--;
	for (size_t i = 0; i < end; i++)
		if (p[i] < 0x20 || p[i] > 0x7e)
			return n;
	return end;
}

static bool is_hex(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isxdigit(p[i]))
			return false;
	return n % 2 == 0 && n >= 2 * TLS_KEY_MIN && n <= 2 * TLS_KEY_MAX;
}

int tls_key_parse(const uint8_t *p, size_t n, struct tls_key *ret, struct dray_err *reterr)
{
	char text[2 * TLS_KEY_MAX + 1];

	n = trimmed(p, n);
	if (is_hex(p, n)) {
		memcpy(text, p, n);
		text[n] = '\0';
		dray_assert(
			OPENSSL_hexstr2buf_ex(ret->bytes, sizeof(ret->bytes), &ret->n, text, '\0'));
		OPENSSL_cleanse(text, sizeof(text));
		identify(ret);
		return 0;
	}
	if (n < TLS_KEY_MIN || n > TLS_KEY_MAX)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"it has %zu bytes; a key has %d to %d bytes, raw or as hexadecimal text; "
			"drayctl genkey makes one",
			n, TLS_KEY_MIN, TLS_KEY_MAX);
	ret->n = n;
	memcpy(ret->bytes, p, n);
	identify(ret);
	return 0;
}

static int check_file(int fd, const char *setting, const char *path, gid_t *ret_readers,
		      struct dray_err *reterr)
{
	mode_t closed = S_IRWXG | S_IRWXO;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "%s %s: %s", setting, path,
				    dray_errno_text(errno));
	if (!S_ISREG(st.st_mode))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "%s %s is not a regular file",
				    setting, path);
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return dray_err_set(reterr, -EPERM, DRAY_E_DENIED,
				    "%s belongs to uid %u, which could change it; run: chown %u %s",
				    setting, st.st_uid, geteuid(), path);
	/* Kubernetes mounts a secret as a file of root that root's group, or the pod's fsGroup, may read. */
	if (st.st_uid == 0)
		closed &= ~(mode_t)S_IRGRP;
	if (st.st_mode & closed)
		return dray_err_set(
			reterr, -EPERM, DRAY_E_DENIED,
			"%s has mode %04o, a key is for its owner alone; run: chmod 600 %s",
			setting, st.st_mode & 07777, path);
	if (st.st_mode & S_IRGRP && geteuid() == 0)
		*ret_readers = st.st_gid;
	return 0;
}

int tls_key_load(const char *setting, const char *path, struct tls_key *ret,
		 struct dray_err *reterr)
{
	dray_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct dray_err why = DRAY_ERR_NULL;
	uint8_t buf[FILE_MAX + 1];
	ssize_t n;
	int r;

	if (fd < 0 && errno == EACCES)
		return dray_err_set(
			reterr, -EACCES, DRAY_E_IO,
			"%s %s cannot be opened by this agent; run: chown %u %s, and let it enter the folder",
			setting, path, geteuid(), path);
	if (fd < 0)
		return dray_err_set(reterr, -errno, errno == ENOENT ? DRAY_E_NOT_FOUND : DRAY_E_IO,
				    "%s %s: %s", setting, path, dray_errno_text(errno));
	ret->readers = 0;
	r = check_file(fd, setting, path, &ret->readers, reterr);
	if (r < 0)
		return r;
	/* a regular file, so one call reads all of it */
	n = read(fd, buf, sizeof(buf));
	if (n < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "%s %s: %s", setting, path,
				    dray_errno_text(errno));
	r = tls_key_parse(buf, (size_t)n, ret, &why);
	OPENSSL_cleanse(buf, sizeof(buf));
	if (r < 0)
		return dray_err_set(reterr, r, why.code, "%s %s: %s", setting, path, why.msg);
	return 0;
}
