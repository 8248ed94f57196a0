/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts that stand in tables here and go to terminals and manuals: paragraphs with an empty line between
 * them. One that begins with two spaces is commands, and its lines stay as they are.
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

/* Takes the next paragraph off *text. *ret points into it. false: there is none. */
bool ctl_text_paragraph(const char **text, struct ctl_span *ret);

/* Takes the next word off *paragraph. */
bool ctl_text_word(struct ctl_span *paragraph, struct ctl_span *ret);

bool ctl_text_is_commands(struct ctl_span paragraph);

/* Lines of at most `width` columns, an empty one between paragraphs. */
void ctl_text_wrap(FILE *f, const char *text, size_t width);

#endif
