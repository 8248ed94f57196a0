/* SPDX-License-Identifier: Apache-2.0 */
/* Scope-bound ownership: dray_auto(f) calls f for the variable when it goes out of scope. */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* Makes func##p(), called with the address of the variable; a no-op on NULL. */
#define DRAY_DEFINE_CLEANUP(type, func)     \
	static inline void func##p(type *p) \
	{                                   \
		if (*p)                     \
			func(*p);           \
	}                                   \
	struct dray_swallow_semicolon

#define dray_auto(func) __attribute__((cleanup(func##p)))

/* Yields the value and sets the variable to NULL. */
#define dray_take(p)                           \
	({                                     \
		__auto_type dray_taken_ = (p); \
		(p) = NULL;                    \
		dray_taken_;                   \
	})

/* The same for descriptors: sets the variable to -1. */
#define dray_take_fd(fd)                   \
	({                                 \
		int dray_taken_fd_ = (fd); \
		(fd) = -1;                 \
		dray_taken_fd_;            \
	})

static inline void dray_freep(void *p)
{
	free(*(void **)p);
}
#define dray_auto_free __attribute__((cleanup(dray_freep)))

/* Closes unless negative; keeps errno; returns -1 so that `fd = dray_close(fd)` reads well. */
static inline int dray_close(int fd)
{
	int saved = errno;

	if (fd >= 0)
		close(fd);
	errno = saved;
	return -1;
}

static inline void dray_closep(int *fd)
{
	dray_close(*fd);
}
#define dray_auto_close __attribute__((cleanup(dray_closep)))

#define dray_container_of(ptr, type, member) \
	((type *)(void *)((char *)(ptr) - __builtin_offsetof(type, member)))

#define DRAY_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#define dray_min(a, b)                \
	({                            \
		__auto_type a_ = (a); \
		__auto_type b_ = (b); \
		a_ < b_ ? a_ : b_;    \
	})
#define dray_max(a, b)                \
	({                            \
		__auto_type a_ = (a); \
		__auto_type b_ = (b); \
		a_ > b_ ? a_ : b_;    \
	})
/* Below, at or above 0, as qsort(3) expects it. */
#define dray_compare(a, b)             \
	({                             \
		__auto_type a_ = (a);  \
		__auto_type b_ = (b);  \
		(a_ > b_) - (a_ < b_); \
	})
