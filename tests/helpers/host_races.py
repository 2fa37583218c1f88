"""What a program does to page-locked memory itself while a copy of it waits behind a latch: races, and what is none.

As a program it does all of that, and prints as JSON what was reported for each: the code of both lines, and the thread's stream.
"""

import ctypes
import json
import linecache
import threading
import warnings
from types import SimpleNamespace

import numpy as np

import devmem as dm
from devmem.testing import hold
from devmem.toolkit.races import detector

#: An array has so many pages of 4 KiB; it may begin within one.
PAGES = 16


def array():
    return dm.pinned_array((PAGES, 4096), np.uint8)


def on_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def replay(w):
    w.plan.replay()


def upload(w):
    w.device.copy_to_device(w.host, stream=w.s)


def upload_part(w):
    w.device[4:12].copy_to_device(w.host[4:12], stream=w.s)


def upload_rows(w):
    dm.copy_pitched(w.device, w.host, 12288, 4, dst_pitch=16384, src_pitch=16384, stream=w.s)


def upload_many(w):
    w.kept = dm.to_device_many([w.host[:8], w.host[8:]], w.s)


def upload_neighbours(w):
    w.device[:8].copy_to_device(w.host[:8], stream=w.s)
    w.device[8:].copy_to_device(w.host[8:], stream=w.s)


def upload_beside(w):
    w.device.reshape(-1)[:20_000].copy_to_device(w.host.reshape(-1)[100:20_100], stream=w.s)


def download(w):
    w.device.copy_to_host(w.host, stream=w.s)


def download_part(w):
    w.device[4:12].copy_to_host(w.host[4:12], stream=w.s)


def in_background(w):
    w.copy = dm.copy_async(w.host, w.device, stream=w.s)


def assign(w):
    w.host[...] = 1


def assign_one(w):
    w.host[7, 2000] = 1


def assign_first(w):
    w.host[1, 0] = 1


def assign_rows(w):
    w.host[::5] = 1


def add(w):
    w.host += 1


def fill(w):
    w.host.fill(1)


def copy_into(w):
    np.copyto(w.host[6:9], w.other[6:9])


def set_memory(w):
    ctypes.memset(w.host.ctypes.data + 7 * 4096, 1, 4096)


def fill_on_a_thread(w):
    on_a_thread(lambda: w.host.fill(1))


def total(w):
    w.host.sum()


def read_one(w):
    int(w.host[7, 2000])


def compare(w):
    np.array_equal(w.host, w.other)


def as_bytes(w):
    w.host[6:9].tobytes()


def read_memory(w):
    bytes((ctypes.c_char * 10).from_address(w.host.ctypes.data + 7 * 4096))


def read_on_a_thread(w):
    on_a_thread(lambda: w.host.max())


def assign_outside(w):
    w.host[:3] = 1
    w.host[13:] = 1


def assign_another(w):
    w.other[...] = 1


def assign_both(w):
    w.host[2, 5] = 1
    w.host[10, 5] = 1


def assign_on_shared_pages(w):
    w.host.reshape(-1)[:100] = 1
    w.host.reshape(-1)[20_100:] = 1


def assign_between_rows(w):
    w.host[3::4] = 1


def assign_when_complete(w):
    w.latch.release()
    w.s.synchronize()
    w.host[...] = 1


def assign_behind_an_event(w):
    event = w.s.record()
    w.latch.release()
    event.synchronize()
    w.host[...] = 1


def read_when_the_query_says_so(w):
    w.latch.release()
    while not w.s.query():
        pass
    w.host.sum()


WRITES = assign, assign_one, assign_rows, add, fill, copy_into, set_memory, fill_on_a_thread
READS = total, read_one, compare, as_bytes, read_memory, read_on_a_thread
RACES = [
    *((upload, write) for write in WRITES),
    *((download, each) for each in (*READS, assign, fill_on_a_thread)),
    *((copy, assign_one) for copy in (upload_part, upload_many, in_background, download_part, replay)),
    (upload_rows, assign_rows),
    (download_part, read_one),
    (upload_beside, assign_first),
]
#: Each of two neighbours is accessed while it is copied.
TWICE = [(upload_neighbours, assign_both), (upload_many, assign_both)]
IN_ORDER = [
    *((upload, read) for read in READS),
    (replay, total),
    *((upload_part, each) for each in (assign_outside, assign_another, total)),
    *((download_part, each) for each in (assign_outside, assign_another)),
    (upload_rows, assign_between_rows),
    (upload_beside, assign_on_shared_pages),
    *((copy, assign_when_complete) for copy in (upload, upload_many, download, in_background, replay)),
    *((copy, assign_behind_an_event) for copy in (upload, download)),
    (download, read_when_the_query_says_so),
]


def name(pair):
    return " and ".join(each.__name__ for each in pair)


def code(site):
    """The code of a line, or the text itself where it names none."""
    file, _, line = site.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdecimal() else site


def main():
    warnings.simplefilter("ignore", dm.DevmemWarning)
    w = SimpleNamespace(s=dm.stream(non_blocking=True), host=array(), other=array())
    w.host[...] = w.other[...] = 3
    w.device = dm.to_device(w.host)
    with dm.capture(w.s) as w.plan:
        upload(w)
    w.s.synchronize()
    found = {}
    for copy, access in (*RACES, *TWICE, *IN_ORDER):
        with hold(w.s) as w.latch:
            copy(w)
            access(w)
            w.latch.release()
        dm.synchronize()
        found[name((copy, access))] = [
            (race.first.writes, code(race.first.site), race.second.stream, code(race.second.site))
            for race in detector.reports
        ]
        detector.reports.clear()
        detector._told.clear()
    w.plan.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
