/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A doorbell that whoever waits for it cannot turn against whoever rings it. The one that rings has an
 * eventfd of its own; the one that waits has an epoll instance which watches that, edge-triggered. Shared,
 * the eventfd would not do: either side can make it blocking and full for the other, since a
 * descriptor's flags are those of all that hold it (eventfd(2), fcntl(2)).
 */
#ifndef DRAY_LIB_DOORBELL_H
#define DRAY_LIB_DOORBELL_H

/*
 * *ret_bell: rung by write()ing 1 to it, which never blocks and need not be undone. *ret_watch: waited for
 * with epoll_wait(), or watched by another epoll instance with EPOLLET; each ring is an edge, and
 * there is nothing to read. Both close-on-exec, the caller's. 0 or -errno.
 */
int dray_doorbell_new(int *ret_bell, int *ret_watch);

#endif
