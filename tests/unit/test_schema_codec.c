/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every message of both protocols, checked with the generated vectors: round trip, each limit, each
 * enumeration and bit, truncation at every byte, tails. Bodies are heap blocks of their exact size.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/err.h"
#include "lib/wire.h"
#include "schema/gen/data.h"
#include "schema/gen/errors.h"
#include "schema/gen/peer.h"
#include "tests/unit/schema_files.h"
#include "tests/unit/schema_vectors.h"

/* Both protocols have the same header, except for the magic number. */
_Static_assert(DMSG_HEADER_SIZE == 24 && PMSG_HEADER_SIZE == 24, "header size");
#define HEADER DMSG_HEADER_SIZE

static uint8_t buf[DMSG_MESSAGE_MAX], again[DMSG_MESSAGE_MAX];

static int header_decode(enum vector_protocol protocol, const void *p, size_t n, uint16_t *type,
			 uint32_t *length, struct dray_err *reterr)
{
	struct dmsg_header d = { 0 };
	struct pmsg_header q = { 0 };
	int r;

	if (protocol == VECTOR_DATA) {
		r = dmsg_header_decode(p, n, &d, reterr);
		*type = d.type;
		*length = d.length;
		assert_true(r < 0 || d.request_id == VECTOR_REQUEST_ID);
	} else {
		r = pmsg_header_decode(p, n, &q, reterr);
		*type = q.type;
		*length = q.length;
		assert_true(r < 0 || q.request_id == VECTOR_REQUEST_ID);
	}
	return r;
}

/* Decodes n bytes at src as a body of v, in a block of that size. Returns the error code, or 0. */
static int refuse(const struct vector *v, const void *src, size_t n)
{
	struct dray_err err = DRAY_ERR_NULL;
	uint8_t *body = exact_copy(src, n);
	int r = vector_recode(v->protocol, v->type, body, n, 1, again, sizeof(again), &err);

	free(body);
	if (r >= 0) {
		assert_int_equal(err.code, 0);
		return 0;
	}
	assert_int_equal(r, -EPROTO);
	assert_true(err.code > 0 && err.code < DRAY_ERROR_N);
	assert_true(err.msg[0]);
	return err.code;
}

static void test_round_trip(void **state)
{
	for (size_t i = 0; i < n_vectors; i++) {
		const struct vector *v = &vectors[i];
		int n = v->encode(buf, sizeof(buf));
		struct dray_err err = DRAY_ERR_NULL;
		const char *wrong;
		uint32_t length;
		uint16_t type;

		assert_true(n >= HEADER);
		assert_int_equal(header_decode(v->protocol, buf, (size_t)n, &type, &length, &err),
				 0);
		assert_int_equal(type, v->type);
		assert_int_equal(length, n - HEADER);
		assert_true(length >= v->min && length <= v->body_max);
		wrong = v->check(buf + HEADER, length);
		if (wrong)
			fail_msg("%s: field %s", v->name, wrong);
		assert_int_equal(vector_recode(v->protocol, type, buf + HEADER, length,
					       VECTOR_REQUEST_ID, again, sizeof(again), &err),
				 n);
		assert_memory_equal(buf, again, (size_t)n);
	}
}

static void test_room(void **state)
{
	for (size_t i = 0; i < n_vectors; i++) {
		const struct vector *v = &vectors[i];
		int n = v->encode(buf, sizeof(buf));

		for (int cap = 0; cap < n; cap++) {
			uint8_t *room = malloc((size_t)cap + 1);

			assert_non_null(room);
			assert_int_equal(v->encode(room, (size_t)cap), -EMSGSIZE);
			free(room);
		}
	}
}

static bool older_end(const struct vector *v, size_t n)
{
	for (unsigned i = 0; i < v->n_older; i++)
		if (v->older[i] == n)
			return true;
	return false;
}

/*
 * A truncated body is refused and *ret is unchanged, unless a body of an earlier version ends
 * there.
 */
static void test_truncated(void **state)
{
	for (size_t i = 0; i < n_vectors; i++) {
		const struct vector *v = &vectors[i];
		size_t n = (size_t)v->encode(buf, sizeof(buf)) - HEADER;

		for (size_t k = 0; k < n; k++)
			assert_int_equal(refuse(v, buf + HEADER, k),
					 older_end(v, k) ? 0 : DRAY_E_TRUNCATED);
		assert_int_equal(refuse(v, buf + HEADER, n), 0);
	}
}

