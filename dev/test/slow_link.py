#!/usr/bin/env python3
"""A cable that takes its time: slow_link.py NAME NAME SECONDS makes two network devices, and hands every packet that one
sends to the other, so many seconds later. `slow_link.py --check` ends with 0 where such devices can be made."""
import collections, fcntl, os, select, struct, sys, time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def device(name):
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return tun


if sys.argv[1] == "--check":
    device("check0")
    sys.exit()
ends = [device(name) for name in sys.argv[1:3]]
delay = float(sys.argv[3])
under_way = collections.deque()  # (when it arrives, where, packet): in the order of arrival, as all take as long
while True:
    wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
    for end in select.select(ends, [], [], wait)[0]:
        while True:
            try:
                packet = os.read(end, 65536)
            except OSError:  # no more, or not up yet
                break
            under_way.append((time.monotonic() + delay, ends[end == ends[0]], packet))
    while under_way and under_way[0][0] <= time.monotonic():
        _, end, packet = under_way.popleft()
        try:
            os.write(end, packet)
        except OSError:  # a network may lose what it cannot take
            pass
