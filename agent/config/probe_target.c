/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/probe_target.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "agent/config/words.h"
#include "lib/addr.h"
#include "lib/cleanup.h"

#define PROBE_NAME_KIND_(name, text) [PROBE_##name] = text,
static const char *const names[] = { PROBE_KINDS(PROBE_NAME_KIND_) };

const char *probe_kind_name(enum probe_kind kind)
{
	return (unsigned)kind < PROBE_KIND_N ? names[kind] : "?";
}

int probe_kind_parse(const char *name, enum probe_kind *ret)
{
	for (unsigned i = 0; i < PROBE_KIND_N; i++) {
		if (!strcmp(name, names[i])) {
			*ret = (enum probe_kind)i;
			return 0;
		}
	}
	return -EINVAL;
}

int probe_target_of(const char *segment, enum probe_kind kind, struct probe_target *ret,
		    struct dray_err *reterr)
{
	struct probe_target t = { .kind = kind };
	unsigned port;

	if (!dray_endpoint_valid(segment) || dray_host_port_split(segment, t.host, &port) < 0)
		return config_invalid(
			reterr,
			"\"%.120s\" cannot be probed: write HOST:PORT, 1.2.3.4:7411 or [2001:db8::1]:7411",
			segment);
	t.port = (uint16_t)port;
	if (kind == PROBE_HTTP)
		t.path[0] = '/';
	*ret = t;
	return 0;
}

/* What may stand in a request line as it is. */
static bool path_valid(const char *path)
{
	for (const char *s = path; *s; s++)
		if (*s <= ' ' || *s > '~' || *s == '#' || *s == '"' || *s == '<' || *s == '>' ||
		    *s == '\\' || *s == '^' || *s == '`' || *s == '{' || *s == '|' || *s == '}')
			return false;
	return true;
}

static int parse_path(const char *text, const char *path, struct probe_target *t,
		      struct dray_err *reterr)
{
	if (!*path)
		return 0;
	if (t->kind != PROBE_HTTP)
		return config_invalid(reterr, "\"%.120s\": only http:// takes a path", text);
	if (strlen(path) > PROBE_PATH_MAX)
		return config_invalid(reterr, "\"%.80s...\": a path has at most %d bytes", text,
				      PROBE_PATH_MAX);
	if (!path_valid(path))
		return config_invalid(
			reterr,
			"\"%.120s\": no blanks, quotes, brackets or # in a path: write them as %%20 and the like",
			text);
	memcpy(t->path, path, strlen(path) + 1);
	return 0;
}

int probe_target_parse(const char *text, struct probe_target *ret, struct dray_err *reterr)
{
	const char *mark = strstr(text, "://"), *rest, *path;
	char kind_name[16], segment[DRAY_HOST_BYTES + 16];
	struct probe_target t;
	enum probe_kind kind;
	size_t n;
	int r;

	n = mark ? (size_t)(mark - text) : 0;
	if (!mark || n >= sizeof(kind_name))
		n = 0;
	memcpy(kind_name, text, n);
	kind_name[n] = '\0';
	if (probe_kind_parse(kind_name, &kind) < 0)
		return config_invalid(
			reterr,
			"\"%.120s\": write tcp://HOST:PORT, dray://HOST:PORT, mooncake://HOST:PORT or http://HOST:PORT/PATH",
			text);
	rest = mark + 3;
	n = strcspn(rest, "/?");
	path = rest + n;
	if (*path == '?')
		return config_invalid(reterr, "\"%.120s\": a path must begin with /", text);
	snprintf(segment, sizeof(segment), "%.*s", (int)dray_min(n, sizeof(segment) - 1), rest);
	r = n < sizeof(segment) ? probe_target_of(segment, kind, &t, reterr) : -EINVAL;
	if (r < 0)
		return config_invalid(reterr, "\"%.120s\": the host is too long", text);
	r = parse_path(text, path, &t, reterr);
	if (r < 0)
		return r;
	*ret = t;
	return 0;
}

const char *probe_target_show(const struct probe_target *t, char *buf, size_t n)
{
	bool v6 = strchr(t->host, ':') != NULL;

	snprintf(buf, n, "%s://%s%s%s:%u%s", probe_kind_name(t->kind), v6 ? "[" : "", t->host,
		 v6 ? "]" : "", t->port, t->path);
	return buf;
}

bool probe_target_equal(const struct probe_target *a, const struct probe_target *b)
{
	return a->kind == b->kind && a->port == b->port && !strcasecmp(a->host, b->host) &&
	       !strcmp(a->path, b->path);
}
