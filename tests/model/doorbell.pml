/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doorbells of a ring, for the model checker Spin. tests/model/run verifies every order of steps, for the
 * model of the code and for each of the mistakes below. The code is client/ring.c and client/engine.c on one side,
 * agent/data/worker/ring.c and turn.c on the other. The model uses the code's names. It is about the steps of both
 * loops, with the memory of an x86 processor; ring_client.c is about the order of accesses on any processor.
 *
 * Each side has a store buffer, like a processor that keeps its stores in order: a plain store (relaxed or
 * release) goes there and reaches memory some time later; a load reads memory. A sequentially consistent
 * store empties the buffer, and so do a fence and a system call. No side loads a word that its buffer may hold.
 *
 * Entries are not modelled: an index stands for the entries before it. Both sides follow the protocol, so the
 * completion ring always has room (dc_ring_room()).
 *
 * A doorbell is an eventfd that is never read and watched edge-triggered: ringing makes it pending, epoll_wait()
 * clears that, and several rings in between count once. client_sleeping requests a doorbell while the client
 * sleeps in the library. From the first call of dray_fd() on, it does so also while the client is outside the
 * library ("armed"), where the program may poll the descriptor. While one thread sleeps in the library, another one may
 * arm the handle.
 *
 * An agent that is busy with other rings lets this one rest: agent_sleeping is set, and the agent does not poll the
 * ring. For the ring this is as if the agent slept. But other events, which wake a sleeping agent so that it polls
 * its rings, do not end a rest. A doorbell ends it, and so does a completion, before the client can see the latter.
 *
 * Mistakes:
 *   AGENT_NO_SECOND_LOOK    sets agent_sleeping and sleeps without reading sq_tail again
 *   AGENT_LOOKS_FIRST       reads sq_tail for the last time before it sets agent_sleeping
 *   AGENT_RELAXED_ANNOUNCE  sets agent_sleeping by a plain store
 *   AGENT_ANNOUNCES_ONCE    assumes that agent_sleeping is still set when it sleeps again
 *   AGENT_CLEARS_AFTER_LOOK clears agent_sleeping between its last read of sq_tail and the sleep
 *   AGENT_FORGETS_RESTING   clears agent_sleeping when another event wakes it, although the ring still rests
 *   AGENT_RELEASE_TAIL      has no fence between storing cq_tail and reading client_sleeping
 *   AGENT_RINGS_ALWAYS      does not read client_sleeping before it rings
 *   CLIENT_NO_SECOND_LOOK   sets client_sleeping and sleeps without reading cq_tail again
 *   CLIENT_LOOKS_FIRST      reads cq_tail for the last time before it sets client_sleeping
 *   CLIENT_RELAXED_ASK      sets client_sleeping by a plain store
 *   CLIENT_CLEARS_AFTER_LOOK clears client_sleeping between its last read of cq_tail and the sleep
 *   CLIENT_ARMED_FOR_EVER   assumes that client_sleeping is still set after a wait has cleared it
 *   CLIENT_DISARMS_OTHERS   clears client_sleeping after a sleep, although another thread has armed the handle meanwhile
 *   CLIENT_TAKES_BELL_LAST  armed: reads cq_tail first, and clears the pending doorbell afterwards
 *   CLIENT_RELEASE_TAIL     stores sq_tail by a plain store
 *   CLIENT_LOOKS_BEFORE_TAIL reads agent_sleeping before it stores sq_tail
 *   CLIENT_CLEARS_LATE      clears agent_sleeping after it has rung
 *   CLIENT_NEVER_CLEARS     does not clear agent_sleeping, and so rings more than once for one sleep
 *   CLIENT_RINGS_ALWAYS     does not read agent_sleeping before it rings
 */

#define ENTRIES 2     /* of the submission ring */
#define SUBMISSIONS 3 /* in all, in batches of one or two */
#define OTHER_EVENTS 1 /* events of other rings that wake the agent */

byte sq_tail, sq_head, cq_tail;
bit agent_sleeping, client_sleeping;

mtype = { SQ_TAIL, SQ_HEAD, CQ_TAIL, AGENT_SLEEPING, CLIENT_SLEEPING };
chan client_stores = [2] of { mtype, byte };
chan agent_stores = [2] of { mtype, byte };

bit doorbell, completion; /* pending */

