/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last changes: states of the agent, rails, peers and segments, ended sessions, the configuration. Kept in memory. Control
 * thread only; nothing blocks.
 */
#pragma once

#include <stdint.h>

#include "schema/gen/dbus.h"

/*
 * Of the ends of sessions, and of all other changes: clients end sessions as often as they like. At the limit the owner with the most
 * ends loses its oldest.
 */
#define HISTORY_MAX 1000
/* Of each text, with its NUL. */
#define HISTORY_TEXT_BYTES 512

struct history;

/* NULL: no memory. */
struct history *history_new(void);
struct history *history_free(struct history *h);

/*
 * kind: a constant, as in struct dray_dbus_event. owner: of the session that has ended; NULL: another change. The other texts are
 * copied, and cut if they are too long. Without memory the event is not kept. Returns its number.
 */
uint64_t history_add(struct history *h, const char *kind, const char *owner, const char *subject,
		     const char *before, const char *after, const char *reason);

/* Calls fn for each kept event with a higher number, oldest first. */
void history_each(const struct history *h, uint64_t number,
		  void (*fn)(void *arg, const struct dray_dbus_event *e), void *arg);
