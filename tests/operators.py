"""Keys, JWTs and creds files of a NATS operator, made on the spot without its tools.

An `Operator` signs itself, its system account and one account for users. `config` is
what a server needs to trust it, `creds` the text of a file with which users log in.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from jsclient._engine import nkeys

_UNLIMITED = dict.fromkeys(
    ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1
)


class Key:
    """A key pair in the text form of nkeys."""

    def __init__(self, role: int) -> None:
        raw = os.urandom(nkeys.KEY_SIZE)
        self._private = Ed25519PrivateKey.from_private_bytes(raw)
        self.seed = nkeys.encode_seed(role, raw).decode()
        self.public = nkeys.encode_public(
            role, self._private.public_key().public_bytes_raw()
        )

    def jwt(
        self,
        subject: str,
        name: str,
        claims: dict[str, object],
        *,
        expires: float | None = None,
    ) -> str:
        """Claims about a subject, signed by this key."""
        body: dict[str, object] = {
            "iat": int(time.time()),
            "iss": self.public,
            "name": name,
            "sub": subject,
            "nats": {"version": 2, **claims},
        }
        if expires is not None:
            body["exp"] = int(expires)
        digest = hashlib.sha256(json.dumps(body).encode()).digest()
        body["jti"] = base64.b32encode(digest).decode().rstrip("=")
        head = _base64(b'{"typ":"JWT","alg":"ed25519-nkey"}')
        text = f"{head}.{_base64(json.dumps(body).encode())}"
        return f"{text}.{_base64(self._private.sign(text.encode()))}"


class Operator:
    """An operator with a system account and an account for users."""

    def __init__(self) -> None:
        self._key = Key(nkeys.OPERATOR)
        self._system = Key(nkeys.ACCOUNT)
        self._account = Key(nkeys.ACCOUNT)

    @property
    def config(self) -> str:
        """The configuration of a server of this operator."""
        itself = self._key.jwt(
            self._key.public,
            "operator",
            {"type": "operator", "system_account": self._system.public},
        )
        accounts = ", ".join(
            f'{key.public}: "{self._account_jwt(key)}"'
            for key in (self._system, self._account)
        )
        return (
            f'operator: "{itself}"\n'
            f"system_account: {self._system.public}\n"
            f"resolver: MEMORY\n"
            f"resolver_preload: {{ {accounts} }}\n"
        )

    def _account_jwt(self, key: Key) -> str:
        limits = {**_UNLIMITED, "wildcards": True, "mem_storage": -1, "streams": -1}
        return self._key.jwt(
            key.public, "account", {"type": "account", "limits": limits}
        )

    def creds(
        self,
        *,
        expires: float | None = None,
        is_stranger: bool = False,
        payload: int = -1,
    ) -> str:
        """The creds file of a new user; a stranger's account is unknown to servers.

        `payload` is the size that this user's messages may have.
        """
        user = Key(nkeys.USER)
        account = Key(nkeys.ACCOUNT) if is_stranger else self._account
        jwt = account.jwt(
            user.public,
            "user",
            {"type": "user", "subs": -1, "data": -1, "payload": payload},
            expires=expires,
        )
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n"
            "------END USER NKEY SEED------\n"
        )


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
