/* SPDX-License-Identifier: Apache-2.0 */
/* Texts for shells and for dotenv files. Values hold no newline and no NUL; all other bytes are kept. */
#ifndef DRAY_LIB_QUOTE_H
#define DRAY_LIB_QUOTE_H

#include <stdbool.h>
#include <stdio.h>

/* One word of sh, bash or dash: between single quotes, or bare where it is a plain word anyway. */
void dray_quote_shell(FILE *f, const char *s);

/*
 * Behind NAME= in a file that shells read by `.`, and others as dotenv. Bare where no reader needs more; else
 * between single quotes; with a single quote in it between double quotes where nothing in it is special there;
 * else as for a shell, which not every dotenv reader understands.
 */
void dray_quote_dotenv(FILE *f, const char *s);

/* [A-Za-z_][A-Za-z0-9_]*: what a shell can assign to. */
bool dray_env_name_valid(const char *name);

#endif
