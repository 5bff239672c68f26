#!/usr/bin/env python3
"""Two TAP interfaces joined to a cable: frames sent to one arrive at the other, after a pause.

    ring.py NAME NAME

With both in one bridge it is a ring of switches. The pause bounds the broadcast storm to one frame per
direction at a time. The interfaces end with the program.
"""

import os
import select
import signal
import sys
import time

from vlan_relay import FRAME_BYTES, tap

PAUSE_S = 0.005


def main(names):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    first, second = (tap(name) for name in names)
    other = {first: second, second: first}
    while True:
        for ready in select.select(other, [], [])[0]:
            try:
                os.write(other[ready], os.read(ready, FRAME_BYTES))
            except OSError:
                pass  # Not up yet, or a queue is full.
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1:])
