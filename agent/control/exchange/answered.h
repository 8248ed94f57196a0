/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks that are answered: workers have them until they need nothing of the sources any more. What an EXISTS has found is kept for GETs of
 * other sessions of its owner.
 */
#pragma once

#include "agent/control/exchange/internal.h"

struct store_ask;

/* 0 or -errno. */
int answered_init(struct exchange *x);
void answered_deinit(struct exchange *x);

/* The worker gets the ask. */
void answered_add(struct exchange *x, struct store_ask *a);
/* Frees the ask, whose sources have ended. It may be one that was not answered. */
void answered_free(struct exchange *x, struct store_ask *a);
/*
 * A GET of what other sessions hold reads it there: so the worker process of an engine finds what its scheduler has leased, and
 * nobody is asked. False: they do not hold all of it.
 */
bool answered_share(struct exchange *x, struct store_ask *a);
