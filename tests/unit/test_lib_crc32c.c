/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/crc32c.h"

#include <stdlib.h>
#include <string.h>

#include "lib/random.h"
#include "tests/unit/cm.h"

static void check(const void *p, size_t n, uint32_t crc)
{
	assert_int_equal(dray_crc32c(0, p, n), crc);
	assert_int_equal(dray_crc32c_by_table(0, p, n), crc);
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

/* Both ways agree for all lengths and alignments around those where the code changes its steps, in parts too. */
static void test_lengths(void **state)
{
	enum { N = 3 * 1024 * 3 + 64 };
	uint8_t *bytes = malloc(N + 8);

	assert_int_equal(dray_random_fill(bytes, N + 8), 0);
	for (size_t n = 0; n < N; n += n < 40 || n % 3072 < 20 || n % 3072 > 3060 ? 1 : 7) {
		const uint8_t *p = bytes + n % 8;
		uint32_t crc = dray_crc32c_by_table(0, p, n);

		assert_int_equal(dray_crc32c(0, p, n), crc);
		assert_int_equal(dray_crc32c(dray_crc32c(0, p, n / 3), p + n / 3, n - n / 3), crc);
	}
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_lengths),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
