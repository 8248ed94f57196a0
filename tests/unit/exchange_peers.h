/* SPDX-License-Identifier: Apache-2.0 */
/* Which peers an exchange finds: those of the program's peers_at(), and what it is called itself ("10.0.0.9:1"). */
#pragma once

/* A peer at this segment is connected, and does not read; NULL: there is none. */
extern const char *exchange_unready;

/* Before each test. */
void exchange_peers_reset(void);
