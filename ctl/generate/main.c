/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "ctl/generate/generate.h"
#include "lib/cleanup.h"

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*fn)(FILE *f);
	} outputs[] = {
		{ "bash", generate_bash },
		{ "zsh", generate_zsh },
		{ "man", generate_man },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(outputs); i++) {
		if (argc != 2 || strcmp(argv[1], outputs[i].name))
			continue;
		outputs[i].fn(stdout);
		if (fflush(stdout) == 0)
			return 0;
		perror("generate: writing");
		return 1;
	}
	fputs("usage: generate bash|zsh|man\n", stderr);
	return 2;
}
