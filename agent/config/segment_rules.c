/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/segment_rules.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/config/http_url.h"
#include "agent/config/words.h"
#include "lib/cleanup.h"
#include "lib/units.h"

#define MASTER_PATH_MAX 200

/* Splits a word at its first blanks. */
static int halves(const char *word, char *first, size_t n, const char **ret_second)
{
	size_t length = strcspn(word, WORD_BLANKS);

	if (length >= n)
		return -EINVAL;
	memcpy(first, word, length);
	first[length] = '\0';
	*ret_second = word + length + strspn(word + length, WORD_BLANKS);
	return 0;
}

/* --- segment.known ------------------------------------------------------------------------------- */

int known_rule_parse(const char *word, struct known_rule *ret, struct dray_err *reterr)
{
	struct known_rule r = { .segment = "" };
	enum probe_kind kind = PROBE_TCP;
	const char *how;
	int err;

	if (halves(word, r.segment, sizeof(r.segment), &how) < 0 || !dray_endpoint_valid(r.segment))
		return config_invalid(
			reterr,
			"\"%.100s\" is not a segment: write HOST:PORT, such as 10.0.0.5:50053, "
			"then optionally a blank and how to probe it",
			word);
	if (*how && !strstr(how, "://") && (probe_kind_parse(how, &kind) < 0 || kind == PROBE_HTTP))
		return config_invalid(
			reterr,
			"\"%.100s\": \"%.60s\" is not a kind of probe (allowed: tcp, dray, mooncake, "
			"or a URL such as http://10.0.0.5:9300/health)",
			word, how);
	err = strstr(how, "://") ? probe_target_parse(how, &r.target, reterr) :
				   probe_target_of(r.segment, kind, &r.target, reterr);
	if (err < 0)
		return err;
	*ret = r;
	return 0;
}

/* --- segment.local ------------------------------------------------------------------------------- */

int local_rule_parse(const char *word, struct local_rule *ret, struct dray_err *reterr)
{
	struct local_rule r = { .host = "" };
	char text[DRAY_HOST_BYTES + 16];
	struct in6_addr bare;
	bool number;

	if (dray_host_port_split(word, r.host, &r.port) < 0 ||
	    inet_pton(AF_INET6, word, &bare) == 1) {
		r.port = 0;
		snprintf(r.host, sizeof(r.host), "%s", word);
	}
	number = inet_pton(AF_INET6, r.host, &bare) == 1;
	snprintf(text, sizeof(text), number ? "[%s]:%u" : "%s:%u", r.host, r.port ? r.port : 1);
	if (strlen(word) >= DRAY_HOST_BYTES || !dray_endpoint_valid(text))
		return config_invalid(reterr,
				      "\"%.100s\" is not a host: write HOST or HOST:PORT, such as "
				      "203.0.113.7 or 203.0.113.7:50053",
				      word);
	if (dray_addr_parse(text, &r.addr) < 0)
		r.addr.len = 0;
	*ret = r;
	return 0;
}

/* --- segment.ports ------------------------------------------------------------------------------- */

static bool take_port(const char **s, unsigned *ret)
{
	unsigned v = 0;
	const char *p = *s;

	for (; *p >= '0' && *p <= '9' && v <= UINT16_MAX; p++)
		v = v * 10 + (unsigned)(*p - '0');
	if (p == *s || v == 0 || v > UINT16_MAX)
		return false;
	*ret = v;
	*s = p;
	return true;
}

static bool take_ports(const char *s, struct port_rule *r)
{
	if (!take_port(&s, &r->first))
		return false;
	r->last = r->first;
	if (*s == '-') {
		s++;
		if (!take_port(&s, &r->last) || r->last < r->first)
			return false;
	}
	if (*s == ':') {
		s++;
		/* several listeners cannot all stand for one segment */
		if (!take_port(&s, &r->segment_port) || r->first != r->last)
			return false;
	}
	return !*s;
}

int port_rule_parse(const char *word, struct port_rule *ret, struct dray_err *reterr)
{
	struct port_rule r = { .kind = PROBE_TCP };
	char ports[32];
	const char *how;

	if (halves(word, ports, sizeof(ports), &how) < 0 || !take_ports(ports, &r))
		return config_invalid(reterr,
				      "\"%.80s\" is not a port: write PORT, FIRST-LAST or "
				      "PORT:SEGMENT_PORT, and after a blank tcp, dray or mooncake",
				      word);
	if (*how && (probe_kind_parse(how, &r.kind) < 0 || r.kind == PROBE_HTTP))
		return config_invalid(
			reterr,
			"\"%.80s\": \"%.40s\" is not a kind of probe of a listener (allowed: tcp, "
			"dray, mooncake)",
			word, how);
	*ret = r;
	return 0;
}

/* --- segment.preferred --------------------------------------------------------------------------- */

const char *preferred_of_config(const struct dray_config *cfg)
{
	return strcmp(cfg->segment.preferred, "auto") ? cfg->segment.preferred : NULL;
}

bool preferred_is_own(const char *text)
{
	return !strcmp(text, "local") || !strcmp(text, "self") || !strcmp(text, "own");
}

int preferred_check(const char *text, struct dray_err *reterr)
{
	if (!text[strspn(text, WORD_BLANKS)])
		return config_invalid(reterr,
				      "it is blank: give HOST:PORT, or local for this node's own "
				      "segment, or leave it out");
	if (preferred_is_own(text) || dray_endpoint_valid(text))
		return 0;
	return config_invalid(
		reterr,
		"\"%.100s\" is not a segment: write HOST:PORT, such as 10.0.0.5:50053 or "
		"[2001:db8::1]:50053, or local, self or own for this node's own",
		text);
}

/* --- checks -------------------------------------------------------------------------------------- */

int master_check(const char *text, struct dray_err *reterr)
{
	struct http_url url;

	if (http_url_parse(text, &url, reterr) < 0)
		return -EINVAL;
	if (strchr(url.target, '?') || strlen(url.target) > MASTER_PATH_MAX)
		return config_invalid(reterr, "\"%.120s\" is not a master: write http://HOST:PORT",
				      text);
	return 0;
}

int master_rpc_check(const char *text, struct dray_err *reterr)
{
	const char *p = text;

	while (*p > ' ' && *p <= '~')
		p++;
	if (*text && !*p)
		return 0;
	return config_invalid(reterr,
			      "\"%.100s\" is not the address of a master: write HOST:PORT, or "
			      "another form that its clients take, without blanks",
			      text);
}

const char *rules_preferred_variable(const char *value, struct dray_err *reterr)
{
	return value && preferred_check(value, reterr) == 0 ? value : NULL;
}

const char *rules_master_variable(const char *value, struct dray_err *reterr)
{
	return value && master_check(value, reterr) == 0 ? value : NULL;
}

const char *rules_master_rpc_variable(const char *value, struct dray_err *reterr)
{
	return value && master_rpc_check(value, reterr) == 0 ? value : NULL;
}
