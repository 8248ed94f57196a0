/* SPDX-License-Identifier: Apache-2.0 */
/* One request and one answer at the handshake of an engine with Mooncake. Control thread only. */
#pragma once

#include <stdbool.h>

#include <systemd/sd-event.h>

#include "agent/control/mooncake/frame.h"
#include "lib/addr.h"

struct ask;

/*
 * error: 0: the answer has come, which is of the type that was asked for; -EPROTO: what answers is no handshake; -ENODATA: it was closed
 * before its answer was complete; another -errno. The ask has ended, and must not be cancelled.
 */
typedef void (*ask_fn)(void *arg, int error, const char *body, size_t n);
/* The buffer for the answer may grow by n bytes. False: the ask ends with -EDQUOT. */
typedef bool (*ask_grow_fn)(void *arg, size_t n);

/*
 * The request is copied. fn runs at most once and not inside this call; the caller has the timeout. may_grow: NULL: always. 0 or -errno.
 */
int ask_start(struct ask **ret, sd_event *event, const struct dray_addr *to,
	      enum mooncake_frame_type type, const char *request, size_t n, ask_fn fn,
	      ask_grow_fn may_grow, void *arg);
/* Of its buffer for the answer. NULL: 0. */
size_t ask_bytes(const struct ask *a);
/* Takes NULL. Returns NULL. */
struct ask *ask_cancel(struct ask *a);
