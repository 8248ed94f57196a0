/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and texts for people. Each writes to buf and returns it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define CTL_HUMAN_BYTES 32

/* 512 B, 3.0 KiB, 16 GiB */
const char *ctl_show_size(uint64_t bytes, char buf[CTL_HUMAN_BYTES]);
/* 812 ns, 3.2 ms, 42 s, 3 min 12 s, 2 h 5 min, 3 d 4 h */
const char *ctl_show_span(uint64_t ns, char buf[CTL_HUMAN_BYTES]);
/* 1,234,567 */
const char *ctl_show_count(uint64_t n, char buf[CTL_HUMAN_BYTES]);
/* 12.3 GB/s: decimal, as networks count */
const char *ctl_show_rate(double bytes_per_second, char buf[CTL_HUMAN_BYTES]);

/* The same, in a buffer that lives until the end of the block. */
#define ctl_size(v) ctl_show_size((v), (char[CTL_HUMAN_BYTES]){ "" })
#define ctl_span(v) ctl_show_span((v), (char[CTL_HUMAN_BYTES]){ "" })
#define ctl_count(v) ctl_show_count((v), (char[CTL_HUMAN_BYTES]){ "" })
#define ctl_rate(v) ctl_show_rate((v), (char[CTL_HUMAN_BYTES]){ "" })

/*
 * A foreign text made harmless for a terminal and a line: control characters and backslashes become \n, \t, \\ or
 * \xNN. At most n bytes with the final NUL.
 */
const char *ctl_show_text(const char *s, char *buf, size_t n);

/* Columns that a UTF-8 text takes. */
size_t ctl_text_width(const char *s);
