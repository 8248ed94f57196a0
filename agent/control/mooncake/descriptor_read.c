/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/mooncake/descriptor_read.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/mooncake/gid.h"
#include "lib/cleanup.h"
#include "lib/plain.h"
#include "schema/gen/errors.h"

/* Each import keeps those of its engine. */
#define BUFFERS_MAX 8192u
/* Keys of an import, one for each buffer and device: with more buffers fewer devices are used. */
#define KEYS_MAX 16384u
/* Devices that are looked at, whether they work or not: each one costs a walk over the names in the matrix. */
#define LISTED_MAX 64u
/*
 * Parts of the matrix: places, lists and names. An engine has a place for each GPU and NUMA node, with two lists that have each of
 * its devices once.
 */
#define MATRIX_MAX 4096u
/*
 * Objects and lists, and commas between values: more than buffers with two lists of keys each, and the matrix, need. An empty object
 * takes a hundred times its text in memory.
 */
#define LISTS_MAX (4 * BUFFERS_MAX + MATRIX_MAX)
#define COMMAS_MAX (3u << 16)
_Static_assert(KEYS_MAX >= BUFFERS_MAX, "at least one device is used");
/* The version of the data protocol with a status, at least. */
#define VERSION_WITH_STATUS 2

bool mooncake_name_is_plain(const char *text)
{
	for (; *text; text++)
		if (*text <= ' ' || *text > '~' || *text == '"' || *text == '\\')
			return false;
	return true;
}

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

/* A buffer of the description. */
struct described {
	uint64_t start, end;
	const json_t *keys; /* over RDMA: of each device */
};

static int compare(const void *pa, const void *pb)
{
	const struct described *a = pa, *b = pb;

	return (a->start > b->start) - (a->start < b->start);
}

/* Sorts the buffers, and cuts off what an earlier one has already. Returns how many are left. */
static uint32_t sort(struct described *v, uint32_t n)
{
	uint64_t end = 0;
	uint32_t k = 0;

	qsort(v, n, sizeof(v[0]), compare);
	for (uint32_t i = 0; i < n; i++) {
		struct described x = v[i];

		x.start = dray_max(x.start, end);
		if (x.start >= x.end)
			continue;
		end = x.end;
		v[k++] = x;
	}
	return k;
}

static int take_buffers(const struct described *v, uint32_t n, struct mooncake_buffers **ret,
			struct dray_err *reterr)
{
	dray_auto_free struct mooncake_buffer *b = malloc(n * sizeof(*b));

	if (!b)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for %u buffers",
				    n);
	for (uint32_t i = 0; i < n; i++)
		b[i] = (struct mooncake_buffer){ v[i].start, v[i].end };
	return mooncake_buffers_new(ret, b, n, reterr);
}

/* columns: where each of the devices is in the description. 0, -ENOMEM or -EPROTO. */
static int take_keys(const struct described *v, uint32_t n, const uint32_t *columns,
		     unsigned n_devices, struct rail_keys **ret)
{
	struct dray_vec records = { .n = 0 };
	uint8_t *wire dray_auto_free = malloc((size_t)n * n_devices * PMSG_RAIL_SIZE);

	if (!wire)
		return -ENOMEM;
	for (unsigned d = 0; d < n_devices; d++)
		for (uint32_t i = 0; i < n; i++) {
			const json_t *key = json_array_get(v[i].keys, columns[d]);

			if (!json_is_integer(key) || json_integer_value(key) < 0 ||
			    json_integer_value(key) > UINT32_MAX)
				return -EPROTO;
			pmsg_rail_put(
				wire + (size_t)records.n++ * PMSG_RAIL_SIZE,
				&(struct pmsg_rail){ .rail = d,
						     .rkey = (uint32_t)json_integer_value(key),
						     .base = v[i].start,
						     .offset = v[i].start,
						     .length = v[i].end - v[i].start });
		}
	records.p = wire;
	*ret = rail_keys_read_parts(&records);
	return *ret ? 0 : -ENOMEM;
}

static int read_buffers(const json_t *array, struct mooncake_descriptor *d, const uint32_t *columns,
			struct dray_err *reterr)
{
	size_t n = json_array_size(array);
	struct described *v dray_auto_free = NULL;
	uint32_t k = 0;
	int r;

