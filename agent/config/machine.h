/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "agent/config/config.h"

/* Warns of a store that is to have more memory than this process may use. 0 or -ENOMEM. */
int config_warn_memory(struct config *c);

/* The same of its disk tier and the file system of its folder. Blocks while that hangs, so an agent that starts does not ask. */
int config_warn_disk(struct config *c);
