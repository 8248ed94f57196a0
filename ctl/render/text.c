/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/render/text.h"

#include <string.h>

bool ctl_text_paragraph(const char **text, struct ctl_span *ret)
{
	const char *s = *text + strspn(*text, "\n"), *end = strstr(s, "\n\n");

	*ret = (struct ctl_span){ s, end ? (size_t)(end - s) : strlen(s) };
	*text = s + ret->n;
	return ret->n;
}

bool ctl_text_word(struct ctl_span *paragraph, struct ctl_span *ret)
{
	while (paragraph->n && strchr(" \n", *paragraph->s)) {
		paragraph->s++;
		paragraph->n--;
	}
	*ret = (struct ctl_span){ paragraph->s, 0 };
	while (paragraph->n && !strchr(" \n", *paragraph->s)) {
		paragraph->s++;
		paragraph->n--;
		ret->n++;
	}
	return ret->n;
}

bool ctl_text_is_commands(struct ctl_span paragraph)
{
	return paragraph.n > 2 && !strncmp(paragraph.s, "  ", 2);
}

static void paragraph_wrap(FILE *f, struct ctl_span p, size_t width)
{
	struct ctl_span word;
	size_t column = 0;

	while (ctl_text_word(&p, &word)) {
		if (column && column + 1 + word.n > width) {
			fputc('\n', f);
			column = 0;
		}
		fprintf(f, "%s%.*s", column ? " " : "", (int)word.n, word.s);
		column += (column != 0) + word.n;
	}
	fputc('\n', f);
}

void ctl_text_wrap(FILE *f, const char *text, size_t width)
{
	struct ctl_span p;

	for (bool first = true; ctl_text_paragraph(&text, &p); first = false) {
		if (!first)
			fputc('\n', f);
		if (ctl_text_is_commands(p))
			fprintf(f, "%.*s\n", (int)p.n, p.s);
		else
			paragraph_wrap(f, p, width);
	}
}
