/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/net/socket_count.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"

/* The lines that are read are among the first of their files. */
#define TEXT_BYTES 512

void nd_socket_counter_init(struct nd_socket_counter *c)
{
	c->fd4 = open("/proc/net/sockstat", O_RDONLY | O_CLOEXEC);
	c->fd6 = open("/proc/net/sockstat6", O_RDONLY | O_CLOEXEC);
	c->v6_absent = c->fd6 < 0 && errno == ENOENT;
}

void nd_socket_counter_deinit(struct nd_socket_counter *c)
{
	c->fd4 = dray_close(c->fd4);
	c->fd6 = dray_close(c->fd6);
}

static bool read_count(int fd, const char *line, unsigned *ret)
{
	char text[TEXT_BYTES];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
	const char *found;
	char *end;

	text[n > 0 ? n : 0] = '\0';
	found = strstr(text, line);
	if (!found)
		return false;
	found += strlen(line);
	*ret = (unsigned)strtoul(found, &end, 10);
	return end != found;
}

struct nd_socket_count nd_socket_count_read(const struct nd_socket_counter *c)
{
	struct nd_socket_count now = { .known = true };

	if (!read_count(c->fd4, "TCP: inuse ", &now.v4) ||
	    (!c->v6_absent && !read_count(c->fd6, "TCP6: inuse ", &now.v6)))
		return (struct nd_socket_count){ .known = false };
	return now;
}
