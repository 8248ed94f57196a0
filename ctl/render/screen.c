/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/render/screen.h"

#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>

/* Bytes of a colour's escape sequence at s; 0: there is none. */
static size_t escape_length(const char *s)
{
	const char *end = *s == '\033' ? strchr(s, 'm') : NULL;

	return end ? (size_t)(end - s) + 1 : 0;
}

/* Prints one line without its end, and returns its end. */
static const char *line_print(FILE *f, const char *s, unsigned columns)
{
	unsigned column = 0;

	while (*s && *s != '\n') {
		size_t escape = escape_length(s);

		if (escape) {
			fwrite(s, 1, escape, f);
			s += escape;
			continue;
		}
		/* the other bytes of a character in UTF-8 take no column */
		column += ((unsigned char)*s & 0xc0) != 0x80;
		if (!columns || column <= columns)
			fputc(*s, f);
		s++;
	}
	return s;
}

void ctl_screen_print(FILE *f, const char *text, unsigned rows, unsigned columns)
{
	fputs("\033[H\033[2J", f);
	for (unsigned row = 1; *text && (!rows || row < rows); row++) {
		text = line_print(f, text, columns);
		fputc('\n', f);
		text += *text == '\n';
	}
}

void ctl_screen_show(FILE *f, const char *text)
{
	struct winsize size = { .ws_row = 0 };

	if (ioctl(fileno(f), TIOCGWINSZ, &size) < 0)
		size = (struct winsize){ .ws_row = 0 };
	ctl_screen_print(f, text, size.ws_row, size.ws_col);
}
