"""The logger, named "jsclient"; `logging` is imported when something is said."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40


def log() -> logging.Logger:
    """The logger of the package."""
    import logging  # several milliseconds that importing the package need not take

    return logging.getLogger("jsclient")


def is_heard(level: int) -> bool:
    """Whether something of this level would be written anywhere."""
    if level < WARNING and "logging" not in sys.modules:
        # Nobody has set it up, so its root is at WARNING.
        return False
    return log().isEnabledFor(level)
