/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sessions ask about placement: hints, the preferred segment, the launcher's environment. The
 * session layer reads and writes the messages and nothing else; what they mean is for who answers
 * these calls, given to sessions_new(). Control thread only; they do not block.
 *
 * Text that comes in is UTF-8 without control characters, of up to 256 bytes, terminated, and the
 * caller's. Text in *ret is the callee's; it stands until the next of these calls or until the
 * callee returns to the event loop. It is UTF-8 without control characters; a segment has up to 256
 * bytes, a reason is cut to that. 0, or -errno with reterr (whose code the client gets); *ret is
 * looked at on 0 alone.
 *
 * They are called while the agent drains as well: they move no bytes, and a client that has to find
 * another place asks just then.
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
	/* The hint that counts for a scope. DRAY_E_NOT_FOUND: there is none. */
	int (*hint_get)(void *arg, const char *scope, struct dmsg_hint_get_reply *ret,
			struct dray_err *reterr);
	/*
	 * Remembers a segment in the place of what clients of uid said of the scope before. ttl_ms
	 * 0: hint.ttl. segment "": forgets what they said; DRAY_E_NOT_FOUND: that is nothing. What
	 * is no segment is DRAY_E_INVALID, too many hints DRAY_E_QUOTA.
	 */
	int (*hint_put)(void *arg, uid_t uid, const char *scope, const char *segment,
			uint32_t score, uint64_t ttl_ms, struct dray_err *reterr);
	/* The preferred segment; none is no error: preference none, and the reason. */
	int (*segment_get)(void *arg, const char *scope, struct dmsg_segment_get_reply *ret,
			   struct dray_err *reterr);
	/*
	 * profiles: by comma, "": env.profiles; one that is unknown is DRAY_E_INVALID. Lines that
	 * end with a newline each, NAME=VALUE and NAME: reason; both are malloc'ed and the caller's
	 * then, NULL is no line. More than PLACEMENT_ENV_MAX bytes of either: the client gets
	 * DRAY_E_TOO_LARGE.
	 */
	int (*env_get)(void *arg, const char *profiles, char **ret_variables, char **ret_notes,
		       struct dray_err *reterr);
};

#endif
