/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sentinels, which know the primary of a service: one after the other is asked, until one names another primary than before, and again
 * while that cannot be used.
 */
#pragma once

struct directory;
struct sentinels;

/* 0 or -errno. */
int sentinels_init(struct directory *d);
/* Also if there are none. */
void sentinels_deinit(struct directory *d);
/* The primary cannot be used: it may be another one now. */
void sentinels_ask(struct directory *d);