/* only for the verified properties */
byte announced; /* times that agent_sleeping was set, minus doorbells that were rung */
bit asked;      /* client_sleeping was ever set */

/* at most 3: a pending doorbell, agent_sleeping set in memory, and set once more in the store buffer */
#define ANNOUNCE                                   \
	atomic {                                   \
		STORE(agent_stores, AGENT_SLEEPING, 1); \
		announced = (announced < 3 -> announced + 1 : 3) \
	}
#define STORE(buffer, word, value) buffer ! word, value
#define FENCE(buffer) empty(buffer)

proctype store_buffer(chan stores)
{
	mtype word;
	byte value;

end_empty:
	do
	:: d_step {
		stores ? word, value;
		if
		:: word == SQ_TAIL -> sq_tail = value
		:: word == SQ_HEAD -> sq_head = value
		:: word == CQ_TAIL -> cq_tail = value
		:: word == AGENT_SLEEPING -> agent_sleeping = value
		:: word == CLIENT_SLEEPING -> client_sleeping = value
		fi;
		word = 0;
		value = 0
	}
	od
}

/* --- the agent ---------------------------------------------------------------------------------- */

/* ring_complete() and ring_flush(): complete all outstanding entries, or some. */
inline ring_flush()
{
	assert(outstanding > 0);
	if
	:: completed++; outstanding--
	:: outstanding > 1 -> completed = completed + 2; outstanding = outstanding - 2
	fi;
	STORE(agent_stores, CQ_TAIL, completed);
#ifndef AGENT_RELEASE_TAIL
	FENCE(agent_stores);
#endif
	if
#ifdef AGENT_RINGS_ALWAYS
	:: true ->
#else
	:: client_sleeping ->
#endif
		FENCE(agent_stores);
		assert(asked);
		completion = 1
#ifndef AGENT_RINGS_ALWAYS
	:: else
#endif
	fi
}

/* ring_announce() */
inline ring_announce()
{
#ifdef AGENT_LOOKS_FIRST
	look = sq_tail;
#endif
#ifdef AGENT_ANNOUNCES_ONCE
	if
	:: !is_announced ->
		is_announced = 1;
		ANNOUNCE
	:: else
	fi;
#else
	ANNOUNCE;
#endif
#ifndef AGENT_RELAXED_ANNOUNCE
	FENCE(agent_stores);
#endif
#ifdef AGENT_NO_SECOND_LOOK
	look = head;
#endif
#if !defined(AGENT_LOOKS_FIRST) && !defined(AGENT_NO_SECOND_LOOK)
	look = sq_tail;
#endif
#ifdef AGENT_CLEARS_AFTER_LOOK
	STORE(agent_stores, AGENT_SLEEPING, 0);
#endif
}

proctype agent()
{
	byte head, look, completed, outstanding, others;
#ifdef AGENT_ANNOUNCES_ONCE
	bit is_announced;
#endif

	do
	:: look = sq_tail;
		if
		:: head != look -> /* ring_poll() */
			d_step {
				outstanding = outstanding + (look - head);
				head = look;
			}
			STORE(agent_stores, SQ_HEAD, head)
		:: else
		fi;
		if
		:: outstanding -> ring_flush()
		:: true -> skip /* the bytes are not in place yet */
		fi;
		if
		:: sq_tail != head -> skip /* polling finds an entry */
		:: true -> /* the agent stops polling, or does not poll */
			ring_announce();
			if
			:: look != head -> skip
			:: else ->
				FENCE(agent_stores);
end_asleep:
				if
				:: doorbell -> doorbell = 0
				:: outstanding -> skip /* the bytes are in place */
				:: others < OTHER_EVENTS ->
					others++;
					if
					:: true -> skip
					:: true -> /* rings_awake() lets it rest */
#ifdef AGENT_FORGETS_RESTING
						STORE(agent_stores, AGENT_SLEEPING, 0);
#endif
						goto end_asleep
					fi
				fi
			fi;
#ifndef AGENT_ANNOUNCES_ONCE
			/* ring_awake() */
			STORE(agent_stores, AGENT_SLEEPING, 0)
#endif
		fi
	od
}

/* --- the client --------------------------------------------------------------------------------- */

inline ring_the_agent()
{
	FENCE(client_stores);
	d_step {
		assert(announced > 0);
		announced--;
		doorbell = 1
	}
}

