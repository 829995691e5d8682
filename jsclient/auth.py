"""Who we are: the fields of CONNECT that prove it, made anew for every attempt.

An `Authenticator` is made once from the options of `connect` and asked for its
fields on each attempt. Files are read again and callables are called again each
time, so that rotated credentials are used by the next reconnect.

A secret given as a value is kept, out of sight of `repr` and `vars`. One that comes
from a file or a callable is not kept. Seeds are in bytearrays that are zeroed as soon
as the signature is made. No error shows any content; an error raised by the user's
own callable is chained as it is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeVar

from ._engine import nkeys
from ._io.log import log
from .errors import AuthenticationError, CredentialsError, InvalidArgumentError

_T = TypeVar("_T")

_MAX_FILE_BYTES = 1 << 20
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH
# A path that looks like this is content in the wrong place and must not be printed.
_CONTENT = re.compile(r"\s*(-----|eyJ|S[A-Z][A-Z0-9]{40,}\s*$)|.*[\r\n]", re.IGNORECASE)


class _Source(NamedTuple):
    """Where secret text comes from; each `read` gives a new buffer to be wiped."""

    kind: str  # for repr
    name: str  # for error texts
    read: Callable[[], bytearray]


class Authenticator:
    """Gives the CONNECT fields that authenticate one attempt.

    Args:
        user: the user name.
        password: the user's password, or a callable that returns it.
        token: the token, or a callable that returns it.
        nkey_seed: the seed of a user's nkey (`SU…`), a `pathlib.Path` of a file that
            holds it, or a callable that returns it.
        credentials: the path of a creds file (`~` and environment variables are
            expanded), the content of one as bytes, or a callable that returns the
            content.
        strict_credentials: refuse a file that the group or others may read; without
            it such a file is warned of once.

    Raises:
        TypeError: an argument has the wrong type.
        InvalidArgumentError: arguments contradict each other, or one is empty.
        CredentialsError: a seed or credentials given as a value are damaged.
    """

    __slots__ = ("_credentials", "_kind", "_password", "_seed", "_token", "_user")

    def __init__(
        self,
        *,
        user: str | None = None,
        password: str | Callable[[], str] | None = None,
        token: str | Callable[[], str] | None = None,
        nkey_seed: str
        | bytes
        | bytearray
        | os.PathLike[str]
        | Callable[[], str | bytes | bytearray]
        | None = None,
        credentials: str
        | bytes
        | bytearray
        | os.PathLike[str]
        | Callable[[], str | bytes | bytearray]
        | None = None,
        strict_credentials: bool = False,
    ) -> None:
        if user is not None and not isinstance(user, str):
            raise TypeError(f"user must be a str, not {type(user).__name__}")
        _refuse_conflicts(
            credentials=credentials,
            nkey_seed=nkey_seed,
            token=token,
            user=user,
            password=password,
        )
        if not isinstance(strict_credentials, bool):
            raise TypeError("strict_credentials must be a bool")
        for name, value in (("user", user), ("token", token)):
            if value == "":
                raise InvalidArgumentError(f"{name} is empty")
        self._user = None if user is None else _checked("user", user)
        self._password = _text_source("password", password)
        self._token = _text_source("token", token)
        self._seed = _source("nkey_seed", nkey_seed, strict_credentials)
        self._credentials = _source("credentials", credentials, strict_credentials)

        kinds = [
            None if user is None else "user",
            None if password is None else "password",
            None if token is None else "token",
            None if self._seed is None else self._seed.kind,
            None if self._credentials is None else self._credentials.kind,
        ]
        self._kind = ", ".join(kind for kind in kinds if kind) or "nothing"

        # A value can be checked before there is any connection.
        if self._seed and isinstance(nkey_seed, (str, bytes, bytearray)):
            _use_seed(self._seed, _ignore)
        if self._credentials and isinstance(credentials, (bytes, bytearray)):
            _use_credentials(self._credentials, _ignore)

    def fields(
        self,
        nonce: str | None,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
    ) -> dict[str, str]:
        """The CONNECT fields for one attempt on a server whose INFO has `nonce`.

        `user`, `password` and `token` are the user information of the server's URL. If
        there is any, it replaces the options user, password, token and nkey_seed;
        credentials still apply. This may read a file and call the user's
        callables.

        Raises:
            CredentialsError: credentials cannot be read or used.
            AuthenticationError: a signature is needed and there is no nonce.
        """
        is_in_url = not (user is None and password is None and token is None)
        if not is_in_url:
            user = self._user
            password = None if self._password is None else self._password()
            token = None if self._token is None else self._token()
        given = {"user": user, "pass": password, "auth_token": token}
        fields = {k: _checked(k, v) for k, v in given.items() if v is not None}

        if self._credentials is not None:
            jwt, signature = _use_credentials(
                self._credentials, lambda seed: _sign(seed, nonce)[1]
            )
            fields["jwt"] = jwt
            if signature is not None:
                fields["sig"] = signature
        elif self._seed is not None and not is_in_url:
            fields["nkey"], fields["sig"] = _use_seed(
                self._seed, lambda seed: _sign(seed, nonce)
            )
        return fields

    def __repr__(self) -> str:
        return f"<Authenticator: {self._kind}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Authenticator holds secrets and cannot be pickled or copied; pass on "
            "the path of a credentials file and make a new one where it is used"
        )


def _refuse_conflicts(**given: object) -> None:
    """Refuse arguments that cannot be used together, naming both."""
    for one, other in (
        ("credentials", "nkey_seed"),
        ("nkey_seed", "token"),
        ("nkey_seed", "user"),
        ("token", "user"),
        ("token", "password"),
    ):
        if given[one] is not None and given[other] is not None:
            raise InvalidArgumentError(f"{one} and {other} cannot be used together")
    if given["password"] is not None and given["user"] is None:
        raise InvalidArgumentError("password needs user as well")


def _checked(name: str, value: str) -> str:
    """`value`, if CONNECT can carry it."""
    # Not by trying to encode: a UnicodeEncodeError holds the whole text.
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise CredentialsError(f"{name} has characters that UTF-8 cannot carry")
    return value


def _called(name: str, function: Callable[[], _T]) -> _T:
    """What the user's callable returns; its failure is chained, as it is theirs."""
    try:
        return function()
    except Exception as error:
        raise CredentialsError(
            f"the {name} callable raised {type(error).__name__}"
        ) from error


