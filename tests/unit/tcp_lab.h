/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two data planes in one thread, joined by transport tcp over loopback. The control plane between them can
 * be slowed down by the test. Tests that play one side themselves get raw ends of streams. If an assumption
 * of the lab fails, the process ends, so fuzzers and benchmarks can use it too.
 */
#pragma once

#include "agent/data/transfer/xfer.h"
#include "agent/model/gpu_message.h"
#include "agent/model/peer_link.h"
#include "agent/data/transfer/transport.h"
#include "agent/model/message.h"

#define LAB_MAX 4096
#define LAB_ENDED_MAX 1024
#define LAB_HANDLE(i) ((dray_handle)1 << 32 | (i))
#define LAB_REGION LAB_HANDLE(1)
#define LAB_REMOTE LAB_HANDLE(2)
#define LAB_GRANT LAB_HANDLE(3)
#define LAB_PEER LAB_HANDLE(4)
#define LAB_GROUP 77
#define LAB_SESSION LAB_HANDLE(5)
#define LAB_GPU 0

struct lab;

struct lab_ids {
	uint64_t id[LAB_MAX];
	unsigned n;
};

struct lab_end {
	uint64_t request_id, bytes;
	uint32_t code;
};

struct lab_region {
	struct region_view *view;
	uint8_t *memory; /* the test's own mapping */
	uint8_t *agent_memory;
	uint64_t bytes;
	int fd;
};

/* Queues and memory that the control thread gives a worker; by tcp_lab_gpu.c. */
struct lab_gpu {
	void *state;
	struct gpu_queues queues;
	struct gpu_staging staging;
	struct gpu_import *import;
	unsigned n_lost, n_gone; /* reported by the transport */
};

struct lab_side {
	struct core core; /* first */
	struct data_counters counters;
	void *tcp;
	struct lab *lab;
	unsigned index;
	struct peer_link link; /* messages to the other side */
	int listen_fd;
	int half_fd[LAB_MAX]; /* accepted, hello not read */
	unsigned n_half;
	struct xfer_session session; /* LAB_SESSION */
	struct session_shared shared;
	struct quota group_quota;
	struct lab_region region;   /* LAB_REGION */
	struct remote_view *remote; /* LAB_REMOTE: all of the other side's region */
	struct grant_view *grant;   /* LAB_GRANT: all of our region */
	struct lab_end ended[LAB_ENDED_MAX];
	unsigned n_ended, n_dropped, n_faults, n_gone;
	dray_handle last_fault;
	struct lab_ids lost, closed;
	bool down;
	bool more;            /* a transport had more work at the end of the last turn */
	uint64_t gpu_staging; /* of lab_staging */
	struct lab_gpu gpu;
};

struct lab {
	struct lab_side side[2];
	struct lab_side helper; /* another worker of side 0 (lab_helper_start) */
	struct workshare *workshare;
	struct delegates *delegates;
	struct data_counters others; /* of the workers that help nobody */
	bool helper_pauses;          /* it takes no turns */
	int64_t skew_ns;             /* added to the clock */
	uint32_t welcome_status;
	bool bad_mac;
	bool no_accept, no_welcome, hold_resets; /* the control plane does nothing */
	bool forced_end;                         /* lab_deinit() finds peers that are up */
	bool raw;                                /* streams are not adopted but put into raw_fd */
	int raw_fd[LAB_MAX];
	uint64_t raw_id[LAB_MAX];
	unsigned n_raw;
	struct lab_ids resets; /* lost streams of side 0 whose reset is held back */
};

/*
 * Not 0: side i of labs prepared from now on has its region in GPU memory (tcp_lab_gpu.c), and this many
 * bytes of staging memory.
 */
extern uint64_t lab_staging[2];

/* bytes of each side's region; extents of them. */
void lab_init(struct lab *l, uint64_t bytes, uint32_t extents);
void lab_deinit(struct lab *l);

/* Applied to the cores' configuration between lab_prepare and lab_start, which make lab_init. */
void lab_prepare(struct lab *l);
void lab_start(struct lab *l, uint64_t bytes, uint32_t extents);

/* tcp_lab_gpu.c, of lab_start and lab_deinit */
void lab_gpu_start(struct lab_side *s);
void lab_gpu_stop(struct lab_side *s);
void lab_gpu_all_stopped(void);

