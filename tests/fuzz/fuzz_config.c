/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of a configuration file, from libconfig's lexical rules to checked values. A refused text must give a
 * message. The values of an accepted text must be within their limits, and printing and parsing them again must
 * give the same values. What follows the separator is a second file, the only one that may be included.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/config/internal.h"
#include "lib/cleanup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SEPARATOR "\n@@\n"
/* The second file's descriptor: its name beside the first file, which is /proc/self/fd/N. */
#define INCLUDED "900"
#define INCLUDED_FD 900

static void check(bool ok)
{
	if (!ok)
		abort();
}

static int load(struct config *c, const char *text, size_t n, struct dray_err *reterr)
{
	int fd dray_auto_close = memfd_create("fuzz", MFD_CLOEXEC);
	struct config_args none = { .file = "" };
	char name[32];
	int r;

	*reterr = DRAY_ERR_NULL;
	*c = CONFIG_NULL;
	r = config_load(c, &none, reterr);
	check(r == 0);
	check(fd >= 0 && write(fd, text, n) == (ssize_t)n);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	r = config_file_load(c, name, reterr);
	return !r && c->errors.n ?
		       dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "%s", c->errors.v[0]) :
		       r;
}

/* Puts the text behind the separator into the second file. Returns the length of the text before it. */
static size_t second_file(const uint8_t *data, size_t size)
{
	const uint8_t *at = memmem(data, size, SEPARATOR, strlen(SEPARATOR));
	size_t first = at ? (size_t)(at - data) : size;
	size_t from = at ? first + strlen(SEPARATOR) : size;

	if (fcntl(INCLUDED_FD, F_GETFD) < 0) {
		int fd dray_auto_close = memfd_create("included", MFD_CLOEXEC);

		check(fd >= 0 && dup2(fd, INCLUDED_FD) == INCLUDED_FD);
	}
	check(ftruncate(INCLUDED_FD, 0) == 0);
	check(pwrite(INCLUDED_FD, data + from, size - from, 0) == (ssize_t)(size - from));
	return first;
}

/* Whether there are few, and each @include names the second file, or one that does not exist, or is refused before it names one. */
static bool includes_are_harmless(const uint8_t *data, size_t size)
{
	static const char word[] = "@include";
	const uint8_t *end = data + size, *p = data;
	unsigned n = 0;

	while ((p = memmem(p, (size_t)(end - p), word, strlen(word)))) {
		p += strlen(word);
		/* twice itself, ten deep, would be a thousand files */
		if (++n > 2)
			return false;
		while (p < end && (*p == ' ' || *p == '\t'))
			p++;
		if (p == end || *p != '"')
			continue;
		if (!memmem(p, dray_min((size_t)(end - p), strlen(INCLUDED) + 2),
			    "\"" INCLUDED "\"", strlen(INCLUDED) + 2) &&
		    !memmem(p, dray_min((size_t)(end - p), (size_t)4), "\"no\"", 4) &&
		    !memmem(p, dray_min((size_t)(end - p), (size_t)4), "\"no\n", 4))
			return false;
	}
	return true;
}

static void limits_check(const struct config *c)
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		enum dray_config_key_id id = (enum dray_config_key_id)i;
		const struct dray_config_key *key = &dray_config_keys[i];
		const void *p = config_member(&c->v, id);

		if (key->type == DRAY_CONFIG_INT || key->type == DRAY_CONFIG_SIZE ||
		    key->type == DRAY_CONFIG_DURATION)
			check(*(const int64_t *)p >= key->min && *(const int64_t *)p <= key->max);
		if (key->type == DRAY_CONFIG_ENUM)
			check(*(const int *)p >= 0 && (size_t) * (const int *)p < key->n_choices);
		if (key->type == DRAY_CONFIG_STRING || key->type == DRAY_CONFIG_PATH)
			check(*(char *const *)p != NULL);
	}
}

static char *show(const struct config *c, size_t *ret_n)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_n);

	check(f != NULL);
	config_show(c, f);
	fclose(f);
	return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	dray_auto_free char *text = NULL;
	struct config first, second;
	struct dray_err e;
	size_t n;

	if (size > 4096 || !includes_are_harmless(data, size))
		return 0;
	size = second_file(data, size);
	if (load(&first, (const char *)data, size, &e) < 0) {
		check(e.code && *e.msg);
		config_deinit(&first);
		return 0;
	}
	limits_check(&first);
	text = show(&first, &n);
	check(load(&second, text, n, &e) == 0);
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		dray_auto_free char *a = config_value_text(&first.v, (enum dray_config_key_id)i);
		dray_auto_free char *b = config_value_text(&second.v, (enum dray_config_key_id)i);

		check(!strcmp(a, b));
	}
	/* the values may contradict each other, but this must not crash */
	config_cross_check(&first, NULL, &e);
	config_deinit(&first);
	config_deinit(&second);
	return 0;
}
