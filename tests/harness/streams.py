"""A JetStream that is as empty after its use as it was before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsclient
from jsclient.jetstream import JetStream


@contextmanager
def lent_jetstream(url: str, **options: Any) -> Iterator[JetStream]:
    """A JetStream of a server, all of whose streams are deleted in the end."""
    with jsclient.connect(url, **options) as nc:
        js = nc.jetstream()
        yield js
        for name in js.stream_names():
            js.delete_stream(name)
