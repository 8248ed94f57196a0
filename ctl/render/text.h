/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts of help and manual: paragraphs with an empty line between them. A paragraph that begins with two spaces
 * holds commands, and its lines stay as they are.
 */
#ifndef DRAY_CTL_RENDER_TEXT_H
#define DRAY_CTL_RENDER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct ctl_span {
	const char *s;
	size_t n;
};

/* Takes the next paragraph off *text; *ret points into it. False: there is none. */
bool ctl_text_paragraph(const char **text, struct ctl_span *ret);

/* Takes the next word off *paragraph. */
bool ctl_text_word(struct ctl_span *paragraph, struct ctl_span *ret);

bool ctl_text_is_commands(struct ctl_span paragraph);

/* Prints lines of at most `width` columns, with an empty line between paragraphs. */
void ctl_text_wrap(FILE *f, const char *text, size_t width);

#endif
