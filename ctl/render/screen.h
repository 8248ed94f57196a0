/* SPDX-License-Identifier: Apache-2.0 */
/* Output that fills a terminal and replaces the one before. */
#pragma once

#include <stdio.h>

/*
 * Clears the terminal and prints the first lines of the text that fit, each cut at the last column. The cursor stays behind
 * the last line, so the text has one line less than the terminal. rows or columns 0: unknown, without a limit.
 */
void ctl_screen_print(FILE *f, const char *text, unsigned rows, unsigned columns);

/* The same with the present size of the terminal of f. */
void ctl_screen_show(FILE *f, const char *text);
