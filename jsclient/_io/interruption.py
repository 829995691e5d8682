"""Tells an exception of a signal handler from one of the loop's own.

A handler that raises (an alarm, say) raises in whatever the main thread is doing, which
may be the middle of the loop. Its exception belongs to the user and says nothing of the
link. Its class does not tell: a `TimeoutError` of an alarm is an `OSError` like that of
a socket. Its traceback does: a handler is called with the frame that it interrupts.
"""

from __future__ import annotations

import threading
from types import FrameType

_VARARGS = 0x04  # inspect.CO_VARARGS; importing inspect for it costs milliseconds


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler, not the code that it interrupted, raised the error."""
    if threading.current_thread() is not threading.main_thread():
        return False
    passed: set[int] = set()
    step = error.__traceback__
    while step is not None:
        if any(id(one) in passed for one in _arguments(step.tb_frame)):
            return True
        passed.add(id(step.tb_frame))
        step = step.tb_next
    return False


def _arguments(frame: FrameType) -> list[object]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    if code.co_flags & _VARARGS:
        values.extend(frame.f_locals.get(code.co_varnames[count], ()))
    return values
