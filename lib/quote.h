/* SPDX-License-Identifier: Apache-2.0 */
/* Quotes texts for shells and dotenv files. A text has no newline and no NUL; all other bytes are kept. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* Writes one word for sh, bash or dash: in single quotes, or bare if it needs none. */
void dray_quote_shell(FILE *f, const char *s);

/*
 * Writes the text behind NAME= in a file that shells read by `.` and other programs as dotenv: bare if no reader needs
 * quotes, else in single quotes. A text with a single quote is written in double quotes if nothing in it is special
 * there, else as for a shell, which not every dotenv reader understands.
 */
void dray_quote_dotenv(FILE *f, const char *s);

/* [A-Za-z_][A-Za-z0-9_]*: a name that a shell can assign to. */
bool dray_env_name_valid(const char *name);
