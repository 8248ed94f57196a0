/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/ctl.h"

#include <string.h>

#include "lib/nearest.h"
#include "lib/units.h"

#define CONTROL_DEFAULT "/run/dray/control.sock"

static bool is_own(const struct ctl_verb *verb, enum ctl_option_id id)
{
	for (unsigned i = 0; verb && verb->options[i] >= CTL_OPTION_GLOBAL_N; i++)
		if (verb->options[i] == id)
			return true;
	return false;
}

/* A verb's own option takes precedence over a global one of the same name. CTL_OPTION_N: there is none. */
static enum ctl_option_id option_find(const struct ctl_verb *verb, const char *arg, size_t n)
{
	enum ctl_option_id found = CTL_OPTION_N;

	for (int i = 0; i < CTL_OPTION_N; i++) {
		enum ctl_option_id id = (enum ctl_option_id)i;

		if (strncmp(arg, ctl_options[i].name, n) || ctl_options[i].name[n])
			continue;
		if (is_own(verb, id))
			return id;
		if (i < CTL_OPTION_GLOBAL_N)
			found = id;
	}
	return found;
}

/* The verbs that have an option of this name, after drayctl; empty if none has. */
static void verbs_of(const char *name, char *buf, size_t bytes)
{
	size_t n = 0;

	buf[0] = '\0';
	for (unsigned v = 0; v < CTL_VERB_N; v++)
		for (int i = CTL_OPTION_GLOBAL_N; i < CTL_OPTION_N && n < bytes; i++)
			if (!strcmp(name, ctl_options[i].name) &&
			    is_own(&ctl_verbs[v], (enum ctl_option_id)i))
				n += (size_t)snprintf(buf + n, bytes - n, "%s%s", n ? ", " : "",
						      ctl_verbs[v].name);
}

static int unknown_option(struct ctl *c, const struct ctl_verb *verb, const char *arg, size_t n)
{
	char word[64], verbs[128];
	struct dray_nearest nearest = DRAY_NEAREST(word);

	snprintf(word, sizeof(word), "%.*s", (int)(n < 60 ? n : 60), arg);
	verbs_of(word, verbs, sizeof(verbs));
	if (*verbs && verb)
		return ctl_misuse(c, "drayctl %s has no option %s; it is one of drayctl %s",
				  verb->name, word, verbs);
	if (*verbs)
		return ctl_misuse(c, "%s is an option of drayctl %s; put it after the verb", word,
				  verbs);
	for (int i = 0; i < CTL_OPTION_N; i++)
		if (i < CTL_OPTION_GLOBAL_N || is_own(verb, (enum ctl_option_id)i))
			dray_nearest_offer(&nearest, ctl_options[i].name);
	if (nearest.best)
		return ctl_misuse(c, "unknown option %s, did you mean %s?", word, nearest.best);
	return ctl_misuse(c, "unknown option %s; drayctl %s%s--help lists all", word,
			  verb ? verb->name : "", verb ? " " : "");
}

/* The name of an option that is given by one letter. */
static const char *long_name(const struct ctl_verb *verb, const char *arg)
{
	if (!strcmp(arg, "-h"))
		return "--help";
	for (unsigned i = 0; arg[1] != '-' && !arg[2] && i < CTL_OPTION_N; i++)
		if (ctl_options[i].letter == arg[1] && is_own(verb, (enum ctl_option_id)i))
			return ctl_options[i].name;
	return arg;
}

/* No value is an option, or the end of the options, unless it is behind =. */
static bool is_value(const struct ctl_verb *verb, const char *arg)
{
	if (arg[0] != '-' || !arg[1])
		return true;
	arg = long_name(verb, arg);
	return strcmp(arg, "--") != 0 && option_find(verb, arg, strcspn(arg, "=")) == CTL_OPTION_N;
}

static int option_take(struct ctl *c, int argc, char *const *argv, int *i)
{
	const char *arg = long_name(c->verb, argv[*i]), *value = NULL;
	size_t n = strcspn(arg, "=");
	enum ctl_option_id id = option_find(c->verb, arg, n);
	const struct ctl_option *o;

	if (id == CTL_OPTION_N)
		return unknown_option(c, c->verb, arg, n);
	o = &ctl_options[id];
	if (arg[n])
		value = arg + n + 1;
	if (!o->value && value)
		return ctl_misuse(c, "%s takes no value", o->name);
	/* A global option may be given again, so that one in an alias of the shell can be overridden. */
	if (o->value && c->values[id] && id >= CTL_OPTION_GLOBAL_N)
		return ctl_misuse(c, "%s is given twice; give it once", o->name);
	if (o->value && !value && !o->optional) {
		if (*i + 1 >= argc || !is_value(c->verb, argv[*i + 1]))
			return ctl_misuse(c, "%s needs a value: %s", o->name, o->value);
		value = argv[++*i];
	}
	c->values[id] = value ? value : "";
	return 0;
}

const struct ctl_verb *ctl_verb_find(struct ctl *c, const char *name)
{
	struct dray_nearest nearest = DRAY_NEAREST(name);

	for (unsigned i = 0; i < CTL_VERB_N; i++) {
		if (!strcmp(ctl_verbs[i].name, name))
			return &ctl_verbs[i];
		dray_nearest_offer(&nearest, ctl_verbs[i].name);
	}
	ctl_misuse(c, "unknown verb %.60s%s%s%s", name,
		   nearest.best ? ", did you mean " : "; drayctl --help lists all",
		   nearest.best ? nearest.best : "", nearest.best ? "?" : "");
	return NULL;
}

