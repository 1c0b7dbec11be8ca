"""What a call costs, in a unit that is as slow as the machine and does not count waiting: a megabyte of JSON, read."""

import functools
import json
import time


def cost(call):
    """The result, and this thread's time for it in units."""
    start = time.thread_time()
    result = call()
    return result, (time.thread_time() - start) / _unit()


@functools.cache
def _unit():
    text = json.dumps(list(range(130_000)))

    def once():
        start = time.thread_time()
        json.loads(text)
        return time.thread_time() - start

    return min(once() for _ in range(5))
