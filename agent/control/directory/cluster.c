/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/directory/cluster.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/units.h"

/* CRC-16/XMODEM, by which servers of a cluster divide keys. */
#define POLYNOMIAL 0x1021
/* Fields of a line of CLUSTER NODES before its slots; the second one is the address. */
#define FIELDS 8
#define ADDRESS 1

static uint16_t crc16(const char *p, size_t n)
{
	uint16_t crc = 0;

	for (size_t i = 0; i < n; i++) {
		crc ^= (uint16_t)((uint8_t)p[i] << 8);
		for (unsigned bit = 0; bit < 8; bit++)
			crc = (uint16_t)(crc << 1 ^ (crc & 0x8000 ? POLYNOMIAL : 0));
	}
	return crc;
}

unsigned cluster_slot(const char *key, size_t n)
{
	const char *open = memchr(key, '{', n), *close = NULL;

	if (open)
		close = memchr(open + 1, '}', n - (size_t)(open + 1 - key));
	if (close && close > open + 1)
		return crc16(open + 1, (size_t)(close - open - 1)) % CLUSTER_SLOTS;
	return crc16(key, n) % CLUSTER_SLOTS;
}

/* A word of the text from *at on, up to a blank, and what follows it. Its length; 0: there is none. */
static size_t word_next(const char **at, const char *end)
{
	const char *p = *at;

	while (p < end && *p == ' ')
		p++;
	*at = p;
	while (p < end && *p != ' ')
		p++;
	return (size_t)(p - *at);
}

static int number(const char *p, size_t n, unsigned max, unsigned *ret)
{
	char text[8];
	int64_t v;

	if (!n || n >= sizeof(text) || *p < '0' || *p > '9')
		return -EINVAL;
	memcpy(text, p, n);
	text[n] = '\0';
	if (text[strspn(text, "0123456789")] || dray_int_parse(text, 0, &v) < 0 || v > max)
		return -EINVAL;
	*ret = (unsigned)v;
	return 0;
}

/* HOST:PORT, without brackets for IPv6; in CLUSTER NODES @PORT and ,NAME may follow. */
static int address(const char *p, size_t n, const char *host, struct directory_host *ret)
{
	const char *end = memchr(p, '@', n), *colon;
	struct dray_addr a;
	size_t n_host;

	n = end ? (size_t)(end - p) : n;
	colon = memrchr(p, ':', n);
	if (!colon || number(colon + 1, n - (size_t)(colon + 1 - p), UINT16_MAX, &ret->port) < 0 ||
	    !ret->port)
		return -EINVAL;
	n_host = (size_t)(colon - p);
	if (n_host >= sizeof(ret->host))
		return -EINVAL;
	snprintf(ret->host, sizeof(ret->host), "%.*s", n_host ? (int)n_host : (int)strlen(host),
		 n_host ? p : host);
	return dray_host_is_address(ret->host, &a) || dray_host_is_name(ret->host) ? 0 : -EINVAL;
}

int cluster_redirection(const redisReply *r, const char *host, unsigned *ret_slot,
			struct directory_host *ret)
{
	const char *at, *end;
	unsigned slot;
	size_t n;

	if (r->type != REDIS_REPLY_ERROR)
		return -EINVAL;
	at = r->str;
	end = r->str + r->len;
	/* MOVED or ASK */
	at += word_next(&at, end);
	n = word_next(&at, end);
	if (number(at, n, CLUSTER_SLOTS - 1, &slot) < 0)
		return -EINVAL;
	at += n;
	n = word_next(&at, end);
	if (address(at, n, host, ret) < 0)
		return -EINVAL;
	*ret_slot = slot;
	return 0;
}

/* FIRST or FIRST-LAST. Slots that move, in brackets, are left out. Returns how many there are. */
static unsigned slots_take(struct cluster_map *m, uint8_t server, const char *p, size_t n)
{
	const char *dash = memchr(p, '-', n);
	size_t n_first = dash ? (size_t)(dash - p) : n;
	unsigned first, last;

	if (number(p, n_first, CLUSTER_SLOTS - 1, &first) < 0)
		return 0;
	last = first;
	if (dash &&
	    (number(dash + 1, n - n_first - 1, CLUSTER_SLOTS - 1, &last) < 0 || last < first))
		return 0;
	memset(m->of + first, server, last - first + 1);
	return last - first + 1;
}

static void line_take(struct cluster_map *m, const char *p, const char *end, const char *host)
{
	struct directory_host *server = &m->servers[m->n];
	unsigned slots = 0;
	size_t n;

	for (unsigned i = 0; i < FIELDS; i++, p += n) {
		n = word_next(&p, end);
		if (!n || (i == ADDRESS && address(p, n, host, server) < 0))
			return;
	}
	while ((n = word_next(&p, end))) {
		slots += slots_take(m, (uint8_t)(m->n + 1), p, n);
		p += n;
	}
	m->n += slots != 0;
}

int cluster_nodes(const redisReply *r, const char *host, struct cluster_map *ret)
{
	const char *p, *end;

	*ret = (struct cluster_map){ .n = 0 };
	if (r->type != REDIS_REPLY_STRING)
		return -EINVAL;
	end = r->str + r->len;
	for (p = r->str; p < end && ret->n < CLUSTER_SERVERS_MAX; p++) {
		const char *line = memchr(p, '\n', (size_t)(end - p));

		line = line ? line : end;
		line_take(ret, p, line, host);
		p = line;
	}
	return ret->n ? 0 : -EINVAL;
}
