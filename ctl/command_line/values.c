/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/command_line/values.h"

#include <string.h>

/* The verbs that list the present values of a kind. */
static const struct {
	const char *verb;
	unsigned column;
} sources[CTL_KIND_N] = {
	[CTL_KIND_DEVICE] = { "detect", 1 },
	[CTL_KIND_SESSION] = { "sessions", 1 },
};

/* A name such as PATH describes the value; read|write are the values themselves. */
static bool are_words(struct ctl_span s)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-_|";

	return s.n && *s.s != '-' && strspn(s.s, allowed) >= s.n;
}

static struct ctl_values values_of(struct ctl_span name, enum ctl_kind kind)
{
	struct ctl_values v = { .kind = kind,
				.name = name,
				.verb = sources[kind].verb,
				.column = sources[kind].column };

	if (kind == CTL_KIND_FREE && are_words(name))
		v.words = name;
	return v;
}

struct ctl_values ctl_values_of_option(const struct ctl_option *o)
{
	return values_of((struct ctl_span){ o->value, strlen(o->value) }, o->kind);
}

static int brackets(struct ctl_span s)
{
	int open = 0;

	for (size_t i = 0; i < s.n; i++)
		open += (s.s[i] == '[') - (s.s[i] == ']');
	return open;
}

/* [KEY]... is KEY, DEVICE[/PORT] stays. */
static struct ctl_span bare(struct ctl_span word)
{
	while (word.n && *word.s == '[') {
		word.s++;
		word.n--;
	}
	while (word.n && (word.s[word.n - 1] == '.' || brackets(word) < 0))
		word.n--;
	return word;
}

/* The i-th word of the verb's args that is not an option. */
static bool argument_word(const struct ctl_verb *v, unsigned i, struct ctl_span *ret)
{
	struct ctl_span rest = { v->args, strlen(v->args) }, word;
	int depth = 0; /* of brackets around options */

	while (ctl_text_word(&rest, &word)) {
		bool option = depth || *word.s == '-' || !strncmp(word.s, "[-", 2) ||
			      !strncmp(word.s, "[OPTION]", 8);

		if (option) {
			depth += brackets(word);
		} else if (!i--) {
			*ret = bare(word);
			return true;
		}
	}
	return false;
}

struct ctl_values ctl_values_of_argument(const struct ctl_verb *v, unsigned i)
{
	struct ctl_span name = { "", 0 };

	argument_word(v, i, &name);
	return values_of(name, v->kinds[i]);
}

bool ctl_values_word(struct ctl_span *words, struct ctl_span *ret)
{
	const char *end = words->n ? memchr(words->s, '|', words->n) : NULL;

	*ret = (struct ctl_span){ words->s, end ? (size_t)(end - words->s) : words->n };
	words->s += ret->n + (end != NULL);
	words->n -= ret->n + (end != NULL);
	return ret->n;
}
