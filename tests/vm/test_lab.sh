#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the virtual machine itself: status and output arrive, and the kernel's features work.
# Each boot takes seconds, so one machine runs all checks that need no exit status of their own.
set -u
cd "$(dirname "$0")/../.."
run=tests/vm/run
work=$(mktemp -d build/vm/test.XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0

check() { # NAME COMMAND...: NAME holds if the command succeeds
	local name=$1
	shift
	if "$@"; then
		echo "ok - $name"
	else
		echo "not ok - $name"
		failed=1
		return 1
	fi
}

began=$(date +%s)
$run -- sh -c 'echo out; echo err >&2; exit 3' >"$work/out" 2>"$work/err" <&-
status=$?
echo "# the machine took $(($(date +%s) - began)) s with $(cut -d' ' -f2 build/vm/accel)"
check "the exit status arrives, with stdin closed" test $status = 3
check "standard output arrives alone" test "$(cat "$work/out")" = out
check "standard error arrives alone" test "$(cat "$work/err")" = err

cat >"$work/inside" <<'END'
attempt() { # NAME, then a script
	if out=$(set -e; eval "$2" 2>&1); then
		echo "ok - $1"
	else
		echo "not ok - $1"
		echo "$out" | sed 's/^/# /'
	fi
}
attempt "this machine's files are visible, writes stay inside" '
	test -e Makefile; echo x >Makefile; test "$(cat Makefile)" = x'
attempt "variables of --env are set" 'test "$GIVEN" = "a b \$c"'
attempt "the limit of message sizes is the stock kernel's" 'test "$(cat /proc/sys/net/core/wmem_max)" = 212992'
attempt "the network starts empty" 'test "$(ls /sys/class/net)" = "bonding_masters
lo"'
attempt "dummy" 'ip link add d0 type dummy; ip addr add 10.9.0.1/24 dev d0; ip link set d0 up'
attempt "bond of two" 'ip link add b0 type bond mode active-backup
	for i in 1 2; do ip link add s$i type dummy; ip link set s$i master b0; done
	ip link set b0 up; grep -q s2 /proc/net/bonding/b0'
attempt "VLAN" 'ip link add link d0 name d0.7 type vlan id 7; ip link set d0.7 up'
attempt "netem delays" 'ip link add v0 type veth peer name v1; ip netns add far
	ip link set v1 netns far; ip addr add 10.8.0.1/24 dev v0; ip link set v0 up
	ip -n far addr add 10.8.0.2/24 dev v1; ip -n far link set v1 up
	tc qdisc add dev v0 root netem delay 30ms
	ping -qc 2 10.8.0.2 | sed -n "s|^rtt [^=]*= \([0-9]*\).*|\1|p" >/tmp/rtt
	test "$(cat /tmp/rtt)" -ge 30'
attempt "a module is loaded on demand" 'ip link add x0 type vxlan id 3 dstport 4789'
attempt "rxe device" 'ip addr add fe80::1/64 dev d0 nodad 2>/dev/null || true
	rdma link add rxe0 type rxe netdev d0; ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE'
# -u: the queue pairs wait 4 s for an answer instead of 67 ms, because a busy emulator can pause for longer
attempt "RDMA write over rxe" 'bw="timeout 100 ib_write_bw -u 20 -d rxe0 -x 1 -s 65536 -n 200"
	$bw >/tmp/server 2>&1 &
	for i in $(seq 100); do ss -ltn | grep -q :18515 && break; sleep 0.1; done
	$bw 10.9.0.1 >/tmp/client 2>&1 ||
		{ cat /tmp/client /tmp/server; exit 1; }
	wait; grep -q "^ 65536" /tmp/client'
kill -TERM $$
END
$run --env='GIVEN=a b $c' --env FOO=1 -- bash "$work/inside" >"$work/out" 2>"$work/err"
status=$?
cat "$work/out"
grep -q '^not ok' "$work/out" && failed=1
check "all checks inside ran" test "$(grep -c '^ok\|^not ok' "$work/out")" = 11
check "the status after a signal is 128 + its number" test $status = 143

$run --timeout=1 -- true >"$work/out" 2>&1
check "the status after --timeout is 124" test $? = 124
# The reporting process is a child of the first process and has its name.
$run --silent=5 -- sh -c 'pkill -STOP -P 1 -x init && exec sleep 600' >"$work/out" 2>&1
status=$?
check "a machine that stops reporting is stopped" test $status = 125
check "the reason for the stop is printed" grep -q 'did not report for 5 s' "$work/out" || sed 's/^/# /' "$work/out"
mkdir "$work/bin"
printf '#!/bin/sh\necho no memory for the machine >&2\nexit 1\n' >"$work/bin/qemu-system-x86_64"
chmod 755 "$work/bin/qemu-system-x86_64"
PATH=$PWD/$work/bin:$PATH timeout 60 $run -- true >"$work/out" 2>&1
status=$?
check "the status of an emulator that does not start is 125" test $status = 125
check "the emulator's message is printed" grep -q 'no memory for the machine' "$work/out"
$run --no-such-option >"$work/out" 2>&1
check "the status of usage errors is 125" test $? = 125
exit $failed