def _text_source(
    name: str, value: str | Callable[[], str] | None
) -> Callable[[], str] | None:
    """A function that gives the text for one attempt."""
    if value is None:
        return None
    if isinstance(value, str):
        text = _checked(name, value)
        return lambda: text
    if not callable(value):
        raise TypeError(
            f"{name} must be a str or a callable, not {type(value).__name__}"
        )
    function = value

    def call() -> str:
        text: object = _called(name, function)
        if not isinstance(text, str):
            raise CredentialsError(
                f"the {name} callable must return a str, not {type(text).__name__}"
            )
        if text == "" and name == "token":
            raise CredentialsError("the token callable returned an empty str")
        return text

    return call


def _source(
    name: str,
    value: str
    | bytes
    | bytearray
    | os.PathLike[str]
    | Callable[[], str | bytes | bytearray]
    | None,
    is_strict: bool,
) -> _Source | None:
    """Where the argument `name` says that its text is."""
    label = name.replace("_", " ")
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray)):
        kept = bytes(value)
        return _Source(label, name, lambda: bytearray(kept))
    if isinstance(value, str) and name == "nkey_seed":
        kept = bytes(_buffer(value))
        hint = f"{name} (for a file pass a pathlib.Path)"
        return _Source(label, hint, lambda: bytearray(kept))
    if isinstance(value, (str, os.PathLike)):
        return _file_source(name, os.fspath(value), is_strict)
    if callable(value):
        function = value
        return _Source(
            f"{label} callable",
            f"the {name} callable",
            lambda: _result_buffer(name, _called(name, function)),
        )
    raise TypeError(
        f"{name} must be a path, {'a str, ' if name == 'nkey_seed' else ''}bytes or a "
        f"callable, not {type(value).__name__}"
    )


def _buffer(text: str) -> bytearray:
    # Replaced characters are found by whoever parses the text; see _checked.
    return bytearray(text, "utf-8", "replace")


def _result_buffer(name: str, result: object) -> bytearray:
    if isinstance(result, str):
        return _buffer(result)
    if isinstance(result, (bytes, bytearray)):
        return bytearray(result)
    raise CredentialsError(
        f"the {name} callable must return bytes or str, not {type(result).__name__}"
    )


