/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/quote.h"

#include <string.h>

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"
/* Special to no shell, in any place of a command, and to no reader of dotenv files. */
#define PLAIN LETTERS DIGITS "_./:,@%+-"
/* Behind NAME= shells expand no patterns, and some readers of dotenv files keep the quotes. */
#define PLAIN_ASSIGNED PLAIN "=[]"
/* Special in double quotes to a shell or to a reader that expands; ! to an interactive bash. */
#define SPECIAL_IN_DOUBLE "\"\\$`!"

static bool consists_of(const char *s, const char *allowed)
{
	return *s && !s[strspn(s, allowed)];
}

void dray_quote_shell(FILE *f, const char *s)
{
	if (consists_of(s, PLAIN)) {
		fputs(s, f);
		return;
	}
	fputc('\'', f);
	for (; *s; s++)
		if (*s == '\'')
			fputs("'\\''", f);
		else
			fputc(*s, f);
	fputc('\'', f);
}

void dray_quote_dotenv(FILE *f, const char *s)
{
	if (consists_of(s, PLAIN_ASSIGNED))
		fputs(s, f);
	else if (strchr(s, '\'') && !strpbrk(s, SPECIAL_IN_DOUBLE))
		fprintf(f, "\"%s\"", s);
	else if (*s)
		dray_quote_shell(f, s);
}

bool dray_env_name_valid(const char *name)
{
	return *name && !strchr(DIGITS, *name) && !name[strspn(name, LETTERS DIGITS "_")];
}
