/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/verbs/verbs.h"
#include "ctl/yaml/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/err.h"

#define PATH_DEFAULT "/usr/local/bin:/usr/bin:/bin"

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

/* vLLM accepts _ for - in a name. Returns what follows the name, or NULL. */
static const char *name_skip(const char *text, const char *name)
{
	for (; *name; name++, text++)
		if (*text != *name && !(*text == '_' && *name == '-'))
			return NULL;
	return text;
}

/* An argument may be --name, --name=value, or --name.key for a part of an object. */
static bool is_argument(const char *arg, const char *name)
{
	const char *rest = strncmp(arg, "--", 2) ? NULL : name_skip(arg, name);

	return rest && (!*rest || *rest == '=' || *rest == '.');
}

/* The file of vLLM's --config, or NULL. The last one counts. */
static const char *config_file(char *const *argv, unsigned n)
{
	const char *file = NULL;

	for (unsigned i = 0; i < n; i++) {
		if (!strncmp(argv[i], "--config=", 9))
			file = argv[i] + 9;
		else if (!strcmp(argv[i], "--config") && i + 1 < n)
			file = argv[i + 1];
	}
	return file;
}

/* 1: the file has the argument, without its dashes, or a part of it; 0: it has not. */
static int config_has(struct ctl *c, const char *file, const char *name)
{
	ctl_auto_yaml struct ctl_yaml y = CTL_YAML_NULL;
	yaml_node_t *root;

	if (ctl_yaml_read(c, file, &y) < 0)
		return -1;
	root = y.n_documents ? yaml_document_get_root_node(y.documents) : NULL;
	if (!root || root->type != YAML_MAPPING_NODE)
		return 0;
	for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
	     p++) {
		const char *key = ctl_yaml_scalar(yaml_document_get_node(y.documents, p->key));
		const char *rest = key ? name_skip(key, name + 2) : NULL;

		if (rest && (!*rest || *rest == '.'))
			return 1;
	}
	return 0;
}

int ctl_command_has(struct ctl *c, const char *name, const char **where)
{
	const char *file = config_file(c->command, c->n_command);

	*where = "the command";
	for (unsigned i = 0; i < c->n_command; i++)
		if (is_argument(c->command[i], name))
			return 1;
	if (!file)
		return 0;
	*where = file;
	return config_has(c, file, name);
}
