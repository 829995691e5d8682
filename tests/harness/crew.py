"""Daemon threads that end together and whose exceptions are not lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Crew:
    """Starts threads; `join` waits for all, `errors` holds what they raised."""

    def __init__(self, on_error: Callable[[], None]) -> None:
        self.errors: list[BaseException] = []
        self._on_error = on_error
        self._threads: list[threading.Thread] = []

    def start(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            # Whatever it is, the test that owns the thread must see it.
            except BaseException as error:  # noqa: BLE001
                self.errors.append(error)
                self._on_error()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self, timeout: float) -> None:
        """Wait for all threads; RuntimeError names those that do not end in time."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        late = [thread.name for thread in self._threads if thread.is_alive()]
        if late:
            raise RuntimeError(f"threads do not end: {', '.join(late)}")
