/* SPDX-License-Identifier: Apache-2.0 */
/* A state on a real file, and the rows that it loads. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "agent/state/state.h"

#define RIG_ROWS 64

/* Rows as lines of text, in the order in which they were loaded. */
struct rig_rows {
	char line[RIG_ROWS][256];
	unsigned n; /* number of rows, kept or not */
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

/* Opens and loads; starts the thread unless it is held. Retries are fast. */
void rig_open(struct rig *r, const char *dir);
void rig_start(struct rig *r);
/* Closes and reopens as a new process would, with the same event loop. */
void rig_close(struct rig *r);
void rig_reopen(struct rig *r);

/* Runs the loop until all changes are committed (0), or an attempt to write failed (-EIO). */
int rig_flush(struct rig *r);

/* Runs the loop until the condition holds; the test fails after ten seconds. */
void rig_wait(struct rig *r, bool (*holds)(struct rig *r), const char *what);

bool rig_in_memory(struct rig *r);
bool rig_on_disk(struct rig *r);
bool rig_refilled(struct rig *r);

bool rig_has(const struct rig *r, const char *line);

/* Puts hint i: by a client of uid 1000 + i % 7, for scope-i. */
void rig_put_hint(struct rig *r, unsigned i, uint32_t score);
