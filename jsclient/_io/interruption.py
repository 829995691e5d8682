"""Tells an exception of a signal handler from one of the loop's own.

A handler that raises (an alarm, say) raises in whatever the main thread is doing, which
may be the middle of the loop. Its exception belongs to the user and says nothing of the
link. Its class does not tell: a `TimeoutError` of an alarm is an `OSError` like that of
a socket. Its traceback does: only our code and the standard library's runs in the loop,
and what is called with the frame that it interrupts is a handler.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

_OURS = __name__.partition(".")[0]
_VARARGS = 0x04  # inspect.CO_VARARGS; importing inspect for it costs milliseconds


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler, not the code that it interrupted, raised the error."""
    if threading.current_thread() is not threading.main_thread():
        return False
    # What a handler interrupts may be a frame that the error has not left.
    passed: set[int] = set()
    caller: FrameType | None = sys._getframe()
    while caller is not None:
        passed.add(id(caller))
        caller = caller.f_back
    step = error.__traceback__
    while step is not None:
        frame = step.tb_frame
        # The first one caught the error.
        if step is not error.__traceback__ and _is_foreign(frame):
            return True
        if any(id(one) in passed for one in _arguments(frame)):
            return True
        passed.add(id(frame))
        step = step.tb_next
    return False


def _is_foreign(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return module != _OURS and module not in sys.stdlib_module_names


def _arguments(frame: FrameType) -> list[object]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    if code.co_flags & _VARARGS:
        values.extend(frame.f_locals.get(code.co_varnames[count], ()))
    return values