/* dc_ring_put() and dc_ring_submit() */
inline dc_ring_submit()
{
	if
	:: tail++
	:: tail - sq_head + 2 <= ENTRIES && tail + 2 <= SUBMISSIONS -> tail = tail + 2
	fi;
#ifdef CLIENT_LOOKS_BEFORE_TAIL
	flag = agent_sleeping;
#endif
	STORE(client_stores, SQ_TAIL, tail);
#ifndef CLIENT_RELEASE_TAIL
	FENCE(client_stores);
#endif
#ifdef CLIENT_RINGS_ALWAYS
	flag = 1;
#endif
#if !defined(CLIENT_LOOKS_BEFORE_TAIL) && !defined(CLIENT_RINGS_ALWAYS)
	flag = agent_sleeping;
#endif
	if
	:: flag ->
#if !defined(CLIENT_CLEARS_LATE) && !defined(CLIENT_NEVER_CLEARS)
		STORE(client_stores, AGENT_SLEEPING, 0);
#endif
		ring_the_agent();
#ifdef CLIENT_CLEARS_LATE
		STORE(client_stores, AGENT_SLEEPING, 0)
#endif
	:: else
	fi;
	flag = 0
}

/* dc_ring_set_sleeping(true): sets news if there is a completion already */
inline dc_ring_set_sleeping()
{
	asked = 1;
#ifdef CLIENT_LOOKS_FIRST
	news = (cq_tail != head);
#endif
	STORE(client_stores, CLIENT_SLEEPING, 1);
#ifndef CLIENT_RELAXED_ASK
	FENCE(client_stores);
#endif
#if !defined(CLIENT_LOOKS_FIRST) && !defined(CLIENT_NO_SECOND_LOOK)
	news = (cq_tail != head);
#endif
}

inline dc_ring_set_awake()
{
	STORE(client_stores, CLIENT_SLEEPING, 0)
}

inline take()
{
	head = cq_tail
}

/* arm(): before a call returns to the program */
inline arm()
{
	if
	:: !armed ->
		armed = 1;
		dc_ring_set_sleeping();
		kick = news;
		news = 0
	:: else
	fi
}

/* dc_engine_wait(): waits for at least one completion */
inline dc_engine_wait()
{
	dc_ring_set_awake();
#ifndef CLIENT_ARMED_FOR_EVER
	armed = 0;
#endif
	do
	:: cq_tail != head -> break /* spinning finds a completion */
	:: true ->           /* sleep_until() */
		dc_ring_set_sleeping();
#ifdef CLIENT_CLEARS_AFTER_LOOK
		dc_ring_set_awake();
#endif
		FENCE(client_stores);
		do
		:: news -> completion = 0; news = 0; break
		:: !news && completion -> completion = 0; break
		:: !news && !armed -> arm() /* dray_process(d, 0) of another thread */
		od;
#ifdef CLIENT_DISARMS_OTHERS
		dc_ring_set_awake();
#else
		if
		:: !armed -> dc_ring_set_awake()
		:: else
		fi;
#endif
		if
		:: cq_tail != head -> break
		:: else /* the doorbell was for an earlier completion */
		fi
	od;
	take();
	if
	:: arm()
	:: true -> skip /* dray_fd() has not been called yet */
	fi
}

/* The program: sleeps on dray_fd() until it is readable, then dray_process(d, 0). */
inline program_polls()
{
	arm();
	FENCE(client_stores);
	if
	:: completion || kick
	fi;
#ifdef CLIENT_TAKES_BELL_LAST
	take();
	d_step { completion = 0; kick = 0 }
#else
	d_step { completion = 0; kick = 0 };
	take()
#endif
}

/* dray_poll(): ends the armed state */
inline dray_poll()
{
	dc_ring_set_awake();
	armed = 0;
	take()
}

proctype client()
{
	byte tail, head;
	bit flag, news, armed, kick;

	do
	:: tail < SUBMISSIONS && tail - sq_head < ENTRIES -> dc_ring_submit()
	:: head != tail -> dc_engine_wait()
	:: head != tail -> program_polls()
	:: head != tail && armed -> dray_poll()
	:: head == SUBMISSIONS -> break
	od
	/* every batch is completed and seen by the client */
}

init
{
	atomic {
		run store_buffer(client_stores);
		run store_buffer(agent_stores);
		run agent();
		run client()
	}
}
