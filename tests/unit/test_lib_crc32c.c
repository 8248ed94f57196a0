/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/crc32c.h"

#include <stdlib.h>
#include <string.h>

#include "lib/random.h"
#include "tests/unit/cm.h"

static void check(const void *p, size_t n, uint32_t crc)
{
	assert_int_equal(dray_crc32c(0, p, n), crc);
	for (unsigned way = 0; way < DRAY_CRC32C_N; way++)
		if (dray_crc32c_has(way))
			assert_int_equal(dray_crc32c_by(way, 0, p, n), crc);
}

/* RFC 3720, B.4. */
static void test_vectors(void **state)
{
	static const uint8_t read_command[48] = {
		0x01,        0xc0,        [16] = 0x14, [22] = 0x04,
		[27] = 0x14, [31] = 0x18, [32] = 0x28, [40] = 0x02,
	};
	uint8_t bytes[32];

	memset(bytes, 0, sizeof(bytes));
	check(bytes, sizeof(bytes), 0x8a9136aa);
	memset(bytes, 0xff, sizeof(bytes));
	check(bytes, sizeof(bytes), 0x62a8ab43);
	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)i;
	check(bytes, sizeof(bytes), 0x46dd794e);
	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(31 - i);
	check(bytes, sizeof(bytes), 0x113fdb5c);
	check(read_command, sizeof(read_command), 0xd9963a56);
	check("123456789", 9, 0xe3069283);
	check("", 0, 0);
}

static uint32_t by_table(uint32_t crc, const void *p, size_t n)
{
	return dray_crc32c_by(DRAY_CRC32C_TABLE, crc, p, n);
}

/* From 0 bytes and from a CRC that has begun. */
static void same_as_table(const uint8_t *p, size_t n)
{
	uint32_t begun = by_table(0, p, n / 3);
	uint32_t crc = by_table(begun, p + n / 3, n - n / 3);

	for (unsigned way = DRAY_CRC32C_INSTRUCTION; way < DRAY_CRC32C_N; way++) {
		if (!dray_crc32c_has(way))
			continue;
		assert_int_equal(dray_crc32c_by(way, 0, p, n), crc);
		assert_int_equal(dray_crc32c_by(way, begun, p + n / 3, n - n / 3), crc);
	}
	assert_int_equal(dray_crc32c(0, p, n), crc);
}

static uint8_t *random_bytes(size_t n)
{
	uint8_t *bytes = malloc(n);

	assert_non_null(bytes);
	assert_int_equal(dray_random_fill(bytes, n), 0);
	return bytes;
}

/* Each length is a block of its own, so that a read behind its end is found. */
static void test_every_length(void **state)
{
	for (size_t n = 0; n <= 2000; n++) {
		uint8_t *bytes = random_bytes(n + 1);

		same_as_table(bytes + 1, n);
		free(bytes);
	}
}

static void test_every_alignment(void **state)
{
	static const size_t lengths[] = { 1, 15, 64, 257, 1024, 3100, 20000 };
	uint8_t *bytes = random_bytes(20000 + 64);

	for (unsigned at = 0; at < 64; at++)
		for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
			same_as_table(bytes + at, lengths[i]);
	free(bytes);
}

/* Lengths around those where the instruction's lanes begin and end. */
static void test_long(void **state)
{
	enum { N = 3 * 1024 * 3 + 64 };
	uint8_t *bytes = random_bytes(N);

	for (size_t n = 2000; n < N; n += n % 3072 < 20 || n % 3072 > 3060 ? 1 : 7)
		same_as_table(bytes, n);
	free(bytes);
}

static void test_combine(void **state)
{
	enum { N = 1 << 20 };
	uint8_t *bytes = random_bytes(N);
	uint32_t seed;

	for (unsigned i = 0; i < 2000; i++) {
		size_t n, cut;
		uint32_t a, b;

		assert_int_equal(dray_random_fill(&seed, sizeof(seed)), 0);
		n = i % 4 ? seed % 5000 : seed % (N + 1);
		assert_int_equal(dray_random_fill(&seed, sizeof(seed)), 0);
		cut = seed % (n + 1);
		a = dray_crc32c(0, bytes, cut);
		b = dray_crc32c(0, bytes + cut, n - cut);
		assert_int_equal(dray_crc32c_combine(a, b, n - cut), by_table(0, bytes, n));
	}
	free(bytes);
}

/* A B of more bytes than can be stored: a part of it, then another. */
static void test_combine_large(void **state)
{
	static const size_t parts[] = { 1, 1u << 31, (size_t)1 << 40, ((size_t)1 << 62) + 12345 };

	for (unsigned i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		size_t n = parts[i];
		uint32_t once = dray_crc32c_combine(0x12345678, 0, n);
		uint32_t twice = dray_crc32c_combine(once, 0, n);

		assert_int_equal(dray_crc32c_combine(0x12345678, 0, 2 * n), twice);
		assert_int_equal(dray_crc32c_combine(0x12345678, 0x9abcdef0, 2 * n),
				 twice ^ 0x9abcdef0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),         cmocka_unit_test(test_every_length),
		cmocka_unit_test(test_every_alignment), cmocka_unit_test(test_long),
		cmocka_unit_test(test_combine),         cmocka_unit_test(test_combine_large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