static int word_take(struct ctl *c, const char *word)
{
	static const char *const counts[] = { "no argument", "one argument", "two arguments" };

	if (!c->verb) {
		c->verb = ctl_verb_find(c, word);
		return c->verb ? 0 : -1;
	}
	if (c->n_args == c->verb->max_args)
		return ctl_misuse(c, "drayctl %s takes %s; remove \"%.60s\"", c->verb->name,
				  counts[c->verb->max_args], word);
	c->args[c->n_args++] = word;
	return 0;
}

static int rules_check(struct ctl *c)
{
	for (unsigned i = 0; i < CTL_OPTION_RULES_N; i++) {
		const struct ctl_option_rule *r = &ctl_option_rules[i];
		const char *option = ctl_options[r->option].name;
		const char *other = ctl_options[r->other].name;

		if (!c->values[r->option] || !c->values[r->other] != r->needs)
			continue;
		if (!r->needs)
			return ctl_misuse(c, "%s and %s exclude each other; %s", option, other,
					  r->advice);
		if (is_own(c->verb, r->other))
			return ctl_misuse(c, "%s has no effect without %s; give both", option,
					  other);
	}
	return 0;
}

static int number_parse(enum ctl_option_type type, const char *text, int64_t *ret)
{
	if (type == CTL_TYPE_COUNT)
		return dray_int_parse(text, 0, ret);
	return type == CTL_TYPE_SIZE ? dray_size_parse(text, ret) : dray_duration_parse(text, ret);
}

static const char *number_show(enum ctl_option_type type, int64_t v, char *buf, size_t n)
{
	if (type == CTL_TYPE_SIZE)
		return dray_size_show(v, buf, n);
	if (type == CTL_TYPE_DURATION)
		return dray_duration_show(v, buf, n);
	snprintf(buf, n, "%lld", (long long)v);
	return buf;
}

static int number_read(struct ctl *c, const struct ctl_option *o, const char *text, int64_t *ret)
{
	char a[32], b[32];

	if (o->optional && !*text) {
		*ret = o->implied;
		return 0;
	}
	if (number_parse(o->type, text, ret) == 0 && *ret >= o->min && *ret <= o->max)
		return 0;
	if (o->type == CTL_TYPE_DURATION && !dray_int_parse(text, 0, ret) && *ret > 0)
		return ctl_misuse(
			c, "%s %.40s has no unit; write %.40ss, or use ns, us, ms, min, h or d",
			o->name, text, text);
	return ctl_misuse(c, "%s %.60s is not allowed; use %s to %s", o->name, text,
			  number_show(o->type, o->min, a, sizeof(a)),
			  number_show(o->type, o->max, b, sizeof(b)));
}

static int word_read(struct ctl *c, const struct ctl_option *o, const char *text, int64_t *ret)
{
	for (*ret = 0; o->words[*ret]; ++*ret)
		if (!strcmp(text, o->words[*ret]))
			return 0;
	return ctl_misuse(c, "%s %.60s is not allowed; use %s", o->name, text, o->value);
}

static int numbers_read(struct ctl *c)
{
	for (unsigned i = 0; i < CTL_OPTION_N; i++) {
		const struct ctl_option *o = &ctl_options[i];
		int ret = 0;

		c->numbers[i] = o->def;
		if (c->values[i] && o->words)
			ret = word_read(c, o, c->values[i], &c->numbers[i]);
		else if (c->values[i] && o->max)
			ret = number_read(c, o, c->values[i], &c->numbers[i]);
		if (ret < 0)
			return ret;
	}
	return 0;
}

static int settings_read(struct ctl *c)
{
	c->control = c->values[CTL_OPTION_CONTROL];
	if (!c->control)
		c->control = c->env->control && *c->env->control ? c->env->control :
								   CONTROL_DEFAULT;
	if (!*c->control)
		return ctl_misuse(c, "--control needs a path");
	c->format = c->values[CTL_OPTION_JSON]  ? CTL_JSON :
		    c->values[CTL_OPTION_PLAIN] ? CTL_PLAIN :
						  CTL_TEXT;
	c->color = c->env->color && !c->values[CTL_OPTION_NO_COLOR];
	return numbers_read(c);
}

int ctl_args_parse(struct ctl *c, int argc, char *const *argv)
{
	bool words_only = false;

	for (int i = 1; i < argc; i++) {
		bool end = !strcmp(argv[i], "--");
		int ret;

		if (c->verb && c->verb->command && (end || words_only || argv[i][0] != '-')) {
			c->command = argv + i + end;
			c->n_command = (unsigned)(argc - i) - end;
			break;
		}
		if (!words_only && end) {
			words_only = true;
			continue;
		}
		if (!words_only && argv[i][0] == '-' && argv[i][1])
			ret = option_take(c, argc, argv, &i);
		else
			ret = word_take(c, argv[i]);
		if (ret < 0)
			return ret;
	}
	return rules_check(c) < 0 ? -1 : settings_read(c);
}
