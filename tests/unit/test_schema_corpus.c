/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of earlier versions stay readable: every file of tests/data/corpus-MAJOR.MINOR/ decodes,
 * and the encoded result equals it in every field that it has.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/err.h"
#include "schema/gen/data.h"
#include "schema/gen/errors.h"
#include "schema/gen/peer.h"
#include "tests/unit/schema_files.h"
#include "tests/unit/schema_vectors.h"

#define ROOT "tests/data"
/* number of bytes that make_corpus.py adds to messages named "longer" */
#define IMAGINED 8

static uint8_t again[DMSG_MESSAGE_MAX];

static void replay(const char *path, enum vector_protocol protocol)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_header d;
	struct pmsg_header p;
	size_t n;
	uint8_t *raw = read_whole(path, &n), *body;
	uint32_t length;
	uint16_t type;
	int r;

	if (protocol == VECTOR_DATA) {
		r = dmsg_header_decode(raw, n, &d, &err);
		if (r == 0)
			r = dmsg_packet_check(&d, n, &err);
		type = d.type;
		length = d.length;
	} else {
		r = pmsg_header_decode(raw, n, &p, &err);
		type = p.type;
		length = p.length;
	}
	if (r < 0)
		fail_msg("%s: %s", path, err.msg);
	assert_int_equal(length, n - DMSG_HEADER_SIZE);
	body = exact_copy(raw + DMSG_HEADER_SIZE, length);
	r = vector_recode(protocol, type, body, length, 1, again, sizeof(again), &err);
	if (r < 0 && strstr(path, "-longer.bin") && length > IMAGINED) {
		/* the added bytes lie where the message has new fields now */
		free(body);
		length -= IMAGINED;
		body = exact_copy(raw + DMSG_HEADER_SIZE, length);
		err = DRAY_ERR_NULL;
		r = vector_recode(protocol, type, body, length, 1, again, sizeof(again), &err);
		if (r >= 0)
			assert_true((uint32_t)r - DMSG_HEADER_SIZE > length);
	}
	if (r < 0)
		fail_msg("%s: %s: %s", path, dray_error_name((uint32_t)err.code), err.msg);
	if (length > (uint32_t)r - DMSG_HEADER_SIZE)
		length = (uint32_t)r - DMSG_HEADER_SIZE;
	assert_memory_equal(body, again + DMSG_HEADER_SIZE, length);
	free(body);
	free(raw);
}

static size_t replay_folder(const char *folder)
{
	DIR *dir = opendir(folder);
	struct dirent *e;
	char *path;
	size_t n = 0;

	assert_non_null(dir);
	while ((e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		assert_true(asprintf(&path, "%s/%s", folder, e->d_name) > 0);
		replay(path, strncmp(e->d_name, "data-", 5) == 0 ? VECTOR_DATA : VECTOR_PEER);
		free(path);
		n++;
	}
	closedir(dir);
	return n;
}

static void test_corpora(void **state)
{
	DIR *dir = opendir(ROOT);
	struct dirent *e;
	char *path;
	size_t n = 0;

	assert_non_null(dir);
	while ((e = readdir(dir))) {
		if (strncmp(e->d_name, "corpus-", 7) != 0)
			continue;
		assert_true(asprintf(&path, ROOT "/%s", e->d_name) > 0);
		n += replay_folder(path);
		free(path);
	}
	closedir(dir);
	assert_true(n >= 3 * n_vectors || n >= 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_corpora),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
