/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of clients about placement: hints, the preferred segment, the launcher's environment. Sessions read
 * and write the messages; the functions given to sessions_new() carry out the requests. Control thread only; they do
 * not block.
 *
 * Text arguments are terminated UTF-8 without control characters, of up to 256 bytes, and the caller's. Text in *ret
 * is the callee's; it is valid until the next of these calls or until the callee returns to the event loop. It is
 * UTF-8 without control characters; a segment has up to 256 bytes, a reason is cut to 256. They return 0, or -errno
 * with reterr, which the client gets; *ret is read only on 0.
 *
 * They are also called while the agent drains: they move no bytes, and a client needs them then to find another
 * segment.
 */
#ifndef DRAY_AGENT_CONTROL_SESSION_PLACEMENT_H
#define DRAY_AGENT_CONTROL_SESSION_PLACEMENT_H

#include <stdint.h>
#include <sys/types.h>

#include "lib/err.h"
#include "schema/gen/data.h"

/* Bytes of each text of an environment. */
#define PLACEMENT_ENV_MAX ((DMSG_ENV_GET_REPLY_BODY_MAX - DMSG_ENV_GET_REPLY_MIN) / 2)

struct placement_upcalls {
	/* The effective hint of a scope. DRAY_E_NOT_FOUND: there is none. */
	int (*hint_get)(void *arg, const char *scope, struct dmsg_hint_get_reply *ret,
			struct dray_err *reterr);
	/*
	 * Stores a hint of uid for the scope and replaces the former one. ttl_ms 0: hint.ttl. segment "": deletes
	 * it, DRAY_E_NOT_FOUND if there is none. DRAY_E_INVALID: not a segment; DRAY_E_QUOTA: too many hints.
	 */
	int (*hint_put)(void *arg, uid_t uid, const char *scope, const char *segment,
			uint32_t score, uint64_t ttl_ms, struct dray_err *reterr);
	/* The preferred segment. If there is none: 0, preference none, and the reason. */
	int (*segment_get)(void *arg, const char *scope, struct dmsg_segment_get_reply *ret,
			   struct dray_err *reterr);
	/*
	 * profiles: separated by commas, "": env.profiles; DRAY_E_INVALID: an unknown profile. The results are lines
	 * NAME=VALUE and NAME: reason, each with a newline, allocated for the caller; NULL: no line. If either has more
	 * than PLACEMENT_ENV_MAX bytes, the client gets DRAY_E_TOO_LARGE.
	 */
	int (*env_get)(void *arg, const char *profiles, char **ret_variables, char **ret_notes,
		       struct dray_err *reterr);
};

#endif
