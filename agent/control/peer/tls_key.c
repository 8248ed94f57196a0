/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/control/peer/tls.h"
#include "schema/gen/errors.h"

/* The longest key file: the largest key as hexadecimal text, and some white space. */
#define FILE_MAX (2 * TLS_KEY_MAX + 16)

static int hex_value(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
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

int tls_key_parse(const uint8_t *p, size_t n, struct tls_key *ret, struct dray_err *reterr)
{
	struct tls_key k = { .n = 0 };
	bool hex = true;

	n = trimmed(p, n);
	for (size_t i = 0; i < n; i++)
		hex = hex && hex_value(p[i]) >= 0;
	hex = hex && n % 2 == 0 && n >= 2 * TLS_KEY_MIN && n <= 2 * TLS_KEY_MAX;
	if (!hex && (n < TLS_KEY_MIN || n > TLS_KEY_MAX))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"it has %zu bytes; a key has %d to %d bytes, raw or as hexadecimal text", n,
			TLS_KEY_MIN, TLS_KEY_MAX);
	if (hex) {
		k.n = n / 2;
		for (size_t i = 0; i < k.n; i++)
			k.bytes[i] = (uint8_t)(hex_value(p[2 * i]) << 4 | hex_value(p[2 * i + 1]));
	} else {
		k.n = n;
		memcpy(k.bytes, p, n);
	}
	*ret = k;
	OPENSSL_cleanse(&k, sizeof(k));
	return 0;
}

static int check_file(int fd, const char *path, struct dray_err *reterr)
{
	mode_t closed = S_IRWXG | S_IRWXO;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "peer.key_file %s: %s", path,
				    dray_errno_text(errno));
	if (!S_ISREG(st.st_mode))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "peer.key_file %s is not a regular file", path);
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return dray_err_set(
			reterr, -EPERM, DRAY_E_DENIED,
			"peer.key_file belongs to uid %u, who could change it; run: chown %u %s",
			st.st_uid, geteuid(), path);
	/* Kubernetes mounts a secret for a non-root pod as a file of root that the pod's group may read */
	if (st.st_uid == 0 && geteuid() != 0)
		closed &= ~(mode_t)S_IRGRP;
	if (st.st_mode & closed)
		return dray_err_set(
			reterr, -EPERM, DRAY_E_DENIED,
			"peer.key_file has mode %04o, a key is for its owner alone; run: chmod 600 %s",
			st.st_mode & 07777, path);
	return 0;
}

int tls_key_load(const char *path, struct tls_key *ret, struct dray_err *reterr)
{
	dray_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct dray_err why = DRAY_ERR_NULL;
	uint8_t buf[FILE_MAX + 1];
	size_t n = 0;
	ssize_t got;
	int r;

	if (fd < 0)
		return dray_err_set(reterr, -errno, errno == ENOENT ? DRAY_E_NOT_FOUND : DRAY_E_IO,
				    "peer.key_file %s: %s", path, dray_errno_text(errno));
	r = check_file(fd, path, reterr);
	if (r < 0)
		return r;
	while (n < sizeof(buf)) {
		got = read(fd, buf + n, sizeof(buf) - n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return dray_err_set(reterr, -errno, DRAY_E_IO, "peer.key_file %s: %s", path,
					    dray_errno_text(errno));
		if (got == 0)
			break;
		n += (size_t)got;
	}
	r = tls_key_parse(buf, n, ret, &why);
	OPENSSL_cleanse(buf, sizeof(buf));
	if (r < 0)
		return dray_err_set(reterr, r, why.code, "peer.key_file %s: %s", path, why.msg);
	return 0;
}
