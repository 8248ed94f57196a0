/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed payload: only the other side of the stream reads it, once, and nobody can change it. */
#include <errno.h>
#include <string.h>

#include "agent/model/seal.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"

#define STREAM 7
#define N 300

static const uint8_t key[STREAM_KEY_SIZE] = "the key of a stream, 32 bytes...", agent[16] = "one",
		     other[16] = "two";
static uint8_t text[N], sealed[N + SEAL_BYTES], back[N + SEAL_BYTES];

static struct seal *seal_of(const uint8_t k[STREAM_KEY_SIZE], const uint8_t id[16], uint64_t stream,
			    enum seal_side side)
{
	struct seal *s = seal_new(k, id, stream, side);

	assert_non_null(s);
	return s;
}

static int setup(void **state)
{
	for (unsigned i = 0; i < N; i++)
		text[i] = (uint8_t)(i * 7);
	return 0;
}

static void test_round_trip(void **state)
{
	struct seal *one = seal_of(key, agent, STREAM, SEAL_FIND),
		    *two = seal_of(key, agent, STREAM, SEAL_FIND);

	for (size_t n = 0; n <= N; n += 50) {
		seal_close(one, n + 1, text, n, sealed);
		assert_true(n < 16 || memcmp(sealed, text, n) != 0);
		assert_int_equal(seal_open(two, n + 1, sealed, n + SEAL_BYTES, back), 0);
		assert_memory_equal(back, text, n);
	}
	/* at the same place */
	memcpy(sealed, text, N);
	seal_close(one, 1000, sealed, N, sealed);
	assert_int_equal(seal_open(two, 1000, sealed, N + SEAL_BYTES, sealed), 0);
	assert_memory_equal(sealed, text, N);
	seal_free(one);
	seal_free(two);
	seal_free(NULL);
}

static void test_changed(void **state)
{
	struct seal *s = seal_of(key, agent, STREAM, SEAL_FOUND);

	seal_close(s, 5, text, N, sealed);
	for (size_t i = 0; i < sizeof(sealed); i++) {
		sealed[i] ^= 1;
		assert_int_equal(seal_open(s, 5, sealed, sizeof(sealed), back), -EPROTO);
		sealed[i] ^= 1;
	}
	for (size_t n = 0; n < sizeof(sealed); n++)
		assert_int_equal(seal_open(s, 5, sealed, n, back), -EPROTO);
	assert_int_equal(seal_open(s, 6, sealed, sizeof(sealed), back), -EPROTO);
	assert_int_equal(seal_open(s, 5, sealed, sizeof(sealed), back), 0);
	seal_free(s);
}

/* Each stream, side and direction has a key of its own. */
static void test_keys(void **state)
{
	const uint8_t wrong[STREAM_KEY_SIZE] = "another key";
	struct seal *s = seal_of(key, agent, STREAM, SEAL_FIND);
	struct seal *others[] = { seal_of(wrong, agent, STREAM, SEAL_FIND),
				  seal_of(key, other, STREAM, SEAL_FIND),
				  seal_of(key, agent, STREAM + 1, SEAL_FIND),
				  seal_of(key, agent, STREAM, SEAL_FOUND) };

	seal_close(s, 1, text, N, sealed);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(others); i++) {
		assert_int_equal(seal_open(others[i], 1, sealed, sizeof(sealed), back), -EPROTO);
		seal_free(others[i]);
	}
	seal_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_changed),
		cmocka_unit_test(test_keys),
	};

	return cmocka_run_group_tests_name("seal", tests, setup, NULL);
}