static void test_longer(void **state)
{
	for (size_t i = 0; i < n_vectors; i++) {
		const struct vector *v = &vectors[i];
		int n = v->encode(buf, sizeof(buf));
		const char *wrong;

		memset(buf + n, 0xa5, 64);
		for (size_t more = 1; more <= 64; more += 9) {
			assert_int_equal(refuse(v, buf + HEADER, (size_t)n - HEADER + more), 0);
			wrong = v->check(buf + HEADER, (size_t)n - HEADER + more);
			if (wrong)
				fail_msg("%s: field %s", v->name, wrong);
		}
	}
}

static void test_values(void **state)
{
	for (size_t i = 0; i < n_vector_pokes; i++) {
		const struct vector_poke *p = &vector_pokes[i];
		size_t n = (size_t)p->vector->encode(buf, sizeof(buf)) - HEADER;
		uint8_t value[8];

		dray_le_put64(value, p->value);
		assert_true(p->at + p->size <= n);
		memcpy(buf + HEADER + p->at, value, p->size);
		if (refuse(p->vector, buf + HEADER, n) != (int)p->code)
			fail_msg("%s: %llx at %zu is not %s", p->field,
				 (unsigned long long)p->value, p->at, dray_error_name(p->code));
	}
}

static void test_limits(void **state)
{
	for (size_t i = 0; i < n_vector_limits; i++) {
		const struct vector_limit *l = &vector_limits[i];
		uint8_t *body = malloc(l->vector->min + (l->max + 1) * l->unit);
		size_t min, n = 0;

		assert_non_null(body);
		min = l->vector->min;
		assert_int_equal(l->vector->encode_empty(buf, sizeof(buf)), (int)(HEADER + min));
		for (size_t count = l->max; count <= l->max + 1; count++) {
			/* the bytes after the empty field move behind its elements */
			n = count * l->unit;
			memcpy(body, buf + HEADER, l->at);
			memcpy(body + l->at + 4 + n, buf + HEADER + l->at + 4, min - l->at - 4);
			dray_le_put32(body + l->at, (uint32_t)count);
			for (size_t k = 0; k < count; k++)
				memcpy(body + l->at + 4 + k * l->unit, l->fill, l->unit);
			assert_int_equal(refuse(l->vector, body, min + n),
					 count > l->max ? DRAY_E_TOO_LARGE : 0);
		}
		/* a count that overflows */
		dray_le_put32(body + l->at, UINT32_MAX);
		assert_int_equal(refuse(l->vector, body, min + n), DRAY_E_TOO_LARGE);
		free(body);
	}
}

/* The encoder checks the limits too. */
static void test_encode_limits(void **state)
{
	static uint8_t big[(DMSG_OPS_INLINE_MAX + 1) * DMSG_OP_SIZE];
	struct dmsg_transfer t = { .direction = DMSG_DIRECTION_READ,
				   .notify = { big, DMSG_NOTIFY_MAX } };
	struct dmsg_hello h = { .major_min = 1, .major_max = 1 };
	struct dmsg_error e = { .code = DRAY_E_IO };
	struct dmsg_error got;

	t.ops = (struct dray_vec){ big, DMSG_OPS_INLINE_MAX };
	assert_int_equal(dmsg_transfer_encode(buf, sizeof(buf), 1, &t),
			 HEADER + DMSG_TRANSFER_BODY_MAX);
	t.ops.n++;
	assert_int_equal(dmsg_transfer_encode(buf, sizeof(buf), 1, &t), -EINVAL);
	t.ops.n = 0;
	t.notify.n++;
	assert_int_equal(dmsg_transfer_encode(buf, sizeof(buf), 1, &t), -EINVAL);

	h.name = (struct dray_str){ "a\nb", 3 };
	assert_int_equal(dmsg_hello_encode(buf, sizeof(buf), 1, &h), -EINVAL);
	memset(big, 'x', 65);
	h.name = (struct dray_str){ (char *)big, 64 };
	assert_true(dmsg_hello_encode(buf, sizeof(buf), 1, &h) > 0);
	h.name.n = 65;
	assert_int_equal(dmsg_hello_encode(buf, sizeof(buf), 1, &h), -EINVAL);

	/* an answer must arrive, so invalid bytes of its text are replaced */
	e.message = (struct dray_str){ "\xc3\xa4\n\x80 ok\xe2\x82", 10 };
	assert_true(dmsg_error_encode(buf, sizeof(buf), 1, &e) > 0);
	assert_int_equal(dmsg_error_decode(buf + HEADER, DMSG_ERROR_MIN + 10, &got, NULL), 0);
	assert_int_equal(got.message.n, 10);
	assert_memory_equal(got.message.p, "\xc3\xa4?? ok??", 9);
}

