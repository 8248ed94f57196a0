/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/mooncake/descriptor_read.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/plain.h"
#include "schema/gen/errors.h"

/* Each import keeps those of its engine. */
#define BUFFERS_MAX 8192u
/* The version of the data protocol with a status, at least. */
#define VERSION_WITH_STATUS 2

static int bad(struct dray_err *reterr, const char *what)
{
	return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
			    "what Mooncake's engine says about its segment %s", what);
}

/* An integer in [min, max], or `missing` if the key is absent. */
static int get_integer(const json_t *o, const char *key, json_int_t missing, json_int_t min,
		       json_int_t max, json_int_t *ret)
{
	const json_t *v = json_object_get(o, key);

	*ret = v ? json_integer_value(v) : missing;
	if (v && !json_is_integer(v))
		return -EPROTO;
	return *ret < min || *ret > max ? -EPROTO : 0;
}

static int compare(const void *pa, const void *pb)
{
	const struct mooncake_buffer *a = pa, *b = pb;

	return (a->start > b->start) - (a->start < b->start);
}

/* Sorts the buffers, and cuts off what an earlier one has already. */
static void sort(struct mooncake_buffers *b)
{
	uint64_t end = 0;
	uint32_t k = 0;

	qsort(b->v, b->n, sizeof(b->v[0]), compare);
	for (uint32_t i = 0; i < b->n; i++) {
		struct mooncake_buffer x = b->v[i];

		x.start = dray_max(x.start, end);
		if (x.start >= x.end)
			continue;
		end = x.end;
		b->v[k++] = x;
	}
	b->n = k;
}

static int read_buffers(const json_t *array, struct mooncake_buffers **ret, struct dray_err *reterr)
{
	size_t n = json_array_size(array);
	dray_auto_free struct mooncake_buffers *b = NULL;

	if (!json_is_array(array))
		return bad(reterr, "has no list of buffers");
	if (!n)
		return dray_err_set(
			reterr, -ENOENT, DRAY_E_NOT_FOUND,
			"Mooncake's engine has no registered memory; import its segment when it has");
	if (n > BUFFERS_MAX)
		return dray_err_set(reterr, -E2BIG, DRAY_E_TOO_LARGE,
				    "Mooncake's engine has %zu buffers, and an import has at most "
				    "%u; register its memory in larger ranges",
				    n, BUFFERS_MAX);
	b = calloc(1, sizeof(*b) + n * sizeof(b->v[0]));
	if (!b)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for %zu buffers",
				    n);
	for (size_t i = 0; i < n; i++) {
		const json_t *o = json_array_get(array, i);
		json_int_t addr, length;

		if (!json_is_object(o) || get_integer(o, "addr", 0, 1, INT64_MAX, &addr) < 0 ||
		    get_integer(o, "length", 0, 1, INT64_MAX - addr, &length) < 0)
			return bad(reterr, "has a buffer with an impossible address or length");
		b->v[b->n++] = (struct mooncake_buffer){ (uint64_t)addr,
							 (uint64_t)addr + (uint64_t)length };
	}
	sort(b);
	*ret = dray_take(b);
	return 0;
}

/* What is no text, or is longer, is none. 0 or -EPROTO. */
static int get_text(const json_t *o, const char *key, char *ret, size_t n)
{
	const json_t *v = json_object_get(o, key);
	const char *text = json_string_value(v);

	if (!text || strlen(text) != json_string_length(v) || strlen(text) >= n)
		return -EPROTO;
	snprintf(ret, n, "%s", text);
	return 0;
}

static int host_check(const char *host, struct dray_err *reterr)
{
	struct dray_addr a;

	if (!dray_host_is_address(host, &a))
		return dray_host_is_name(host) ? 0 :
						 bad(reterr, "has a name that is no host and port");
	if (dray_addr_is_wildcard(&a))
		return dray_err_set(
			reterr, -EADDRNOTAVAIL, DRAY_E_PEER_UNREACHABLE,
			"Mooncake's engine names itself %s, which other hosts cannot reach; give "
			"its initialize() the address of its host",
			host);
	return 0;
}

int mooncake_name_host(const char *name, char ret[static DRAY_HOST_BYTES], struct dray_err *reterr)
{
	struct dray_addr a;
	unsigned port;

	/* a port is usual but not needed; an address with colons has none */
	if (dray_host_port_split(name, ret, &port) < 0 || dray_host_is_address(name, &a)) {
		if (strlen(name) >= DRAY_HOST_BYTES)
			return bad(reterr, "has a name that is no host and port");
		snprintf(ret, DRAY_HOST_BYTES, "%s", name);
	}
	return host_check(ret, reterr);
}

int mooncake_address_read(const char *text, size_t n, char ret[static DRAY_HOST_BYTES],
			  struct dray_err *reterr)
{
	dray_auto(json_decref) json_t *o = NULL;
	char host[MOONCAKE_NAME_BYTES];
	json_error_t error;

	o = json_loadb(text, n, JSON_DISABLE_EOF_CHECK, &error);
	if (get_text(o, "ip_or_host_name", host, sizeof(host)) < 0)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				    "what the metadata server has as the address of Mooncake's "
				    "engine is none; start the engine again");
	return mooncake_name_host(host, ret, reterr);
}

int mooncake_descriptor_read(const char *text, size_t n, struct mooncake_descriptor *ret,
			     struct dray_err *reterr)
{
	dray_auto(json_decref) json_t *o = NULL;
	json_error_t error;
	const char *protocol;
	char shown[20];
	json_int_t port, version;
	int r;

	*ret = (struct mooncake_descriptor){ .port = 0 };
	o = json_loadb(text, n, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, &error);
	if (!o)
		return bad(reterr, "is not JSON");
	if (json_is_null(o))
		return dray_err_set(
			reterr, -ENOENT, DRAY_E_NOT_FOUND,
			"Mooncake's engine has no segment yet; import it when the engine is initialized");
	protocol = json_string_value(json_object_get(o, "protocol"));
	if (!protocol)
		return bad(reterr, "names no protocol");
	if (strcmp(protocol, "tcp") != 0) {
		dray_plain(shown, sizeof(shown), protocol, strlen(protocol));
		return dray_err_set(
			reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
			"Mooncake's engine uses the protocol \"%s\", and this agent reaches only those "
			"with tcp; initialize() it with protocol tcp",
			shown);
	}
	if (get_integer(o, "tcp_data_port", 0, 1, UINT16_MAX, &port) < 0)
		return bad(reterr, "has no port for data; engines before 0.3.5 are not supported");
	if (get_integer(o, "tcp_proto_version", 1, 0, INT32_MAX, &version) < 0)
		return bad(reterr, "has an impossible version of the data protocol");
	if (get_text(o, "name", ret->name, sizeof(ret->name)) < 0)
		return bad(reterr, "has no name, or one that is too long");
	r = read_buffers(json_object_get(o, "buffers"), &ret->buffers, reterr);
	if (r < 0)
		return r;
	ret->port = (unsigned)port;
	ret->with_status = version >= VERSION_WITH_STATUS;
	return 0;
}