	if (!json_is_array(array))
		return bad(reterr, "has no list of buffers");
	if (n > BUFFERS_MAX)
		return dray_err_set(reterr, -E2BIG, DRAY_E_TOO_LARGE,
				    "Mooncake's engine has %zu buffers, and an import has at most "
				    "%u; register its memory in larger ranges",
				    n, BUFFERS_MAX);
	v = calloc(n + 1, sizeof(*v));
	if (!v)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for %zu buffers",
				    n);
	for (size_t i = 0; i < n; i++) {
		const json_t *o = json_array_get(array, i);
		const json_t *keys = json_object_get(o, "rkey");
		json_int_t addr, length;

		if (!json_is_object(o) || get_integer(o, "addr", 0, 1, INT64_MAX, &addr) < 0 ||
		    get_integer(o, "length", 0, 1, INT64_MAX - addr, &length) < 0)
			return bad(reterr, "has a buffer with an impossible address or length");
		/* without keys it is for the engine itself */
		if (!d->rdma || json_array_size(keys))
			v[k++] = (struct described){ (uint64_t)addr,
						     (uint64_t)addr + (uint64_t)length, keys };
	}
	if (!k)
		return dray_err_set(
			reterr, -ENOENT, DRAY_E_NOT_FOUND,
			"Mooncake's engine has no registered memory; import its segment when it has");
	k = sort(v, k);
	d->partial |= d->rdma && d->n_devices > KEYS_MAX / k;
	d->n_devices = dray_min(d->n_devices, KEYS_MAX / k);
	r = take_buffers(v, k, &d->buffers, reterr);
	if (r == 0 && d->rdma)
		r = take_keys(v, k, columns, d->n_devices, &d->keys);
	if (r == -EPROTO)
		return bad(reterr, "has a buffer without a key for each device");
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for %u buffers", k) : 0;
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

/* NULL: it is no JSON, or has so many values that it would hold up the thread. */
static json_t *read_json(const char *text, size_t n, size_t flags)
{
	uint32_t lists = 0, commas = 0;
	json_error_t error;

	for (size_t i = 0; i < n; i++) {
		lists += text[i] == '{' || text[i] == '[';
		commas += text[i] == ',';
	}
	if (lists > LISTS_MAX || commas > COMMAS_MAX)
		return NULL;
	return json_loadb(text, n, flags | JSON_DISABLE_EOF_CHECK, &error);
}

int mooncake_address_read(const char *text, size_t n, char ret_host[static DRAY_HOST_BYTES],
			  unsigned *ret_port, struct dray_err *reterr)
{
	dray_auto(json_decref) json_t *o = NULL;
	char host[MOONCAKE_NAME_BYTES];
	json_int_t port;

	o = read_json(text, n, 0);
	*ret_port = get_integer(o, "rpc_port", 0, 1, UINT16_MAX, &port) < 0 ? 0 : (unsigned)port;
	if (get_text(o, "ip_or_host_name", host, sizeof(host)) < 0)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				    "what the metadata server has as the address of Mooncake's "
				    "engine is none; start the engine again");
	return mooncake_name_host(host, ret_host, reterr);
}

void mooncake_descriptor_clear(struct mooncake_descriptor *d)
{
	d->buffers = mooncake_buffers_unref(d->buffers);
	d->keys = rail_keys_unref(d->keys);
}

static bool has_name(const json_t *rows, const char *device)
{
	for (size_t i = 0; i < json_array_size(rows); i++)
		for (size_t k = 0; k < json_array_size(json_array_get(rows, i)); k++) {
			const char *name =
				json_string_value(json_array_get(json_array_get(rows, i), k));

			if (name && !strcmp(name, device))
				return true;
		}
	return false;
}

/* How many parts the matrix has; if more than MATRIX_MAX, not exactly. */
static size_t count_parts(json_t *matrix)
{
	size_t n = 0;
	const char *key;
	json_t *rows;

	json_object_foreach(matrix, key, rows)
	{
		n += 1 + json_array_size(rows);
		for (size_t i = 0; n <= MATRIX_MAX && i < json_array_size(rows); i++)
			n += json_array_size(json_array_get(rows, i));
		if (n > MATRIX_MAX)
			break;
	}
	return n;
}

/* The matrix names the devices that work; an engine keeps others in its list. */
static bool is_in(json_t *matrix, const char *device)
{
	const char *key;
	json_t *rows;

	if (!json_object_size(matrix))
		return true;
	json_object_foreach(matrix, key, rows) if (has_name(rows, device)) return true;
	return false;
}