static void test_untouched(void **state)
{
	struct dmsg_hello_reply m, was;
	uint8_t body[DMSG_HELLO_REPLY_MIN] = { 0 };

	memset(&m, 0x5a, sizeof(m));
	was = m;
	assert_int_equal(dmsg_hello_reply_decode(body, sizeof(body) - 1, &m, NULL), -EPROTO);
	dray_le_put32(body + DMSG_HELLO_REPLY_MIN - 4, 65);
	assert_int_equal(dmsg_hello_reply_decode(body, sizeof(body), &m, NULL), -EPROTO);
	assert_memory_equal(&m, &was, sizeof(m));
}

static void test_text(void **state)
{
	static const struct {
		const char *text;
		size_t n;
		bool ok;
	} rows[] = {
		{ "", 0, true },
		{ "plain", 5, true },
		{ "a b~", 4, true },
		{ "\xc2\xa0", 2, true },         /* U+00A0 */
		{ "\xe2\x82\xac", 3, true },     /* U+20AC */
		{ "\xed\x9f\xbf", 3, true },     /* U+D7FF */
		{ "\xee\x80\x80", 3, true },     /* U+E000 */
		{ "\xf0\x9f\x9b\x92", 4, true }, /* U+1F6D2 */
		{ "\xf4\x8f\xbf\xbf", 4, true }, /* U+10FFFF */
		{ "a\0b", 3, false },
		{ "a\tb", 3, false },
		{ "\x1b[0m", 4, false },
		{ "\x7f", 1, false },
		{ "\xc2\x85", 2, false }, /* U+0085, a control character */
		{ "\x80", 1, false },
		{ "\xc3", 1, false },
		{ "\xc0\xaf", 2, false },         /* overlong */
		{ "\xe0\x80\xaf", 3, false },     /* overlong */
		{ "\xf0\x80\x80\xaf", 4, false }, /* overlong */
		{ "\xed\xa0\x80", 3, false },     /* surrogate */
		{ "\xf4\x90\x80\x80", 4, false }, /* over U+10FFFF */
		{ "\xf5\x80\x80\x80", 4, false },
		{ "\xe2\x82", 2, false },
		{ "\xe2\x28\xa1", 3, false },
		{ "\xff", 1, false },
	};
	uint8_t body[DMSG_HELLO_MIN + 8];
	struct dmsg_hello m;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		memset(body, 0, sizeof(body));
		dray_le_put32(body + 20, (uint32_t)rows[i].n);
		memcpy(body + 24, rows[i].text, rows[i].n);
		assert_int_equal(dmsg_hello_decode(body, DMSG_HELLO_MIN + rows[i].n, &m, NULL),
				 rows[i].ok ? 0 : -EPROTO);
	}
}

static void test_records(void **state)
{
	for (size_t i = 0; i < n_vector_records; i++) {
		const struct vector_record *r = &vector_records[i];
		uint8_t *wire = exact_copy(r->wire, r->size);
		const char *wrong = r->check(wire);

		if (wrong)
			fail_msg("%s: field %s", r->name, wrong);
		memset(wire, 0xff, r->size);
		r->put(wire);
		assert_memory_equal(wire, r->wire, r->size);
		free(wire);
	}
}

static int header_code(const void *p, size_t n)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_header h;
	uint8_t *copy = exact_copy(p, n);
	int r = dmsg_header_decode(copy, n, &h, &err);

	free(copy);
	assert_int_equal(r, err.code ? -EPROTO : 0);
	return err.code;
}

static void test_header(void **state)
{
	struct dmsg_header h = { DMSG_MAGIC, DMSG_MAJOR, DMSG_MINOR, DMSG_HELLO, 0, 100, 77 };
	struct dmsg_header got;
	uint8_t p[DMSG_HEADER_SIZE];

	dmsg_header_put(p, &h);
	assert_memory_equal(p, "DRAY", 4);
	assert_int_equal(dmsg_header_decode(p, sizeof(p), &got, NULL), 0);
	assert_int_equal(got.type, DMSG_HELLO);
	assert_int_equal(got.length, 100);
	assert_int_equal(got.request_id, 77);
	assert_int_equal(dmsg_header_id(p, sizeof(p)), 77);
	assert_int_equal(dmsg_header_id(p, sizeof(p) - 1), 0);
	for (size_t n = 0; n < sizeof(p); n++)
		assert_int_equal(header_code(p, n), DRAY_E_TRUNCATED);

	h.minor = 200;
	dmsg_header_put(p, &h);
	assert_int_equal(header_code(p, sizeof(p)), 0);
	h.major++;
	dmsg_header_put(p, &h);
	assert_int_equal(header_code(p, sizeof(p)), DRAY_E_VERSION);
	h.major = DMSG_MAJOR;
	h.flags = 0x80000000;
	dmsg_header_put(p, &h);
	assert_int_equal(header_code(p, sizeof(p)), DRAY_E_UNSUPPORTED);
	h.flags = 0;
	h.length = DMSG_MESSAGE_MAX - DMSG_HEADER_SIZE;
	dmsg_header_put(p, &h);
	assert_int_equal(header_code(p, sizeof(p)), 0);
	h.length++;
	dmsg_header_put(p, &h);
	assert_int_equal(header_code(p, sizeof(p)), DRAY_E_TOO_LARGE);
	h.length = UINT32_MAX;
	dmsg_header_put(p, &h);
	assert_int_equal(header_code(p, sizeof(p)), DRAY_E_TOO_LARGE);
	h.length = 0;
	h.magic++;
	dmsg_header_put(p, &h);
	assert_int_equal(header_code(p, sizeof(p)), DRAY_E_BAD_MAGIC);
	assert_int_equal(header_code("GET / HTTP", 10), DRAY_E_BAD_MAGIC);
	assert_int_equal(dmsg_header_id(p, sizeof(p)), 0);
}

