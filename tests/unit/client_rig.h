/* SPDX-License-Identifier: Apache-2.0 */
/* A fake agent and its clients, for the tests of libdray's sessions and of the objects in them. */
#pragma once

#include "client/dray.h"
#include "tests/unit/client_fake.h"

extern struct fake client_fake;

/* Run before and after each test. */
int client_setup(void **state);
int client_teardown(void **state);

/* Options with short pauses and limits. */
struct dray_options client_options(void);
struct dray *client_connect(unsigned int flags);

/* Registers 64 KiB; the caller frees the memory. */
void client_region(struct dray *d, dray_region *ret, struct dray_memory *m);
/* The agent's handle of a region. */
uint64_t agent_region(struct dray *d, dray_region region);
void client_remote(struct dray *d, dray_remote *ret);

/* Waits for the next event, which must be of this type. */
struct dray_event client_event(struct dray *d, enum dray_event_type type);

/*
 * For fake_do(): close the connection; close it and change the incarnation; send an error and close
 * it.
 */
void client_hang_up(struct fake *f, void *arg);
void client_restart(struct fake *f, void *arg);
void client_close_with_error(struct fake *f, void *arg);
