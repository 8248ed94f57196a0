/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent proves to servers of the directory, and how it knows them: password, certificates. */
#pragma once

#include "agent/control/directory/link.h"
#include "lib/err.h"
#include "schema/gen/config.h"

#define PASSWORD_MAX 512

struct login {
	SSL_CTX *tls; /* NULL: without TLS */
	char password[PASSWORD_MAX + 2];
	struct link_login link;
};

/* Reads the files. user: borrowed. 0, or -errno with reterr; login_deinit() also after a failure. */
int login_init(struct login *l, const struct dray_config *cfg, bool tls, const char *user,
	       unsigned database, struct dray_err *reterr);
void login_deinit(struct login *l);
