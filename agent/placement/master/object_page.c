/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/master/object.h"
#include "lib/addr.h"
#include "lib/array.h"
#include "schema/gen/errors.h"

/* An object has one for each of its copies; before 0.3.8 one for each piece of them. */
#define REPLICAS_MAX 1024u
#define WORD_MAX 47

void master_object_deinit(struct master_object *o)
{
	free(o->v);
	*o = MASTER_OBJECT_NULL;
}

static int no_memory(struct dray_err *reterr)
{
	return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
}

static int wrong(size_t i, const char *member, const char *what, struct dray_err *reterr)
{
	return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL, "replica %zu: %s is %s", i, member,
			    what);
}

static bool is_word(const char *s)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789_-";

	return *s && strlen(s) <= WORD_MAX && strspn(s, allowed) == strlen(s);
}

static int take_number(const json_t *object, size_t i, const char *member, uint64_t *ret,
		       struct dray_err *reterr)
{
	const json_t *v = json_object_get(object, member);

	if (!json_is_integer(v) || json_integer_value(v) <= 0)
		return wrong(i, member, v ? "not a whole number above zero" : "missing", reterr);
	*ret = (uint64_t)json_integer_value(v);
	return 0;
}

static int take_replica(const json_t *v, struct master_object *ret, struct dray_err *reterr)
{
	const json_t *segment = json_object_get(v, "transport_endpoint_");
	const json_t *protocol = json_object_get(v, "protocol_"); /* since 0.3.9 */
	struct master_replica r = { .address = 0 };

	if (!json_is_object(v))
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				    "replica %zu is not an object", ret->n);
	if (take_number(v, ret->n, "size_", &r.length, reterr) < 0 ||
	    take_number(v, ret->n, "buffer_address_", &r.address, reterr) < 0)
		return -EPROTO;
	if (r.length > (uint64_t)INT64_MAX - r.address)
		return wrong(ret->n, "size_", "too large for its address", reterr);
	if (!json_is_string(segment) || !dray_endpoint_valid(json_string_value(segment)))
		return wrong(ret->n, "transport_endpoint_", "not HOST:PORT", reterr);
	if (protocol && !json_is_null(protocol) && !json_is_string(protocol))
		return wrong(ret->n, "protocol_", "not a string", reterr);
	if (ret->n == REPLICAS_MAX)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL, "more than %u replicas",
				    REPLICAS_MAX);
	snprintf(r.segment, sizeof(r.segment), "%s", json_string_value(segment));
	if (json_is_string(protocol) && is_word(json_string_value(protocol)))
		snprintf(r.protocol, sizeof(r.protocol), "%s", json_string_value(protocol));
	return DRAY_APPEND(ret->v, ret->n, r) < 0 ? no_memory(reterr) : 0;
}

/* Parses the value at the start of the text. NULL with reterr. */
static json_t *take_value(const char *p, size_t n, size_t *ret_used, struct dray_err *reterr)
{
	json_error_t e;
	json_t *v = json_loadb(p, n, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &e);

	if (v)
		*ret_used = (size_t)e.position;
	else if (json_error_code(&e) == json_error_out_of_memory)
		no_memory(reterr);
	else
		dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL, "the page is not JSON: %.80s",
			     e.text);
	return v;
}

static int take_array(const json_t *page, struct master_object *ret, struct dray_err *reterr)
{
	const json_t *data = json_object_get(page, "data"), *v;
	size_t i;
	int r = 0;

	if (!json_is_array(data))
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				    "the page has neither replicas nor an array \"data\"");
	json_array_foreach(data, i, v) if (r == 0) r = take_replica(v, ret, reterr);
	return r;
}

static size_t skip_space(const char *body, size_t n, size_t at)
{
	while (at < n && memchr(" \t\r\n", body[at], 4))
		at++;
	return at;
}

int master_object_page(const char *body, size_t n, struct master_object *ret,
		       struct dray_err *reterr)
{
	bool array = false;
	size_t used;
	int r = 0;

	for (size_t at = skip_space(body, n, 0); at < n && r == 0;
	     at = skip_space(body, n, at + used)) {
		dray_auto(json_decref) json_t *v = take_value(body + at, n - at, &used, reterr);

		if (!v)
			return reterr && reterr->code == DRAY_E_NO_MEMORY ? -ENOMEM : -EPROTO;
		if (array)
			return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
					    "something follows the page");
		array = !ret->n && !json_object_get(v, "size_");
		r = array ? take_array(v, ret, reterr) : take_replica(v, ret, reterr);
	}
	return r;
}

/* The master's name of the error: a member of an object since 0.3.12, the whole page before that. False: it is no master's page. */
static bool error_name(const char *body, size_t n, char *ret, size_t size)
{
	dray_auto(json_decref) json_t *page = json_loadb(body, n, JSON_REJECT_DUPLICATES, NULL);
	const char *member = json_string_value(json_object_get(page, "error_message"));

	snprintf(ret, size, "%s", member ? member : "");
	if (!page && n < size && !memchr(body, '\0', n)) {
		memcpy(ret, body, n);
		ret[n] = '\0';
	}
	return is_word(ret);
}

struct dray_err master_object_refusal(unsigned status, const char *body, size_t n)
{
	char name[64];

	if (status == 503)
		return dray_err_of(DRAY_E_OUT_OF_ORDER,
				   "this master is not the leader, or not ready yet (503)");
	if (!error_name(body, n, name, sizeof(name)))
		return dray_err_of(DRAY_E_PROTOCOL,
				   "HTTP status %u; is this the master's admin port?", status);
	if (!strcmp(name, "OBJECT_NOT_FOUND"))
		return dray_err_of(DRAY_E_NOT_FOUND, "the master has no such object");
	if (!strcmp(name, "REPLICA_IS_NOT_READY"))
		return dray_err_of(DRAY_E_BUSY, "the object is being written");
	return dray_err_of(DRAY_E_PROTOCOL, "the master says %s, HTTP status %u", name, status);
}
