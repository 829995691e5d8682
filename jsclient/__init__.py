"""jsclient: a blocking, thread-safe NATS client with a compiled wire core.

    import jsclient

    with jsclient.connect("nats://127.0.0.1:4222") as nc:
        nc.publish("hello", b"world")
        print(nc.request("service", b"ping", timeout=1.0).data)

Public are the names in `__all__`; modules that start with `_` are not.
"""

from typing import TYPE_CHECKING

from . import errors, events
from ._core import Headers, Metadata, Msg
from ._engine.info import ServerInfo
from ._io.loop import Status
from .connection import Connection, Stats, connect
from .errors import *  # noqa: F403 - the error tree is part of the namespace
from .events import *  # noqa: F403 - so are the events
from .subscription import Subscription
from .version import __version__

if TYPE_CHECKING:
    from . import server

__all__ = [
    "Connection",
    "Headers",
    "Metadata",
    "Msg",
    "ServerInfo",
    "Stats",
    "Status",
    "Subscription",
    "__version__",
    "connect",
    "errors",
    "events",
    "server",
    *errors.__all__,
    *events.__all__,
]


def __getattr__(name: str) -> object:
    # A local server is for demos and tests: its imports are paid when it is used.
    if name == "server":
        from importlib import import_module

        return import_module(".server", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
