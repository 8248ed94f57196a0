/* SPDX-License-Identifier: Apache-2.0 */
/* The owner of a client that has this agent connect to others, in words: a copy, because attempts outlive sessions. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "agent/config/tenant.h"

struct peer_client {
	char name[TENANT_BYTES + 32];
};

/* tenant: n bytes. */
static inline struct peer_client peer_client_of(const char *tenant, uint32_t n, uint32_t uid)
{
	struct peer_client c;

	snprintf(c.name, sizeof(c.name), "tenant=%.*s uid=%u", (int)n, tenant, uid);
	return c;
}
