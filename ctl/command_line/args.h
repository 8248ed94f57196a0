/* SPDX-License-Identifier: Apache-2.0 */
/* The options of drayctl, and the command line that is read by their table. */
#ifndef DRAY_CTL_COMMAND_LINE_ARGS_H
#define DRAY_CTL_COMMAND_LINE_ARGS_H

#include "ctl/ctl.h"

#define CTL_CONTROL_DEFAULT "/run/dray/control.sock"

struct ctl_option {
	const char *name;  /* with its dashes */
	const char *value; /* its value, for the help; NULL: it takes none */
	const char *help;
	enum ctl_kind kind;
	bool optional;    /* the value, which then follows = */
	const char *more; /* further sentences for the manual, or NULL */
};

/* In the order of enum ctl_option_id. */
extern const struct ctl_option ctl_options[CTL_OPTION_N];

/* An option that another one excludes, or without which another one has no effect. */
struct ctl_option_rule {
	enum ctl_option_id option;
	bool needs; /* only for verbs that have the other one too; else excludes */
	enum ctl_option_id other;
	const char *advice; /* end of the message */
};

extern const struct ctl_option_rule ctl_option_rules[];
extern const unsigned ctl_option_rules_n;

/*
 * Fills verb, values, args and settings of c. Options may stand anywhere, those of a verb after it. 0, or -1 with
 * CTL_EXIT_USAGE.
 */
int ctl_args_parse(struct ctl *c, int argc, char *const *argv, struct ctl_err *reterr);

/* The verb of that name, or NULL with CTL_EXIT_USAGE and the nearest name. */
const struct ctl_verb *ctl_verb_find(const char *name, struct ctl_err *reterr);

/*
 * The option's value as a number, size, duration or index of a word, or the default if it is not given. 0, or -1 with
 * CTL_EXIT_USAGE and the allowed values.
 */
int ctl_option_count(const struct ctl *c, enum ctl_option_id id, int64_t min, int64_t max,
		     int64_t def, int64_t *ret, struct ctl_err *reterr);
int ctl_option_size(const struct ctl *c, enum ctl_option_id id, int64_t min, int64_t max,
		    int64_t def, int64_t *ret, struct ctl_err *reterr);
int ctl_option_span(const struct ctl *c, enum ctl_option_id id, int64_t min_ns, int64_t max_ns,
		    int64_t def_ns, int64_t *ret_ns, struct ctl_err *reterr);
/* words end with NULL; the first one is the default. */
int ctl_option_word(const struct ctl *c, enum ctl_option_id id, const char *const *words, int *ret,
		    struct ctl_err *reterr);

#endif
