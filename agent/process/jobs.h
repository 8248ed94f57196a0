/* SPDX-License-Identifier: Apache-2.0 */
/* lib/jobs.h with delivery of finished jobs on the control thread's event loop. */
#pragma once

#include <systemd/sd-event.h>

#include "lib/jobs.h"

/* name: of the thread. stack: its bytes; 0: 256 KiB, enough for system calls. 0 or -errno. */
int jobs_new(struct dray_jobs **ret, sd_event *event, const char *name, size_t stack);

/* The same; begin: called by the thread before the first job. */
int jobs_new_with(struct dray_jobs **ret, sd_event *event, const char *name, size_t stack,
		  void (*begin)(void));

/* Stops the delivery, then calls dray_jobs_free(). */
bool jobs_free(struct dray_jobs *js);

/* Stops the delivery, then calls dray_jobs_leave(). */
void jobs_leave(struct dray_jobs *js);
