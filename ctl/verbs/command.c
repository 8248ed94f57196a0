/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/verbs/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/err.h"

#define PATH_DEFAULT "/usr/local/bin:/usr/bin:/bin"
#define KV_TRANSFER "kv-transfer-config"

/* 0 if the file can be run, else an errno. */
static int file_check(const char *file)
{
	struct stat st;

	if (stat(file, &st) < 0)
		return errno;
	if (S_ISDIR(st.st_mode))
		return EISDIR;
	return faccessat(AT_FDCWD, file, X_OK, AT_EACCESS) < 0 ? errno : 0;
}

static int not_run(struct ctl *c, const char *name, int err)
{
	if (err == ENOENT || err == ENOTDIR)
		return ctl_fail(c, CTL_EXIT_NOT_FOUND, "%.200s: command not found", name);
	return ctl_fail(c, CTL_EXIT_NOT_EXECUTABLE, "cannot run %.200s: %s", name,
			dray_errno_text(err));
}

int ctl_command_find(struct ctl *c, const char *name, const char *path, char **ret)
{
	int why = ENOENT;

	if (!*name)
		return not_run(c, "\"\"", ENOENT);
	if (strchr(name, '/')) {
		why = file_check(name);
		if (why)
			return not_run(c, name, why);
		*ret = strdup(name);
		return *ret ? 0 : ctl_no_memory(c);
	}
	for (const char *at = path ? path : PATH_DEFAULT; at;) {
		size_t n = strcspn(at, ":");
		dray_auto_free char *file = NULL;
		int err;

		/* An empty entry is the working directory. */
		if (asprintf(&file, "%.*s%s%s", (int)n, at, n ? "/" : "./", name) < 0)
			return ctl_no_memory(c);
		err = file_check(file);
		if (!err) {
			*ret = dray_take(file);
			return 0;
		}
		/* Reported if no later directory has a file that can be run. */
		if (err == EACCES)
			why = err;
		at = at[n] ? at + n + 1 : NULL;
	}
	return not_run(c, name, why);
}

int ctl_command_exec(struct ctl *c, const char *file, char *const *argv, char *const *variables)
{
	/* The file has a slash, so there is no search; a file without #! is run by sh. */
	execvpe(file, argv, variables);
	return not_run(c, file, errno);
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* python, python3, python3.12 */
static bool is_python(const char *arg)
{
	const char *name = base_name(arg);

	return !strncmp(name, "python", 6) && !name[6 + strspn(name + 6, "0123456789.")];
}

bool ctl_command_is_vllm(char *const *argv, unsigned n)
{
	static const char module[] = "vllm.entrypoints.";
	bool python = false;

	for (unsigned i = 0; i < n; i++) {
		const char *next = i + 1 < n ? argv[i + 1] : "";

		if (!strcmp(base_name(argv[i]), "vllm") && !strcmp(next, "serve"))
			return true;
		if (python && !strcmp(argv[i], "-m") && !strncmp(next, module, sizeof(module) - 1))
			return true;
		if (python && !strncmp(argv[i], "-m", 2) &&
		    !strncmp(argv[i] + 2, module, sizeof(module) - 1))
			return true;
		python = python || is_python(argv[i]);
	}
	return false;
}

/* vLLM accepts _ for - in a name, and --name.key for a part of the object. */
static bool is_kv_transfer(const char *arg)
{
	static const char name[] = KV_TRANSFER;
	size_t i;

	if (strncmp(arg, "--", 2))
		return false;
	arg += 2;
	for (i = 0; name[i]; i++)
		if (arg[i] != name[i] && !(arg[i] == '_' && name[i] == '-'))
			return false;
	return !arg[i] || arg[i] == '=' || arg[i] == '.';
}

bool ctl_command_has_kv_transfer(char *const *argv, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (is_kv_transfer(argv[i]))
			return true;
	return false;
}
