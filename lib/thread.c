/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/thread.h"

#include <signal.h>

int dray_thread_start(pthread_t *ret, const char *name, size_t stack, void *(*fn)(void *arg),
		      void *arg)
{
	pthread_attr_t attr;
	sigset_t mask, former;
	int r = pthread_attr_init(&attr);

	if (r)
		return -r;
	if (stack)
		pthread_attr_setstacksize(&attr, stack);
	sigfillset(&mask);
	sigdelset(&mask, SIGBUS);
	sigdelset(&mask, SIGSEGV);
	/* the new thread inherits the mask */
	pthread_sigmask(SIG_SETMASK, &mask, &former);
	r = pthread_create(ret, &attr, fn, arg);
	pthread_sigmask(SIG_SETMASK, &former, NULL);
	pthread_attr_destroy(&attr);
	if (!r)
		pthread_setname_np(*ret, name);
	return -r;
}
