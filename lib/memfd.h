/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * New memfd of `bytes`, close-on-exec, sealed against shrinking, growing and further sealing. huge: on huge
 * pages. Returns the descriptor or -errno. No page is touched.
 */
int dray_memfd_new(const char *name, uint64_t bytes, bool huge);

/* The same without a seal. Returns the descriptor or -errno. */
int dray_memfd_unsealed(const char *name, uint64_t bytes);

/*
 * Seals it against shrinking, growing and further sealing. read_only: also against writing, except by mappings that exist
 * (F_SEAL_FUTURE_WRITE); from then on no hole can be punched into it. 0 or -errno.
 */
int dray_memfd_seal(int fd, bool read_only);

/*
 * Shared mmap of a memfd, aligned and marked so that the kernel can map huge pages. Works without them, too
 * (/sys/kernel/mm/transparent_hugepage/shmem_enabled). MAP_FAILED with errno. Undone by munmap().
 */
void *dray_map_shared(int fd, uint64_t offset, uint64_t bytes, int prot);

/*
 * Fills page tables and pages of a shared mapping (MADV_POPULATE_WRITE or _READ, else by touching). A read fault fills a
 * hole of a memfd as well. write: the mapping is writable. 0 or -errno.
 */
int dray_populate(void *p, uint64_t bytes, bool write);

/*
 * Fills a shared mapping that is writable with huge pages, also where shmem_enabled is "never", because MADV_COLLAPSE asks for them
 * explicitly. Pages that are there are copied, so others may use the mapping meanwhile. What is no whole huge page is left, and what
 * a device uses. False: there are no more now, or before Linux 6.1; the rest is left. dray_populate() fills what is left.
 */
bool dray_populate_huge(void *p, uint64_t bytes);

/*
 * Fills page tables of a shared mapping, whole pages, for the pages that the file has in memory. Holes, pages without contents and pages
 * in swap are left, so that nothing is allocated and no device is waited for. Huge pages of hugetlbfs are left, too. If the file is another
 * user's who may not write it, all count as in memory; then holes end a run of pages if the mapping is guarded (lib/fault.h), and are filled
 * otherwise. -EINVAL: before Linux 5.14. 0 or -errno.
 */
int dray_map_resident(void *p, uint64_t bytes);
