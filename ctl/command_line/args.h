/* SPDX-License-Identifier: Apache-2.0 */
/* Options of drayctl: the table of them, and the reading of a command line by it. */
#ifndef DRAY_CTL_COMMAND_LINE_ARGS_H
#define DRAY_CTL_COMMAND_LINE_ARGS_H

#include "ctl/ctl.h"

struct ctl_option {
	const char *name;  /* with its dashes */
	const char *value; /* what it takes, for the help; NULL: nothing */
	const char *help;
	enum ctl_kind kind;
	bool optional;    /* the value, which then comes after = alone */
	const char *more; /* sentences that the manual has beyond that; NULL: none */
};

/* In the order of enum ctl_option_id. */
extern const struct ctl_option ctl_options[CTL_OPTION_N];

/*
 * Fills values, args and the settings of c. *ret_verb: NULL where none is named. Options may stand anywhere; a
 * verb's own come after it. 0, or -1 with wrong use in reterr.
 */
int ctl_args_parse(struct ctl *c, int argc, char *const *argv, const struct ctl_verb **ret_verb,
		   struct ctl_err *reterr);

/* The verb of that name, or NULL; *ret_nearest: the one that may be meant, or NULL. */
const struct ctl_verb *ctl_verb_find(const char *name, const char **ret_nearest);

/*
 * The option's value as a number, size, span or word, or the default where it is not given. 0, or -1 with
 * wrong use that says what is allowed.
 */
int ctl_option_count(const struct ctl *c, enum ctl_option_id id, int64_t min, int64_t max,
		     int64_t def, int64_t *ret, struct ctl_err *reterr);
int ctl_option_size(const struct ctl *c, enum ctl_option_id id, int64_t min, int64_t max,
		    int64_t def, int64_t *ret, struct ctl_err *reterr);
int ctl_option_span(const struct ctl *c, enum ctl_option_id id, int64_t min_ns, int64_t max_ns,
		    int64_t def_ns, int64_t *ret_ns, struct ctl_err *reterr);
/* words: NULL at the end; the first is the default. Index of the word. */
int ctl_option_word(const struct ctl *c, enum ctl_option_id id, const char *const *words, int *ret,
		    struct ctl_err *reterr);

#endif
