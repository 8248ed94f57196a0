/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file with the launcher's environment, for those who can read a file and nothing else. It is replaced by
 * rename, so that a reader has the old text or the new one; it goes with the agent, since what it says would be
 * wrong then. Control thread; small writes, without sync: nobody needs it after a crash of the machine.
 */
#ifndef DRAY_AGENT_PLACEMENT_ENVIRONMENT_ENV_FILE_H
#define DRAY_AGENT_PLACEMENT_ENVIRONMENT_ENV_FILE_H

#include <stdbool.h>
#include <sys/types.h>

/* First bytes of every such file: one that does not begin so is somebody else's, and is left alone. */
#define ENV_FILE_MARK "# Written by drayd"

struct env_file {
	char *path; /* NULL: no file is wanted */
	char *text; /* as it was written last; NULL: not yet */
	dev_t dev;  /* of what was written last */
	ino_t ino;
	bool failed; /* and that has been told */
};

#define ENV_FILE_NULL ((struct env_file){ .path = NULL })

/*
 * configured: env.file; "": env beside data_socket, "none": no file. Writes nothing yet. 0 or -ENOMEM; nothing is
 * borrowed.
 */
int env_file_init(struct env_file *f, const char *configured, const char *data_socket);

/* Replaces the file where the text is another than before. A failure is logged, once until a write succeeds. */
void env_file_write(struct env_file *f, const char *text);

/* Removes the file if it still is the one written last, and frees. Idempotent. */
void env_file_deinit(struct env_file *f);

#endif