/* A worker that receives slices for side 0, with streams of its own to side 1. lab_deinit() ends it. */
void lab_helper_start(struct lab *l);

/* Commands of the control thread about a stream. */
void lab_stream_adopt(struct lab_side *s, dray_handle peer, int fd, uint64_t id,
		      enum dmsg_class class);
void lab_stream_reset(struct lab_side *s, dray_handle peer, uint64_t id);
void lab_stream_dead(struct lab_side *s, dray_handle peer, uint64_t id);

/* What a worker does when its peer goes down. */
void lab_peer_down(struct lab_side *s, uint32_t code);

/* One turn of both sides and of the control plane between them. */
void lab_turn(struct lab *l);
void lab_side_turn(struct lab_side *s);
void lab_advance(struct lab *l, int64_t ms);

/* Resets at the owner and stream_dead for the streams lost by side 0. */
void lab_reset_lost(struct lab *l);

_Noreturn void lab_fail(const char *file, int line, const char *what);

#define lab_check(expr) ((expr) ? (void)0 : lab_fail(__FILE__, __LINE__, #expr))

#define lab_until(l, cond)                                                           \
	do {                                                                         \
		int64_t lab_end_ = dray_now().ns + 20 * DRAY_NS_PER_SEC;             \
		while (!(cond)) {                                                    \
			lab_turn(l);                                                 \
			if (dray_now().ns > lab_end_)                                \
				lab_fail(__FILE__, __LINE__, "within 20 s: " #cond); \
		}                                                                    \
	} while (0)

/* Runs a few turns, so that a forbidden event could happen. */
void lab_settle(struct lab *l);

uint64_t lab_counter(const struct lab_side *s, enum dray_metric m);

/* Starts a transfer between LAB_REGION and LAB_REMOTE by side s. */
void lab_transfer(struct lab_side *s, uint64_t id, enum dmsg_direction d, enum dmsg_class class,
		  const uint64_t (*ops)[3], uint32_t n);
void lab_transfer1(struct lab_side *s, uint64_t id, enum dmsg_direction d, uint64_t local,
		   uint64_t remote, uint64_t length);
/* How the transfer ended; NULL while it has not. */
const struct lab_end *lab_end(const struct lab_side *s, uint64_t id);
struct xfer *lab_xfer(struct lab_side *s, uint64_t id);

/* Byte of the region of side s by its offset, through the test's own mapping. */
uint8_t *lab_at(struct lab_side *s, uint64_t offset);
/* Region of side s: fills it with the pattern of `seed`; checks whether [offset, offset+n) has that pattern. */
void lab_fill(struct lab_side *s, uint64_t offset, uint64_t n, uint32_t seed);
bool lab_filled(struct lab_side *s, uint64_t offset, uint64_t n, uint32_t seed);
uint8_t lab_pattern(uint64_t offset, uint32_t seed);
void lab_pattern_fill(uint8_t *p, uint64_t offset, uint64_t n, uint32_t seed);
void lab_read(struct lab_side *s, uint64_t offset, void *p, uint64_t n);
bool lab_equal(struct lab_side *s, uint64_t offset, const void *p, uint64_t n);
/* Removes pages of it. False: missing pages do not fault on this system. */
bool lab_punch(struct lab_side *s, uint64_t offset, uint64_t n);

/* A non-blocking listener on loopback. */
int lab_listen(struct dray_addr *ret);
void lab_no_delay(int fd);

/*
 * A TCP connection whose second end is adopted by side s under that id. Returns the first, which blocks
 * with a timeout.
 */
int lab_raw_stream(struct lab_side *s, uint64_t id, int buffer);
void lab_pair(int fd[2], int buffer);

/* Sends and receives completely, while the lab runs. receive: false on end of file or reset. */
void lab_send(struct lab *l, int fd, const void *p, size_t n);
bool lab_receive(struct lab *l, int fd, void *p, size_t n);
bool lab_is_closed(struct lab *l, int fd);

/* Makes a frame head for raw ends; returns its length. */
size_t lab_frame(uint8_t *p, uint8_t kind, uint64_t slice, uint64_t grant,
		 const struct pmsg_seg *segs, uint16_t n);
size_t lab_answer(uint8_t *p, uint8_t kind, uint64_t slice, uint32_t status, uint64_t length);