def _file_source(name: str, path: object, is_strict: bool) -> _Source:
    if not isinstance(path, str):
        raise TypeError(f"{name} must be a path of text, not of bytes")
    label = name.replace("_", " ")
    _refuse_content(name, path)
    is_warned = False

    def read() -> bytearray:
        nonlocal is_warned
        expanded = os.path.expanduser(os.path.expandvars(path))
        _refuse_content(name, expanded)
        try:
            text, mode = _read_file(expanded)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CredentialsError(
                f"cannot read the {label} file {expanded}: {reason}"
            ) from error
        if len(text) > _MAX_FILE_BYTES:
            nkeys.wipe(text)
            raise CredentialsError(
                f"the {label} file {expanded} is larger than {_MAX_FILE_BYTES} bytes"
            )
        if os.name == "posix" and mode & _READABLE_BY_OTHERS:
            problem = (
                f"the {label} file {expanded} can be read by other users (mode "
                f"{stat.S_IMODE(mode):04o}); chmod it to 0600"
            )
            if is_strict:
                nkeys.wipe(text)
                raise CredentialsError(problem)
            if not is_warned:
                is_warned = True
                log().warning("%s", problem)
        return text

    return _Source(
        f"{label} file {os.path.basename(path)!r}", f"the {label} file {path}", read
    )


def _refuse_content(name: str, path: str) -> None:
    if _CONTENT.match(path):
        raise CredentialsError(
            f"{name} is a path, but what is given looks like content; pass that as "
            f"{'a str' if name == 'nkey_seed' else 'bytes'}"
        )


def _read_file(path: str) -> tuple[bytearray, int]:
    """The content of a file and its mode, with no copy left in a reader's buffer.

    One byte more than allowed is read of a file that is too large.
    """
    scratch = bytearray(_MAX_FILE_BYTES + 1)
    size = 0
    try:
        with open(path, "rb", buffering=0) as file, memoryview(scratch) as view:
            mode = os.fstat(file.fileno()).st_mode
            while count := file.readinto(view[size:]):
                size += count
            return bytearray(view[:size]), mode
    finally:
        scratch[:size] = bytes(size)


def _use_seed(source: _Source, use: Callable[[bytearray], _T]) -> _T:
    """What `use` makes of the raw seed, of which nothing is left afterwards."""
    text = source.read()
    try:
        return _with_seed(nkeys.parse_seed(text), use)
    except CredentialsError as error:
        raise CredentialsError(f"{source.name}: {error}") from None
    finally:
        nkeys.wipe(text)


def _use_credentials(
    source: _Source, use: Callable[[bytearray], _T]
) -> tuple[str, _T | None]:
    """The JWT, and what `use` makes of the raw seed if there is one."""
    text = source.read()
    try:
        credentials = nkeys.parse_credentials(text)
        if credentials.seed is None:
            return credentials.jwt, None
        return credentials.jwt, _with_seed(credentials.seed, use)
    except CredentialsError as error:
        raise CredentialsError(f"{source.name}: {error}") from None
    finally:
        nkeys.wipe(text)


def _with_seed(text: bytearray, use: Callable[[bytearray], _T]) -> _T:
    """What `use` makes of the raw bytes of a user's seed; wipes text and bytes."""
    raw = bytearray()
    try:
        role, raw = nkeys.decode_seed(text)
        if role != nkeys.USER:
            raise CredentialsError(
                f"the seed is that of a key for {nkeys.ROLES[role]}, not for user"
            )
        return use(raw)
    finally:
        nkeys.wipe(raw)
        nkeys.wipe(text)


def _ignore(raw: bytearray) -> None:
    """Use no seed: reading it was the check."""


def _sign(raw: bytearray, nonce: str | None) -> tuple[str, str]:
    """The public key of a raw seed and its signature of the nonce, both as text."""
    if not nonce:
        raise AuthenticationError(
            "nkeys not supported by this server: its INFO has no nonce"
        )
    from base64 import urlsafe_b64encode  # like the next one, only for who signs

    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise CredentialsError(
            "signing with nkeys needs the package cryptography: "
            "pip install 'jsclient[nkeys]'"
        ) from error
    key = Ed25519PrivateKey.from_private_bytes(raw)
    # The nonce is signed as it stands in INFO; it looks like base64 but is only text.
    signature = key.sign(nonce.encode("utf-8", "surrogatepass"))
    return (
        nkeys.encode_public(nkeys.USER, key.public_key().public_bytes_raw()),
        urlsafe_b64encode(signature).rstrip(b"=").decode("ascii"),
    )
