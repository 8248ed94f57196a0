/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/net/dns.h"

#include <ares.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include "agent/placement/net/lack.h"
#include "lib/cleanup.h"
#include "lib/list.h"

#define RESOLV_CONF "/etc/resolv.conf"
/* Each further try waits twice as long. The timeouts of resolv.conf suit people and are too long here. */
#define TIMEOUT_MS 500
#define TRIES 3
#define SHOWN_SERVERS 3
/* longer answers are cut */
#define EXAMINED_MAX 64

struct dns_socket {
	struct dray_list link;
	int fd;
	sd_event_source *io;
};

struct dns {
	sd_event *event;
	ares_channel channel;
	bool made, freeing;
	struct dray_list sockets;
	sd_event_source *timer;
	const char *file;
	bool exists;
	struct stat stat; /* of file, when the channel was made */
	unsigned lookups;
};

struct lookup {
	struct dns *dns;
	dns_fn fn;
	void *arg;
};

/* Arms the timer for the next timeout of c-ares. */
static void arm(struct dns *d)
{
	struct timeval tv, *next = d->lookups ? ares_timeout(d->channel, NULL, &tv) : NULL;
	int on = SD_EVENT_OFF;

	/* rounded up: a wake-up before the timeout would do nothing */
	if (next && sd_event_source_set_time_relative(d->timer, (uint64_t)next->tv_sec * 1000000 +
									(uint64_t)next->tv_usec +
									1000) >= 0)
		on = SD_EVENT_ONESHOT;
	sd_event_source_set_enabled(d->timer, on);
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
	struct dns *d = arg;
	bool failed = revents & (EPOLLERR | EPOLLHUP);

	ares_process_fd(d->channel, failed || (revents & EPOLLIN) ? fd : ARES_SOCKET_BAD,
			failed || (revents & EPOLLOUT) ? fd : ARES_SOCKET_BAD);
	arm(d);
	return 0;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *arg)
{
	struct dns *d = arg;

	ares_process_fd(d->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
	arm(d);
	return 0;
}

static struct dns_socket *socket_find(struct dns *d, int fd)
{
	dray_list_for_each(&d->sockets, s, struct dns_socket, link)
		if (s->fd == fd)
			return s;
	return NULL;
}

static void socket_free(struct dns_socket *s)
{
	dray_list_del(&s->link);
	sd_event_source_disable_unref(s->io);
	free(s);
}

/* Both 0: c-ares is about to close the socket. A socket that cannot be watched looks like a server that does not answer. */
static void on_state(void *arg, ares_socket_t fd, int readable, int writable)
{
	struct dns *d = arg;
	struct dns_socket *s = socket_find(d, fd);
	uint32_t events = (readable ? EPOLLIN : 0U) | (writable ? EPOLLOUT : 0U);

	if (s) {
		if (events)
			sd_event_source_set_io_events(s->io, events);
		else
			socket_free(s);
		return;
	}
	s = events ? calloc(1, sizeof(*s)) : NULL;
	if (!s)
		return;
	s->fd = fd;
	dray_list_add(&d->sockets, &s->link);
	if (sd_event_add_io(d->event, &s->io, fd, events, on_io, d) < 0)
		socket_free(s);
}

/* -errno if this process can open no socket, and no file; c-ares does not tell. */
static int lacks_socket(void)
{
	dray_auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	return fd < 0 && dray_is_own_lack(-errno) ? -errno : 0;
}

static int make_channel(struct dns *d, const char *servers, struct dray_err *reterr)
{
	struct ares_options options = {
		.timeout = TIMEOUT_MS,
		.tries = TRIES,
		.lookups = (char[]){ "fb" }, /* /etc/hosts, then name servers */
		.sock_state_cb = on_state,
		.sock_state_cb_data = d,
	};
	int mask = ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_LOOKUPS | ARES_OPT_SOCK_STATE_CB;
	dray_auto_free char *file = strdup(d->file);
	int status, lack;

#ifdef ARES_OPT_QUERY_CACHE
	/* none: the resolver keeps answers for a shorter time, and c-ares would keep failures, too */
	options.qcache_max_ttl = 0;
	mask |= ARES_OPT_QUERY_CACHE;
#endif
	options.resolvconf_path = file;
	status = file ? ares_init_options(&d->channel, &options, mask | ARES_OPT_RESOLVCONF) :
			ARES_ENOMEM;
	d->made = status == ARES_SUCCESS;
	if (d->made && servers)
		status = ares_set_servers_ports_csv(d->channel, servers);
	if (status == ARES_ENOMEM)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	lack = status == ARES_SUCCESS ? 0 : lacks_socket();
	if (lack)
		return dray_err_set(reterr, lack, net_error_code(lack), "looking up names: %s",
				    dray_errno_text(lack));
	if (status != ARES_SUCCESS)
		return dray_err_set(reterr, -EIO, DRAY_E_IO,
				    "names cannot be looked up by %s: %s; correct that file",
				    servers ? servers : d->file, ares_strerror(status));
	return 0;
}

int dns_new(struct dns **ret, sd_event *event, const char *servers, const char *resolv_conf,
	    struct dray_err *reterr)
{
	struct dns *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	/* c-ares counts these calls */
	ares_library_init(ARES_LIB_INIT_ALL);
	d->event = event;
	d->file = resolv_conf ? resolv_conf : RESOLV_CONF;
	dray_list_init(&d->sockets);
	/* before c-ares reads the file, so that dns_outdated() notices a change in between */
	d->exists = stat(d->file, &d->stat) == 0;
	r = sd_event_add_time_relative(event, &d->timer, CLOCK_MONOTONIC, 0, 1000, on_timer, d);
	if (r >= 0)
		r = sd_event_source_set_enabled(d->timer, SD_EVENT_OFF);
	if (r < 0)
		dray_err_set(reterr, r, DRAY_E_IO, "timer of the resolver: %s", dray_errno_text(r));
	if (r >= 0)
		r = make_channel(d, servers, reterr);
	if (r < 0) {
		dns_free(d);
		return r;
	}
	*ret = d;
	return 0;
}

struct dns *dns_free(struct dns *d)
{
	if (!d)
		return NULL;
	d->freeing = true;
	if (d->made)
		ares_destroy(d->channel);
	ares_library_cleanup();
	dray_list_for_each(&d->sockets, s, struct dns_socket, link)
		socket_free(s);
	sd_event_source_disable_unref(d->timer);
	free(d);
	return NULL;
}

static const char *servers_show(const struct dns *d, char *buf, size_t n)
{
	struct ares_addr_port_node *servers = NULL;
	size_t used = 0;
	unsigned shown = 0;

	*buf = '\0';
	if (ares_get_servers_ports(d->channel, &servers) != ARES_SUCCESS)
		return buf;
	for (struct ares_addr_port_node *s = servers; s && shown < SHOWN_SERVERS && used < n;
	     s = s->next, shown++) {
		char one[INET6_ADDRSTRLEN] = "?";

		inet_ntop(s->family, &s->addr, one, sizeof(one));
		used += (size_t)snprintf(buf + used, n - used, "%s%s", shown ? ", " : "", one);
	}
	ares_free_data(servers);
	return buf;
}

static const char *without_file(const struct dns *d)
{
	return d->exists ? "" : " (used because " RESOLV_CONF " does not exist)";
}

static void reason_set(const struct dns *d, int status, struct dns_answer *a)
{
	char servers[96], *buf = a->reason;
	size_t n = sizeof(a->reason);
	int lack;

	a->code = DRAY_E_PEER_UNREACHABLE;
	switch (status) {
	case ARES_ENOTFOUND:
		snprintf(buf, n, "there is no such name");
		break;
	case ARES_ENODATA:
		snprintf(buf, n, "the name has no address");
		break;
	case ARES_ESERVFAIL:
	case ARES_ENOTIMP:
	case ARES_EREFUSED:
	case ARES_EFORMERR:
		snprintf(buf, n, "name server %s failed: %s",
			 servers_show(d, servers, sizeof(servers)), ares_strerror(status));
		break;
	case ARES_ETIMEOUT:
		a->code = DRAY_E_TIMEOUT;
		snprintf(buf, n, "no name server answers at %s%s",
			 servers_show(d, servers, sizeof(servers)), without_file(d));
		break;
	/* c-ares also reports servers that fail in this way, and that it could open no socket */
	case ARES_ECONNREFUSED:
		lack = lacks_socket();
		if (lack) {
			a->code = net_error_code(lack);
			snprintf(buf, n, "%s", dray_errno_text(lack));
			break;
		}
		snprintf(buf, n, "no name server at %s gives a valid answer%s",
			 servers_show(d, servers, sizeof(servers)), without_file(d));
		break;
	default:
		if (status == ARES_ENOMEM)
			a->code = DRAY_E_NO_MEMORY;
		snprintf(buf, n, "%s", ares_strerror(status));
	}
}

static bool has_route(const struct dray_addr *a)
{
	dray_auto_close int fd =
		socket(a->sa.sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct dray_addr to = *a;

	/* connecting a datagram socket sends nothing */
	dray_addr_set_port(&to, 9);
	return fd >= 0 && connect(fd, &to.sa, to.len) == 0;
}

/* IPv4 first, as for GIDs: servers listen on it more often. Addresses without a route come last. */
static unsigned rank(const struct dray_addr *a)
{
	return (has_route(a) ? 0U : 2U) + (a->sa.sa_family == AF_INET6);
}

static void sort(struct dns_answer *a, struct dray_addr *found, unsigned n)
{
	unsigned ranks[2 * DNS_ADDRS_MAX];

	for (unsigned i = 0; i < n; i++)
		ranks[i] = rank(&found[i]);
	for (unsigned r = 0; r < 4; r++)
		for (unsigned i = 0; i < n && a->n < DNS_ADDRS_MAX; i++)
			if (ranks[i] == r)
				a->addrs[a->n++] = found[i];
}

static bool addr_known(const struct dray_addr *found, unsigned n, const struct dray_addr *a)
{
	for (unsigned i = 0; i < n; i++)
		if (found[i].len == a->len && !memcmp(&found[i].ss, &a->ss, a->len))
			return true;
	return false;
}

/* Collects DNS_ADDRS_MAX addresses of each family at most, so that neither family crowds out the other. */
static void collect(struct dns_answer *a, const struct ares_addrinfo *info)
{
	struct dray_addr found[2 * DNS_ADDRS_MAX];
	unsigned n[2] = { 0, 0 }, all = 0, examined = 0;

	for (const struct ares_addrinfo_node *i = info->nodes; i && examined < EXAMINED_MAX;
	     i = i->ai_next, examined++) {
		bool v6 = i->ai_family == AF_INET6;
		struct dray_addr one = { .len = v6 ? sizeof(one.in6) : sizeof(one.in) };

		if ((!v6 && i->ai_family != AF_INET) || i->ai_addrlen < one.len ||
		    n[v6] == DNS_ADDRS_MAX)
			continue;
		memcpy(&one.ss, i->ai_addr, one.len);
		dray_addr_set_port(&one, 0);
		if (addr_known(found, all, &one))
			continue;
		a->ttl_s = all ? dray_min(a->ttl_s, i->ai_ttl) : i->ai_ttl;
		found[all++] = one;
		n[v6]++;
	}
	sort(a, found, all);
}

static void on_answer(void *arg, int status, int timeouts, struct ares_addrinfo *info)
{
	struct lookup *l = arg;
	struct dns_answer a = { .code = 0 };

	l->dns->lookups--;
	if (status == ARES_SUCCESS && info && !l->dns->freeing)
		collect(&a, info);
	if (!a.n)
		reason_set(l->dns, status == ARES_SUCCESS ? ARES_ENODATA : status, &a);
	if (info)
		ares_freeaddrinfo(info);
	if (!l->dns->freeing)
		l->fn(l->arg, &a);
	free(l);
}

void dns_lookup(struct dns *d, const char *host, dns_fn fn, void *arg)
{
	/* c-ares would look up a route for each address of a reply, and their number is unbounded */
	const struct ares_addrinfo_hints hints = { .ai_family = AF_UNSPEC,
						   .ai_socktype = SOCK_STREAM,
						   .ai_flags = ARES_AI_NOSORT };
	struct lookup *l = malloc(sizeof(*l));
	struct dns_answer failure = { .code = 0 };

	if (!l) {
		reason_set(d, ARES_ENOMEM, &failure);
		fn(arg, &failure);
		return;
	}
	*l = (struct lookup){ d, fn, arg };
	d->lookups++;
	ares_getaddrinfo(d->channel, host, NULL, &hints, on_answer, l);
	arm(d);
}

bool dns_outdated(const struct dns *d)
{
	struct stat now;
	bool exists = stat(d->file, &now) == 0;

	if (exists != d->exists)
		return true;
	return exists &&
	       (now.st_dev != d->stat.st_dev || now.st_ino != d->stat.st_ino ||
		now.st_size != d->stat.st_size || now.st_mtim.tv_sec != d->stat.st_mtim.tv_sec ||
		now.st_mtim.tv_nsec != d->stat.st_mtim.tv_nsec);
}
