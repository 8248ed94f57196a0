/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/render/json.h"

#include <inttypes.h>

#include "lib/assert.h"
#include "lib/plain.h"

void ctl_json_text(FILE *f, const char *s)
{
	fputc('"', f);
	while (*s) {
		unsigned char ch = (unsigned char)*s;
		size_t length = dray_utf8_length(s);

		if (ch == '"' || ch == '\\')
			fprintf(f, "\\%c", ch);
		else if (ch == '\n')
			fputs("\\n", f);
		else if (ch == '\t')
			fputs("\\t", f);
		else if (!length || ch < 0x20 || ch == 0x7f)
			fprintf(f, "\\u%04x", ch);
		else
			fwrite(s, 1, length, f);
		s += dray_max(length, (size_t)1);
	}
	fputc('"', f);
}

static void indent(struct ctl_json *j)
{
	fputc('\n', j->f);
	for (unsigned i = 0; i < j->depth; i++)
		fputs("  ", j->f);
}

static void key_write(struct ctl_json *j, const char *key)
{
	if (!j->depth)
		return;
	if (j->some[j->depth - 1])
		fputc(',', j->f);
	j->some[j->depth - 1] = true;
	indent(j);
	if (key) {
		ctl_json_text(j->f, key);
		fputs(": ", j->f);
	}
}

static void begin(struct ctl_json *j, const char *key, char opening, char closing)
{
	key_write(j, key);
	fputc(opening, j->f);
	dray_assert(j->depth < CTL_JSON_DEPTH_MAX);
	j->closing[j->depth] = closing;
	j->some[j->depth++] = false;
}

void ctl_json_object(struct ctl_json *j, const char *key)
{
	begin(j, key, '{', '}');
}

void ctl_json_array(struct ctl_json *j, const char *key)
{
	begin(j, key, '[', ']');
}

void ctl_json_end(struct ctl_json *j)
{
	dray_assert(j->depth > 0);
	j->depth--;
	if (j->some[j->depth])
		indent(j);
	fputc(j->closing[j->depth], j->f);
	if (!j->depth)
		fputc('\n', j->f);
}

void ctl_json_members(struct ctl_json *j, const struct ctl_member *v, size_t n)
{
	for (; n; n--, v++) {
		key_write(j, v->key);
		switch (v->kind) {
		case CTL_MEMBER_NULL:
			fputs("null", j->f);
			break;
		case CTL_MEMBER_TEXT:
			ctl_json_text(j->f, v->s);
			break;
		case CTL_MEMBER_UINT:
			fprintf(j->f, "%" PRIu64, v->u);
			break;
		case CTL_MEMBER_INT:
			fprintf(j->f, "%" PRId64, v->i);
			break;
		case CTL_MEMBER_REAL:
			fprintf(j->f, "%.3f", v->r);
			break;
		case CTL_MEMBER_BOOL:
			fputs(v->b ? "true" : "false", j->f);
			break;
		}
	}
}
