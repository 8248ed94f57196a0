/* SPDX-License-Identifier: Apache-2.0 */
/* What the manual page says besides verbs and options. Texts are as text.h says. */
#ifndef DRAY_CTL_COMMAND_LINE_MANUAL_H
#define DRAY_CTL_COMMAND_LINE_MANUAL_H

/* A line with a hanging text, such as an exit status with its meaning. */
struct ctl_manual_item {
	const char *tag;
	const char *text;
};

struct ctl_manual_section {
	const char *title;
	const char *text;
	const struct ctl_manual_item *items; /* after the text; the last one has no tag. NULL: none */
};

extern const char ctl_manual_summary[];     /* of the line under NAME */
extern const char ctl_manual_description[]; /* before the verbs */
extern const char ctl_manual_options[];     /* before the options of every verb */
extern const char ctl_manual_units[];       /* after them */

/* What follows the options; the last one has no title. */
extern const struct ctl_manual_section ctl_manual_sections[];

#endif
