/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "agent/control/exchange/question.h"

/*
 * Asks the directory who has the keys of the question, and then these agents. All are asked for a key that it does not know. False: it
 * cannot be asked.
 */
bool named_ask(struct exchange *x, struct question *q);
