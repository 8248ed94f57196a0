/* SPDX-License-Identifier: Apache-2.0 */
/* A state on a real file, and what comes out of it. */
#ifndef DRAY_TESTS_UNIT_STATE_RIG_H
#define DRAY_TESTS_UNIT_STATE_RIG_H

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "agent/state/state.h"

#define RIG_ROWS 64

/* Rows as lines of text, in the order in which they came. */
struct rig_rows {
	char line[RIG_ROWS][256];
	unsigned n; /* all that came, kept or not */
};

struct rig {
	sd_event *event;
	struct state *s;
	struct state_deps deps;
	struct rig_rows rows;
	uint64_t loaded;
	unsigned refills;
	void (*refill)(struct rig *r);
};

/* Opens and loads; starts the thread unless it is to wait. Retries fast. */
void rig_open(struct rig *r, const char *dir);
void rig_start(struct rig *r);
/* As a new process would, but for the event loop. */
void rig_close(struct rig *r);
void rig_reopen(struct rig *r);

/* Runs the loop until all changes are committed (0), or an attempt to write failed (-EIO). */
int rig_flush(struct rig *r);

/* Runs the loop until it holds, for ten seconds at most; then the test fails. */
void rig_wait(struct rig *r, bool (*holds)(struct rig *r), const char *what);

bool rig_in_memory(struct rig *r);
bool rig_on_disk(struct rig *r);
bool rig_refilled(struct rig *r);

bool rig_has(const struct rig *r, const char *line);

/* Hint i: of client uid 1000 + i % 7 for scope-i. */
void rig_put_hint(struct rig *r, unsigned i, uint32_t score);

#endif