/* ret_columns: where each device that is used is in the description. */
static int read_devices(const json_t *o, struct mooncake_descriptor *d,
			uint32_t ret_columns[static MOONCAKE_DEVICES_MAX], struct dray_err *reterr)
{
	static const struct in6_addr none;
	const json_t *list = json_object_get(o, "devices");
	json_t *matrix = json_object_get(o, "priority_matrix");
	char gid[MOONCAKE_GID_TEXT];

	if (json_array_size(list) > LISTED_MAX)
		return bad(reterr, "has too many devices");
	if (count_parts(matrix) > MATRIX_MAX)
		return bad(reterr, "has too many names of devices in its priority_matrix");
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *device = json_array_get(list, i);
		struct mooncake_device x;
		json_int_t lid;

		if (get_text(device, "name", x.name, sizeof(x.name)) < 0 || !*x.name ||
		    !mooncake_name_is_plain(x.name) ||
		    get_text(device, "gid", gid, sizeof(gid)) < 0 ||
		    mooncake_gid_parse(gid, &x.gid) < 0 ||
		    get_integer(device, "lid", 0, 0, UINT16_MAX, &lid) < 0)
			return bad(reterr, "has a device with an impossible name, GID or LID");
		x.lid = (uint16_t)lid;
		if (memcmp(&x.gid, &none, sizeof(none)) == 0 || !is_in(matrix, x.name))
			continue;
		if (d->n_devices == MOONCAKE_DEVICES_MAX) {
			d->partial = true;
			break;
		}
		d->devices[d->n_devices] = x;
		ret_columns[d->n_devices++] = (uint32_t)i;
	}
	return d->n_devices ? 0 : bad(reterr, "has no device that works");
}

static int read_rdma(const json_t *o, struct mooncake_descriptor *d,
		     uint32_t ret_columns[static MOONCAKE_DEVICES_MAX], struct dray_err *reterr)
{
	if (get_text(o, "rdma_server_name", d->server, sizeof(d->server)) < 0 || !*d->server)
		memcpy(d->server, d->name, sizeof(d->server));
	if (!mooncake_name_is_plain(d->server))
		return bad(reterr, "has a name that is no host and port");
	return read_devices(o, d, ret_columns, reterr);
}

static int read_tcp(const json_t *o, struct mooncake_descriptor *d, struct dray_err *reterr)
{
	json_int_t port, version;

	if (get_integer(o, "tcp_data_port", 0, 1, UINT16_MAX, &port) < 0)
		return bad(reterr, "has no port for data; engines before 0.3.5 are not supported");
	if (get_integer(o, "tcp_proto_version", 1, 0, INT32_MAX, &version) < 0)
		return bad(reterr, "has an impossible version of the data protocol");
	d->port = (unsigned)port;
	d->with_status = version >= VERSION_WITH_STATUS;
	return 0;
}

/* Sets d->rdma. */
static int read_protocol(const json_t *o, struct mooncake_descriptor *d, struct dray_err *reterr)
{
	const char *protocol = json_string_value(json_object_get(o, "protocol"));
	char shown[20];

	if (!protocol)
		return bad(reterr, "names no protocol");
	d->rdma = !strcmp(protocol, "rdma");
	if (d->rdma || !strcmp(protocol, "tcp"))
		return 0;
	dray_plain(shown, sizeof(shown), protocol, strlen(protocol));
	return dray_err_set(
		reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
		"Mooncake's engine uses the protocol \"%s\", and this agent reaches only those with "
		"tcp or rdma; initialize() it with one of them",
		shown);
}

static int read_all(const json_t *o, struct mooncake_descriptor *d, struct dray_err *reterr)
{
	uint32_t columns[MOONCAKE_DEVICES_MAX];
	int r = read_protocol(o, d, reterr);

	if (r < 0)
		return r;
	if (get_text(o, "name", d->name, sizeof(d->name)) < 0)
		return bad(reterr, "has no name, or one that is too long");
	r = d->rdma ? read_rdma(o, d, columns, reterr) : read_tcp(o, d, reterr);
	return r < 0 ? r : read_buffers(json_object_get(o, "buffers"), d, columns, reterr);
}

int mooncake_descriptor_read(const char *text, size_t n, struct mooncake_descriptor *ret,
			     struct dray_err *reterr)
{
	dray_auto(json_decref) json_t *o = NULL;
	int r;

	*ret = (struct mooncake_descriptor){ .port = 0 };
	o = read_json(text, n, JSON_DECODE_ANY);
	if (!o)
		return bad(reterr, "is not JSON, or has more values than its buffers need");
	if (json_is_null(o))
		return dray_err_set(
			reterr, -ENOENT, DRAY_E_NOT_FOUND,
			"Mooncake's engine has no segment yet; import it when the engine is initialized");
	r = read_all(o, ret, reterr);
	if (r < 0)
		mooncake_descriptor_clear(ret);
	return r;
}
