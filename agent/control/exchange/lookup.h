/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a question to other agents. What an agent has lent in vain is given back at once. */
#pragma once

#include "agent/control/exchange/question.h"
#include "agent/model/store_ask.h"

/* Messages that the keys of the ask need, to one agent. */
uint32_t lookups_needed(const struct store_ask *a);
/* Asks every agent that the question is for. It may end the question. */
void lookups_send(struct exchange *x, struct question *q);
/* The exchange ends. */
void lookups_free(struct dray_list *lookups);
