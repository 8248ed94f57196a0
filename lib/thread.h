/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <stddef.h>

/*
 * Starts a thread that takes no signals but its own memory faults. name: at most 15 bytes. stack: bytes; 0: the
 * system's default. 0 or -errno.
 */
int dray_thread_start(pthread_t *ret, const char *name, size_t stack, void *(*fn)(void *arg),
		      void *arg);
