/* SPDX-License-Identifier: Apache-2.0 */
/* What is made from the tables of verbs and options when dray is built. */
#ifndef DRAY_CTL_GENERATE_GENERATE_H
#define DRAY_CTL_GENERATE_GENERATE_H

#include <stdio.h>

/* Tables, which the shell code beside this file reads. */
void generate_bash(FILE *f);
void generate_zsh(FILE *f);

/* The whole page. */
void generate_man(FILE *f);

#endif
