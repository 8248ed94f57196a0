/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doorbells of a ring, for the model checker Spin. tests/model/run has it look at all that can happen, as
 * the code is and with each of the mistakes below. The code is client/ring.c and client/engine.c on one end,
 * agent/data/worker/ring.c and turn.c on the other, and has the names that are used here.
 *
 * Each end has a store buffer, as processors have that keep their stores in order: a plain store (relaxed or
 * release) goes there and reaches memory some time later; a load looks at memory. A sequentially consistent
 * store empties it, and so do a fence and a system call. No end loads a word that it may still have in there.
 *
 * Entries are not modelled: an index stands for what lies before it. Both ends keep to the rules, so that the
 * completion ring always has room (dc_ring_room()).
 *
 * A doorbell is an eventfd that is never read, watched edge-triggered: ringing makes it pending, epoll_wait()
 * takes that, and rings in between are one. client_sleeping asks for it while the client sleeps in the library,
 * and also, from the first call of dray_fd() on, while it is elsewhere ("armed"), where the program may poll that.
 *
 * An agent that is busy with other rings lets this one rest: announced, and not looked at. To this ring that is
 * as if the agent slept; but what else wakes an agent up, and makes it look at the rings that it announced in order
 * to sleep, does not end a rest. A doorbell does, and so does a completion, before the client can see that.
 *
 * Mistakes:
 *   AGENT_NO_SECOND_LOOK    sleeps after announcing without a look at sq_tail
 *   AGENT_LOOKS_FIRST       looks at sq_tail for the last time before it announces
 *   AGENT_RELAXED_ANNOUNCE  agent_sleeping is stored like any other word
 *   AGENT_ANNOUNCES_ONCE    takes agent_sleeping for set still, when it sleeps again
 *   AGENT_CLEARS_AFTER_LOOK clears agent_sleeping when it has looked and is about to sleep
 *   AGENT_FORGETS_RESTING   clears agent_sleeping when something else wakes it, also while the ring goes on resting
 *   AGENT_RELEASE_TAIL      no fence stands between the store of cq_tail and the look at client_sleeping
 *   AGENT_RINGS_ALWAYS      does not look at client_sleeping
 *   CLIENT_NO_SECOND_LOOK   sleeps after asking for a doorbell without a look at cq_tail
 *   CLIENT_LOOKS_FIRST      looks at cq_tail for the last time before it asks
 *   CLIENT_RELAXED_ASK      client_sleeping is stored like any other word
 *   CLIENT_CLEARS_AFTER_LOOK clears client_sleeping when it has looked and is about to sleep
 *   CLIENT_ARMED_FOR_EVER   takes client_sleeping for set still, when a wait has cleared it
 *   CLIENT_TAKES_BELL_LAST  armed: looks at cq_tail, and then takes what rang
 *   CLIENT_RELEASE_TAIL     sq_tail is stored like any other word
 *   CLIENT_LOOKS_BEFORE_TAIL looks at agent_sleeping before it stores sq_tail
 *   CLIENT_CLEARS_LATE      clears agent_sleeping after it has rung
 *   CLIENT_NEVER_CLEARS     does not clear it, and so rings more than once for one sleep
 *   CLIENT_RINGS_ALWAYS     does not look at agent_sleeping
 */

#define ENTRIES 2     /* of the submission ring */
#define SUBMISSIONS 3 /* in all, in batches of one or two */
#define OTHER_EVENTS 1 /* that wake the agent up, and have nothing to do with this ring */

byte sq_tail, sq_head, cq_tail;
bit agent_sleeping, client_sleeping;

mtype = { SQ_TAIL, SQ_HEAD, CQ_TAIL, AGENT_SLEEPING, CLIENT_SLEEPING };
chan client_stores = [2] of { mtype, byte };
chan agent_stores = [2] of { mtype, byte };

bit doorbell, completion; /* rung, and not taken yet */

/* for the properties alone */
byte announced; /* times that agent_sleeping was announced, less doorbells that were rung */
bit asked;      /* client_sleeping was ever set */

/* capped: a doorbell on its way, one more announcement in memory and one in the store buffer are all there can be */
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

/* ring_complete() and ring_flush(): all that is outstanding, or some of it. */
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
		:: true -> skip /* its bytes are on their way */
		fi;
		if
		:: sq_tail != head -> skip /* found while it polls */
		:: true -> /* enough of that, or none at all */
			ring_announce();
			if
			:: look != head -> skip
			:: else ->
				FENCE(agent_stores);
end_asleep:
				if
				:: doorbell -> doorbell = 0
				:: outstanding -> skip /* they are in place */
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

/* dc_ring_set_sleeping(true): news says whether there is a completion already */
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

/* arm(): on the way out of the library */
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

/* dc_engine_wait(): for one completion at least */
inline dc_engine_wait()
{
	dc_ring_set_awake();
#ifndef CLIENT_ARMED_FOR_EVER
	armed = 0;
#endif
	do
	:: cq_tail != head -> break /* found while it spins */
	:: true ->           /* sleep_until() */
		dc_ring_set_sleeping();
#ifdef CLIENT_CLEARS_AFTER_LOOK
		dc_ring_set_awake();
#endif
		FENCE(client_stores);
		if
		:: news -> completion = 0
		:: else ->
			if
			:: completion -> completion = 0
			fi
		fi;
		news = 0;
		dc_ring_set_awake();
		if
		:: cq_tail != head -> break
		:: else /* rung by an earlier one */
		fi
	od;
	take();
	if
	:: arm()
	:: true -> skip /* dray_fd() was never called so far */
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

/* dray_poll(): not armed from then on */
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
	/* every batch was completed, and seen */
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
