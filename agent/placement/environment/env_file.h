/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file with the launcher's environment, for launchers that can only read a file. The agent removes it when it
 * ends, because its text would then be wrong. Control thread; writes are small and not synced, since the file has no
 * use after a crash of the machine.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* First bytes of every such file. A file that begins otherwise is not overwritten. */
#define ENV_FILE_MARK "# Written by drayd"

struct env_file {
	char *path; /* NULL: no file is configured */
	char *text; /* as last written; NULL: not yet */
	dev_t dev;  /* of the file last written */
	ino_t ino;
	bool failed; /* the last write failed, and that was logged */
};

#define ENV_FILE_NULL ((struct env_file){ .path = NULL })

/*
 * configured: env.file; "": a file env beside data_socket, "none": no file. Writes nothing yet. Both texts are
 * copied. 0 or -ENOMEM.
 */
int env_file_init(struct env_file *f, const char *configured, const char *data_socket);

/* Replaces the file if the text has changed. A failure is logged once, until a write succeeds. */
void env_file_write(struct env_file *f, const char *text);

/* Removes the file if it still is the one last written, and frees. Idempotent. */
void env_file_deinit(struct env_file *f);
