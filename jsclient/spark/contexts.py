"""Contexts of the command `nats`: files that say where servers are and who we are.

`nats context save NAME` writes them, as JSON. What they say is read here as options;
what has no option here, and matters, is refused rather than left out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from .errors import OptionError

__all__ = ["read_context"]

# Fields of a context and the options that mean the same.
FIELDS = {
    "url": "servers",
    "token": "token",
    "user": "user",
    "password": "password",
    "creds": "creds",
    "nkey": "nkey",
    "cert": "tlsCert",
    "key": "tlsKey",
    "ca": "tlsCa",
    "tls_first": "tlsFirst",
    "jetstream_domain": "domain",
    "jetstream_api_prefix": "apiPrefix",
    "inbox_prefix": "inboxPrefix",
}
# Their values are files.
PATHS = ("creds", "nkey", "cert", "key", "ca")
# What is only for the command itself.
UNUSED = ("description", "color_scheme", "jetstream_event_prefix")


def read_context(context: str) -> dict[str, str]:
    """The options that a context stands for; OptionError if it is of no use."""
    path = _path(context)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OptionError("context", f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise OptionError("context", f"{str(path)!r}: {error.strerror}") from None
    except ValueError:
        fields = None
    # Nothing of the content is shown: a context may hold a password.
    if not isinstance(fields, dict):
        raise OptionError("context", f"{str(path)!r} has no JSON of a context")
    found = {}
    for name, value in fields.items():
        if not value or name in UNUSED:
            continue
        if name not in FIELDS or not isinstance(value, str | bool):
            raise OptionError("context", f"{name} in {str(path)!r} is of no use here")
        text = str(value).lower() if isinstance(value, bool) else value
        found[FIELDS[name]] = os.path.expanduser(text) if name in PATHS else text
    return found


def _path(context: str) -> Path:
    """The file of a context: as it is given, or where the command keeps that name."""
    if context.endswith(".json") or os.sep in context:
        return Path(context).expanduser()
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home, "nats", "context", f"{context}.json").expanduser()
