/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last HISTORY_MAX changes: states of the agent, rails, peers and segments, ended sessions, the configuration. Kept
 * in memory. Control thread only; nothing blocks.
 */
#ifndef DRAY_AGENT_CONTROL_HISTORY_H
#define DRAY_AGENT_CONTROL_HISTORY_H

#include <stdint.h>

#define HISTORY_MAX 1000

enum history_kind {
	HISTORY_STATE,
	HISTORY_RAIL,
	HISTORY_PEER,
	HISTORY_SESSION,
	HISTORY_CONFIG,
	HISTORY_LOG_LEVEL,
	HISTORY_SEGMENT,
	HISTORY_PREFERRED,
	HISTORY_KIND_N
};

#define HISTORY_SUBJECT_BYTES 112

struct history_event {
	uint64_t number; /* from 1, without gaps */
	int64_t time_ns; /* since 1970 */
	enum history_kind kind;
	/* cut if longer */
	char subject[HISTORY_SUBJECT_BYTES], before[24], after[24], reason[208];
};

struct history;

/* NULL: no memory. */
struct history *history_new(void);
struct history *history_free(struct history *h);

/* Texts are copied. Returns the number of the event. */
uint64_t history_add(struct history *h, enum history_kind kind, const char *subject,
		     const char *before, const char *after, const char *reason);

/* Calls fn for each kept event with a higher number, oldest first. */
void history_each(const struct history *h, uint64_t number,
		  void (*fn)(void *arg, const struct history_event *e), void *arg);

/* The name in drayctl and D-Bus. */
const char *history_kind_name(enum history_kind kind);

#endif
