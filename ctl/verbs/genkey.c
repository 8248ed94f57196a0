/* SPDX-License-Identifier: Apache-2.0 */
/* genkey: makes a random key for agents, as text that survives editors and Secrets. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ctl/verbs/verbs.h"
#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/random.h"

#define KEY_BYTES 32
#define KEY_TEXT (2 * KEY_BYTES + 1) /* hexadecimal, and a newline */

static int key_make(struct ctl *c, char text[KEY_TEXT + 1])
{
	uint8_t key[KEY_BYTES];
	int ret = dray_random_fill(key, sizeof(key));

	if (ret < 0)
		return ctl_failed(c, "the kernel gave no random bytes: %s", dray_errno_text(ret));
	for (size_t i = 0; i < KEY_BYTES; i++)
		snprintf(text + 2 * i, 3, "%02x", key[i]);
	text[KEY_TEXT - 1] = '\n';
	text[KEY_TEXT] = '\0';
	explicit_bzero(key, sizeof(key));
	return 0;
}

/* Only the owner can read the file. An existing file stays, because agents may use the key in it. */
static int file_write(struct ctl *c, const char *path, const char *text)
{
	dray_auto_close int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0400);
	ssize_t n;

	if (fd < 0 && errno == EEXIST)
		return ctl_failed(
			c, "%.200s exists and may be in use; choose another name, or remove it",
			path);
	if (fd < 0)
		return ctl_failed(c, "cannot create %.200s: %s", path, dray_errno_text(errno));
	n = write(fd, text, KEY_TEXT);
	if (n == KEY_TEXT && fsync(fd) == 0)
		return 0;
	ctl_failed(c, "writing %.200s: %s", path,
		   dray_errno_text(n < 0 || n == KEY_TEXT ? errno : ENOSPC));
	unlink(path);
	return -1;
}

int ctl_genkey(struct ctl *c)
{
	char text[KEY_TEXT + 1];
	int ret;

	if (c->n_args && !*c->args[0])
		return ctl_misuse(
			c, "genkey needs a name for its FILE; without FILE it prints the key");
	ret = key_make(c, text);

	if (!ret && c->n_args)
		ret = file_write(c, c->args[0], text);
	else if (!ret)
		fputs(text, c->out);
	explicit_bzero(text, sizeof(text));
	return ret;
}
