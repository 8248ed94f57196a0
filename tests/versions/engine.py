# SPDX-License-Identifier: Apache-2.0
"""An engine that tests/versions runs with the Python package of either release, so it uses what both have: it reads calls from its
standard input, and writes their results to its standard output."""

import hashlib
import json
import random
import sys

import dray

SIZE = 4 << 20
LIMIT = 30


class Engine:
    def __init__(self, socket):
        self.client = dray.Client(socket=socket)
        self.memory = dray.Memory(SIZE)
        self.region = self.client.region(self.memory)
        self.remote = self.box = self.lease = None

    def fill(self, seed):
        self.memory.view[:] = random.Random(seed).randbytes(SIZE)
        return self.digest()

    def digest(self):
        return hashlib.sha256(self.memory.view).hexdigest()

    def export(self):
        self.token = self.region.export()
        return str(self.token)

    def take(self, token):
        self.remote = self.client.import_token(token, timeout=LIMIT)

    def read(self):
        self.client.read(self.region, self.remote, [(0, 0, SIZE)]).result(LIMIT)
        return self.digest()

    def write(self):
        self.client.write(self.region, self.remote, [(0, 0, SIZE // 2), (SIZE // 2, SIZE // 2, SIZE // 2)]).result(LIMIT)

    def revoke(self):
        self.region.revoke()

    def fails(self):
        """The name of the error of a read."""
        try:
            self.read()
        except dray.Error as e:
            return e.name
        return None

    def lend(self):
        self.lease = self.region.lease([(0, 4096, 8192, 4)], holders=1)
        return str(self.lease.token)

    def borrow(self, token):
        lent = self.client.acquire(token, timeout=LIMIT)
        self.client.read(self.region, lent, [(8192, 8192, 4096)]).result(LIMIT)
        lent.release()

    def open(self, name):
        self.box = self.client.open_mailbox(name)

    def post(self, segment, name, text):
        self.client.post(segment, name, text.encode(), timeout=LIMIT)

    def letter(self):
        return bytes(self.client.next_event(dray.Letter, LIMIT).payload).decode()


def main():
    engine = Engine(sys.argv[1])
    for line in sys.stdin:
        name, *words = json.loads(line)
        try:
            answer = {"result": getattr(engine, name)(*words)}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
