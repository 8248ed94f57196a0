/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines about batches of the store (store.log). Control thread only. */
#pragma once

#include "agent/model/message.h"

void store_report_log(const struct store_report *r);
