/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

/* Beside the program, as in a build folder; then where `make install` puts it. */
static const char *const folders[] = { "", "../lib/dray/" };

static bool find_in(const char *folder, char *buf)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash)
		slash[1] = '\0';
	return snprintf(buf, PATH_MAX, "%s%s%s", self, folder, GPU_PLUGIN_FILE) < PATH_MAX &&
	       access(buf, R_OK) == 0;
}

bool gpu_plugin_path(const char *path, char *buf)
{
	if (path && *path) {
		snprintf(buf, PATH_MAX, "%s", path);
		return access(buf, R_OK) == 0;
	}
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(folders); i++)
		if (find_in(folders[i], buf))
			return true;
	return find_in(folders[0], buf);
}

int gpu_load(const char *path, const struct gpu_plugin_ops **ret, struct dray_err *reterr)
{
	const struct gpu_plugin_ops *ops;
	char file[PATH_MAX];
	void *library;

	if (!gpu_plugin_path(path, file))
		return dray_err_set(reterr, -ENOENT, DRAY_E_UNSUPPORTED,
				    "the CUDA plug-in %s is not there: install it, or build it "
				    "with a CUDA toolkit of 12.8 or later",
				    file);
	/* RTLD_NOW: a missing symbol fails here, not in the middle of a transfer */
	library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return dray_err_set(reterr, -ELIBBAD, DRAY_E_UNSUPPORTED,
				    "the CUDA plug-in cannot be loaded: %s", dlerror());
	ops = dlsym(library, GPU_PLUGIN_SYMBOL);
	if (!ops || ops->abi != GPU_PLUGIN_ABI) {
		dlclose(library);
		return dray_err_set(reterr, -ELIBBAD, DRAY_E_UNSUPPORTED,
				    "%s is not a plug-in of this release: install both from the "
				    "same build",
				    file);
	}
	*ret = ops;
	return 0;
}
