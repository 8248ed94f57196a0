/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/http/json.h"

#include <stdio.h>
#include <stdlib.h>

/* Reasons may quote a peer: what is no plain text must not spoil the document. */
static void text_write(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else
			fputc(c < 0x20 || c >= 0x7f ? '?' : c, f);
	}
	fputc('"', f);
}

static const char *word(bool v)
{
	return v ? "true" : "false";
}

char *http_ready_json(const struct ready *r, size_t *ret_n)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_n);
	int bad;

	if (!f)
		return NULL;
	fprintf(f, "{\n  \"ready\": %s,\n  \"conditions\": [", word(r->ready));
	for (size_t i = 0; i < r->n; i++) {
		const struct ready_condition *c = &r->conditions[i];

		fprintf(f, "%s\n    {\"name\": ", i ? "," : "");
		text_write(f, c->name);
		fprintf(f, ", \"ok\": %s, \"required\": %s, \"reason\": ", word(c->ok),
			word(c->required));
		text_write(f, c->reason);
		fputc('}', f);
	}
	fputs("\n  ]\n}\n", f);
	bad = ferror(f);
	if (fclose(f) || bad) {
		free(text);
		return NULL;
	}
	return text;
}
