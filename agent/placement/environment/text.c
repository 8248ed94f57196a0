/* SPDX-License-Identifier: Apache-2.0 */
/* The environment as text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/environment/env_file.h"
#include "agent/placement/environment/internal.h"
#include "lib/quote.h"

/* Two profiles may have the same variable. */
static bool said_before(const struct env *e, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (e->v[k].value && !e->v[k].argument && !strcmp(e->v[k].name, e->v[i].name))
			return true;
	return false;
}

static void line_print(const struct env *e, size_t i, FILE *s)
{
	const struct env_variable *v = &e->v[i];

	if (!i || strcmp(e->v[i - 1].profile, v->profile))
		fprintf(s, "\n# %s: %s\n", v->profile,
			env_profiles[env_profile_find(v->profile)]->doc);
	if (!v->value) {
		fprintf(s, "# %s left out: %s\n", v->name, v->reason);
	} else if (v->argument) {
		fprintf(s, "# %s=%s\n", v->name, v->value);
	} else if (!said_before(e, i)) {
		fprintf(s, "%s=", v->name);
		dray_quote_dotenv(s, v->value);
		fputc('\n', s);
	}
}

int env_text(const struct env *e, char **ret)
{
	char *text = NULL;
	size_t n;
	FILE *s = open_memstream(&text, &n);

	if (!s)
		return -ENOMEM;
	fputs(ENV_FILE_MARK ", and replaced when something changes; see drayctl env.\n", s);
	for (size_t i = 0; i < e->n; i++)
		line_print(e, i, s);
	if (fclose(s) != 0) {
		free(text);
		return -ENOMEM;
	}
	*ret = text;
	return 0;
}

int env_lines(const struct env *e, char **ret_variables, char **ret_notes)
{
	char *variables = NULL, *notes = NULL;
	size_t n, notes_n;
	FILE *s = open_memstream(&variables, &n), *t = open_memstream(&notes, &notes_n);
	int bad = !s || !t;

	for (size_t i = 0; !bad && i < e->n; i++) {
		const struct env_variable *v = &e->v[i];

		if (!v->value)
			fprintf(t, "%s: %s\n", v->name, v->reason);
		else if (v->argument)
			fprintf(t, "%s: an argument, %s=%s\n", v->name, v->name, v->value);
		else if (!said_before(e, i))
			fprintf(s, "%s=%s\n", v->name, v->value);
	}
	bad |= s && fclose(s) != 0;
	bad |= t && fclose(t) != 0;
	if (bad) {
		free(variables);
		free(notes);
		return -ENOMEM;
	}
	*ret_variables = variables;
	*ret_notes = notes;
	return 0;
}
