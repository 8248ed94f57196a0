/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a configuration file for the parser, and the origin of each line. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"
#include "lib/strv.h"

/* Marks a string that was a number without quotes. */
#define CONFIG_TEXT_BARE '\001'

struct config_text_line {
	unsigned file, line;
};

struct config_text {
	char *buf; /* ends in NUL */
	size_t n, cap;
	struct config_text_line *lines;
	size_t n_lines;
	struct dray_strv files;
	size_t bytes_read;
	/* while reading: the last token's first character, and the open brackets */
	char last;
	unsigned depth;
	uint64_t lists; /* bit N: bracket N belongs to a list */
};

#define CONFIG_TEXT_NULL ((struct config_text){ .buf = NULL })

/*
 * Reads a file, and the files that it includes. depth: of includes, 0 at first. 0 or -errno; -ENOENT does not set reterr.
 */
int config_text_read(struct config_text *t, const char *name, unsigned depth,
		     struct dray_err *reterr);

void config_text_deinit(struct config_text *t);

/* Origin of line N (from 1) of the text: "FILE:LINE", which the caller frees. NULL: no memory. */
char *config_text_where(const struct config_text *t, unsigned line);

/* The start of a line of the text, nearly as it was written. */
void config_text_excerpt(const struct config_text *t, unsigned line, char *buf, size_t n);
