/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent says of the keys of a lookup: the first that has an object lends it. */
#pragma once

#include "agent/control/exchange/question.h"

/* It answers each key of the lookup, and has all bytes of what it has found or none. */
bool answer_is_whole(const struct lookup *l, const struct pmsg_store_lookup_reply *m);
/* Takes the answers to all keys of the lookup. False: nothing of what is leased is needed. */
bool answer_take(struct lookup *l, const struct pmsg_store_lookup_reply *m);
