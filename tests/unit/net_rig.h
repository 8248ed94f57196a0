/* SPDX-License-Identifier: Apache-2.0 */
/* A name server and an HTTP server in the test's event loop, over real loopback sockets. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/time.h"

/* Runs the loop until cond holds; false after a generous limit. */
#define NET_LIMIT_MS 20000
#define net_until(event, cond)                                                  \
	({                                                                      \
		int64_t end_ = dray_now().ns + NET_LIMIT_MS * DRAY_NS_PER_MS;   \
		bool holds_;                                                    \
		while (!(holds_ = (cond)) && dray_now().ns < end_ &&            \
		       sd_event_run(event, (uint64_t)NET_LIMIT_MS * 1000) >= 0) \
			;                                                       \
		holds_;                                                         \
	})

/* --- names ---------------------------------------------------------------------------------------- */

enum dns_how { DNS_ANSWER, DNS_SILENT, DNS_GARBAGE, DNS_SHORT };

struct dns_entry {
	const char *name;
	const char *v4[24], *v6[24];
	int rcode; /* 2 SERVFAIL, 3 NXDOMAIN, 5 REFUSED */
	enum dns_how how;
	unsigned asked; /* questions; A and AAAA count separately */
};

/* Answers from the table, which ends with a NULL name; answers NXDOMAIN for other names. */
struct dns_server;
struct dns_server *dns_server_new(sd_event *event, struct dns_entry *table);
struct dns_server *dns_server_free(struct dns_server *s);
/* "127.0.0.1:PORT" */
const char *dns_server_text(const struct dns_server *s);

/* --- pages ---------------------------------------------------------------------------------------- */

enum page_end { PAGE_CLOSE, PAGE_HOLD, PAGE_RESET, PAGE_REPEAT };

struct page_reply {
	const char *bytes;
	size_t n;
	size_t first, piece; /* bytes of the first write, and of each further one; 0: all */
	unsigned pause_us;   /* between the writes */
	/* what follows; PAGE_REPEAT: the reply from its beginning, without end */
	enum page_end end;
	bool unread; /* reply before the request is read */
};

/* request: the whole head of the request */
typedef void (*page_fn)(void *arg, const char *request, struct page_reply *ret);

struct page_server;
/* v6: listen on [::1] instead of 127.0.0.1. port: 0 for any */
struct page_server *page_server_new(sd_event *event, bool v6, unsigned port, page_fn fn, void *arg);
struct page_server *page_server_free(struct page_server *s);
unsigned page_server_port(const struct page_server *s);
/* Connections in total, and open ones. */
unsigned page_server_accepted(const struct page_server *s);
unsigned page_server_open(const struct page_server *s);
