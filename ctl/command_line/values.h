/* SPDX-License-Identifier: Apache-2.0 */
/* The possible values of options and arguments, as far as a shell can complete them. */
#ifndef DRAY_CTL_COMMAND_LINE_VALUES_H
#define DRAY_CTL_COMMAND_LINE_VALUES_H

#include "ctl/command_line/args.h"
#include "ctl/render/text.h"

struct ctl_values {
	enum ctl_kind kind;
	struct ctl_span name;  /* for people: PATH */
	struct ctl_span words; /* the values, separated by |; or empty */
	/* The verb whose --plain output has the values in this column, or NULL. */
	const char *verb;
	unsigned column;
};

/* Of an option that takes a value. */
struct ctl_values ctl_values_of_option(const struct ctl_option *o);

/* Of the verb's i-th argument, from 0. */
struct ctl_values ctl_values_of_argument(const struct ctl_verb *v, unsigned i);

/* Takes the next word off words. */
bool ctl_values_word(struct ctl_span *words, struct ctl_span *ret);

#endif
