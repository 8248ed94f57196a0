/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the build makes from the tables of verbs and options. */
#ifndef DRAY_CTL_GENERATE_GENERATE_H
#define DRAY_CTL_GENERATE_GENERATE_H

#include <stdio.h>

/* Tables for the shell code beside this file. */
void generate_bash(FILE *f);
void generate_zsh(FILE *f);

/* The whole manual page. */
void generate_man(FILE *f);

#endif