static void test_packet(void **state)
{
	struct dmsg_header h = { DMSG_MAGIC, DMSG_MAJOR, DMSG_MINOR, DMSG_HELLO, 0, 100, 77 };
	struct dray_err err = DRAY_ERR_NULL;

	assert_int_equal(dmsg_packet_check(&h, DMSG_HEADER_SIZE + 100, &err), 0);
	assert_int_equal(dmsg_packet_check(&h, DMSG_HEADER_SIZE + 99, &err), -EPROTO);
	assert_int_equal(err.code, DRAY_E_TRUNCATED);
	err = DRAY_ERR_NULL;
	assert_int_equal(dmsg_packet_check(&h, 3, &err), -EPROTO);
	assert_int_equal(err.code, DRAY_E_TRUNCATED);
	err = DRAY_ERR_NULL;
	assert_int_equal(dmsg_packet_check(&h, DMSG_HEADER_SIZE + 101, &err), -EPROTO);
	assert_int_equal(err.code, DRAY_E_INVALID);
}

/* Python has packed these messages; C decodes them and encodes the same bytes. */
static void golden(enum vector_protocol protocol, const char *path)
{
	size_t n, seen = 0;
	char *text = (char *)read_whole(path, &n);
	char name[64], variant[16];
	int skip = 0;

	text[n - 1] = '\0'; /* the last newline */
	for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
		struct dray_err err = DRAY_ERR_NULL;
		const struct vector *v = NULL;
		uint32_t length;
		uint16_t type;

		if (line[0] == '#')
			continue;
		assert_int_equal(sscanf(line, "%63s %15s %n", name, variant, &skip), 2);
		n = unhex(line + skip, buf, sizeof(buf));
		assert_int_equal(header_decode(protocol, buf, n, &type, &length, &err), 0);
		assert_int_equal(length, n - HEADER);
		for (size_t i = 0; i < n_vectors; i++)
			if (vectors[i].protocol == protocol && vectors[i].type == type)
				v = &vectors[i];
		if (!v)
			fail_msg("%s: type 0x%04x is unknown", name, type);
		assert_string_equal(name, v->name);
		assert_string_equal(name, protocol == VECTOR_DATA ? dmsg_type_name(type) :
								    pmsg_type_name(type));
		if (strcmp(variant, "full") == 0)
			assert_null(v->check(buf + HEADER, length));
		else
			assert_int_equal(length, v->min);
		assert_int_equal(vector_recode(protocol, type, buf + HEADER, length,
					       VECTOR_REQUEST_ID, again, sizeof(again), &err),
				 n);
		assert_memory_equal(buf, again, n);
		seen++;
	}
	for (size_t i = 0; i < n_vectors; i++)
		seen -= vectors[i].protocol == protocol ? 2 : 0;
	assert_int_equal(seen, 0);
	free(text);
}

static void test_golden(void **state)
{
	golden(VECTOR_DATA, "tests/data/golden/data.hex");
	golden(VECTOR_PEER, "tests/data/golden/peer.hex");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip), cmocka_unit_test(test_room),
		cmocka_unit_test(test_truncated),  cmocka_unit_test(test_longer),
		cmocka_unit_test(test_values),     cmocka_unit_test(test_limits),
		cmocka_unit_test(test_untouched),  cmocka_unit_test(test_encode_limits),
		cmocka_unit_test(test_text),       cmocka_unit_test(test_records),
		cmocka_unit_test(test_header),     cmocka_unit_test(test_packet),
		cmocka_unit_test(test_golden),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
