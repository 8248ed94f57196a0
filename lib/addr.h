/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses as text: host:port, or [addr]:port for IPv6. Never resolves names. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

struct dray_addr {
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
		struct sockaddr_storage ss;
	};
	socklen_t len;
};

#define DRAY_ADDR_TEXT_MAX 64
#define DRAY_HOST_MAX 253 /* longest host name */
#define DRAY_HOST_BYTES (DRAY_HOST_MAX + 1)

/* HOST:PORT or [HOST]:PORT into the host, which is not checked, and the port, 0 to 65535. 0 or -EINVAL. */
int dray_host_port_split(const char *s, char host[DRAY_HOST_BYTES], unsigned *ret_port);

/* Numeric address and port. 0, -EINVAL (malformed, zone, port above 65535), -EAFNOSUPPORT (a host name). */
int dray_addr_parse(const char *s, struct dray_addr *ret);

/* "1.2.3.4:5" or "[::1]:5"; buf of at least DRAY_ADDR_TEXT_MAX. Returns buf. */
const char *dray_addr_show(const struct dray_addr *a, char *buf, size_t n);

/* An IPv4 address, or an IPv6 address without brackets and zone; port 0. *ret may be undefined if false. */
bool dray_host_is_address(const char *host, struct dray_addr *ret);
/* A name for a name server, with or without a dot at its end; no address. */
bool dray_host_is_name(const char *host);
/* Writes a key that is the same for names that differ in case only, without terminator. Returns its length. */
size_t dray_host_key(const char *host, char key[static DRAY_HOST_MAX]);

bool dray_addr_is_loopback(const struct dray_addr *a);
bool dray_addr_is_wildcard(const struct dray_addr *a);
bool dray_addr_is_link_local(const struct dray_addr *a);
unsigned dray_addr_port(const struct dray_addr *a);
void dray_addr_set_port(struct dray_addr *a, unsigned port);
/* An IPv4 address as the IPv4-mapped one of IPv6 (RFC 4291, section 2.5.5.2), as in scans of netdetect. */
struct in6_addr dray_addr_in6(const struct dray_addr *a);
/* Whatever their ports are, and whether an IPv4 address is mapped. */
bool dray_addr_same_host(const struct dray_addr *a, const struct dray_addr *b);

/* host:port that other hosts can use: an address that is neither a wildcard nor link-local, or a valid name; port 1 to 65535. */
bool dray_endpoint_valid(const char *s);
