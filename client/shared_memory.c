/* SPDX-License-Identifier: Apache-2.0 */
#include "client/shared_memory.h"

#include <fcntl.h>
#include <sys/stat.h>

bool dc_shared_memory_ok(int fd, uint64_t bytes)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &st) == 0 && bytes &&
	       bytes <= (uint64_t)st.st_size;
}
