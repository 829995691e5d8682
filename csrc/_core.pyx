"""The compiled core: bytes from and to the wire, the objects they become, and the helm.

Input: `Link.receive` reads a socket into a `Parser`, which cuts frames and hands each message
to the `Route` of its subscription: an `Inbox` that a user reads, a `Lane` that brings one the
messages of its pulls, the `Replies` of requests, or the `Slots` of publishes that await acks.
Output: an `Outbox` encodes frames and keeps their borders until the link has taken them.
Waiting: a `Helm` lets one waiting thread at a time drive the loop, and puts the others to sleep.

Methods run without giving other Python code a chance to run, signal handlers included, unless
they wait, use TLS, or call what they were given. So what one method does is atomic: a message is
taken off the wire and delivered, or taken from an inbox and counted, or neither. Before Python
3.12 there is one more chance: where an object is made that the collector looks after, it may call
finalizers. Such objects are made before anything is changed.
"""

from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_ND,
    PyBUF_SIMPLE,
    PyBUF_STRIDES,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_Check,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_Size
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_FromMemory, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.errno cimport EBADF
from libc.math cimport INFINITY
from libc.stdint cimport (
    INT32_MAX,
    INT64_MAX,
    UINT64_MAX,
    int32_t,
    int64_t,
    uint8_t,
    uint32_t,
    uint64_t,
)
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

cimport cython
from headers cimport (
    StatusLine,
    has_header,
    header_number,
    is_key_byte,
    line_end,
    read_status_line,
)
from jsack cimport AckSubject, read_ack_subject, third_number
from puback cimport AckBody, read_ack_body
from scan cimport (
    SUBJECT_BLANK,
    SUBJECT_EMPTY,
    SUBJECT_OK,
    SUBJECT_TOKEN,
    SubjectFault,
    Token,
    check_subject_bytes,
    has_bad_wildcard,
    has_wildcard,
    is_blank,
    is_verb,
    jsc_find_blank,
    parse_uint,
    parse_uint64,
    split_line,
    write_uint,
)
from siphash cimport Hash, siphash
from stored cimport STORED_FIELDS, StoredHeader, read_stored_header

from collections.abc import Mapping
from collections import deque
from datetime import datetime, timedelta, timezone
from os import urandom

from jsclient.errors import (
    BadHeadersError,
    BufferFullError,
    ConnectionClosedError,
    DisconnectedError,
    InvalidArgumentError,
    MaxPayloadError,
    NotJetStreamMessageError,
    ProtocolError,
)

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    Py_ssize_t Py_REFCNT(PyObject *thing) noexcept
    bint PyUnicode_Check(object thing) noexcept
    bint PyUnicode_IS_COMPACT_ASCII(object text) noexcept
    const void *PyUnicode_DATA(object text) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object text) noexcept

cdef extern from *:
    """
    /* An object of a type as its __new__ makes it. */
    static PyObject *jsc_new(PyTypeObject *kind, PyObject *arguments) {
        return kind->tp_new(kind, arguments, NULL);
    }
    """
    object jsc_new(type kind, tuple arguments)

cdef extern from "Python.h":
    void PyObject_GC_Track(object one) noexcept
    void PyObject_GC_UnTrack(object one) noexcept
    bint PyObject_GC_IsTracked(object one) noexcept

cdef extern from "pythread.h":
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock() noexcept
    void PyThread_free_lock(PyThread_type_lock lock) noexcept
    PyLockStatus PyThread_acquire_lock_timed(
        PyThread_type_lock lock, long long microseconds, int interruptible
    ) noexcept nogil
    int PyThread_acquire_lock(PyThread_type_lock lock, int wait) noexcept nogil
    void PyThread_release_lock(PyThread_type_lock lock) noexcept nogil
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef extern from "link.h":
    ctypedef int jsc_socket
    enum:
        JSC_AGAIN
        JSC_ERROR
    Py_ssize_t jsc_recv(jsc_socket fd, char *at, size_t size, int *error) noexcept nogil
    Py_ssize_t jsc_send(jsc_socket fd, const char *at, size_t size, int *error) noexcept nogil
    bint jsc_await(jsc_socket fd, jsc_socket bell, double seconds) noexcept nogil
    bint jsc_rest(jsc_socket bell, double seconds) noexcept nogil
    int64_t jsc_now_ns() noexcept nogil
    int64_t jsc_coarse_ns() noexcept nogil


# Limits of the wire. The server counts 4096 bytes for the arguments of a PUB; the MSG that
# comes of it also has the verb, a sid and perhaps a second size.
cdef enum:
    DEFAULT_MAX_PAYLOAD = 1024 * 1024
    LINE_LIMIT = 4096 + 256
    INFO_LIMIT = 1024 * 1024
    ARGUMENT_LIMIT = 4096
    HEADER_ALLOWANCE = 64 * 1024
    PAYLOAD_CAP = 1024 * 1024 * 1024

# Sizes of the input buffer; larger payloads are received straight into their bytes object.
cdef enum:
    FIRST_BUFFER = 64 * 1024
    LAST_BUFFER = 256 * 1024
    LARGE_PAYLOAD = 32 * 1024

# Output: bytes worth a system call, and the pause after which a publish is sent at once.
cdef enum:
    WORTH_SENDING = 64 * 1024
    QUIET_NS = 100 * 1000
    SPARE_OUTPUT = 1024 * 1024
    MAX_PONGS = 65536        # that wait for a server that does not read

cdef int64_t live_messages = 0
cdef int64_t live_routes = 0


def live_objects() -> dict:
    """How many messages and routes exist now, for leak tests."""
    return {"messages": live_messages, "routes": live_routes}


# ---------------------------------------------------------------------------------------
# Text. Subjects recur, so decoded ones are kept in a small direct-mapped table.

cdef enum:
    TEXT_SLOTS = 512

cdef list known_texts = [None] * TEXT_SLOTS


cdef str decode_text(const char *at, Py_ssize_t size):
    return PyUnicode_DecodeUTF8(at, size, b"surrogateescape")


cdef str recurring_text(const char *at, Py_ssize_t size):
    """The text of at[:size]; the same object for a recurring one."""
    cdef uint32_t hashed = 2166136261
    cdef Py_ssize_t i
    cdef str known
    for i in range(size):
        hashed = (hashed ^ <uint8_t>at[i]) * 16777619
    hashed = (hashed ^ (hashed >> 15)) % TEXT_SLOTS
    known = <str>known_texts[hashed]
    if (
        known is not None
        and PyUnicode_GET_LENGTH(known) == size
        and memcmp(PyUnicode_DATA(known), at, <size_t>size) == 0
    ):
        return known
    known = decode_text(at, size)
    if PyUnicode_IS_COMPACT_ASCII(known):
        known_texts[hashed] = known
    return known


cdef bytes encode_text(str text):
    return text.encode("utf-8", "surrogateescape")


cdef bytes encode_or_refuse(str text, str name, str key=None):
    """The text as it is sent; an error that names it, of which key, if it cannot be."""
    try:
        return encode_text(text)
    except UnicodeEncodeError:
        pass
    named = name if key is None else f"{name} {key!r}"
    raise InvalidArgumentError(f"{named} cannot be sent as UTF-8: {text!r}")


# What a text argument is on the wire. `holder` keeps the bytes of the rare texts that hold
# undecodable bytes (as surrogates); all others lend their own UTF-8 form.
cdef struct Span:
    const char *at
    Py_ssize_t size


cdef object text_span(object text, str name, Span *span):
    if not PyUnicode_Check(text):
        raise TypeError(f"{name} must be a str, not {type(text).__name__}")
    try:
        span.at = PyUnicode_AsUTF8AndSize(text, &span.size)
        return text
    except UnicodeEncodeError:
        pass
    holder = encode_or_refuse(<str>text, name)
    span.at = PyBytes_AS_STRING(holder)
    span.size = PyBytes_GET_SIZE(holder)
    return holder


cdef int refuse_subject(object subject, str name, SubjectFault fault) except -1:
    if fault == SUBJECT_EMPTY:
        raise InvalidArgumentError(f"{name} must not be empty")
    if fault == SUBJECT_BLANK:
        raise InvalidArgumentError(
            f"{name} must not contain blanks, line breaks or NUL: {subject!r}"
        )
    if fault == SUBJECT_TOKEN:
        raise InvalidArgumentError(
            f"{name} must not have empty tokens (a dot at an end, or two in a row): {subject!r}"
        )
    return 0


cdef object subject_span(object subject, str name, Span *span):
    """Checks a subject that messages are published to, and lends its bytes."""
    holder = text_span(subject, name, span)
    refuse_subject(subject, name, check_subject_bytes(span.at, span.size))
    return holder


def check_subject(subject, name: str = "subject") -> None:
    """Raises unless messages can be published to the subject."""
    cdef Span span
    subject_span(subject, name, &span)


cdef int refuse_wildcard(object subject, const Span *span) except -1:
    """Raises for a wildcard, which a stream would store as if it were a word."""
    if has_wildcard(span.at, span.size):
        raise InvalidArgumentError(
            f"a message is published to one subject, without wildcards: {subject!r}"
        )
    return 0


def check_literal(subject) -> None:
    """Raises unless messages for a stream can be published to the subject."""
    cdef Span span
    holder = subject_span(subject, "subject", &span)  # no-cython-lint: keeps the bytes alive
    refuse_wildcard(subject, &span)


def check_filter(subject, name: str = "subject") -> None:
    """Raises unless the subject, which may have wildcards, can be subscribed to."""
    cdef Span span
    holder = subject_span(subject, name, &span)  # no-cython-lint: keeps what the span points to
    if has_bad_wildcard(span.at, span.size):
        raise InvalidArgumentError(
            f"{name} must use * and > only as whole tokens, and > only as the last: {subject!r}"
        )


def check_token(text, name: str) -> None:
    """Raises unless the text is non-empty and free of blanks, line breaks and NUL."""
    cdef Span span
    cdef SubjectFault fault
    holder = text_span(text, name, &span)  # no-cython-lint: keeps what the span points to
    fault = check_subject_bytes(span.at, span.size)
    refuse_subject(text, name, SUBJECT_OK if fault == SUBJECT_TOKEN else fault)


# ---------------------------------------------------------------------------------------
# Headers

cdef tuple decode_headers(const char *at, Py_ssize_t size):
    """(status, description, [(key, value), …]) of a header block, or None if it is malformed."""
    cdef StatusLine line
    cdef Py_ssize_t start, end, colon, first, last
    cdef const char *found
    cdef list fields = []
    if not read_status_line(at, size, &line):
        return None
    start = line.fields
    while True:
        if size - start < 2:
            return None
        end = start if at[start] == c'\r' and at[start + 1] == c'\n' else line_end(at, start, size)
        if end < 0:
            return None
        if end == start:
            break
        found = <const char *>memchr(at + start, c':', <size_t>(end - start))
        if found == NULL:
            return None
        colon = found - at
        if colon > start:
            first = colon + 1
            last = end
            while first < last and is_blank(at[first]):
                first += 1
            while last > first and is_blank(at[last - 1]):
                last -= 1
            key = recurring_text(at + start, colon - start)
            fields.append((key, decode_text(at + first, last - first)))
        start = end + 2
    if start + 2 != size:
        return None
    status = None
    description = None
    if line.status >= 0:
        status = line.status
        if line.end > line.description:
            description = decode_text(at + line.description, line.end - line.description)
    return status, description, fields


@cython.final
cdef class Headers:
    """The headers of a message: an ordered, read-only mapping of keys to first values.

    Keys keep their case; looking one up tries the exact key first, then any case.
    `status` and `description` come from the version line, never from a header field.
    """

    cdef list fields
    cdef dict first
    cdef readonly object status
    cdef readonly object description

    def __init__(self, fields=(), *, status=None, description=None):
        cdef str key
        self.fields = []
        self.first = {}
        self.status = status
        self.description = description
        for key, value in header_fields(fields):
            self.fields.append((key, value))
            self.first.setdefault(key, value)

    cdef str spelling(self, object key):
        """The key as it stands in the message, or None."""
        cdef str folded
        if not isinstance(key, str):
            return None
        if key in self.first:
            return <str>key
        folded = (<str>key).lower()
        for known in self.first:
            if (<str>known).lower() == folded:
                return <str>known
        return None

    def __getitem__(self, key):
        cdef str known = self.spelling(key)
        if known is None:
            raise KeyError(key)
        return self.first[known]

    def get(self, key, default=None, /):
        """The first value of the key, or the default."""
        cdef str known = self.spelling(key)
        return default if known is None else self.first[known]

    def get_all(self, key):
        """All values of the key in their order, as a list; empty if there are none."""
        cdef str known = self.spelling(key)
        return [] if known is None else [value for name, value in self.fields if name == known]

    def multi_items(self):
        """Every (key, value) pair in the order of the message."""
        return list(self.fields)

    def __contains__(self, key):
        return self.spelling(key) is not None

    def __iter__(self):
        return iter(self.first)

    def __len__(self):
        return len(self.first)

    def keys(self):
        """The distinct keys, in order."""
        return self.first.keys()

    def values(self):
        """The first value of each key, in order."""
        return self.first.values()

    def items(self):
        """(key, first value) pairs, in order."""
        return self.first.items()

    def __eq__(self, other):
        if isinstance(other, Headers):
            return (
                self.fields == (<Headers>other).fields
                and self.status == (<Headers>other).status
                and self.description == (<Headers>other).description
            )
        if isinstance(other, dict):
            return self.first == other
        return NotImplemented

    __hash__ = None

    def __repr__(self):
        inline = "" if self.status is None else f", status={self.status}"
        if self.description is not None:
            inline += f", description={self.description!r}"
        return f"Headers({self.fields!r}{inline})"

    def __reduce__(self):
        return rebuild_headers, (list(self.fields), self.status, self.description)


Mapping.register(Headers)


def rebuild_headers(fields, status, description):
    """Makes Headers of their parts; what unpickling calls."""
    return Headers(fields, status=status, description=description)


cdef list header_fields(object headers):
    """The (key, value) pairs of what a user gives as headers."""
    cdef list fields = []
    if isinstance(headers, Headers):
        return (<Headers>headers).fields
    pairs = headers.items() if hasattr(headers, "items") else headers
    if not hasattr(pairs, "__iter__"):
        raise TypeError(
            "headers must be a mapping or an iterable of (key, value) pairs, "
            f"not {type(headers).__name__}"
        )
    for pair in pairs:
        try:
            key, value = pair
        except (TypeError, ValueError):
            raise TypeError(
                "headers must be a mapping or an iterable of (key, value) pairs"
            ) from None
        if not isinstance(key, str):
            raise TypeError(f"a header key must be a str, not {type(key).__name__}")
        if isinstance(value, str):
            fields.append((key, value))
        elif isinstance(value, (list, tuple)):
            for item in value:
                if not isinstance(item, str):
                    raise TypeError(
                        f"the values of header {key!r} must be str, not {type(item).__name__}"
                    )
                fields.append((key, item))
        else:
            raise TypeError(
                f"the value of header {key!r} must be a str or a list of str, "
                f"not {type(value).__name__}"
            )
    return fields


cdef bytes encode_fields(list fields):
    """The header block of the fields, each checked; None when there are none."""
    cdef str key, value
    cdef bytes raw
    cdef Py_ssize_t i
    cdef const char *at
    cdef list parts = [b"NATS/1.0\r\n"]
    if not fields:
        return None
    for key, value in fields:
        raw = encode_or_refuse(key, "a header key")
        at = PyBytes_AS_STRING(raw)
        if PyBytes_GET_SIZE(raw) == 0:
            raise InvalidArgumentError("a header key must not be empty")
        for i in range(PyBytes_GET_SIZE(raw)):
            if not is_key_byte(<uint8_t>at[i]):
                raise InvalidArgumentError(
                    f"a header key must be printable ASCII without blanks and colons: {key!r}"
                )
        parts.append(raw)
        parts.append(b": ")
        raw = encode_or_refuse(value, "the value of header", key)
        at = PyBytes_AS_STRING(raw)
        for i in range(PyBytes_GET_SIZE(raw)):
            if at[i] == c'\r' or at[i] == c'\n' or at[i] == 0:
                raise InvalidArgumentError(
                    f"the value of header {key!r} must not contain line breaks or NUL"
                )
        parts.append(raw)
        parts.append(b"\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)


def encode_headers(headers) -> bytes | None:
    """The header block for these headers, or None when they are empty."""
    return None if headers is None else encode_fields(header_fields(headers))


# ---------------------------------------------------------------------------------------
# Messages

@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Metadata:
    """Where a JetStream message stands: the fields of its ack subject."""

    cdef readonly str stream
    cdef readonly str consumer
    cdef readonly str domain
    cdef readonly uint64_t num_delivered
    cdef readonly uint64_t stream_seq
    cdef readonly uint64_t consumer_seq
    cdef readonly int64_t timestamp_ns
    cdef readonly uint64_t num_pending

    @property
    def timestamp(self):
        """When the stream stored the message, to the microsecond, aware and in UTC."""
        return EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)

    def __repr__(self):
        return (
            f"Metadata(stream={self.stream!r}, consumer={self.consumer!r}, "
            f"domain={self.domain!r}, num_delivered={self.num_delivered}, "
            f"stream_seq={self.stream_seq}, consumer_seq={self.consumer_seq}, "
            f"timestamp_ns={self.timestamp_ns}, num_pending={self.num_pending})"
        )

    def __reduce__(self):
        raise TypeError("Metadata is not picklable: pickle the Msg it belongs to")


cdef object EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


cdef Metadata read_metadata(const char *at, Py_ssize_t size):
    cdef AckSubject ack
    cdef Metadata found
    if not read_ack_subject(at, size, &ack):
        raise NotJetStreamMessageError(
            f"the reply is no JetStream ack subject: {decode_text(at, size)!r}"
        )
    found = Metadata.__new__(Metadata)
    found.stream = recurring_text(at + ack.stream.start, ack.stream.size)
    found.consumer = recurring_text(at + ack.consumer.start, ack.consumer.size)
    if ack.domain.size:
        found.domain = recurring_text(at + ack.domain.start, ack.domain.size)
    found.num_delivered = ack.num_delivered
    found.stream_seq = ack.stream_seq
    found.consumer_seq = ack.consumer_seq
    found.timestamp_ns = <int64_t>ack.timestamp_ns
    found.num_pending = ack.num_pending
    return found


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class PubAck:
    """Where JetStream stored a message.

    `value` is the counter's new value on counter streams; `batch` and `count` come with the
    commit of a batch.
    """

    cdef readonly str stream
    cdef readonly uint64_t seq
    cdef readonly bint duplicate
    cdef readonly str domain
    cdef readonly object value
    cdef readonly str batch
    cdef readonly uint64_t count

    def __init__(
        self, stream, seq, *, duplicate=False, domain=None, value=None, batch=None, count=0
    ):
        self.stream = stream
        self.seq = seq
        self.duplicate = duplicate
        self.domain = domain
        self.value = value
        self.batch = batch
        self.count = count

    def __repr__(self):
        more = ", duplicate=True" if self.duplicate else ""
        if self.domain is not None:
            more += f", domain={self.domain!r}"
        if self.value is not None:
            more += f", value={self.value}"
        if self.batch is not None:
            more += f", batch={self.batch!r}, count={self.count}"
        return f"PubAck(stream={self.stream!r}, seq={self.seq}{more})"

    def __eq__(self, other):
        if not isinstance(other, PubAck):
            return NotImplemented
        return self.__reduce__()[1] == other.__reduce__()[1]

    __hash__ = None

    def __reduce__(self):
        return rebuild_pub_ack, (
            self.stream,
            self.seq,
            self.duplicate,
            self.domain,
            self.value,
            self.batch,
            self.count,
        )


def rebuild_pub_ack(stream, seq, duplicate, domain, value, batch, count):
    """Makes a PubAck of its parts; what unpickling calls."""
    return PubAck(
        stream, seq, duplicate=duplicate, domain=domain, value=value, batch=batch, count=count
    )


def parse_pub_ack(data: bytes) -> PubAck | None:
    """The PubAck of the usual answer, `{"stream":"S","seq":N}`; None for any other JSON.

    `domain` may stand between the two and `duplicate` behind them. What is None here may
    still be a valid answer: it takes a JSON parser to tell.
    """
    cdef AckBody body
    if not read_ack_body(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), &body):
        return None
    return make_pub_ack(PyBytes_AS_STRING(data), &body)


cdef PubAck make_pub_ack(const char *at, const AckBody *body):
    cdef str stream = recurring_text(at + body.stream.start, body.stream.size)
    cdef str domain = None
    if body.domain.size:
        domain = recurring_text(at + body.domain.start, body.domain.size)
    return new_pub_ack(stream, body.seq, body.is_duplicate, domain)


cdef PubAck new_pub_ack(str stream, uint64_t seq, bint is_duplicate, str domain):
    cdef PubAck ack = PubAck.__new__(PubAck)
    ack.stream = stream
    ack.seq = seq
    ack.duplicate = is_duplicate
    ack.domain = domain
    return ack


cdef enum AckState:
    ACK_NEW
    ACK_SENDING              # a thread is at it
    ACK_DONE


# One message as the parser sees it: pointers into its buffer, or finished bytes objects.
cdef struct Frame:
    const char *subject
    Py_ssize_t subject_size
    const char *reply
    Py_ssize_t reply_size
    const char *header
    Py_ssize_t header_size
    const char *data
    Py_ssize_t data_size
    PyObject *head           # bytes of subject, reply and header, or NULL
    PyObject *body           # bytes of the payload, or NULL


cdef inline Py_ssize_t frame_size(const Frame *frame) noexcept nogil:
    # The server counts subject and reply as well as headers and payload.
    return frame.subject_size + frame.reply_size + frame.header_size + frame.data_size


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Msg:
    """A received message. Text and headers are decoded when they are first asked for."""

    # Subject, reply and header block in one piece; their sizes cut it.
    cdef bytes head
    cdef readonly bytes data
    cdef uint32_t subject_size
    cdef uint32_t reply_size
    cdef uint32_t header_size
    cdef str text
    cdef Headers decoded
    cdef Metadata place
    cdef AckState ack_state
    # Who sends an answer; set when the message is handed out, so that messages waiting in
    # an inbox form no reference cycle with it.
    cdef object owner

    def __cinit__(self):
        global live_messages
        live_messages += 1

    def __dealloc__(self):
        global live_messages
        live_messages -= 1

    def __init__(self, subject, data=b"", *, reply=None, headers=None):
        cdef bytes first, second, block
        check_subject(subject)
        if reply is not None:
            check_subject(reply, "reply")
        if not isinstance(data, bytes):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        first = encode_text(subject)
        second = b"" if reply is None else encode_text(reply)
        block = encode_headers(headers) or b""
        fill_msg(self, first, second, block, data)

    @property
    def subject(self):
        """What the message was published to."""
        if self.text is None:
            self.text = recurring_text(PyBytes_AS_STRING(self.head), self.subject_size)
        return self.text

    @property
    def reply(self):
        """Where an answer goes, or None."""
        if self.reply_size == 0:
            return None
        return decode_text(PyBytes_AS_STRING(self.head) + self.subject_size, self.reply_size)

    @property
    def raw_headers(self):
        """The header block as it came, or None."""
        if self.header_size == 0:
            return None
        return self.head[self.subject_size + self.reply_size:]

    @property
    def headers(self):
        """The Headers, or None if there are none; BadHeadersError if they are malformed."""
        cdef tuple parts
        if self.header_size == 0:
            return None
        if self.decoded is None:
            parts = decode_headers(
                PyBytes_AS_STRING(self.head) + self.subject_size + self.reply_size,
                self.header_size,
            )
            if parts is None:
                error = BadHeadersError(
                    f"malformed headers in a message on {self.subject!r}; "
                    "the bytes are in raw_headers"
                )
                if self.owner is not None:
                    self.owner.note_bad_headers(error)
                raise error
            self.decoded = Headers(parts[2], status=parts[0], description=parts[1])
        return self.decoded

    cdef const char *status_line(self, StatusLine *line) noexcept:
        """The header block, if it opens with an inline status, or NULL."""
        cdef const char *at
        if self.header_size == 0:
            return NULL
        at = PyBytes_AS_STRING(self.head) + self.subject_size + self.reply_size
        if not read_status_line(at, self.header_size, line) or line.status < 0:
            return NULL
        return at

    @property
    def status(self):
        """The inline status of the header's version line as an int, or None."""
        cdef StatusLine line
        return None if self.status_line(&line) == NULL else line.status

    @property
    def description(self):
        """The text after the inline status, or None."""
        cdef StatusLine line
        cdef const char *at = self.status_line(&line)
        if at == NULL or line.description == line.end:
            return None
        return decode_text(at + line.description, line.end - line.description)

    @property
    def metadata(self):
        """The Metadata of a JetStream message; NotJetStreamMessageError for any other."""
        if self.place is None:
            self.place = read_metadata(
                PyBytes_AS_STRING(self.head) + self.subject_size, self.reply_size
            )
        return self.place

    @property
    def size(self):
        """Bytes of subject, reply, headers and payload, as the server counts them."""
        return self.full_size()

    cdef inline Py_ssize_t full_size(self) noexcept:
        return (
            <Py_ssize_t>self.subject_size + self.reply_size + self.header_size
            + PyBytes_GET_SIZE(self.data)
        )

    def respond(self, data=b"", headers=None):
        """Publishes an answer to the message's reply subject."""
        if self.reply_size == 0:
            raise InvalidArgumentError(
                f"the message on {self.subject!r} has no reply subject to respond to"
            )
        if self.owner is None:
            raise InvalidArgumentError("the message belongs to no connection")
        self.owner.publish(self.reply, data, headers=headers)

    # Acknowledging. One terminal ack per message: a further one of any kind does nothing. ---

    def ack(self):
        """Tells JetStream that the message is dealt with; returns before it is sent."""
        self.acknowledge(b"+ACK", True)

    def nak(self, delay=None):
        """Asks JetStream to deliver the message again, at once or after `delay` seconds."""
        cdef object nanoseconds = 0
        if delay is not None:
            nanoseconds = delay_ns(delay)
        if nanoseconds > 0:
            self.acknowledge(b'-NAK {"delay": %d}' % nanoseconds, True)
        else:
            self.acknowledge(b"-NAK", True)

    def term(self, reason=None):
        """Tells JetStream never to deliver the message again, and why."""
        if reason is not None and not isinstance(reason, str):
            raise TypeError(f"reason must be a str, not {type(reason).__name__}")
        cdef bytes payload = b"+TERM"
        if reason and self.courier_for_ack().port.takes_reasons:
            payload += b" " + encode_text(reason)
        self.acknowledge(payload, True)

    def in_progress(self):
        """Tells JetStream that the message is being worked on: its ack_wait starts anew."""
        self.acknowledge(b"+WPI", False)

    def ack_sync(self, timeout=5.0):
        """Acknowledges, and waits until the server has confirmed it.

        Raises TimeoutError when it did not; then the call may be repeated.
        """
        cdef Courier courier = self.courier_for_ack()
        if self.ack_state == ACK_DONE or courier.is_ack_none:
            return
        subject = courier.ack_subject(self).decode("utf-8", "surrogateescape")
        self.ack_state = ACK_SENDING
        try:
            courier.port.ack_sync(subject, timeout)
        except BaseException:
            # Unless another thread's was confirmed meanwhile.
            if self.ack_state == ACK_SENDING:
                self.ack_state = ACK_NEW
            raise
        self.ack_state = ACK_DONE

    @property
    def is_acked(self):
        """Whether a terminal ack (ack, nak or term) was sent."""
        return self.ack_state == ACK_DONE

    cdef Courier courier_for_ack(self):
        if self.reply_size < 9 or memcmp(
            PyBytes_AS_STRING(self.head) + self.subject_size, b"$JS.ACK.", 8
        ) != 0:
            raise NotJetStreamMessageError(
                f"the message on {self.subject!r} cannot be acknowledged: "
                "its reply is no JetStream ack subject"
            )
        if self.owner is None:
            raise InvalidArgumentError("the message belongs to no connection")
        if isinstance(self.owner, Courier):
            return <Courier>self.owner
        return <Courier?>self.owner.courier

    cdef int acknowledge(self, bytes payload, bint is_terminal) except -1:
        cdef Courier courier = self.courier_for_ack()
        if self.ack_state != ACK_NEW or courier.is_ack_none:
            return 0
        if not is_terminal:
            courier.send(self, payload)
            return 0
        self.ack_state = ACK_SENDING
        try:
            courier.send(self, payload)
        except BaseException:
            self.ack_state = ACK_NEW
            raise
        self.ack_state = ACK_DONE
        return 0

    def __repr__(self):
        reply = "" if self.reply_size == 0 else f", reply={self.reply!r}"
        return f"Msg(subject={self.subject!r}{reply}, {PyBytes_GET_SIZE(self.data)} bytes)"

    def __reduce__(self):
        cut = self.subject_size
        return rebuild_msg, (
            self.head[:cut],
            self.head[cut:cut + self.reply_size],
            self.head[cut + self.reply_size:],
            self.data,
        )


cdef object delay_ns(object delay):
    """A delay in seconds, or a timedelta, as whole nanoseconds."""
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if isinstance(delay, bool) or not isinstance(delay, (int, float)):
        raise TypeError(
            f"delay must be a number of seconds or a timedelta, not {type(delay).__name__}"
        )
    if delay != delay or delay > 1e9:
        raise InvalidArgumentError(f"delay must be a sensible number of seconds: {delay!r}")
    return round(max(delay, 0) * 1000000000)


@cython.final
cdef class Courier:
    """Sends the acks and answers of a consumer's messages.

    `port` has what waits: `publish`, `note_bad_headers`, `ack_sync`, and
    `attend_publish` for an outbox that asks for something. It knows whether the server
    `takes_reasons`.
    """

    cdef readonly object port
    cdef Outbox outbox
    cdef readonly bint is_ack_none     # the consumer wants no acks: they are not sent
    cdef bytes prefix                  # what replaces `$JS.ACK`, or None

    def __init__(self, port, Outbox outbox not None, bint is_ack_none=False, ack_prefix=None):
        self.port = port
        self.outbox = outbox
        self.is_ack_none = is_ack_none
        self.prefix = None if ack_prefix is None else encode_text(ack_prefix)

    def publish(self, subject, data, *, headers=None):
        """Publishes an answer to a message."""
        self.port.publish(subject, data, headers=headers)

    def note_bad_headers(self, error):
        """A message with malformed headers was looked at."""
        self.port.note_bad_headers(error)

    cdef bytes ack_subject(self, Msg msg):
        cdef bytes reply = msg.head[msg.subject_size:msg.subject_size + msg.reply_size]
        return reply if self.prefix is None else self.prefix + reply[7:]

    cdef int send(self, Msg msg, bytes payload) except -1:
        cdef Span to
        cdef bytes subject
        if self.prefix is not None:
            subject = self.ack_subject(msg)
            to.at = PyBytes_AS_STRING(subject)
            to.size = PyBytes_GET_SIZE(subject)
            return self.send_to(to, payload)
        # As it was received; the server made it.
        to.at = PyBytes_AS_STRING(msg.head) + msg.subject_size
        to.size = msg.reply_size
        return self.send_to(to, payload)

    cdef int send_to(self, Span to, bytes payload) except -1:
        cdef Span nowhere, body
        cdef int asked
        nowhere.at = NULL
        nowhere.size = 0
        body.at = PyBytes_AS_STRING(payload)
        body.size = PyBytes_GET_SIZE(payload)
        asked = self.outbox.add_checked(to, nowhere, nowhere, body, PATIENT, None, False)
        if asked != ASK_NOTHING:
            text = decode_text(to.at, to.size)
            self.port.attend_publish(asked, text, payload, None, None, 10.0)
        return 0


cdef int fill_msg(Msg msg, bytes subject, bytes reply, bytes header, bytes data) except -1:
    msg.head = subject + reply + header
    msg.subject_size = <uint32_t>len(subject)
    msg.reply_size = <uint32_t>len(reply)
    msg.header_size = <uint32_t>len(header)
    msg.data = data
    return 0


def rebuild_msg(subject: bytes, reply: bytes, header: bytes, data: bytes) -> Msg:
    """Makes a Msg, without a connection, of its parts; what unpickling calls."""
    cdef Msg msg = Msg.__new__(Msg)
    fill_msg(msg, subject, reply, header, data)
    return msg


cdef Msg make_msg(const Frame *frame, Msg like):
    """The message of a frame; it shares the head of `like` when the two are equal."""
    cdef Msg msg = Msg.__new__(Msg)
    cdef char *at
    cdef bytes head
    msg.subject_size = <uint32_t>frame.subject_size
    msg.reply_size = <uint32_t>frame.reply_size
    msg.header_size = <uint32_t>frame.header_size
    if frame.head != NULL:
        msg.head = <bytes>frame.head
    elif (
        like is not None
        and frame.reply_size == 0
        and frame.header_size == 0
        and PyBytes_GET_SIZE(like.head) == frame.subject_size
        and memcmp(PyBytes_AS_STRING(like.head), frame.subject, <size_t>frame.subject_size) == 0
    ):
        msg.head = like.head
        msg.text = like.text
    else:
        head = PyBytes_FromStringAndSize(
            NULL, frame.subject_size + frame.reply_size + frame.header_size
        )
        at = PyBytes_AS_STRING(head)
        memcpy(at, frame.subject, <size_t>frame.subject_size)
        at += frame.subject_size
        if frame.reply_size:
            memcpy(at, frame.reply, <size_t>frame.reply_size)
            at += frame.reply_size
        if frame.header_size:
            memcpy(at, frame.header, <size_t>frame.header_size)
        msg.head = head
    if frame.body != NULL:
        msg.data = <bytes>frame.body
    else:
        msg.data = PyBytes_FromStringAndSize(frame.data, frame.data_size)
    return msg


# ---------------------------------------------------------------------------------------
# Waiting

@cython.final
@cython.no_gc
cdef class Waiter:
    """One thread asleep; woken at most once."""

    cdef PyThread_type_lock lock
    cdef bint is_woken

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.lock, 0)

    def __dealloc__(self):
        if self.lock != NULL:
            if not self.is_woken:
                PyThread_release_lock(self.lock)
            PyThread_free_lock(self.lock)

    cdef void wake(self) noexcept:
        if not self.is_woken:
            self.is_woken = True
            PyThread_release_lock(self.lock)

    cdef int sleep(self, double seconds) except -1:
        """Sleeps until woken or for that long; a signal handler may run, and raise, here."""
        cdef PyLockStatus status
        cdef long long microseconds = -1
        if seconds < 1e9:
            microseconds = <long long>(seconds * 1e6) + 1 if seconds > 0 else 0
        with nogil:
            status = PyThread_acquire_lock_timed(self.lock, microseconds, 1)
        if status == PY_LOCK_ACQUIRED:
            # Give it back, so that the lock is free when the object goes.
            PyThread_release_lock(self.lock)
        elif status == PY_LOCK_INTR:
            PyErr_CheckSignals()
        return 0


cdef class Helm


cdef class LiveLink:
    """The link of this moment, its parser, and when something is to be done for it."""

    cdef readonly Link link
    cdef readonly Parser parser
    cdef readonly object session       # its `deadline` is the first of the two times
    cdef public double leave_at

    def __init__(self, Link link not None, Parser parser not None, session not None):
        self.link = link
        self.parser = parser
        self.session = session
        self.leave_at = INFINITY

    cdef double next_tick(self) except? -1:
        return min(<double>self.session.deadline, self.leave_at)


# So many seconds at most are nothing but messages read before the loop, and with it every
# other thread, has its turn.
cdef double LONGEST_SHIFT = 0.005


cdef class Awaited:
    """Something that threads wait for."""

    cdef list sleepers
    cdef Helm helm                     # held by a thread that waits for this

    cdef bint is_ready(self) noexcept:
        return True

    cdef void frame_begun(self, uint64_t number) noexcept:
        """The first bytes of the frame with that number were sent, whose ticket this is."""

    cdef void frame_cancelled(self) noexcept:
        """No byte of a frame whose ticket this is was sent, and none will be."""

    cdef bint wants_more(self) noexcept:
        """Whether more of what is there to read now should be taken, although it is ready."""
        return False

    cdef double pause(self, int64_t now_ns) noexcept:
        """For how long it is better not to look for data: then more of it comes at once."""
        return 0

    cdef int add_sleeper(self, Waiter waiter) except -1:
        cdef list fresh
        if self.sleepers is None:
            # Other threads may run while the list is made: the collector calls finalizers.
            fresh = []
            if self.sleepers is None:
                self.sleepers = fresh
        self.sleepers.append(waiter)
        return 0

    cdef int wake(self, Py_ssize_t count) except -1:
        cdef Waiter waiter
        if self.sleepers is not None:
            for waiter in self.sleepers:
                if count <= 0:
                    break
                if not waiter.is_woken:
                    waiter.wake()
                    count -= 1
        if self.helm is not None:
            # The thread at the helm does not sleep here but may sit in select.
            self.helm.call_back()
        return 0

    @property
    def ready(self):
        """Whether waiting for it would return at once."""
        return self.is_ready()

    @property
    def has_waiters(self):
        """Whether threads wait for it now."""
        return self.helm is not None or bool(self.sleepers)

    def sleep(self, double seconds):
        """Waits that long for it without driving any loop; whether it is ready.

        Returns early, and False, when a signal handler ran.
        """
        cdef Waiter waiter
        if self.is_ready():
            return True
        waiter = Waiter()
        self.add_sleeper(waiter)
        try:
            if not self.is_ready():
                waiter.sleep(seconds)
        finally:
            self.sleepers.remove(waiter)
        return self.is_ready()


@cython.final
cdef class Gate(Awaited):
    """A condition that is opened once, with an error or without."""

    cdef readonly bint is_open
    cdef readonly object error

    cdef bint is_ready(self) noexcept:
        return self.is_open

    def open(self, error=None):
        """Lets every waiting thread through."""
        if not self.is_open:
            self.error = error
            self.is_open = True
            self.wake(INT64_MAX)


@cython.final
cdef class Helm:
    """Lets exactly one of the waiting threads drive the loop; the others sleep.

    As long as nothing but messages comes, the thread steers: all of that is compiled. Whatever
    else there is to do is up to `drive(awaited, deadline)`, which turns the loop until awaited
    is ready, the deadline passed or the link was lost. A thread that leaves the helm wakes one
    of the sleepers to take it.
    It is compiled because a signal handler may raise between any two steps of Python code: the
    helm must be left whatever happens.
    """

    cdef object drive
    cdef object now
    cdef jsc_socket rope               # what is written there rings a bell at the helm
    cdef bint has_rope
    cdef Outbox outbox
    cdef list sleepers
    cdef Gate freed                    # opens when the thread at the helm leaves it
    cdef public object on_leave        # called once when it leaves it
    cdef unsigned long owner
    cdef object link                   # what is driven
    cdef LiveLink live                 # the same with its parser and clocks, for `steer`
    cdef list machines                 # clocks of the loop
    cdef object calls                  # jobs that wait for the helm
    cdef jsc_socket bell
    cdef object fail
    cdef readonly bint is_steerable    # there is a link to drive
    cdef readonly bint is_closed
    cdef public bint is_resting        # the thread at the helm sits in select
    cdef bint has_slept                # since it began its turn
    cdef readonly uint64_t shifts      # how often the helm was taken

    def __init__(self, drive, now, Outbox outbox, rope=None):
        self.drive = drive
        self.now = now
        if rope is not None:
            self.rope = rope
            self.has_rope = True
        self.outbox = outbox
        self.sleepers = []

    def equip(self, list machines not None, calls not None, jsc_socket bell, fail not None):
        """What is needed to steer: clocks and jobs of the loop, and the bell of the rope.

        `fail(live, error)` says whether an error is the link's, which then ends.
        """
        self.machines = machines
        self.calls = calls
        self.bell = bell
        self.fail = fail

    @property
    def is_free(self):
        """Whether no thread drives the loop."""
        return self.owner == 0

    @property
    def is_wanted(self):
        """Whether threads are asleep that could drive the loop."""
        return len(self.sleepers) > 0

    def start(self, link=None, LiveLink live=None):
        """There is a link now: one of the sleepers takes the helm.

        With `live`, the same with its parser and clocks, threads steer by themselves.
        """
        self.link = link
        self.live = live
        self.is_steerable = True
        self.pass_on()

    def stop(self, link=None):
        """That link is lost: waiting threads sleep until there is one or they time out.

        Nothing happens if another was started meanwhile.
        """
        if link is self.link:
            self.link = None
            self.live = None
            self.is_steerable = False

    def close(self):
        """Wakes every sleeper for good."""
        cdef Waiter waiter
        self.is_closed = True
        self.is_steerable = False
        for waiter in self.sleepers:
            waiter.wake()

    def leaving(self):
        """A Gate that opens when the helm is free of other threads."""
        cdef Gate gate = Gate()
        if self.owner == 0 or self.owner == PyThread_get_thread_ident():
            gate.is_open = True
            return gate
        if self.freed is None:
            self.freed = gate
        return self.freed

    def await_free(self, Awaited what not None):
        """Sleeps until no other thread is at the helm or `what` is ready, or a signal came."""
        cdef Waiter waiter = Waiter()
        cdef Gate gate = self.leaving()
        gate.add_sleeper(waiter)
        try:
            what.add_sleeper(waiter)
            try:
                # Looked at last: from here on whoever makes it so wakes the waiter.
                if not gate.is_ready() and not what.is_ready():
                    waiter.sleep(INFINITY)
            finally:
                what.sleepers.remove(waiter)
        finally:
            gate.sleepers.remove(waiter)

    def wait(self, Awaited what not None, double deadline):
        """Waits until `what` is ready; False if the deadline passed or the helm was closed."""
        if what.is_ready():
            return True
        return self.wait_long(what, deadline)

    def run(self, job):
        """Runs job() at the helm if no other thread has it; whether it did."""
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef unsigned long before = self.owner
        if before != 0 and before != me:
            return False
        self.owner = me
        try:
            job()
        finally:
            self.owner = before
            if before == 0:
                self.left()
        return True

    cdef int left(self) except -1:
        """The helm is free: tells those who wait for that."""
        cdef object on_leave = self.on_leave
        self.on_leave = None
        if self.freed is not None:
            self.freed.open()
            self.freed = None
        self.pass_on()
        if on_leave is not None:
            on_leave()
        return 0

    def keep(self):
        """Takes a free helm and drives until somebody wants it; what the keeper does."""
        if self.owner == 0 and self.is_steerable:
            if self.sleepers:
                self.pass_on()
            else:
                self.hold(None, INFINITY, PyThread_get_thread_ident())

    cdef bint wait_long(self, Awaited what, double deadline) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        while not self.is_closed:
            # A signal handler may wait in a thread that already is at the helm.
            if self.is_steerable and (self.owner == 0 or self.owner == me):
                # What is unsent goes out when there is nothing to read.
                self.hold(what, deadline, me)
            else:
                self.sleep(what, deadline)
            if what.is_ready() or self.now() >= deadline:
                if self.sleepers:
                    # It may have been woken to take the helm, which it leaves to another.
                    self.pass_on()
                break
        return what.is_ready()

    cpdef ring(self):
        """Makes the thread at the helm look around."""
        cdef int error = 0
        if self.has_rope:
            # What is full rings already.
            jsc_send(self.rope, b"!", 1, &error)

    def cut_rope(self):
        """The rope is about to be closed: its descriptor, soon another's, is left alone."""
        self.has_rope = False

    cdef int call_back(self) except -1:
        """What the thread at the helm waits for was made ready, and not by its own turn."""
        # A signal handler runs in that very thread while it sits in select.
        if self.is_resting or self.owner != PyThread_get_thread_ident():
            self.ring()
        return 0

    cdef int hold(self, Awaited what, double deadline, unsigned long me) except -1:
        cdef unsigned long before = self.owner
        cdef bint was_resting = self.is_resting
        cdef Helm watcher = None
        self.owner = me
        self.is_resting = False
        self.shifts += 1
        if what is not None:
            watcher = what.helm
            what.helm = self
        try:
            if what is None or self.live is None or not self.is_steered(what, deadline):
                self.drive(what, deadline)
        finally:
            self.owner = before
            self.is_resting = was_resting and before != 0
            if what is not None:
                what.helm = watcher
            if before == 0:
                self.left()
            else:
                # This was a signal handler's wait. The wait that it interrupted may be over
                # as well, but select goes on sleeping after a handler.
                self.ring()
        return 0

    cdef bint is_steered(self, Awaited what, double deadline) except -1:
        """Steers until `what` is ready; False if the loop has to look what is to be done."""
        cdef LiveLink live = self.live
        if self.calls:
            return False
        try:
            return self.steer(live, what, deadline) is None
        except Exception as error:
            if not self.fail(live, error):
                raise
            return True

    cpdef steer(self, LiveLink live, Awaited what, double deadline):
        """Turns as long as nothing but messages comes. None: `what` is ready, and that is all.

        Otherwise the loop has to look what is to be done, and gets what `turn` returned: also
        when messages come for long, because no other thread runs while they do.
        """
        cdef Link link = live.link
        cdef Parser parser = live.parser
        cdef double until = min(deadline, live.next_tick())
        cdef double now, pause_at = -INFINITY
        cdef Py_ssize_t received
        for machine in self.machines:
            until = min(until, <double>machine.deadline)
        while True:
            self.has_slept = False
            received = self.turn(link, parser, what, until, self.bell)
            if received <= 0 or parser.is_noticed() or not self.is_steerable or self.calls:
                return received
            if self.has_slept and what.is_ready():
                # Nothing was due when it fell asleep; what is due now is seen by the next wait.
                return None
            now = self.now()
            if now >= until:
                return received
            if what.is_ready():
                return None
            if pause_at < 0:
                pause_at = now + LONGEST_SHIFT
            elif now >= pause_at:
                return received

    cdef Py_ssize_t turn(
        self, Link link, Parser parser, Awaited what, double until, jsc_socket bell
    ) except -3:
        """Reads until `what` is ready, anything else happens or it is time; as Link.receive.

        What the thread at the helm does over and over: sends what is due, and sleeps while
        there is nothing to read. It leaves to its caller what is not told by this link's
        messages alone, and a socket that takes no more.
        """
        cdef Py_ssize_t received, before = JSC_AGAIN
        cdef double left, rest
        cdef bint is_rung
        cdef char[256] rings
        cdef int error = 0
        # Right after a request there is nothing to read yet. (TLS may hold bytes of its own.)
        cdef bint is_early = self.outbox.has_asked and link.tls is None
        self.outbox.has_asked = False
        while True:
            # Here rather than inside TLS, which does not survive a handler that raises.
            PyErr_CheckSignals()
            received = JSC_AGAIN if is_early else link.read(parser)
            if received > 0:
                if what.wants_more():
                    self.read_more(link, parser, what)
                self.outbox.read_ns = jsc_now_ns()
            elif received == JSC_AGAIN:
                received = before
            rest = 0
            if not parser.is_noticed() and not self.sleepers and (
                what.wants_more() if received > 0 else not what.is_ready()
            ):
                rest = what.pause(jsc_now_ns())
            if rest == 0 and (received >= 0 or parser.is_noticed() or what.is_ready()):
                return received
            before = received
            if self.outbox.last > self.outbox.first:
                self.outbox.push()
            if link.error is not None:
                raise link.error
            if link.is_blocked and self.outbox.last > self.outbox.first:
                return received
            left = until - <double>self.now()
            if left <= 0:
                return link.read(parser) if is_early else received
            # From here on whoever makes it ready rings, a signal handler in this thread too.
            self.has_slept = True
            self.is_resting = True
            if rest == 0 and what.is_ready():
                return received
            with nogil:
                if rest > 0:
                    is_rung = jsc_rest(bell, min(rest, left))
                else:
                    is_rung = jsc_await(link.fd, bell, left)
            PyErr_CheckSignals()
            self.is_resting = False
            is_early = False
            if is_rung:
                jsc_recv(bell, rings, sizeof(rings), &error)
                return received

    cdef int read_more(self, Link link, Parser parser, Awaited what) except -1:
        """Takes more of what is there to read, within limits: others may send as well."""
        cdef uint64_t enough = link.bytes_in + 2 * WORTH_TAKING_BYTES
        while what.wants_more() and link.bytes_in < enough and not parser.is_noticed():
            if link.read(parser) <= 0:
                break
        return 0

    cdef int sleep(self, Awaited what, double deadline) except -1:
        cdef Waiter waiter = Waiter()
        cdef bint finished = False
        self.outbox.push()
        if self.outbox.last > self.outbox.first and self.owner != 0:
            # The socket is full: who is at the helm must wait until it takes more.
            self.call_back()
        self.sleepers.append(waiter)
        try:
            what.add_sleeper(waiter)
            try:
                # Others may have run while TLS wrote, or the collector.
                if not what.is_ready() and not self.is_closed:
                    waiter.sleep(deadline - <double>self.now())
                finished = True
            finally:
                what.sleepers.remove(waiter)
        finally:
            self.sleepers.remove(waiter)
            if not finished and waiter.is_woken:
                # An exception came instead: what this thread was woken for goes to another.
                what.wake(1)
                self.pass_on()
        return 0

    cdef int pass_on(self) except -1:
        """Wakes one sleeper to take the helm, if it is free.

        One that was woken and has not run yet is enough: it takes the helm or passes it on.
        """
        cdef Waiter waiter
        if self.owner == 0 and self.is_steerable and self.sleepers:
            for waiter in self.sleepers:
                if waiter.is_woken:
                    return 0
            waiter = <Waiter>self.sleepers[0]
            waiter.wake()
        return 0


# ---------------------------------------------------------------------------------------
# Routes: where the messages of a subscription go

cdef class Route(Awaited):
    """The receiver of one subscription's messages."""

    def __cinit__(self):
        global live_routes
        live_routes += 1

    def __dealloc__(self):
        global live_routes
        live_routes -= 1

    cdef int deliver(self, const Frame *frame, Parser parser) except -1:
        return 0


cdef class Inbox(Route):
    """Messages that arrived and were not taken yet, within limits, with exact counts.

    `arrived` counts every message of the subscription, `dropped` those that came while the
    inbox was full, `taken` those handed to the user. After `limit` messages the inbox ends.
    """

    cdef PyObject **ring
    cdef Py_ssize_t capacity           # a power of two
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t count     # messages held
    cdef readonly int64_t bytes        # their sizes
    cdef readonly int64_t max_messages
    cdef readonly int64_t max_bytes
    cdef readonly uint64_t arrived
    cdef readonly uint64_t dropped
    cdef readonly uint64_t taken
    cdef readonly uint64_t limit
    cdef readonly bint is_slow
    cdef readonly bint is_ended
    cdef readonly object reason        # the exception that ended it, or None
    cdef readonly object owner
    cdef bint has_unreported_drop
    cdef Msg latest
    cdef Gate emptied

    def __cinit__(self):
        self.max_messages = INT64_MAX
        self.max_bytes = INT64_MAX

    def __init__(self, owner=None, int64_t max_messages=-1, int64_t max_bytes=-1):
        self.owner = owner
        if max_messages >= 0:
            self.max_messages = max_messages
        if max_bytes >= 0:
            self.max_bytes = max_bytes

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            Py_XDECREF(self.ring[(self.first + i) & (self.capacity - 1)])
        PyMem_Free(self.ring)

    cdef bint is_ready(self) noexcept:
        return self.count > 0 or self.is_ended

    cdef int grow(self, Py_ssize_t capacity) except -1:
        cdef PyObject **ring = <PyObject **>PyMem_Malloc(
            <size_t>capacity * sizeof(PyObject *)
        )
        cdef Py_ssize_t i
        if ring == NULL:
            raise MemoryError
        for i in range(self.count):
            ring[i] = self.ring[(self.first + i) & (self.capacity - 1)]
        PyMem_Free(self.ring)
        self.ring = ring
        self.capacity = capacity
        self.first = 0
        return 0

    cdef int put(self, Msg msg) except -1:
        if self.count == self.capacity:
            self.grow(16 if self.capacity == 0 else 2 * self.capacity)
        Py_INCREF(msg)
        self.ring[(self.first + self.count) & (self.capacity - 1)] = <PyObject *>msg
        self.count += 1
        self.bytes += msg.full_size()
        return 0

    cdef inline bint is_full(self, const Frame *frame) noexcept:
        """Whether there is no room for this message."""
        return (
            self.count >= self.max_messages
            or self.bytes + frame_size(frame) > self.max_bytes
        )

    cdef int deliver(self, const Frame *frame, Parser parser) except -1:
        cdef Msg msg
        cdef bint is_last
        if self.is_ended:
            return 0
        # A frame whose delivery fails for lack of memory was not delivered: what may fail comes
        # before what counts it.
        is_last = self.limit > 0 and self.arrived + 1 >= self.limit
        if is_last:
            parser.notices.append(self)
        if self.sleepers:
            parser.stir(self)
        if self.is_full(frame):
            if not self.is_slow:
                parser.notices.append(self)
                self.is_slow = True
                self.has_unreported_drop = True
            self.arrived += 1
            self.dropped += 1
        else:
            if self.is_slow and 2 * self.count <= self.max_messages:
                # Well below the limit again: the next drop is news.
                if 2 * self.bytes <= self.max_bytes:
                    self.is_slow = False
            msg = make_msg(frame, self.latest)
            self.put(msg)
            self.arrived += 1
            self.latest = msg
        if is_last:
            self.is_ended = True
        return 0

    cdef Msg pop(self):
        """The oldest message, counted as taken; None if there is none."""
        cdef Msg msg
        cdef PyObject *slot
        if self.count == 0:
            return None
        slot = self.ring[self.first]
        msg = <Msg>slot
        Py_DECREF(msg)       # the ring's reference; `msg` holds its own
        self.first = (self.first + 1) & (self.capacity - 1)
        self.count -= 1
        self.bytes -= msg.full_size()
        self.taken += 1
        msg.owner = self.owner
        if self.count == 0:
            self.ran_empty()
        return msg

    cdef int ran_empty(self) except -1:
        self.latest = None
        if self.capacity > 4096:
            PyMem_Free(self.ring)
            self.ring = NULL
            self.capacity = 0
            self.first = 0
        emptied, self.emptied = self.emptied, None
        if emptied is not None:
            emptied.open()
        return 0

    def await_empty(self):
        """A Gate that opens when every message held was taken."""
        # First: the collector may run other threads while it is made.
        cdef Gate gate = Gate()
        if self.count == 0:
            gate.is_open = True
            return gate
        if self.emptied is None:
            self.emptied = gate
        return self.emptied

    cdef uint64_t counted(self) noexcept:
        """How many of the messages that a limit allows came so far."""
        return self.taken + self.dropped + <uint64_t>self.count

    def set_limit(self, uint64_t limit):
        """Ends after that many messages in all; what is held beyond them is dropped."""
        cdef Msg surplus
        self.limit = limit
        self.latest = None
        while self.count and self.counted() > limit:
            self.count -= 1
            surplus = <Msg>self.ring[(self.first + self.count) & (self.capacity - 1)]
            Py_DECREF(surplus)
            self.bytes -= surplus.full_size()
        if self.arrived >= limit:
            if self.count == 0:
                self.ran_empty()
            self.end()

    cdef int prepare(self) except -1:
        """What a subclass does before a message is taken."""
        return 0

    def take(self):
        """The oldest message, counted as taken, or None."""
        return self.pop()

    def take_all(self):
        """Every message that is held, counted as taken."""
        cdef list messages = []
        cdef Msg msg = self.pop()
        while msg is not None:
            messages.append(msg)
            msg = self.pop()
        return messages

    def take_into(self, list hand not None, Helm helm not None, double deadline):
        """Waits for a message and puts it into hand[0]; False if none came in time.

        The caller's list holds the message before any other code can run, so an exception
        that a signal handler raises afterwards cannot lose it: see `put_back`.
        """
        thing = self.await_any(helm, deadline)
        if thing is None:
            return False
        hand[0] = thing
        return True

    cdef object await_any(self, Helm helm, double deadline):
        """What is there to be taken, waiting for it; None if nothing came in time."""
        cdef object thing
        self.prepare()
        thing = self.pop_any()
        while thing is None and not self.is_ended and helm.wait(self, deadline):
            self.prepare()
            thing = self.pop_any()
        return thing

    cdef object pop_any(self):
        """What whoever waited takes, counted as taken; None if there is nothing."""
        return self.pop()

    def put_back(self, Msg msg not None):
        """Undoes `take` for a message that its taker could not use."""
        if self.count == self.capacity:
            self.grow(16 if self.capacity == 0 else 2 * self.capacity)
        msg.owner = None
        Py_INCREF(msg)
        self.first = (self.first - 1) & (self.capacity - 1)
        self.ring[self.first] = <PyObject *>msg
        self.count += 1
        self.bytes += msg.full_size()
        self.taken -= 1
        self.wake(1)

    def report_drop(self):
        """True once after each time that the inbox began to drop messages."""
        was, self.has_unreported_drop = self.has_unreported_drop, False
        return was

    def end(self, reason=None):
        """No more messages; held ones stay. Waiting threads see the end, then the reason."""
        if not self.is_ended:
            self.is_ended = True
            self.reason = reason
            self.wake(INT64_MAX)

    def clear(self):
        """Drops what is held, and returns how many messages that were."""
        cdef Py_ssize_t dropped = self.count
        while self.pop() is not None:
            pass
        self.taken -= dropped
        return dropped


cdef class ConsumerInbox(Inbox):
    """Messages of a consumer: when it was heard of last, and where in the stream the user is.

    `heard` counts everything that came of the consumer. Whoever takes a message first calls
    `on_due`, without the helm, when something `is_due`. With `keeps_place`, `last_seq` is the
    place in the stream of the last message that was taken.
    """

    cdef public bint is_due
    cdef public object on_due
    cdef readonly uint64_t heard
    cdef int64_t heard_ns
    cdef bint keeps_place
    cdef uint64_t seq                  # the place, if `last` is None
    cdef readonly Msg last             # the last message that was taken
    cdef Msg last_but_one

    cdef void look_due(self) noexcept:
        """Whether something is due now that so much is held."""
        return

    cdef Msg pop(self):
        cdef Msg msg = Inbox.pop(self)
        if msg is not None:
            if self.keeps_place:
                self.last_but_one = self.last
                self.last = msg
            self.look_due()
        return msg

    def put_back(self, Msg msg not None):
        """Undoes `take` for a message that its taker could not use."""
        Inbox.put_back(self, msg)
        if self.keeps_place:
            self.last = self.last_but_one
        self.look_due()

    def clear(self):
        """Drops what is held, and returns how many messages that were."""
        last_seq = self.last_seq
        dropped = Inbox.clear(self)
        self.last_seq = last_seq
        return dropped

    @property
    def last_seq(self):
        cdef AckSubject ack
        if self.last is None:
            return self.seq
        if not read_ack_subject(
            PyBytes_AS_STRING(self.last.head) + self.last.subject_size,
            self.last.reply_size,
            &ack,
        ):
            return self.seq
        return ack.stream_seq

    @last_seq.setter
    def last_seq(self, uint64_t seq):
        self.seq = seq
        self.last = self.last_but_one = None

    cdef inline void hear(self, int64_t now_ns) noexcept:
        self.heard += 1
        self.heard_ns = now_ns

    @property
    def silence(self):
        """Seconds since a frame was heard; meaningful once one was."""
        return max(0, jsc_coarse_ns() - self.heard_ns) * 1e-9

    cdef int prepare(self) except -1:
        if self.is_due and self.on_due is not None:
            self.on_due()
        return 0

    def refill(self):
        """Does what is due."""
        self.prepare()


# A thread that is flooded with messages, and is owed many more, rests before it looks for more:
# waking up for every small part of them costs the server and itself more than reading it.
cdef enum:
    FLOOD = 16               # it is one when at least so many came since the last look,
    FLOOD_NS = 10_000        # and in this time each
    SHORTEST_REST_NS = 200_000
    LONGEST_REST_NS = 500_000
    OVERSLEPT_NS = 50_000    # by so much the system wakes it up late


cdef class PullInbox(ConsumerInbox):
    """Messages of a pull conversation, and when it is time to ask for more.

    `owed` is what open pulls may still bring, `count` and `bytes` what is held. More is due
    when the two together fall to the threshold, in messages, or in bytes if there is a limit
    of bytes. Beyond a limit of messages in all, the server keeps what it sent: it delivers
    that again.
    """

    cdef readonly int64_t owed
    cdef readonly int64_t owed_bytes
    cdef public int64_t threshold      # -1: never due
    cdef public bint counts_bytes
    cdef readonly uint64_t strays      # messages that no pull can have brought
    cdef public str pin                # the last Nats-Pin-Id that came
    cdef uint64_t seen                 # of `arrived`, when a rest was last thought of
    cdef int64_t seen_ns               # when that was

    def __cinit__(self):
        self.threshold = -1

    def __init__(self, owner):
        self.owner = owner

    cdef double pause(self, int64_t now_ns) noexcept:
        cdef int64_t came = <int64_t>(self.arrived - self.seen)
        cdef int64_t took_ns = now_ns - self.seen_ns
        cdef double rest_ns
        self.seen = self.arrived
        self.seen_ns = now_ns
        if came < FLOOD or took_ns > came * FLOOD_NS or self.counts_bytes:
            return 0
        if came > self.owed // 2:
            return 0         # perhaps the server had nothing more to send for most of that time
        # In that time a third of what is owed will come: the server must not run out of it.
        rest_ns = <double>took_ns * self.owed / (3 * came) - OVERSLEPT_NS
        return min(rest_ns, LONGEST_REST_NS) * 1e-9 if rest_ns >= SHORTEST_REST_NS else 0

    def rest_after(self, int64_t now_ns):
        """For how many seconds a thread that looks at that time rests."""
        return self.pause(now_ns)

    cdef int accept(self, const Frame *frame) except -1:
        """Keeps a message that came."""
        self.put(make_msg(frame, None))
        return 0

    cdef int beat(self, const Frame *frame) except -1:
        """A heartbeat came."""
        return 0

    def add(self, Msg msg not None):
        """Holds a message that came for another inbox, as if it had come for this one."""
        msg.owner = None
        self.put(msg)
        self.arrived += 1

    cdef void look_due(self) noexcept:
        """Whether so little is left that more is due."""
        if self.threshold >= 0:
            if self.counts_bytes:
                self.is_due = self.owed_bytes + self.bytes <= self.threshold
            else:
                self.is_due = self.owed + self.count <= self.threshold

    cdef uint64_t counted(self) noexcept:
        # What is dropped here came beyond the limit.
        return self.taken + <uint64_t>self.count


@cython.final
cdef class OrderedInbox(PullInbox):
    """A pull inbox of an ordered consumer: it ends before the first gap.

    The consumer counts its deliveries: each message must have the next number, and a
    heartbeat tells the last one.
    """

    cdef readonly uint64_t deliveries  # without a gap
    cdef readonly object gap           # the number that came instead of the next, or None

    def __init__(self, owner, uint64_t last_seq=0):
        PullInbox.__init__(self, owner)
        self.keeps_place = True
        self.seq = last_seq

    cdef int accept(self, const Frame *frame) except -1:
        cdef AckSubject ack
        if self.is_ended:
            return 0
        if not read_ack_subject(frame.reply, frame.reply_size, &ack):
            ack.consumer_seq = 0
        if ack.consumer_seq != self.deliveries + 1:
            return self.break_off(ack.consumer_seq)
        PullInbox.accept(self, frame)
        self.deliveries += 1
        return 0

    cdef int beat(self, const Frame *frame) except -1:
        cdef uint64_t last
        if self.is_ended or not header_number(
            frame.header, frame.header_size, b"Nats-Last-Consumer:", 19, &last
        ):
            return 0
        if last != self.deliveries:
            self.break_off(last)
        return 0

    cdef int break_off(self, uint64_t came) except -1:
        self.gap = came
        self.is_ended = True
        return 0


cdef enum:
    MAX_STATUSES = 1024      # that wait for their turn, or gaps that nobody was told of


@cython.final
cdef class PushInbox(ConsumerInbox):
    """Messages and statuses that a push consumer delivers, in their order.

    The consumer counts its deliveries: `deliveries` is the number of the last one, and each
    message must have the next. What does not fit is noted in `gaps`, as what was expected and
    what came. An ordered inbox ends before it instead, and also before a message for which it
    has no room.

    A heartbeat tells the number of the last delivery; one that says that the consumer is
    stalled is put into `stalls`. Any other status is due when all messages before it were
    taken: then it is `status`. A raw inbox takes statuses for messages and checks nothing.
    """

    cdef readonly bint is_raw
    cdef readonly bint is_ordered
    cdef bint checks_gaps
    cdef bint is_counting              # `deliveries` is known
    cdef readonly uint64_t deliveries
    cdef bytes ack_prefix              # of the ack subjects: up to the name of the consumer
    cdef readonly list gaps
    cdef readonly object gap           # what ended an ordered inbox, or None
    cdef readonly object stalls
    cdef object statuses               # pairs: how many messages come before it, the status
    cdef uint64_t status_at            # what the first of them says; UINT64_MAX without any

    def __init__(
        self,
        owner,
        int64_t max_messages=-1,
        int64_t max_bytes=-1,
        *,
        bint is_new=False,
        bint checks_gaps=True,
        bint keeps_place=False,
        bint is_raw=False,
        last_seq=None,
    ):
        Inbox.__init__(self, owner, max_messages, max_bytes)
        self.is_raw = is_raw
        self.is_ordered = last_seq is not None
        self.checks_gaps = not is_raw and (checks_gaps or self.is_ordered)
        self.is_counting = is_new or self.is_ordered
        self.keeps_place = keeps_place or self.is_ordered
        if self.is_ordered:
            self.seq = last_seq
        self.gaps = []
        self.stalls = deque()
        self.statuses = deque()
        self.status_at = UINT64_MAX

    cdef bint is_ready(self) noexcept:
        # Also for a status whose turn it is: whoever waits deals with it and waits on.
        return self.count > 0 or self.is_ended or (self.is_due and self.on_due is not None)

    cdef void look_due(self) noexcept:
        self.is_due = self.status_at != UINT64_MAX and (
            self.count == 0 or self.taken >= self.status_at
        )

    cdef int deliver(self, const Frame *frame, Parser parser) except -1:
        cdef StatusLine line
        cdef uint64_t number = 0
        if self.is_ended:
            return 0
        self.hear(parser.read_ns)
        if frame.reply_size >= 8 and memcmp(frame.reply, b"$JS.ACK.", 8) == 0:
            if not self.checks_gaps:
                return Inbox.deliver(self, frame, parser)
            if not self.read_number(frame, &number):
                # Its metadata raise. An ordered inbox cannot go on without them.
                if self.is_ordered:
                    return self.break_off(0, parser)
                return Inbox.deliver(self, frame, parser)
            if self.is_counting and number != self.deliveries + 1:
                if self.is_ordered:
                    return self.break_off(number, parser)
                self.note_gap(self.deliveries + 1, number, parser)
            if self.is_ordered and self.is_full(frame):
                return self.break_off(number, parser)
            Inbox.deliver(self, frame, parser)
            self.deliveries = number
            self.is_counting = True
            return 0
        if (
            not self.is_raw
            and frame.header_size
            and read_status_line(frame.header, frame.header_size, &line)
            and line.status >= 0
        ):
            if line.status == 100 and frame.reply_size == 0:
                return self.beat(frame, parser)
            return self.deliver_status(frame, parser)
        if self.is_ordered:
            # Of nobody whom we know: it has no place in the stream.
            return 0
        return Inbox.deliver(self, frame, parser)

    cdef bint read_number(self, const Frame *frame, uint64_t *number) except -1:
        """Whether the frame has the number of a delivery."""
        cdef AckSubject ack
        cdef Py_ssize_t known
        if self.ack_prefix is not None:
            # The usual case: the same stream and consumer as in the message before.
            known = PyBytes_GET_SIZE(self.ack_prefix)
            if (
                frame.reply_size > known
                and memcmp(frame.reply, PyBytes_AS_STRING(self.ack_prefix), <size_t>known) == 0
                and third_number(frame.reply + known, frame.reply_size - known, number)
            ):
                return True
        if not read_ack_subject(frame.reply, frame.reply_size, &ack):
            return False
        known = ack.consumer.start + ack.consumer.size + 1
        self.ack_prefix = frame.reply[:known]
        number[0] = ack.consumer_seq
        return True

    cdef int beat(self, const Frame *frame, Parser parser) except -1:
        cdef uint64_t last
        if self.checks_gaps and header_number(
            frame.header, frame.header_size, b"Nats-Last-Consumer:", 19, &last
        ):
            if self.is_counting and last != self.deliveries:
                if self.is_ordered:
                    return self.break_off(last, parser)
                self.note_gap(self.deliveries, last, parser)
            self.deliveries = last
            self.is_counting = True
        if has_header(frame.header, frame.header_size, b"Nats-Consumer-Stalled:", 22):
            if len(self.stalls) < MAX_STATUSES:
                parser.notices.append(self)
                self.stalls.append(make_msg(frame, None))
        return 0

    cdef int note_gap(self, uint64_t expected, uint64_t came, Parser parser) except -1:
        # A frame whose delivery fails is parsed again: it is noted once.
        cdef tuple gap = (expected, came)
        cdef Py_ssize_t known = len(self.gaps)
        if known < MAX_STATUSES and (known == 0 or self.gaps[known - 1] != gap):
            parser.notices.append(self)
            self.gaps.append(gap)
        return 0

    cdef int break_off(self, uint64_t came, Parser parser) except -1:
        if self.sleepers:
            parser.stir(self)
        self.gap = came
        self.is_ended = True
        return 0

    cdef int deliver_status(self, const Frame *frame, Parser parser) except -1:
        cdef uint64_t before = self.taken + <uint64_t>self.count
        if len(self.statuses) >= MAX_STATUSES:
            return 0
        if self.sleepers:
            parser.stir(self)
        self.statuses.append((before, make_msg(frame, None)))
        if self.status_at == UINT64_MAX:
            self.status_at = before
        self.look_due()
        return 0

    @property
    def status(self):
        """The status whose turn it is, or None."""
        return self.statuses[0][1] if self.is_due else None

    def holds_request(self, str subject):
        """Whether a request to be answered there waits for its turn."""
        cdef Msg status
        for _, status in self.statuses:
            if status.reply == subject:
                return True
        return False

    def put_away(self, Msg status not None):
        """The status was dealt with. Doing that twice does no harm."""
        if self.statuses and self.statuses[0][1] is status:
            self.statuses.popleft()
        self.status_at = self.statuses[0][0] if self.statuses else UINT64_MAX
        self.look_due()

    def clear(self):
        """Drops what is held, and returns how many messages that were."""
        self.statuses.clear()
        self.stalls.clear()
        self.status_at = UINT64_MAX
        dropped = ConsumerInbox.clear(self)
        self.look_due()
        return dropped


# Memory of columns that are gone, for those to come: fresh pages cost more than filling them.
cdef enum:
    SPARE_SLOTS = 64
    SPARE_LEAST = 1 << 15              # smaller pieces cost nothing worth keeping
    SPARE_BYTES = 3 << 20              # in all: what a consume has beside its limits is below 4 MB

cdef struct Spare:
    char *at
    Py_ssize_t capacity

cdef Spare[SPARE_SLOTS] spares
cdef int spare_count = 0
cdef Py_ssize_t spare_bytes = 0


cdef char *take_spare(Py_ssize_t capacity) noexcept:
    """Memory of exactly that capacity that nobody uses, or NULL."""
    global spare_count, spare_bytes
    cdef char *found
    cdef int i
    for i in range(spare_count):
        if spares[i].capacity == capacity:
            found = spares[i].at
            spare_count -= 1
            spare_bytes -= capacity
            spares[i] = spares[spare_count]
            return found
    return NULL


cdef void give_spare(char *at, Py_ssize_t capacity) noexcept:
    """Keeps memory, or frees it."""
    global spare_count, spare_bytes
    if (
        capacity < SPARE_LEAST
        or spare_count == SPARE_SLOTS
        or spare_bytes + capacity > SPARE_BYTES
    ):
        PyMem_Free(at)
        return
    spares[spare_count].at = at
    spares[spare_count].capacity = capacity
    spare_count += 1
    spare_bytes += capacity


@cython.final
cdef class Block:
    """Memory that grows by appending and is then lent, read-only, as a buffer of numbers."""

    cdef char *at
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef Py_ssize_t itemsize
    cdef bytes format
    cdef Py_ssize_t[1] shape
    cdef Py_ssize_t[1] strides

    def __cinit__(self, bytes format, Py_ssize_t itemsize):
        self.format = format
        self.itemsize = itemsize

    def __dealloc__(self):
        give_spare(self.at, self.capacity)

    cdef inline int reserve(self, Py_ssize_t size) except -1:
        """Makes room for that many bytes."""
        if self.capacity - self.size < size:
            return self.grow(self.size + size)
        return 0

    cdef int grow(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t capacity = max(2 * self.capacity, 256)
        cdef char *bigger = NULL
        while capacity < size:
            capacity *= 2
        if capacity > SPARE_BYTES:
            # Where it is, mostly: a copy of so much would be beyond any limit for a moment.
            bigger = <char *>PyMem_Realloc(self.at, <size_t>capacity)
            if bigger == NULL:
                raise MemoryError
            self.at = bigger
            self.capacity = capacity
            return 0
        if capacity >= SPARE_LEAST:
            bigger = take_spare(capacity)
        if bigger == NULL:
            bigger = <char *>PyMem_Malloc(<size_t>capacity)
        if bigger == NULL:
            raise MemoryError
        if self.size:
            memcpy(bigger, self.at, <size_t>self.size)
        give_spare(self.at, self.capacity)
        self.at = bigger
        self.capacity = capacity
        return 0

    cdef void append(self, const void *data, Py_ssize_t size) noexcept:
        """Adds bytes for which room was made."""
        if size:
            memcpy(self.at + self.size, data, <size_t>size)
            self.size += size

    cdef const char *piece(self, Block ends, Py_ssize_t i, Py_ssize_t *size) noexcept:
        """The i-th of the pieces whose ends are in another block, after a zero."""
        cdef const int64_t *at = <const int64_t *>ends.at
        size[0] = at[i + 1] - at[i]
        return self.at + at[i]

    def __len__(self):
        return self.size // self.itemsize

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("the columns of a batch are read-only")
        self.shape[0] = self.size // self.itemsize
        self.strides[0] = self.itemsize
        buffer.buf = self.at if self.at != NULL else <char *>self.shape
        buffer.obj = self
        buffer.len = self.size
        buffer.itemsize = self.itemsize
        buffer.readonly = 1
        buffer.ndim = 1
        buffer.format = PyBytes_AS_STRING(self.format) if flags & PyBUF_FORMAT else NULL
        buffer.shape = self.shape if flags & PyBUF_ND else NULL
        buffer.strides = self.strides if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL

    def __releasebuffer__(self, Py_buffer *buffer):
        pass


cdef Block text_block():
    return Block(b"B", 1)


@cython.final
cdef class Batch:
    """Messages in columns: one buffer per field, without an object per message.

    `data` holds all payloads, and payload i is `data[offsets[i]:offsets[i + 1]]`. The
    numbers of the ack subjects are buffers too, read when one of them is first asked for.
    `batch[i]` makes a Msg. `error` says why a fetch ended early.
    """

    cdef Py_ssize_t count
    cdef object owner
    cdef Block payloads
    cdef Block payload_ends
    cdef Block heads                   # subjects, as UTF-8
    cdef Block head_ends
    cdef Block replies
    cdef Block reply_ends
    cdef Block blocks                  # header blocks
    cdef Block block_ends
    cdef Block seqs                    # these four may lack the last rows: see read_numbers
    cdef Block own_seqs
    cdef Block times
    cdef Block deliveries
    cdef public object error           # why a fetch ended early, or None
    cdef Py_ssize_t acked              # how many messages are acknowledged
    cdef AckState ack_state
    cdef int64_t left                  # after the last one of a direct read

    def __cinit__(self):
        cdef int64_t zero = 0
        self.left = -1
        self.payloads = text_block()
        self.payload_ends = Block(b"q", 8)
        self.heads = text_block()
        self.head_ends = Block(b"q", 8)
        self.replies = text_block()
        self.reply_ends = Block(b"q", 8)
        self.blocks = text_block()
        self.block_ends = Block(b"q", 8)
        self.seqs = Block(b"Q", 8)
        self.own_seqs = Block(b"Q", 8)
        self.times = Block(b"q", 8)
        self.deliveries = Block(b"Q", 8)
        self.reserve(0, 0, 0, 0)
        self.payload_ends.append(&zero, 8)
        self.block_ends.append(&zero, 8)
        self.head_ends.append(&zero, 8)
        self.reply_ends.append(&zero, 8)

    cdef int reserve(
        self, Py_ssize_t data, Py_ssize_t subject, Py_ssize_t reply, Py_ssize_t header
    ) except -1:
        """Makes room for one message in every column, so that none is left behind."""
        self.payloads.reserve(data)
        self.heads.reserve(subject)
        self.replies.reserve(reply)
        self.blocks.reserve(header)
        self.payload_ends.reserve(8)
        self.block_ends.reserve(8)
        self.head_ends.reserve(8)
        self.reply_ends.reserve(8)
        return 0

    cdef int reserve_numbers(self, Py_ssize_t rows) except -1:
        """Makes room for so many more rows of numbers."""
        self.seqs.reserve(8 * rows)
        self.own_seqs.reserve(8 * rows)
        self.times.reserve(8 * rows)
        self.deliveries.reserve(8 * rows)
        return 0

    cdef void add_numbers(
        self, uint64_t seq, uint64_t own_seq, int64_t time_ns, uint64_t delivered
    ) noexcept:
        """Adds a row of numbers, for which room was made."""
        self.seqs.append(&seq, 8)
        self.own_seqs.append(&own_seq, 8)
        self.times.append(&time_ns, 8)
        self.deliveries.append(&delivered, 8)

    cdef int read_numbers(self) except -1:
        """Reads the numbers of the ack subjects that were not read yet."""
        cdef AckSubject ack
        cdef const char *at
        cdef Py_ssize_t i, size
        cdef Py_ssize_t known = self.seqs.size // 8
        self.reserve_numbers(self.count - known)
        for i in range(known, self.count):
            at = self.replies.piece(self.reply_ends, i, &size)
            if not read_ack_subject(at, size, &ack):
                ack.stream_seq = ack.consumer_seq = ack.num_delivered = ack.timestamp_ns = 0
            self.add_numbers(
                ack.stream_seq, ack.consumer_seq, <int64_t>ack.timestamp_ns, ack.num_delivered
            )
        return 0

    cdef Py_ssize_t full_size(self) noexcept:
        """The sizes of its messages, as the server counts them."""
        return self.payloads.size + self.heads.size + self.replies.size + self.blocks.size

    cdef int append(self, const Frame *frame) except -1:
        cdef int64_t end
        self.reserve(
            frame.data_size, frame.subject_size, frame.reply_size, frame.header_size
        )
        self.payloads.append(frame.data, frame.data_size)
        end = self.payloads.size
        self.payload_ends.append(&end, 8)
        self.heads.append(frame.subject, frame.subject_size)
        end = self.heads.size
        self.head_ends.append(&end, 8)
        self.replies.append(frame.reply, frame.reply_size)
        end = self.replies.size
        self.reply_ends.append(&end, 8)
        self.blocks.append(frame.header, frame.header_size)
        end = self.blocks.size
        self.block_ends.append(&end, 8)
        self.count += 1
        return 0

    cdef int append_stored(self, const Frame *frame, const StoredHeader *told) except -1:
        """Adds a message that was read directly, as it is stored."""
        cdef Py_ssize_t own = told.own if told.own > 12 else 0
        cdef int64_t end
        self.reserve(frame.data_size, told.subject.size, 0, own)
        self.reserve_numbers(1)
        self.payloads.append(frame.data, frame.data_size)
        end = self.payloads.size
        self.payload_ends.append(&end, 8)
        self.heads.append(frame.header + told.subject.start, told.subject.size)
        end = self.heads.size
        self.head_ends.append(&end, 8)
        end = self.replies.size
        self.reply_ends.append(&end, 8)
        if own:
            self.append_own_headers(frame, told)
        end = self.blocks.size
        self.block_ends.append(&end, 8)
        self.add_numbers(told.seq, 0, told.timestamp_ns, 0)
        self.left = <int64_t>told.num_pending
        self.count += 1
        return 0

    cdef void append_own_headers(self, const Frame *frame, const StoredHeader *told) noexcept:
        """Adds a header block without the lines that the server added to it."""
        cdef Py_ssize_t at = 0, border, next_at
        cdef int slot
        while True:
            border = frame.header_size
            next_at = border
            for slot in range(STORED_FIELDS):
                if at <= told.lines[slot].start < border:
                    border = told.lines[slot].start
                    next_at = border + told.lines[slot].size
            self.blocks.append(frame.header + at, border - at)
            if border == frame.header_size:
                return
            at = next_at

    def __len__(self):
        return self.count

    def __iter__(self):
        return map(self.__getitem__, range(self.count))

    def __getitem__(self, Py_ssize_t index):
        cdef Frame frame
        cdef Msg msg
        cdef Py_ssize_t i = index + self.count if index < 0 else index
        if not 0 <= i < self.count:
            raise IndexError("batch index out of range")
        frame.subject = self.heads.piece(self.head_ends, i, &frame.subject_size)
        frame.reply = self.replies.piece(self.reply_ends, i, &frame.reply_size)
        frame.header = self.blocks.piece(self.block_ends, i, &frame.header_size)
        frame.data = self.payloads.piece(self.payload_ends, i, &frame.data_size)
        frame.head = NULL
        frame.body = NULL
        msg = make_msg(&frame, None)
        msg.owner = self.owner
        return msg

    @property
    def data(self):
        """All payloads, one after the other."""
        return memoryview(self.payloads)

    @property
    def offsets(self):
        """Where each payload starts in `data`, and where the last one ends."""
        return memoryview(self.payload_ends)

    @property
    def sizes(self):
        """The size of each payload, as a list."""
        cdef int64_t *ends = <int64_t *>self.payload_ends.at
        return [ends[i + 1] - ends[i] for i in range(self.count)]

    @property
    def subjects(self):
        """The subject of each message, as a list."""
        cdef const char *at
        cdef Py_ssize_t i, size
        cdef list subjects = []
        for i in range(self.count):
            at = self.heads.piece(self.head_ends, i, &size)
            subjects.append(recurring_text(at, size))
        return subjects

    @property
    def stream_seqs(self):
        """The sequence of each message in the stream."""
        self.read_numbers()
        return memoryview(self.seqs)

    @property
    def consumer_seqs(self):
        """The number of each delivery of the consumer."""
        self.read_numbers()
        return memoryview(self.own_seqs)

    @property
    def timestamps_ns(self):
        """When the stream stored each message, in nanoseconds since 1970, UTC."""
        self.read_numbers()
        return memoryview(self.times)

    @property
    def num_delivered(self):
        """How often each message was delivered, this time included."""
        self.read_numbers()
        return memoryview(self.deliveries)

    @property
    def num_pending(self):
        """How many messages were left for the reader after the last one, None if unknown."""
        cdef AckSubject ack
        cdef const char *at
        cdef Py_ssize_t size
        if self.left >= 0:
            return self.left
        if self.count:
            at = self.replies.piece(self.reply_ends, self.count - 1, &size)
            if read_ack_subject(at, size, &ack):
                return ack.num_pending
        return None

    @property
    def header_data(self):
        """All header blocks as they came, one after the other."""
        return memoryview(self.blocks)

    @property
    def header_offsets(self):
        """Where each header block starts in `header_data`; equal ends mean no headers."""
        return memoryview(self.block_ends)

    @property
    def subject_data(self):
        """All subjects, as UTF-8, one after the other."""
        return memoryview(self.heads)

    @property
    def subject_offsets(self):
        """Where each subject starts in `subject_data`."""
        return memoryview(self.head_ends)

    def ack(self):
        """Acknowledges every message, in one write. A second call does nothing.

        If it raises, a further call goes on with the messages that it did not reach.
        """
        cdef Courier courier
        if self.ack_state != ACK_NEW or self.count == 0:
            return
        if not isinstance(self.owner, Courier):
            raise InvalidArgumentError("the batch belongs to no connection")
        courier = <Courier>self.owner
        self.ack_state = ACK_SENDING
        try:
            if not courier.is_ack_none:
                self.send_acks(courier)
        except BaseException:
            self.ack_state = ACK_NEW
            raise
        self.ack_state = ACK_DONE

    cdef int send_acks(self, Courier courier) except -1:
        cdef Span to
        cdef bytes subject
        while self.acked < self.count:
            to.at = self.replies.piece(self.reply_ends, self.acked, &to.size)
            if courier.prefix is not None:
                subject = courier.prefix + to.at[7:to.size]
                to.at = PyBytes_AS_STRING(subject)
                to.size = PyBytes_GET_SIZE(subject)
            courier.send_to(to, b"+ACK")
            self.acked += 1
        return courier.outbox.push()

    @property
    def is_acked(self):
        """Whether `ack` was called, for all messages."""
        return self.ack_state == ACK_DONE

    def to_arrow(self):
        """The batch as a `pyarrow.RecordBatch`, without copying; needs pyarrow."""
        from jsclient.arrow import record_batch
        return record_batch(self)

    def __repr__(self):
        return f"<Batch of {self.count} messages>"

    def __reduce__(self):
        raise TypeError("a Batch cannot be pickled: use to_arrow(), or pickle its messages")


# A batch costs as much as dozens of its messages: what is there to read is taken up to here.
cdef enum:
    WORTH_TAKING = 2048
    WORTH_TAKING_BYTES = 1024 * 1024


@cython.final
cdef class BatchInbox(PullInbox):
    """A pull inbox that keeps messages in columns."""

    cdef Batch filling
    cdef Batch returned                # was taken, but its taker could not use it

    def __init__(self, owner):
        PullInbox.__init__(self, owner)
        self.filling = Batch()

    def __dealloc__(self):
        self.count = 0       # the ring of the base class holds none of them

    cdef bint wants_more(self) noexcept:
        # Who takes them when the server is to be asked for more asks in time.
        return (
            0 < self.count < WORTH_TAKING
            and self.bytes < WORTH_TAKING_BYTES
            and self.owed > self.threshold
        )

    cdef int accept(self, const Frame *frame) except -1:
        self.filling.append(frame)
        self.count += 1
        self.bytes += frame_size(frame)
        return 0

    cdef Msg pop(self):
        return None

    cdef Batch pop_batch(self):
        """Everything that came since the last time, counted as taken; None if nothing did."""
        cdef Batch batch, fresh = None
        if self.returned is None and self.count:
            # The collector may run other threads here, which take what is there.
            fresh = Batch()
        batch = self.returned
        if batch is not None:
            self.returned = None
        elif self.count == 0:
            return None
        else:
            batch = self.filling
            self.filling = fresh
            batch.owner = self.owner
        self.taken += <uint64_t>batch.count
        self.count -= batch.count
        self.bytes -= batch.full_size()
        self.look_due()
        if self.count == 0 and self.emptied is not None:
            self.ran_empty()
        return batch

    cdef object await_any(self, Helm helm, double deadline):
        cdef Batch batch = PullInbox.await_any(self, helm, deadline)
        if batch is not None and self.is_due:
            # The server goes on while the user is busy with the batch.
            try:
                self.prepare()
            except BaseException:
                self.put_back_batch(batch)
                raise
        return batch

    def take_batch(self):
        """Everything that came since the last call, or None."""
        return self.pop_batch()

    def take_batch_into(self, list hand not None, Helm helm not None, double deadline):
        """Waits for messages and puts their batch into hand[0]; False if none came in time.

        As with `take_into`, no exception of a signal handler can lose it.
        """
        return self.take_into(hand, helm, deadline)

    cdef object pop_any(self):
        return self.pop_batch()

    def set_limit(self, uint64_t limit):
        """Ends after that many messages in all, which is no less than what came."""
        self.limit = limit
        if self.arrived >= limit:
            self.end()

    def put_back(self, Msg msg not None):
        """Not for a single message: see `put_back_batch`."""
        raise TypeError("an inbox of columns takes back whole batches")

    def add(self, Msg msg not None):
        """Holds a message that came for another inbox, as if it had come for this one."""
        cdef Frame frame
        frame.subject = PyBytes_AS_STRING(msg.head)
        frame.subject_size = msg.subject_size
        frame.reply = frame.subject + frame.subject_size
        frame.reply_size = msg.reply_size
        frame.header = frame.reply + frame.reply_size
        frame.header_size = msg.header_size
        frame.data = PyBytes_AS_STRING(msg.data)
        frame.data_size = PyBytes_GET_SIZE(msg.data)
        self.accept(&frame)
        self.arrived += 1

    def put_back_batch(self, Batch batch not None):
        """Undoes `take_batch` for a batch that its taker could not use."""
        self.returned = batch
        self.taken -= <uint64_t>batch.count
        self.count += batch.count
        self.bytes += batch.full_size()
        self.wake(1)

    def clear(self):
        """Drops what is held, and returns how many messages that were."""
        cdef Batch fresh = Batch()
        cdef Py_ssize_t dropped = self.count
        self.filling = fresh
        self.returned = None
        self.count = 0
        self.bytes = 0
        if self.emptied is not None:
            self.ran_empty()
        return dropped


@cython.final
cdef class StoredInbox(Inbox):
    """The answers to one request for many stored messages, in columns.

    It is ready when they have ended: `ending` is the status that says so, or a message that
    cannot be told.
    """

    cdef readonly Batch batch
    cdef readonly Msg ending

    def __init__(self, owner):
        Inbox.__init__(self, owner)
        self.batch = Batch()

    cdef int deliver(self, const Frame *frame, Parser parser) except -1:
        cdef StatusLine line
        cdef StoredHeader told
        if self.is_ended:
            return 0
        if (
            frame.header_size
            and read_status_line(frame.header, frame.header_size, &line)
            and (line.status < 0 or frame.data_size)
            and read_stored_header(frame.header, frame.header_size, &told)
        ):
            self.batch.append_stored(frame, &told)
            self.arrived += 1
            return 0
        if self.sleepers:
            parser.stir(self)
        self.ending = make_msg(frame, None)
        self.is_ended = True
        return 0


cdef struct HeaderField:
    Token key
    Token value
    bint is_first                      # of its key
    Py_ssize_t next                    # of the same key, or 0

cdef enum:
    FEW_FIELDS = 32                    # are compared each with each


@cython.final
cdef class HeaderColumns:
    """The header blocks of a batch as the columns of a map from keys to lists of values.

    Row i has the keys from `rows[i]` to `rows[i + 1]`, key k the values from `lists[k]` to
    `lists[k + 1]`. A block that is malformed has the fields before its fault.
    """

    cdef readonly bint is_ascii
    cdef Block row_ends
    cdef Block key_bytes
    cdef Block key_ends
    cdef Block list_ends
    cdef Block value_bytes
    cdef Block value_ends
    cdef HeaderField *fields           # of one block
    cdef Py_ssize_t capacity

    def __init__(self, Batch batch not None):
        cdef Py_ssize_t i, size
        cdef const char *at
        cdef int32_t keys = 0
        if batch.blocks.size > INT32_MAX:
            raise OverflowError("the headers of a batch are larger than 2 GiB")
        self.row_ends = Block(b"i", 4)
        self.key_bytes = text_block()
        self.key_ends = Block(b"i", 4)
        self.list_ends = Block(b"i", 4)
        self.value_bytes = text_block()
        self.value_ends = Block(b"i", 4)
        for block in (self.row_ends, self.key_ends, self.list_ends, self.value_ends):
            add_end(block, 0)
        self.is_ascii = is_ascii(batch.blocks.at, batch.blocks.size)
        for i in range(batch.count):
            at = batch.blocks.piece(batch.block_ends, i, &size)
            if size:
                keys += self.add(at, self.read(at, size))
            add_end(self.row_ends, keys)

    def __dealloc__(self):
        PyMem_Free(self.fields)

    cdef Py_ssize_t read(self, const char *at, Py_ssize_t size) except -1:
        """Finds the fields of a block and returns their number."""
        cdef StatusLine line
        cdef Py_ssize_t start, end, count = 0
        cdef const char *colon
        cdef HeaderField *field
        if not read_status_line(at, size, &line):
            return 0
        start = line.fields
        while start + 2 < size:
            end = line_end(at, start, size)
            if end <= start:
                break
            colon = <const char *>memchr(at + start, c':', <size_t>(end - start))
            if colon == NULL:
                break
            if count == self.capacity:
                self.grow()
            field = self.fields + count
            field.is_first = True
            field.next = 0
            field.key.start = start
            field.key.size = colon - at - start
            field.value.start = colon - at + 1
            field.value.size = end - field.value.start
            while field.value.size and is_blank(at[field.value.start]):
                field.value.start += 1
                field.value.size -= 1
            while field.value.size and is_blank(at[field.value.start + field.value.size - 1]):
                field.value.size -= 1
            count += field.key.size > 0
            start = end + 2
        return count

    cdef int grow(self) except -1:
        cdef Py_ssize_t capacity = max(16, 2 * self.capacity)
        cdef void *bigger = PyMem_Realloc(
            self.fields, <size_t>capacity * sizeof(HeaderField)
        )
        if bigger == NULL:
            raise MemoryError
        self.fields = <HeaderField *>bigger
        self.capacity = capacity
        return 0

    cdef int32_t add(self, const char *at, Py_ssize_t count) except -1:
        """Adds the fields of a block to the columns and returns how many keys it has."""
        cdef Py_ssize_t i, j
        cdef int32_t keys = 0
        if count > FEW_FIELDS:
            self.relate_many(at, count)
        else:
            self.relate_few(at, count)
        for i in range(count):
            if not self.fields[i].is_first:
                continue
            add_text(self.key_bytes, self.key_ends, at, self.fields[i].key)
            add_text(self.value_bytes, self.value_ends, at, self.fields[i].value)
            j = self.fields[i].next
            while j:
                add_text(self.value_bytes, self.value_ends, at, self.fields[j].value)
                j = self.fields[j].next
            add_end(self.list_ends, <int32_t>(self.value_ends.size // 4 - 1))
            keys += 1
        return keys

    cdef void relate_few(self, const char *at, Py_ssize_t count) noexcept:
        """Finds the fields that have the key of an earlier one."""
        cdef Py_ssize_t i, j
        cdef Token key, other
        for i in range(1, count):
            key = self.fields[i].key
            j = i - 1
            while j >= 0:
                other = self.fields[j].key
                if other.size == key.size and memcmp(
                    at + other.start, at + key.start, <size_t>key.size
                ) == 0:
                    self.fields[j].next = i
                    self.fields[i].is_first = False
                    break
                j -= 1

    cdef int relate_many(self, const char *at, Py_ssize_t count) except -1:
        """The same for a block that was made to cost time."""
        cdef Py_ssize_t i
        cdef Token key
        cdef dict last = {}
        for i in range(count):
            key = self.fields[i].key
            text = PyBytes_FromStringAndSize(at + key.start, key.size)
            before = last.get(text)
            if before is not None:
                self.fields[<Py_ssize_t>before].next = i
                self.fields[i].is_first = False
            last[text] = i
        return 0

    @property
    def rows(self):
        """Where the keys of each row start."""
        return memoryview(self.row_ends)

    @property
    def keys(self):
        """All keys, one after the other."""
        return memoryview(self.key_bytes)

    @property
    def key_offsets(self):
        """Where each key starts."""
        return memoryview(self.key_ends)

    @property
    def lists(self):
        """Where the values of each key start."""
        return memoryview(self.list_ends)

    @property
    def values(self):
        """All values, one after the other."""
        return memoryview(self.value_bytes)

    @property
    def value_offsets(self):
        """Where each value starts."""
        return memoryview(self.value_ends)


cdef int add_end(Block block, int32_t end) except -1:
    block.reserve(4)
    block.append(&end, 4)
    return 0


cdef int add_text(Block texts, Block ends, const char *at, Token text) except -1:
    texts.reserve(text.size)
    texts.append(at + text.start, text.size)
    return add_end(ends, <int32_t>texts.size)


cdef bint is_ascii(const char *at, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint8_t seen = 0
    for i in range(size):
        seen |= <uint8_t>at[i]
    return seen < 128


@cython.final
cdef class Lane(Route):
    """One subscription on which pulls are answered, one after the other.

    The subscription says which pull paid for a message; the last token of its subject says
    which pull a status is about. The end of a pull is noticed, or, if it is a lone one, makes
    the lane ready for the thread that waits for it.
    """

    cdef readonly PullInbox inbox      # whose messages these are now, or None
    cdef readonly int sid
    cdef readonly int number           # its place in the subject, for the code that made it
    cdef Lane below                    # a free lane of the pool, if this is one
    cdef uint64_t pulls                # that it has seen
    cdef bytes reply
    cdef readonly int64_t batch
    cdef readonly int64_t max_bytes    # 0: none
    cdef readonly int64_t messages     # that the present pull brought
    cdef readonly int64_t bytes        # and their sizes, as the server charges them
    cdef readonly bint is_open
    cdef readonly bint is_asked        # the present pull was sent
    cdef readonly object statuses      # of the present pull, not dealt with yet
    cdef public bint is_pinned         # messages carry a Nats-Pin-Id that is not charged
    cdef public bint is_lone           # a thread waits for the lane itself

    def __cinit__(self):
        self.statuses = deque()

    cdef bint is_ready(self) noexcept:
        return self.has_all(0, 0) or not self.is_open or len(self.statuses) > 0

    cdef inline bint has_all(self, int64_t messages, int64_t bytes) noexcept:
        """Whether the pull has brought all that it can, once so much more has come."""
        return self.messages + messages >= self.batch or (
            0 < self.max_bytes <= self.bytes + bytes
        )

    cdef inline bint is_flooded(self) noexcept:
        """Whether the open pull brought twice what was asked for: memory has its limit.

        Somewhat more may be late for the pull that the lane had before.
        """
        return self.is_open and (
            self.messages // 2 >= self.batch or 0 < self.max_bytes <= self.bytes // 2
        )

    cdef int tell(self, Parser parser) except -1:
        """The pull came to its end, or to a status."""
        if not self.is_lone:
            parser.notices.append(self)
        elif self.sleepers:
            parser.stir(self)
        return 0

    def assign(self, int sid, int number):
        """The subscription that it is."""
        self.sid = sid
        self.number = number

    def open(self, PullInbox inbox not None, str reply, int64_t batch, int64_t max_bytes):
        """A pull is about to be sent; its answers go to the inbox."""
        self.begin(inbox, encode_text(reply), batch, max_bytes)

    cdef int begin(
        self, PullInbox inbox, bytes reply, int64_t batch, int64_t max_bytes
    ) except -1:
        self.inbox = inbox
        self.reply = reply
        self.pulls += 1
        self.batch = batch
        self.max_bytes = max_bytes
        self.messages = 0
        self.bytes = 0
        self.statuses.clear()
        self.is_open = True
        self.is_asked = False
        inbox.owed += batch
        inbox.owed_bytes += max_bytes
        return 0

    def ask(self, Outbox outbox not None, str subject, bytes body):
        """Sends the pull; what Outbox.publish asks of the caller.

        One step: no exception of a signal handler can come between it and `is_asked`.
        """
        asked = outbox.publish(subject, body, decode_text(
            PyBytes_AS_STRING(self.reply), PyBytes_GET_SIZE(self.reply)
        ), None, True, None, True)
        self.is_asked = True
        return asked

    cpdef close(self):
        """The pull is over; what it did not bring is no longer owed.

        A late message still goes to the inbox.
        """
        if self.is_open:
            self.is_open = False
            self.inbox.owed -= max(self.batch - self.messages, 0)
            self.inbox.owed_bytes -= max(self.max_bytes - self.bytes, 0)

    def lose(self):
        """The link is lost, and the pull with it."""
        self.close()
        self.wake(INT64_MAX)

    cpdef retire(self):
        """Nothing more can come for the inbox."""
        self.close()
        self.is_asked = False
        self.is_lone = False
        self.messages = 0
        self.bytes = 0
        self.inbox = None
        if self.statuses:
            self.statuses.clear()

    @property
    def is_spent(self):
        """Whether the pull has brought all that it can."""
        return self.has_all(0, 0)

    cdef int deliver(self, const Frame *frame, Parser parser) except -1:
        cdef StatusLine line
        cdef PullInbox inbox = self.inbox
        if inbox is None:
            parser.unrouted += 1
            return 0
        if frame.reply_size >= 8 and memcmp(frame.reply, b"$JS.ACK.", 8) == 0:
            return self.deliver_message(frame, parser)
        if frame.header_size == 0 or not read_status_line(
            frame.header, frame.header_size, &line
        ) or line.status < 0:
            inbox.strays += 1
            return 0
        if frame.subject_size != PyBytes_GET_SIZE(self.reply) or memcmp(
            frame.subject, PyBytes_AS_STRING(self.reply), <size_t>frame.subject_size
        ) != 0 or not self.is_open:
            # About a pull that is long over.
            return 0
        if line.status == 100:
            inbox.hear(parser.read_ns)
            inbox.beat(frame)
            if inbox.is_ended and inbox.sleepers:
                parser.stir(inbox)
            return 0
        if not self.statuses:
            self.tell(parser)
        self.statuses.append(make_msg(frame, None))
        return 0

    cdef int deliver_message(self, const Frame *frame, Parser parser) except -1:
        cdef PullInbox inbox = self.inbox
        cdef int64_t charge = frame_size(frame)
        cdef Span pin
        if self.is_pinned:
            charge -= pin_overhead(frame.header, frame.header_size, &pin)
            if pin.size:
                inbox.pin = decode_text(pin.at, pin.size)
        inbox.hear(parser.read_ns)
        if inbox.limit and inbox.arrived >= inbox.limit or self.is_flooded():
            inbox.dropped += 1
            return 0
        # As in Inbox.deliver: what may fail comes before what counts.
        if inbox.arrived + 1 == inbox.limit or (
            # Where more is due by taking, a spent pull is seen early enough then.
            inbox.threshold < 0 and self.is_open and self.has_all(1, charge)
        ):
            self.tell(parser)
        if inbox.sleepers:
            parser.stir(inbox)
        inbox.accept(frame)
        inbox.arrived += 1
        if self.is_open:
            inbox.owed -= self.messages < self.batch
            inbox.owed_bytes -= min(charge, max(self.max_bytes - self.bytes, 0))
            self.messages += 1
            self.bytes += charge
        return 0


cdef Py_ssize_t pin_overhead(const char *header, Py_ssize_t size, Span *pin) noexcept nogil:
    """Bytes that a Nats-Pin-Id, added after the server charged the message, takes.

    The server appends it: the last one counts. Its value is in pin[0].
    """
    cdef Py_ssize_t start, end, found = -1, length = 0
    cdef int fields = 0
    pin.size = 0
    start = line_end(header, 0, size)
    if start < 0:
        return 0
    start += 2
    while start + 2 < size:
        end = line_end(header, start, size)
        if end <= start:
            break
        fields += 1
        if end - start > 12 and memcmp(header + start, b"Nats-Pin-Id:", 12) == 0:
            found = start
            length = end + 2 - start
        start = end + 2
    if found < 0:
        return 0
    pin.at = header + found + 12
    pin.size = length - 14
    while pin.size and pin.at[0] == c' ':
        pin.at += 1
        pin.size -= 1
    # Without other fields the server added the whole block for it.
    return length + 12 if fields == 1 else length


# ---------------------------------------------------------------------------------------
# Lone pulls

cdef enum:
    TOKENS = 8               # reply subjects that a lane has in turn


@cython.final
cdef class LanePool:
    """The lanes of one consumer on one link: free ones, and those in use with their users.

    Taking a lane and giving it back are one step each, for which a thread needs no helm. A
    lane has its user from before it is subscribed until nothing of it is left: whatever a
    signal handler interrupts, the end of the user is the end of all lanes that it has here.
    """

    cdef Lane top                      # of the free ones, each of which has the next below it
    cdef readonly dict users           # Lane -> a lone pull or a conversation
    cdef readonly list left            # lone pulls whose fetch is over, and which are not
    cdef readonly object late          # messages that came of those which are
    cdef readonly str prefix           # of all their subjects
    cdef bytes prefix_bytes
    cdef PullInbox fresh               # made while a server was at work, for the next lone pull

    def __init__(self, prefix):
        self.left = []
        self.late = deque()
        self.renew(prefix)

    def renew(self, prefix):
        """Begins anew with other subjects: the link is lost. Returns the lanes that it had.

        Threads that wait for one are told.
        """
        cdef Lane lane
        cdef bytes prefix_bytes = encode_text(prefix)
        cdef list lanes = [] if self.users is None else [*self.free, *self.users]
        cdef dict users = {}
        self.prefix, self.prefix_bytes = prefix, prefix_bytes
        self.top, self.users = None, users
        for lane in lanes:
            lane.below = None
            if lane.is_lone:
                lane.lose()
        return lanes

    @property
    def free(self):
        """The lanes that no pull has; the last one is taken first."""
        cdef list lanes = []
        cdef Lane lane = self.top
        while lane is not None:
            lanes.append(lane)
            lane = lane.below
        lanes.reverse()
        return lanes

    def new_reply(self, Lane lane not None):
        """The reply subject of a further pull on a lane."""
        cdef bytes reply = self.reply(lane)
        return decode_text(PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply))

    cdef bytes reply(self, Lane lane):
        """The same, as it is sent.

        Subjects recur, because a server finds those much faster that it has seen lately. The
        pull that had the same one has certainly ended, and so have some after it.
        """
        cdef char[24] end
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.prefix_bytes)
        cdef Py_ssize_t digits = write_uint(end + 1, <uint64_t>lane.number)
        cdef bytes reply = PyBytes_FromStringAndSize(NULL, size + digits + 3)
        end[0] = c'.'
        end[digits + 1] = c'.'
        end[digits + 2] = <char>(c'0' + lane.pulls % TOKENS)
        memcpy(PyBytes_AS_STRING(reply), PyBytes_AS_STRING(self.prefix_bytes), <size_t>size)
        memcpy(PyBytes_AS_STRING(reply) + size, end, <size_t>digits + 3)
        return reply

    cpdef Lane take(self, object user):
        """A free lane for one pull of the user; None if there is none."""
        cdef Lane lane = self.top
        if lane is not None:
            self.users[lane] = user
            self.unlink_top()
        return lane

    cdef void unlink_top(self) noexcept:
        cdef Lane lane = self.top
        self.top = lane.below
        lane.below = None

    def dismiss(self):
        """A free lane, which is none of the pool's from now on; None if there is none."""
        cdef Lane lane = self.top
        if lane is not None:
            self.unlink_top()
        return lane

    cpdef give_back(self, Lane lane):
        """The pull on this lane has certainly ended; nothing happens to a lost one."""
        if lane in self.users:
            del self.users[lane]
            lane.below = self.top
            self.top = lane
            lane.retire()


@cython.final
cdef class Draft:
    """A pull as it is sent, but for its reply subject. Fetches that are alike share it."""

    cdef bytes subject
    cdef bytes body
    cdef readonly int64_t batch
    cdef readonly int64_t max_bytes    # 0: no limit
    cdef readonly uint64_t limit       # messages that the fetch wants in all
    cdef readonly double patience      # of a thread that waits for it alone
    cdef readonly bint is_alone        # no conversation is needed to send it
    cdef readonly Courier courier      # of its messages

    def __init__(
        self,
        subject,
        bytes body not None,
        Courier courier not None,
        *,
        int64_t batch,
        int64_t max_bytes,
        uint64_t limit,
        double patience,
        bint is_alone=True,
    ):
        check_subject(subject)
        self.subject = encode_text(subject)
        self.body = body
        self.courier = courier
        self.batch = batch
        self.max_bytes = max_bytes
        self.limit = limit
        self.patience = patience
        self.is_alone = is_alone


@cython.final
@cython.freelist(8)
cdef class LonePull:
    """One pull and the thread that waits for all of it, without a conversation.

    `lane` is what the pull was sent on, until everything has come; `inbox` has its messages.
    """

    cdef readonly Lane lane
    cdef readonly PullInbox inbox
    cdef readonly double asked_at
    cdef readonly bint is_cut
    cdef readonly bint is_given_up     # nobody waits for it any more
    cdef public object heir            # the conversation that takes over
    cdef public Gate settled           # of one that is left: opens when nothing more can come
    cdef LanePool pool
    cdef Draft draft
    cdef object taken                  # Msg, list of them or Batch: what the user is to get

    def __init__(
        self, LanePool pool not None, Draft draft not None, PullInbox inbox=None
    ):
        if inbox is None:
            inbox, pool.fresh = pool.fresh, None
            if inbox is None:
                inbox = PullInbox.__new__(PullInbox)
            inbox.owner = draft.courier
        self.pool = pool
        self.draft = draft
        self.inbox = inbox
        self.asked_at = -INFINITY
        inbox.limit = draft.limit

    @property
    def has_rest(self):
        """Whether the server must be told that it is over, or messages were not taken."""
        return self.lane is not None or self.heir is not None or self.inbox.count > 0

    def may_ask(self, Outbox outbox not None):
        """Whether it can be sent now."""
        return self.is_sendable(outbox)

    cdef bint is_sendable(self, Outbox outbox) noexcept:
        return self.draft.is_alone and not self.is_cut and outbox.state == OUTBOX_UP

    def run(self, Helm helm not None, double finish_at):
        """Asks on a free lane and waits; whether everything came. No lane: it has not asked."""
        self.asked_at = helm.now()
        return self.ask_alone(helm.outbox) and self.await_all(helm, finish_at)

    def run_for_one(self, Helm helm not None, double wait):
        """Asks on a free lane, waits so long at most and takes the message.

        None: it is not that simple. No lane: it has not asked, perhaps because messages that
        came too late for other fetches are first.
        """
        cdef bint is_asked = not self.pool.left and not self.pool.late
        is_asked = is_asked and self.ask_alone(helm.outbox)
        # The server is at work: what is done now costs no time.
        self.asked_at = helm.now()
        if self.pool.fresh is None:
            self.pool.fresh = PullInbox.__new__(PullInbox)
        if not is_asked or not self.await_all(helm, self.asked_at + wait):
            return None
        return self.take_one()

    cdef bint ask_alone(self, Outbox outbox) except -1:
        """Sends the pull on a free lane, if it can be sent."""
        cdef Lane lane
        if not self.is_sendable(outbox):
            return False
        lane = self.pool.take(self)
        if lane is None:
            return False
        self.send(lane, outbox)
        return True

    def ask(self, Lane lane not None, Outbox outbox not None):
        """Sends the pull on a lane that was taken for it, unless it was cut meanwhile."""
        if self.is_cut:
            self.pool.give_back(lane)
        else:
            self.send(lane, outbox)

    cdef int send(self, Lane lane, Outbox outbox) except -1:
        cdef Draft draft = self.draft
        cdef Span to, answer, head, body
        cdef bytes reply = self.pool.reply(lane)
        lane.begin(self.inbox, reply, draft.batch, draft.max_bytes)
        lane.is_lone = True
        self.lane = lane
        to.at, to.size = PyBytes_AS_STRING(draft.subject), PyBytes_GET_SIZE(draft.subject)
        answer.at, answer.size = PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply)
        body.at, body.size = PyBytes_AS_STRING(draft.body), PyBytes_GET_SIZE(draft.body)
        head.at, head.size = NULL, 0
        try:
            # Nobody need be told of bytes that the socket did not take: the thread waits, and
            # so sends them or tells who is at the helm.
            outbox.add_checked(to, answer, head, body, URGENT, None, True)
            lane.is_asked = True
        except (DisconnectedError, ConnectionClosedError):
            # Other threads run while TLS writes: the lane is lost in a moment.
            return 0
        return 0

    def wait(self, Helm helm not None, double finish_at):
        """Waits for all of the pull that was sent; whether it came."""
        return self.await_all(helm, finish_at)

    cdef bint await_all(self, Helm helm, double finish_at) except -1:
        cdef Lane lane = self.lane
        if lane is None:
            return False
        if not lane.is_ready():
            helm.wait_long(lane, min(finish_at, self.asked_at + self.draft.patience))
        if not lane.has_all(0, 0):
            return False
        self.lane = None
        self.pool.give_back(lane)
        return True

    def take_one(self):
        """The first message that came, or None; `put_back` undoes it."""
        self.taken = self.inbox.pop()
        return self.taken

    def take_all(self):
        """Every message that came; `put_back` undoes it."""
        self.taken = self.inbox.take_all()
        return self.taken

    def take_batch(self):
        """What came, in columns, or None; `put_back` undoes it."""
        self.taken = (<BatchInbox?>self.inbox).pop_batch()
        return self.taken

    def put_back(self):
        """What was taken has not reached the user, but an exception."""
        taken, self.taken = self.taken, None
        if isinstance(taken, Batch):
            self.inbox.put_back_batch(taken)
        elif isinstance(taken, Msg):
            self.inbox.put_back(taken)
        elif taken is not None:
            for msg in reversed(taken):
                self.inbox.put_back(msg)

    def give_up(self):
        """An exception ends the fetch: what was taken comes back, and the pool has the rest.

        One step: whatever a signal handler interrupts next, nothing is lost.
        """
        self.is_cut = True
        self.is_given_up = True
        self.settled = None
        if self not in self.pool.left:
            self.pool.left.append(self)
        self.put_back()

    def hand_over(self):
        """Its lane, which belongs to the caller from now on; None if it has none."""
        lane, self.lane = self.lane, None
        return lane

    def cut(self):
        """Ends the fetch, which returns what came until now; nothing is asked for any more.

        Other threads do it at the helm, where a conversation may take over.
        """
        self.is_cut = True
        if self.lane is not None:
            self.lane.lose()
        elif self.heir is not None:
            self.heir.end()


# ---------------------------------------------------------------------------------------
# Iterators

@cython.final
cdef class MessageIterator:
    """Iterates the messages of an inbox, waiting at most `timeout` for each."""

    cdef Inbox inbox
    cdef Helm helm
    cdef double timeout
    cdef object holder                 # lives as long as it is iterated

    def __init__(self, Inbox inbox not None, Helm helm not None, double timeout, holder=None):
        self.inbox = inbox
        self.helm = helm
        self.timeout = timeout
        self.holder = holder

    def __iter__(self):
        return self

    def __next__(self):
        cdef Inbox inbox = self.inbox
        cdef object msg
        cdef double deadline = INFINITY
        inbox.prepare()
        msg = inbox.pop()
        if msg is not None:
            return msg
        if self.timeout != INFINITY:
            deadline = self.timeout + <double>self.helm.now()
        msg = inbox.await_any(self.helm, deadline)
        if msg is not None:
            return msg
        if inbox.reason is not None:
            raise inbox.reason
        raise StopIteration


@cython.final
cdef class BatchIterator:
    """Iterates the batches of an inbox."""

    cdef BatchInbox inbox
    cdef Helm helm
    cdef object holder                 # lives as long as it is iterated

    def __init__(self, BatchInbox inbox not None, Helm helm not None, holder=None):
        self.inbox = inbox
        self.helm = helm
        self.holder = holder

    def __iter__(self):
        return self

    def __next__(self):
        batch = self.inbox.await_any(self.helm, INFINITY)
        if batch is not None:
            return batch
        if self.inbox.reason is not None:
            raise self.inbox.reason
        raise StopIteration


@cython.final
cdef class OrderedIterator:
    """Iterates the messages of an ordered consumer, from one inbox to the next.

    `await_inbox` returns the inbox that has messages, waiting for it, or None at the end.
    """

    cdef ConsumerInbox inbox
    cdef object await_inbox

    def __init__(self, await_inbox):
        self.await_inbox = await_inbox

    def __iter__(self):
        return self

    def __next__(self):
        cdef ConsumerInbox inbox = self.inbox    # which another thread may replace
        cdef Msg msg
        while True:
            if inbox is not None:
                inbox.prepare()
                msg = inbox.pop()
                if msg is not None:
                    return msg
            self.inbox = inbox = self.await_inbox()
            if inbox is None:
                raise StopIteration


@cython.final
cdef class Reply(Awaited):
    """The answer to one request: a message, or the error that came instead."""

    cdef readonly str subject          # what was asked
    cdef str prefix                    # of all inboxes
    cdef bytes token
    cdef readonly Msg msg
    cdef readonly object error
    cdef readonly int asked            # what the outbox said to the request
    cdef bint is_tied                  # the request dies with its link
    cdef readonly bint is_begun        # bytes of a tied request were sent
    cdef readonly bint is_withdrawn    # none of them was, and none will be

    @property
    def inbox(self):
        """Where the answer goes."""
        return self.prefix + self.token.decode("ascii")

    cdef bint is_ready(self) noexcept:
        return self.msg is not None or self.error is not None

    cdef void frame_begun(self, uint64_t number) noexcept:
        self.is_begun = True

    cdef void frame_cancelled(self) noexcept:
        self.is_withdrawn = True

    def fail(self, error):
        """Ends the wait for the answer with an error."""
        if not self.is_ready():
            self.error = error
            self.wake(INT64_MAX)


cdef enum:
    TOKEN_SIZE = 10          # 62 ** 10 is more than 2 ** 59

cdef bytes DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


cdef class Answers(Route):
    """A route whose messages answer what was sent, and may never come."""

    @property
    def is_awaited(self):
        """Whether something that dies with its link has no answer yet."""
        return False

    def fail_tied(self, error):
        """The link is lost: ends every wait that dies with it."""

    def fail_all(self, error):
        """Ends every wait, and every later one, with the error."""

    def fail_subject(self, subject, error):
        """Ends the oldest wait for an answer from the subject; False if there is none."""
        return False


@cython.final
cdef class Replies(Answers):
    """The one wildcard inbox of all requests: each answer finds its request by its token.

    Tokens come from the system's random source, so that nobody can guess another's.
    """

    cdef readonly str prefix           # ends with a dot
    cdef bytes prefix_bytes
    cdef dict waiting                  # token -> Reply
    cdef bytes noise
    cdef Py_ssize_t noise_at
    cdef readonly object owner
    cdef readonly uint64_t unclaimed   # answers that nobody waited for any more
    cdef readonly object reason        # the exception that ended it, or None

    def __init__(self, prefix, owner=None):
        self.prefix = prefix
        self.prefix_bytes = encode_text(prefix)
        self.owner = owner
        self.waiting = {}
        self.noise = b""

    def __len__(self):
        return len(self.waiting)

    @property
    def is_awaited(self):
        """Whether a request that dies with its link has no answer yet."""
        cdef Reply reply
        for reply in list(self.waiting.values()):
            if reply.is_tied and not reply.is_ready():
                return True
        return False

    cdef bytes new_token(self):
        cdef char[TOKEN_SIZE] token
        cdef uint64_t number
        cdef Py_ssize_t i
        if self.noise_at + 8 > PyBytes_GET_SIZE(self.noise):
            self.noise = urandom(2048)
            self.noise_at = 0
        memcpy(&number, PyBytes_AS_STRING(self.noise) + self.noise_at, 8)
        self.noise_at += 8
        for i in range(TOKEN_SIZE):
            token[i] = PyBytes_AS_STRING(DIGITS)[number % 62]
            number //= 62
        return PyBytes_FromStringAndSize(token, TOKEN_SIZE)

    def open(self, subject):
        """A Reply for a request to the subject; its `inbox` is where the answer must go."""
        cdef Reply reply = self.draft(subject)
        self.enter(reply)
        return reply

    def draft(self, subject):
        """A Reply that no answer finds before it has entered.

        Who holds it before that can drop it whatever happens in between.
        """
        cdef Reply reply = Reply.__new__(Reply)
        cdef bytes token = self.new_token()
        reply.subject = subject
        reply.prefix = self.prefix
        reply.token = token
        return reply

    def enter(self, Reply reply not None):
        """Lets its answer find a draft."""
        if self.reason is not None:
            reply.fail(self.reason)
        else:
            self.waiting[reply.token] = reply

    def exchange(self, Reply reply not None, Helm helm not None, data, headers, double deadline):
        """Asks, waits and returns the answer.

        None: it is not that simple; what `ask` returns is then in `asked` of the reply.
        """
        reply.asked = self.send_request(reply, helm.outbox, data, headers)
        if reply.asked == ASK_NOTHING and (
            reply.is_ready() or helm.wait_long(reply, deadline)
        ):
            return reply.msg
        return None

    def ask(self, Reply reply not None, Outbox outbox not None, data, headers=None):
        """Lets its answer find a draft, and sends its request, which dies with its link.

        What it returns and raises is what `Outbox.publish` does, but ASK_LINK without a link.
        """
        return self.send_request(reply, outbox, data, headers)

    cdef int send_request(self, Reply reply, Outbox outbox, data, headers) except -1:
        cdef Span to, answer
        cdef int asked
        if self.reason is not None:
            raise self.reason
        cdef bytes inbox = self.prefix_bytes + reply.token
        answer.at, answer.size = PyBytes_AS_STRING(inbox), PyBytes_GET_SIZE(inbox)
        holder = outbox.checked_span(reply.subject, &to)  # no-cython-lint: keeps the bytes alive
        self.waiting[reply.token] = reply
        asked = outbox.add_publish(to, answer, data, headers, URGENT, reply, False)
        reply.is_tied = reply.is_tied or asked < ASK_ROOM
        return asked

    def drop(self, Reply reply not None):
        """Forgets a request that is over; a late answer to it is ignored."""
        if reply.msg is None:
            self.waiting.pop(reply.token, None)

    def fail_tied(self, error):
        """Ends every waiting request that dies with its link."""
        cdef Reply reply
        for reply in list(self.waiting.values()):
            if reply.is_tied:
                self.fail_one(reply, error)

    def fail_all(self, error):
        """Ends every waiting request, and every later one, with the error."""
        cdef Reply reply
        self.reason = error
        for reply in list(self.waiting.values()):
            self.fail_one(reply, error)

    cdef int fail_one(self, Reply reply, object error) except -1:
        self.waiting.pop(reply.token, None)
        reply.fail(error)
        return 0

    def fail_subject(self, subject, error):
        """Ends the oldest request to the subject with the error; False if there is none."""
        cdef Reply reply
        for reply in self.waiting.values():
            if reply.subject == subject and not reply.is_ready():
                self.fail_one(reply, error)
                return True
        return False

    cdef int deliver(self, const Frame *frame, Parser parser) except -1:
        cdef Reply reply = None
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.prefix_bytes)
        cdef Msg msg
        if (
            frame.subject_size == size + TOKEN_SIZE
            and memcmp(frame.subject, PyBytes_AS_STRING(self.prefix_bytes), <size_t>size) == 0
        ):
            token = PyBytes_FromStringAndSize(frame.subject + size, TOKEN_SIZE)
            reply = self.waiting.get(token)
        elif len(self.waiting) == 1 and (
            frame.subject_size < size
            or memcmp(frame.subject, PyBytes_AS_STRING(self.prefix_bytes), <size_t>size) != 0
        ):
            # The server rewrote the subject; with one request waiting it can only be its answer.
            reply = next(iter(self.waiting.values()))
        if reply is None or reply.is_ready():
            self.unclaimed += 1
            return 0
        # As in Inbox.deliver: what may fail comes first.
        msg = make_msg(frame, None)
        msg.owner = self.owner
        if reply.sleepers:
            parser.stir(reply)
        reply.msg = msg
        self.waiting.pop(reply.token, None)
        return 0


@cython.final
cdef class Routes:
    """Which route each subscription id has. Outlives the links of a connection."""

    cdef dict table
    cdef int64_t last_sid
    cdef Route last

    def __cinit__(self):
        self.table = {}
        self.last_sid = -1

    def add(self, int64_t sid, Route route not None):
        """Messages of sid go to the route from now on."""
        self.table[sid] = route
        if self.last_sid == sid:
            self.last = route

    def remove(self, int64_t sid):
        """Messages of sid are dropped from now on; the route it had, or None."""
        if self.last_sid == sid:
            self.last_sid = -1
            self.last = None
        return self.table.pop(sid, None)

    def __len__(self):
        return len(self.table)

    cdef Route find(self, int64_t sid):
        cdef Route route
        if sid == self.last_sid:
            return self.last
        route = self.table.get(sid)
        if route is not None:
            self.last_sid = sid
            self.last = route
        return route


# ---------------------------------------------------------------------------------------
# Input

cdef enum ParserState:
    AT_LINE              # looking for the end of a control line
    AT_SMALL             # waiting for all of a payload in the buffer
    AT_HEAD              # receiving a large header block into its bytes object
    AT_BODY              # receiving a large payload into its bytes object
    AT_TRAILER           # the CR LF after a large payload
    AT_SKIP              # passing over a large payload that nobody wants
    BROKEN


@cython.final
cdef class Parser:
    """Cuts the server's bytes into frames, at whatever borders they arrive.

    Bytes come in by `feed`, or by a Link through `room` and `received`. Messages go to their
    routes. INFO and -ERR wait in `control` as (verb, bytes) until they are handled; PING and
    PONG are only counted. `notices` has routes for which the loop has something to do: inboxes
    that began to drop messages, came to their limit, or know of gaps or stalls, lanes whose
    pulls came to an end or a status, and pledges. A broken frame raises ProtocolError; what came
    before it has been delivered.
    """

    cdef char *buffer
    cdef Py_ssize_t capacity
    cdef Py_ssize_t at                 # where the current frame starts
    cdef Py_ssize_t scanned            # no line feed between at and here
    cdef Py_ssize_t end                # where the received bytes end
    cdef bint was_filled
    cdef ParserState state

    # The current message, its places relative to `at`.
    cdef int64_t sid
    cdef Token subject
    cdef Token reply
    cdef Py_ssize_t header_size
    cdef Py_ssize_t total
    cdef Py_ssize_t payload

    # A large one.
    cdef bytes head
    cdef bytes body
    cdef Route large_route
    cdef char *fill
    cdef Py_ssize_t fill_left

    cdef Routes routes
    cdef list stirred                  # routes and replies with threads to wake
    cdef readonly list control
    cdef readonly list notices
    cdef int64_t max_payload_
    cdef readonly uint64_t pings
    cdef readonly uint64_t pongs
    cdef uint64_t unanswered_pings
    cdef readonly uint64_t messages
    cdef readonly uint64_t payload_bytes
    cdef readonly uint64_t unrouted
    cdef uint64_t handled_pongs
    cdef public bint is_watched        # the loop has a look after every read
    cdef public bint has_news          # and has not looked since the last one
    cdef bint is_busy                  # a read is being taken or parsed
    cdef int64_t read_ns               # when it was, by the coarse clock

    def __cinit__(self):
        self.buffer = <char *>PyMem_Malloc(FIRST_BUFFER)
        if self.buffer == NULL:
            raise MemoryError
        self.capacity = FIRST_BUFFER

    def __init__(self, Routes routes not None, int64_t max_payload=DEFAULT_MAX_PAYLOAD):
        self.routes = routes
        self.control = []
        self.notices = []
        self.stirred = []
        self.max_payload = max_payload

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    @property
    def max_payload(self):
        """The largest payload that the server may announce; larger frames are broken."""
        return self.max_payload_

    @max_payload.setter
    def max_payload(self, int64_t value):
        self.max_payload_ = value if 0 < value <= PAYLOAD_CAP else PAYLOAD_CAP

    cdef bint is_noticed(self) noexcept:
        return (
            self.unanswered_pings > 0
            or self.pongs != self.handled_pongs
            or len(self.control) > 0
            or len(self.notices) > 0
            or self.has_news
        )

    @property
    def needs_attention(self):
        """Whether control lines, PINGs, PONGs, notices or a watched read wait to be handled."""
        return self.is_noticed()

    @property
    def is_idle(self):
        """Whether the bytes so far end at a frame border."""
        return self.state == AT_LINE and self.at == self.end

    def bind(self, Routes routes not None):
        """Messages go to these routes from now on."""
        self.routes = routes

    cdef int stir(self, Awaited what) except -1:
        """The threads that wait for it are woken when this read has been parsed."""
        if not self.stirred or self.stirred[len(self.stirred) - 1] is not what:
            self.stirred.append(what)
        return 0

    # Where bytes go -------------------------------------------------------------------

    cdef Py_ssize_t room(self, char **where) except -1:
        """Where the next bytes are to be received, and how many at most."""
        cdef Py_ssize_t wanted = self.capacity
        cdef char *bigger
        if self.state == AT_HEAD or self.state == AT_BODY:
            where[0] = self.fill
            return self.fill_left
        if self.at == self.end:
            self.at = self.scanned = self.end = 0
            if self.was_filled and self.capacity < LAST_BUFFER:
                wanted = 2 * self.capacity
            elif self.capacity > LAST_BUFFER:
                wanted = LAST_BUFFER
        elif self.at > 0 and 2 * (self.capacity - self.end) < self.capacity:
            memmove(self.buffer, self.buffer + self.at, <size_t>(self.end - self.at))
            self.scanned -= self.at
            self.end -= self.at
            self.at = 0
        if self.end == self.capacity:
            # Only the line of a long INFO gets here.
            wanted = 2 * self.capacity
        if wanted != self.capacity:
            bigger = <char *>PyMem_Realloc(self.buffer, <size_t>wanted)
            if bigger == NULL:
                raise MemoryError
            self.buffer = bigger
            self.capacity = wanted
        where[0] = self.buffer + self.end
        return self.capacity - self.end

    cdef int received(self, Py_ssize_t size) except -1:
        """That many bytes were put where `room` said: parse them, deliver, wake."""
        self.read_ns = jsc_coarse_ns()
        try:
            if self.state == AT_HEAD or self.state == AT_BODY:
                self.fill += size
                self.fill_left -= size
                if self.fill_left == 0:
                    self.filled()
            else:
                self.end += size
                self.was_filled = self.end == self.capacity
                self.parse()
        finally:
            self.has_news = self.is_watched
            self.wake_stirred()
        return 0

    cdef int wake_stirred(self) except -1:
        cdef Awaited what
        if self.stirred:
            for what in self.stirred:
                # An inbox without a message has a status for whoever comes first.
                if isinstance(what, Inbox) and not (<Inbox>what).is_ended:
                    what.wake(max(1, (<Inbox>what).count))
                else:
                    what.wake(INT64_MAX)
            self.stirred.clear()
        return 0

    def feed(self, data: bytes) -> None:
        """Takes bytes of the server, as a Link does, and parses them."""
        cdef const char *at = PyBytes_AS_STRING(data)
        cdef Py_ssize_t left = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t size
        cdef char *where = NULL
        if self.state == BROKEN:
            self.fail("the stream is broken already", NULL, 0)
        while left:
            size = min(self.room(&where), left)
            memcpy(where, at, <size_t>size)
            at += size
            left -= size
            self.received(size)

    # Frames ---------------------------------------------------------------------------

    cdef int fail(self, str why, const char *at, Py_ssize_t size) except -1:
        """The one place that raises for broken input."""
        self.state = BROKEN
        shown = "" if at == NULL else f": {at[:min(size, 64)]!r}"
        raise ProtocolError(f"{why}{shown}")

    cdef int parse(self) except -1:
        cdef const char *found
        cdef Py_ssize_t size
        while True:
            if self.state == AT_LINE:
                if self.at == self.end:
                    return 0
                found = <const char *>memchr(
                    self.buffer + self.scanned, c'\n', <size_t>(self.end - self.scanned)
                )
                if found == NULL:
                    self.scanned = self.end
                    size = self.end - self.at
                    # A line at its limit may still get its CR LF.
                    if size > LINE_LIMIT + 1:
                        if size > line_limit(self.buffer + self.at, size) + 1:
                            self.fail("control line too long", self.buffer + self.at, 64)
                    return 0
                size = found - (self.buffer + self.at)
                if size == 0 or self.buffer[self.at + size - 1] != c'\r':
                    self.fail("line without CR", self.buffer + self.at, size)
                size -= 1
                if size > LINE_LIMIT and size > line_limit(self.buffer + self.at, size):
                    self.fail("control line too long", self.buffer + self.at, size)
                self.payload = size + 2
                if not self.read_line(self.buffer + self.at, size):
                    self.at += self.payload
                    self.scanned = self.at
                    continue
                # A message; its payload follows.
                if self.total > LARGE_PAYLOAD:
                    if self.end - self.at < self.payload + self.total + 2:
                        self.start_large()
                        continue
                self.state = AT_SMALL
            if self.state == AT_SMALL:
                if self.end - self.at < self.payload + self.total + 2:
                    return 0
                self.finish_small()
            elif self.state == AT_TRAILER:
                if self.end - self.at < 2:
                    return 0
                self.finish_large()
            elif self.state == AT_SKIP:
                size = min(self.fill_left, self.end - self.at)
                self.at += size
                self.scanned = self.at
                self.fill_left -= size
                if self.fill_left:
                    return 0
                self.state = AT_TRAILER
            else:
                return 0

    cdef bint read_line(self, const char *line, Py_ssize_t size) except -1:
        """Handles a control line; True if the payload of a message follows it."""
        cdef char first = line[0] if size else c'\0'
        if size > 4 and memcmp(line, b"MSG ", 4) == 0 and self.read_usual(line, size):
            return True
        if first == c'M' or first == c'm':
            if size > 3 and is_verb(line, b"MSG", 3) and is_blank(line[3]):
                return self.read_message(line, size, 4, False)
        elif first == c'H' or first == c'h':
            if size > 4 and is_verb(line, b"HMSG", 4) and is_blank(line[4]):
                return self.read_message(line, size, 5, True)
        elif memchr(line, c'\r', <size_t>size) != NULL:
            self.fail("stray CR in a control line", line, size)
        elif first == c'P' or first == c'p':
            if size == 4 or (size > 4 and is_blank(line[4])):
                if is_verb(line, b"PING", 4):
                    self.pings += 1
                    self.unanswered_pings += 1
                    return False
                if is_verb(line, b"PONG", 4):
                    self.pongs += 1
                    return False
        elif first == c'+':
            if size >= 3 and is_verb(line, b"+OK", 3) and (size == 3 or is_blank(line[3])):
                return False
        elif first == c'-':
            if size >= 4 and is_verb(line, b"-ERR", 4) and (size == 4 or is_blank(line[4])):
                self.control.append(("ERR", line[4:size].strip(b" \t")))
                return False
        elif first == c'I' or first == c'i':
            if size >= 4 and is_verb(line, b"INFO", 4):
                if size == 4 or is_blank(line[4]) or line[4] == c'{':
                    self.control.append(("INFO", line[4:size].strip(b" \t")))
                    return False
        self.fail("unknown protocol operation", line, size)

    cdef bint read_usual(self, const char *line, Py_ssize_t size) noexcept:
        """Reads a MSG line as servers write them; False, and nothing, if it is another."""
        cdef Py_ssize_t subject_end = jsc_find_blank(line, 4, size)
        cdef Py_ssize_t at = subject_end + 1
        cdef Py_ssize_t reply = 0, reply_end = 0, end
        cdef int64_t sid = 0, total = 0
        if subject_end == 4 or subject_end + 4 > size or line[subject_end] != c' ':
            return False
        end = min(size, at + 9)
        while at < end and c'0' <= line[at] <= c'9':
            sid = sid * 10 + (line[at] - c'0')
            at += 1
        if at == subject_end + 1 or at == size or line[at] != c' ':
            return False
        at += 1
        reply_end = jsc_find_blank(line, at, size)
        if reply_end < size:
            if line[reply_end] != c' ':
                return False
            reply = at
            at = reply_end + 1
        if at == size or at + 9 < size:
            return False
        while at < size and c'0' <= line[at] <= c'9':
            total = total * 10 + (line[at] - c'0')
            at += 1
        if at < size or total > self.max_payload_ + HEADER_ALLOWANCE:
            return False
        self.sid = sid
        self.subject.start = 4
        self.subject.size = subject_end - 4
        self.reply.start = reply
        self.reply.size = reply_end - reply if reply else 0
        self.header_size = 0
        self.total = <Py_ssize_t>total
        return True

    cdef bint read_message(
        self, const char *line, Py_ssize_t size, Py_ssize_t start, bint has_headers
    ) except -1:
        cdef Token[5] tokens
        cdef int least = 4 if has_headers else 3
        cdef int count = split_line(line + start, size - start, tokens, least + 1)
        cdef int64_t total, header = 0
        if count < least:
            self.fail("message with a wrong number of arguments", line, size)
        self.sid = parse_uint(line + start + tokens[1].start, tokens[1].size)
        total = parse_uint(line + start + tokens[count - 1].start, tokens[count - 1].size)
        if has_headers:
            header = parse_uint(line + start + tokens[count - 2].start, tokens[count - 2].size)
        if self.sid < 0 or total < 0 or header < 0 or header > total:
            self.fail("message with a wrong number", line, size)
        if total > self.max_payload_ + HEADER_ALLOWANCE:
            self.fail("message larger than the server's max_payload allows", line, size)
        self.subject.start = start + tokens[0].start
        self.subject.size = tokens[0].size
        self.reply.size = 0
        self.reply.start = 0
        if count > least:
            self.reply.start = start + tokens[2].start
            self.reply.size = tokens[2].size
        self.header_size = <Py_ssize_t>header
        self.total = <Py_ssize_t>total
        return True

    cdef void count_message(self, bint is_routed) noexcept:
        self.messages += 1
        self.payload_bytes += <uint64_t>self.total
        if not is_routed:
            self.unrouted += 1

    cdef int finish_small(self) except -1:
        cdef const char *frame_at = self.buffer + self.at
        cdef const char *payload = frame_at + self.payload
        cdef Frame frame
        cdef Route route
        if payload[self.total] != c'\r' or payload[self.total + 1] != c'\n':
            self.fail("payload without CR LF", frame_at, self.payload)
        route = self.routes.find(self.sid)
        if route is not None:
            frame.subject = frame_at + self.subject.start
            frame.subject_size = self.subject.size
            frame.reply = frame_at + self.reply.start
            frame.reply_size = self.reply.size
            frame.header = payload
            frame.header_size = self.header_size
            frame.data = payload + self.header_size
            frame.data_size = self.total - self.header_size
            frame.head = NULL
            frame.body = NULL
            route.deliver(&frame, self)
        self.count_message(route is not None)
        self.at += self.payload + self.total + 2
        self.scanned = self.at
        self.state = AT_LINE
        return 0

    cdef int start_large(self) except -1:
        """Makes the bytes objects of a large message and moves into them what has come."""
        cdef const char *frame_at = self.buffer + self.at
        cdef char *head
        self.large_route = self.routes.find(self.sid)
        if self.large_route is None:
            self.at += self.payload
            self.scanned = self.at
            self.fill_left = self.total
            self.state = AT_SKIP
            return 0
        self.head = PyBytes_FromStringAndSize(
            NULL, self.subject.size + self.reply.size + self.header_size
        )
        self.body = PyBytes_FromStringAndSize(NULL, self.total - self.header_size)
        head = PyBytes_AS_STRING(self.head)
        memcpy(head, frame_at + self.subject.start, <size_t>self.subject.size)
        head += self.subject.size
        if self.reply.size:
            memcpy(head, frame_at + self.reply.start, <size_t>self.reply.size)
            head += self.reply.size
        self.at += self.payload
        self.fill = head
        self.fill_left = self.header_size
        self.state = AT_HEAD
        self.move_buffered()
        return 0

    cdef int move_buffered(self) except -1:
        """Moves buffered bytes to where the large message wants them."""
        cdef Py_ssize_t size = min(self.fill_left, self.end - self.at)
        if size:
            memcpy(self.fill, self.buffer + self.at, <size_t>size)
            self.at += size
            self.fill += size
            self.fill_left -= size
        self.scanned = self.at
        if self.fill_left == 0:
            self.filled()
        return 0

    cdef int filled(self) except -1:
        """The header or the payload of a large message is complete."""
        if self.state == AT_HEAD:
            self.state = AT_BODY
            self.fill = PyBytes_AS_STRING(self.body)
            self.fill_left = PyBytes_GET_SIZE(self.body)
            self.move_buffered()
        else:
            self.state = AT_TRAILER
        return 0

    cdef int finish_large(self) except -1:
        cdef const char *at = self.buffer + self.at
        cdef Frame frame
        cdef Route route = self.large_route
        if at[0] != c'\r' or at[1] != c'\n':
            self.fail("payload without CR LF", at, 2)
        if route is not None:
            frame.subject_size = self.subject.size
            frame.reply_size = self.reply.size
            frame.header_size = self.header_size
            frame.data_size = self.total - self.header_size
            frame.subject = PyBytes_AS_STRING(self.head)
            frame.reply = frame.subject + frame.subject_size
            frame.header = frame.reply + frame.reply_size
            frame.data = PyBytes_AS_STRING(self.body)
            frame.head = <PyObject *>self.head
            frame.body = <PyObject *>self.body
            route.deliver(&frame, self)
        self.count_message(route is not None)
        self.large_route = None
        self.head = None
        self.body = None
        self.at += 2
        self.scanned = self.at
        self.state = AT_LINE
        return 0


cdef inline Py_ssize_t line_limit(const char *line, Py_ssize_t size) noexcept nogil:
    return INFO_LIMIT if size >= 4 and is_verb(line, b"INFO", 4) else LINE_LIMIT


# ---------------------------------------------------------------------------------------
# Output

cdef struct Border:
    uint32_t size            # of the whole frame: PAYLOAD_CAP and some subjects at most
    uint32_t payload         # what counts towards max_payload
    bint is_kept             # outlives the link, if none of its bytes were sent
    PyObject *ticket         # the Awaited that wants to know when it is sent, or NULL
    uint64_t number          # of those that have this ticket, if it counts them


cdef enum OutboxState:
    OUTBOX_DOWN              # no link: core publishes are kept, up to a limit
    OUTBOX_UP
    OUTBOX_REFUSING          # closed, draining or forked: every publish raises


cdef enum Haste:
    PROMPT                   # the first frame after a quiet moment is sent at once
    PATIENT                  # an ack: those of what the same reads brought may follow
    URGENT


# What `publish` asks of its caller.
cdef enum:
    ASK_NOTHING = 0
    ASK_ALERT = 1            # unsent bytes wait and nobody has been told yet
    ASK_ROOM = 2             # the outbox is full: nothing was added
    ASK_LINK = 3             # there is none, and the message must not wait for one


cdef inline void block_span(bytes block, Span *head) noexcept:
    """Lends the bytes of a header block, if there is one."""
    head.at = NULL if block is None else PyBytes_AS_STRING(block)
    head.size = 0 if block is None else PyBytes_GET_SIZE(block)


cdef bint borrow_data(object data, Span *body, Py_buffer *view) except -1:
    """Lends the bytes of a payload; True if the view must be released after."""
    if PyBytes_Check(data):
        body.at = PyBytes_AS_STRING(data)
        body.size = PyBytes_GET_SIZE(data)
        return False
    if isinstance(data, str) or not PyObject_CheckBuffer(data):
        hint = "; encode it first" if isinstance(data, str) else ""
        raise TypeError(
            f"data must be bytes or another buffer, not {type(data).__name__}{hint}"
        )
    try:
        PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    except BufferError:
        raise TypeError("data must be a contiguous buffer") from None
    body.at = <const char *>view.buf
    body.size = view.len
    return True


@cython.final
cdef class Outbox:
    """Frames on their way to the server, with their borders, in one buffer.

    Frames that must not outlive the link (subscriptions, PINGs) are told from those that may
    (core publishes). When a link is lost, a frame of which any byte was sent is given up.
    """

    cdef char *buffer
    cdef Py_ssize_t capacity
    cdef Py_ssize_t first              # the first unsent byte
    cdef Py_ssize_t last               # where unsent bytes end
    cdef Border *borders
    cdef Py_ssize_t border_capacity
    cdef Py_ssize_t border_first
    cdef Py_ssize_t border_last
    cdef Py_ssize_t sent_of_first      # bytes of the first frame that were sent

    cdef Link link
    cdef OutboxState state
    cdef object refusal                # makes the exception of OUTBOX_REFUSING
    cdef bint takes_control            # control frames are accepted
    cdef readonly bint is_leaving      # what must be answered waits for the next link
    cdef uint64_t epoch                # one per link
    cdef bint is_pushing               # a thread gives bytes to the link
    cdef readonly bint is_alerted      # somebody looks after unsent bytes every moment
    cdef bint has_asked                # what was sent last is a request
    cdef int64_t sent_ns
    cdef int64_t looked_ns             # what the clock said when it was last looked at
    cdef int64_t gathered_ns           # when the first unsent frame was added
    cdef int64_t read_ns               # when the last bytes were read
    cdef object checked_subject

    cdef readonly int64_t max_payload
    cdef readonly Py_ssize_t high_water
    cdef readonly Py_ssize_t keep_limit
    cdef readonly uint64_t messages
    cdef readonly uint64_t gathered    # of them, those that were not sent at once
    cdef readonly uint64_t payload_bytes
    cdef readonly uint64_t pings       # sent on this link
    cdef uint64_t answered             # how many of them got their PONG
    cdef int pongs                     # that were added since there was nothing to send
    cdef readonly Gate room            # opens when a full outbox has room again

    def __init__(self, Py_ssize_t high_water, Py_ssize_t keep_limit):
        self.high_water = high_water
        self.keep_limit = keep_limit
        self.max_payload = PAYLOAD_CAP
        self.reserve(4096)
        self.reserve_border()

    def __dealloc__(self):
        self.drop_tickets()
        PyMem_Free(self.buffer)
        PyMem_Free(self.borders)

    cdef void drop_tickets(self) noexcept:
        cdef Py_ssize_t i
        for i in range(self.border_first, self.border_last):
            self.cancel(&self.borders[i])

    cdef void cancel(self, Border *border) noexcept:
        """No byte of this frame is ever sent: its ticket is told.

        Other code may run when the ticket was the last reference to it.
        """
        cdef PyObject *ticket
        if border.ticket != NULL:
            ticket = border.ticket
            border.ticket = NULL
            (<Awaited>ticket).frame_cancelled()
            Py_DECREF(<object>ticket)

    def __len__(self):
        return self.last - self.first

    @property
    def frames(self):
        """How many frames are not wholly sent."""
        return self.border_last - self.border_first

    @property
    def is_up(self):
        """Whether a link takes the frames."""
        return self.state == OUTBOX_UP

    @property
    def takes_requests(self):
        """Whether a link takes frames that must be answered on it."""
        return self.state == OUTBOX_UP and not self.is_leaving

    def set_max_payload(self, int64_t value):
        """What the server accepts; nothing larger is added from now on."""
        self.max_payload = value if 0 < value <= PAYLOAD_CAP else PAYLOAD_CAP

    # Room -----------------------------------------------------------------------------

    cdef int reserve(self, Py_ssize_t size) except -1:
        """Makes room for that many bytes after `last`."""
        cdef Py_ssize_t held = self.last - self.first
        cdef Py_ssize_t capacity
        cdef char *bigger
        if self.capacity - self.last >= size:
            return 0
        if self.first and 2 * (held + size) <= self.capacity:
            memmove(self.buffer, self.buffer + self.first, <size_t>held)
            self.first = 0
            self.last = held
            return 0
        capacity = max(2 * self.capacity, 2 * (held + size))
        bigger = <char *>PyMem_Malloc(<size_t>capacity)
        if bigger == NULL:
            raise MemoryError
        if held:
            memcpy(bigger, self.buffer + self.first, <size_t>held)
        PyMem_Free(self.buffer)
        self.buffer = bigger
        self.capacity = capacity
        self.first = 0
        self.last = held
        return 0

    cdef int reserve_border(self) except -1:
        cdef Py_ssize_t held = self.border_last - self.border_first
        cdef Py_ssize_t capacity
        cdef Border *bigger
        if self.border_last < self.border_capacity:
            return 0
        if self.border_first and 2 * held < self.border_capacity:
            memmove(
                self.borders, self.borders + self.border_first, <size_t>held * sizeof(Border)
            )
        else:
            capacity = 2 * self.border_capacity + 64
            bigger = <Border *>PyMem_Malloc(<size_t>capacity * sizeof(Border))
            if bigger == NULL:
                raise MemoryError
            if held:
                memcpy(
                    bigger, self.borders + self.border_first, <size_t>held * sizeof(Border)
                )
            PyMem_Free(self.borders)
            self.borders = bigger
            self.border_capacity = capacity
        self.border_first = 0
        self.border_last = held
        return 0

    cdef void close_frame(
        self, Py_ssize_t size, Py_ssize_t payload, bint is_kept, Awaited ticket, uint64_t number
    ) noexcept:
        """Counts the bytes that were written after `last` as one frame."""
        cdef Border *border = &self.borders[self.border_last]
        border.number = number
        border.ticket = NULL
        if ticket is not None:
            Py_INCREF(ticket)
            border.ticket = <PyObject *>ticket
        border.size = <uint32_t>size
        border.payload = <uint32_t>payload
        border.is_kept = is_kept
        self.border_last += 1
        self.last += size

    # Frames ---------------------------------------------------------------------------

    def publish(
        self,
        subject,
        data,
        reply,
        headers,
        bint is_urgent=False,
        Reply ticket=None,
        bint is_tied=False,
    ):
        """Adds a PUB or HPUB frame and sends it if that is due; what is asked of the caller.

        ASK_NOTHING, ASK_ALERT, or ASK_ROOM, with which nothing was added. An urgent one is
        due at once. A tied one dies with its link, and needs one. So does one with a
        ticket, whose `is_begun` tells whether any of its bytes were sent. A link that is about
        to be left takes tied ones: they belong to what it has already.
        """
        cdef Span to, answer
        cdef object reply_holder = None
        answer.size = 0
        answer.at = NULL
        if reply is not None:
            reply_holder = subject_span(reply, "reply", &answer)  # no-cython-lint
        holder = self.checked_span(subject, &to)  # no-cython-lint: keeps the bytes alive
        cdef Haste haste = URGENT if is_urgent else PROMPT
        cdef int asked = self.add_publish(to, answer, data, headers, haste, ticket, is_tied)
        if ticket is not None and asked < ASK_ROOM:
            ticket.is_tied = True
        return self.need(asked)

    cdef object checked_span(self, object subject, Span *to):
        """Checks a subject, unless it is the last one again, and lends its bytes."""
        holder = text_span(subject, "subject", to)
        if subject is not self.checked_subject:
            refuse_subject(subject, "subject", check_subject_bytes(to.at, to.size))
            self.checked_subject = subject
        return holder

    cdef int add_publish(
        self,
        Span to,
        Span answer,
        object data,
        object headers,
        Haste haste,
        Awaited ticket,
        bint is_tied,
    ) except -1:
        """Adds a message with the payload and the headers of a user."""
        cdef Py_buffer view
        cdef Span head, body
        cdef bytes block = None if headers is None else encode_headers(headers)
        cdef bint is_borrowed
        cdef int asked
        block_span(block, &head)
        is_borrowed = borrow_data(data, &body, &view)
        try:
            asked = self.add_checked(to, answer, head, body, haste, ticket, is_tied)
        finally:
            if is_borrowed:
                PyBuffer_Release(&view)
        return asked

    cdef int add_checked(
        self,
        Span to,
        Span answer,
        Span head,
        Span body,
        Haste haste,
        Awaited ticket,
        bint is_tied,
    ) except -1:
        """Adds a message whose subjects and header block are known to be good."""
        cdef int asked
        if self.is_leaving and ticket is not None and not is_tied:
            return ASK_LINK
        is_tied = is_tied or ticket is not None
        # A tied one without a ticket, a pull, is small and may come from the helm, where nobody
        # can wait for room.
        asked = self.admit(
            to.size + answer.size, head.size + body.size, is_tied, ticket is not None or not is_tied
        )
        if asked:
            return asked
        self.append(to, answer, head, body, not is_tied, ticket, 0)
        return self.send_due(haste)

    cdef int admit(
        self, Py_ssize_t subjects, Py_ssize_t payload, bint is_tied, bint can_wait
    ) except -1:
        """Whether a message of this size can be appended: ASK_NOTHING, or what it has to wait for.

        Nothing fails between this and `append`, and no other thread runs.
        """
        cdef Py_ssize_t held = self.last - self.first
        if subjects + 24 > ARGUMENT_LIMIT:
            raise InvalidArgumentError(
                f"subject and reply together must not be longer than {ARGUMENT_LIMIT - 24} bytes"
            )
        if payload > self.max_payload:
            raise MaxPayloadError(
                f"headers and payload are {payload} bytes; "
                f"the server accepts at most {self.max_payload}"
            )
        if held >= self.high_water and self.state == OUTBOX_UP:
            # First, because other threads run while TLS writes, and the link may go.
            self.push()
            held = self.last - self.first
        if self.state == OUTBOX_REFUSING:
            raise self.refusal()
        if self.state == OUTBOX_DOWN:
            if is_tied:
                return ASK_LINK
            if self.keep_limit <= 0:
                raise DisconnectedError("the link is down and there is no reconnect buffer")
            if held >= self.keep_limit:
                raise BufferFullError(
                    f"the link is down and the reconnect buffer of {self.keep_limit} bytes is full"
                )
        elif held >= self.high_water and can_wait:
            return ASK_ROOM
        self.reserve(payload + subjects + 64)
        self.reserve_border()
        return ASK_NOTHING

    cdef int need(self, int asked) except -1:
        """What `admit` asked for; a link is asked for by raising."""
        if asked == ASK_LINK:
            raise DisconnectedError("there is no link to the server")
        return asked

    cdef void append(
        self,
        Span to,
        Span answer,
        Span head,
        Span body,
        bint is_kept,
        Awaited ticket,
        uint64_t number,
    ) noexcept:
        """Adds the frame of a message that was admitted."""
        cdef Py_ssize_t payload = head.size + body.size
        cdef char *start = self.buffer + self.last
        cdef char *at = start
        if head.size:
            at[0] = c'H'
            at += 1
        memcpy(at, b"PUB ", 4)
        at += 4
        memcpy(at, to.at, <size_t>to.size)
        at += to.size
        at[0] = c' '
        at += 1
        if answer.size:
            memcpy(at, answer.at, <size_t>answer.size)
            at += answer.size
            at[0] = c' '
            at += 1
        if head.size:
            at += write_uint(at, <uint64_t>head.size)
            at[0] = c' '
            at += 1
        at += write_uint(at, <uint64_t>payload)
        at[0] = c'\r'
        at[1] = c'\n'
        at += 2
        if head.size:
            memcpy(at, head.at, <size_t>head.size)
            at += head.size
        if body.size:
            memcpy(at, body.at, <size_t>body.size)
            at += body.size
        at[0] = c'\r'
        at[1] = c'\n'
        at += 2
        self.close_frame(at - start, payload, is_kept, ticket, number)
        self.messages += 1
        self.payload_bytes += <uint64_t>payload

    cdef int send_due(self, Haste haste) except -1:
        """Sends what was appended if that is due; ASK_NOTHING or ASK_ALERT."""
        cdef int64_t now, busy_ns = self.sent_ns
        cdef Py_ssize_t frames = self.border_last - self.border_first
        if self.state != OUTBOX_UP:
            return ASK_NOTHING
        # Looking at the clock costs as much as making a frame: in a burst every fourth looks.
        if frames == 1 or frames % 4 == 0 or haste == URGENT:
            self.looked_ns = jsc_now_ns()
        now = self.looked_ns
        if frames == 1:
            self.gathered_ns = now
        if haste == PATIENT:
            # What was read keeps its reader busy, but no ack waits for long because of that.
            busy_ns = min(max(busy_ns, self.read_ns), self.gathered_ns)
        if (
            haste == URGENT
            or now - busy_ns >= QUIET_NS
            or self.last - self.first >= WORTH_SENDING
        ):
            self.sent_ns = now
            self.push()
            self.has_asked = haste == URGENT
        if self.last > self.first:
            self.gathered += 1
        return ASK_ALERT if self.is_neglected() else ASK_NOTHING

    cpdef go_on(self):
        """A burst had to wait: its next frame does not travel alone."""
        self.sent_ns = jsc_now_ns()

    cdef inline bint is_neglected(self) noexcept:
        """Whether unsent bytes wait and nobody looks after them."""
        return self.last > self.first and not self.is_alerted

    cdef bint add_control(self, const char *data, Py_ssize_t size) except -1:
        """Adds a frame that dies with the link; False when there is no link to take it."""
        if not self.takes_control:
            return False
        self.reserve(size)
        self.reserve_border()
        memcpy(self.buffer + self.last, data, <size_t>size)
        self.close_frame(size, 0, False, None, 0)
        return True

    def control(self, frame: bytes) -> bool:
        """Adds a SUB or UNSUB frame; False when there is no link, which will replay it."""
        return self.add_control(PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame))

    def ping(self):
        """Adds a PING and returns its number on this link, or 0 without a link."""
        if not self.add_control(b"PING\r\n", 6):
            return 0
        self.pings += 1
        return self.pings

    def count_pongs(self, Parser parser not None):
        """How many PINGs of this link have their PONG; a PONG that nobody asked for is none."""
        return min(self.answered + (parser.pongs - parser.handled_pongs), self.pings)

    def settle_pongs(self, Parser parser not None):
        """What `count_pongs` said was dealt with."""
        self.answered = min(self.answered + (parser.pongs - parser.handled_pongs), self.pings)
        parser.handled_pongs = parser.pongs

    def answer_pings(self, Parser parser not None):
        """Adds one PONG for each PING that the parser saw.

        Not without end for a server that only writes: one PONG that waits does for many.
        """
        while parser.unanswered_pings:
            if self.pongs < MAX_PONGS:
                self.pongs += self.add_control(b"PONG\r\n", 6)
            parser.unanswered_pings -= 1

    # The link -------------------------------------------------------------------------

    cdef int push(self) except -1:
        """Gives the link all that it takes without blocking."""
        cdef Link link
        cdef Py_ssize_t sent
        cdef uint64_t epoch
        if self.is_pushing:
            # Other threads run while TLS writes; the one that writes sends their frames too.
            return 0
        self.is_pushing = True
        try:
            while self.first < self.last and self.link is not None:
                epoch = self.epoch
                # A reference of our own: another thread may give the link up meanwhile.
                link = self.link
                sent = link.write(self.buffer + self.first, self.last - self.first)
                if epoch != self.epoch:
                    # While TLS was writing, another thread ended this link.
                    continue
                if sent <= 0:
                    break
                self.pass_over(sent)
        finally:
            self.is_pushing = False
        self.open_room()
        return 0

    cdef void pass_over(self, Py_ssize_t sent) noexcept:
        """So many more bytes were sent: the tickets of frames that were begun are told, once.

        Other code may run when a ticket goes, and add frames or end the link: before that
        the numbers are right, but that more than the first frame may be sent.
        """
        cdef Border *border
        cdef PyObject *ticket
        cdef bint is_whole = True
        self.first += sent
        self.sent_of_first += sent
        while is_whole and self.sent_of_first > 0:
            border = &self.borders[self.border_first]
            ticket = border.ticket
            border.ticket = NULL
            if ticket != NULL:
                (<Awaited>ticket).frame_begun(border.number)
            is_whole = self.sent_of_first >= <Py_ssize_t>border.size
            if is_whole:
                self.sent_of_first -= <Py_ssize_t>border.size
                self.border_first += 1
            Py_XDECREF(ticket)
        if self.first == self.last:
            self.first = self.last = 0
            self.border_first = self.border_last = 0
            self.pongs = 0

    def withdraw(self, Awaited ticket not None):
        """Takes a frame back of which no byte was sent; False if there is none."""
        return self.take_back(ticket, 0)

    cdef inline bint is_unseen(self, Py_ssize_t at) noexcept:
        """Whether no byte of the frame that starts there can have been sent.

        TLS may have sent what it has seen.
        """
        return at - self.first >= (0 if self.link is None else self.link.doubtful)

    cdef bint take_back(self, Awaited ticket, uint64_t number) except -1:
        """Takes back the frame with that ticket and number if no byte of it was sent."""
        cdef Py_ssize_t i, at = self.first - self.sent_of_first
        cdef Py_ssize_t size
        for i in range(self.border_first, self.border_last):
            size = <Py_ssize_t>self.borders[i].size
            if self.borders[i].ticket == <PyObject *>ticket and self.borders[i].number == number:
                if not self.is_unseen(at):
                    return False
                memmove(
                    self.buffer + at, self.buffer + at + size, <size_t>(self.last - at - size)
                )
                self.last -= size
                self.cancel(&self.borders[i])
                memmove(
                    self.borders + i,
                    self.borders + i + 1,
                    <size_t>(self.border_last - i - 1) * sizeof(Border),
                )
                self.border_last -= 1
                return True
            at += size
        return False

    cdef uint64_t first_unseen(self, Awaited ticket, uint64_t otherwise) noexcept:
        """The number of the first frame with the ticket that `withdraw_all` can take back."""
        cdef Py_ssize_t i, at = self.first - self.sent_of_first
        for i in range(self.border_first, self.border_last):
            if self.borders[i].ticket == <PyObject *>ticket and self.is_unseen(at):
                return self.borders[i].number
            at += <Py_ssize_t>self.borders[i].size
        return otherwise

    cdef Py_ssize_t withdraw_all(self, Awaited ticket) noexcept:
        """Takes back every frame with the ticket of which no byte was sent; how many."""
        cdef Py_ssize_t i, size, taken = 0
        cdef Py_ssize_t at = self.first - self.sent_of_first
        cdef Py_ssize_t to = at
        for i in range(self.border_first, self.border_last):
            size = <Py_ssize_t>self.borders[i].size
            if self.borders[i].ticket == <PyObject *>ticket and self.is_unseen(at):
                self.cancel(&self.borders[i])
                taken += 1
            else:
                if taken:
                    memmove(self.buffer + to, self.buffer + at, <size_t>size)
                    self.borders[i - taken] = self.borders[i]
                to += size
            at += size
        self.last = to
        self.border_last -= taken
        return taken

    def send(self):
        """Gives the link all that it takes without blocking; the bytes left."""
        self.push()
        self.trim()
        return self.last - self.first

    cdef int trim(self) except -1:
        cdef char *smaller
        if self.first == self.last and self.capacity > SPARE_OUTPUT:
            smaller = <char *>PyMem_Malloc(WORTH_SENDING)
            if smaller != NULL:
                PyMem_Free(self.buffer)
                self.buffer = smaller
                self.capacity = WORTH_SENDING
        self.open_room()
        return 0

    cdef int open_room(self) except -1:
        """Lets those in who wait for a full outbox, whoever has emptied half of it."""
        cdef Gate room = self.room
        if room is not None and 2 * (self.last - self.first) <= self.high_water:
            # Other threads run while it opens, and may put a new one in its place.
            self.room = None
            room.open()
        return 0

    def look_after(self):
        """Somebody watches the unsent bytes: publishes need not ask for it."""
        self.is_alerted = True

    def look_away(self):
        """Nobody watches any more; True if there are unsent bytes all the same."""
        self.is_alerted = self.last > self.first
        return self.is_alerted

    def await_room(self):
        """A Gate that opens when half of a full outbox was sent, or the link is lost."""
        # First: the collector may run other threads while it is made.
        cdef Gate gate = Gate()
        if self.room is None:
            self.room = gate
        gate = self.room
        self.trim()
        return gate

    def leave(self):
        """The link is about to be left: requests that die with it wait for the next one.

        What was asked before can still be answered.
        """
        self.is_leaving = self.state == OUTBOX_UP

    def expect_link(self):
        """Control frames are kept from now on: a link is about to be attached."""
        self.takes_control = True

    def attach(self, Link link not None, preamble: bytes):
        """Frames go to this link from now on, the preamble first.

        Returns how many kept frames were larger than it accepts and given up.
        """
        cdef Py_ssize_t size = PyBytes_GET_SIZE(preamble)
        cdef Py_ssize_t refused = self.sift(False)
        if size:
            self.reserve(size)
            self.reserve_border()
            memmove(
                self.buffer + self.first + size,
                self.buffer + self.first,
                <size_t>(self.last - self.first),
            )
            memcpy(self.buffer + self.first, PyBytes_AS_STRING(preamble), <size_t>size)
            memmove(
                self.borders + self.border_first + 1,
                self.borders + self.border_first,
                <size_t>(self.border_last - self.border_first) * sizeof(Border),
            )
            self.borders[self.border_first].size = <uint32_t>size
            self.borders[self.border_first].payload = 0
            self.borders[self.border_first].is_kept = False
            self.borders[self.border_first].ticket = NULL
            self.border_last += 1
            self.last += size
        self.link = link
        self.epoch += 1
        self.takes_control = True
        if self.state == OUTBOX_DOWN:
            self.state = OUTBOX_UP
        self.push()
        return refused

    def detach(self):
        """The link is lost: gives up begun frames and those that die with the link."""
        if self.link is not None:
            self.pass_over(min(self.link.doubtful, self.last - self.first))
        self.link = None
        self.epoch += 1
        self.takes_control = False
        self.is_leaving = False
        # Not when the next one is attached: its first PING may be added before.
        self.pings = 0
        self.answered = 0
        self.pongs = 0
        self.sift(True)
        if self.state == OUTBOX_UP:
            self.state = OUTBOX_DOWN
        room, self.room = self.room, None
        if room is not None:
            room.open()

    cdef Py_ssize_t sift(self, bint only_kept) except -1:
        """Removes frames that may not be sent on the next link; how many were too large."""
        cdef Py_ssize_t i, size, to = 0, at
        cdef Py_ssize_t kept = 0, refused = 0
        cdef Border border
        self.cancel_unfit(only_kept)
        at = self.first
        for i in range(self.border_first, self.border_last):
            border = self.borders[i]
            size = <Py_ssize_t>border.size
            if i == self.border_first and self.sent_of_first:
                at += size - self.sent_of_first
                continue
            if self.is_fit(&border, only_kept):
                memmove(self.buffer + to, self.buffer + at, <size_t>size)
                self.borders[kept] = border
                kept += 1
                to += size
            else:
                refused += border.payload > self.max_payload
            at += size
        self.first = 0
        self.last = to
        self.border_first = 0
        self.border_last = kept
        self.sent_of_first = 0
        return refused

    cdef inline bint is_fit(self, const Border *border, bint only_kept) noexcept:
        """Whether a frame may be sent on the next link."""
        return border.payload <= self.max_payload and (border.is_kept or not only_kept)

    cdef void cancel_unfit(self, bint only_kept) noexcept:
        """Tells the tickets of frames that are about to be removed, while all stand yet."""
        cdef Py_ssize_t i = self.border_first
        cdef bint is_last
        while i < self.border_last:
            is_last = False
            if self.borders[i].ticket != NULL and not self.is_fit(&self.borders[i], only_kept):
                is_last = Py_REFCNT(self.borders[i].ticket) == 1
                self.cancel(&self.borders[i])
            # Where other code may have run, frames may have moved.
            i = self.border_first if is_last else i + 1

    def refuse(self, refusal):
        """Every publish raises what refusal() makes, from now on."""
        self.refusal = refusal
        self.state = OUTBOX_REFUSING

    def abandon(self, refusal):
        """Drops everything and the link itself, without a system call."""
        self.refuse(refusal)
        self.link = None
        self.epoch += 1
        self.takes_control = False
        self.drop_tickets()
        self.first = self.last = self.border_first = self.border_last = 0
        self.sent_of_first = 0

    def unsent(self):
        """A copy of the bytes not sent yet, for tests."""
        return self.buffer[self.first:self.last]


def sub_frame(subject: str, queue: str | None, int64_t sid) -> bytes:
    """The SUB frame of a subscription whose subject and queue were checked."""
    cdef bytes tokens = encode_text(subject)
    if queue is not None:
        tokens = b"%b %b" % (tokens, encode_text(queue))
    if PyBytes_GET_SIZE(tokens) + 24 > ARGUMENT_LIMIT:
        raise InvalidArgumentError(
            f"subject and queue together must not be longer than {ARGUMENT_LIMIT - 24} bytes"
        )
    return b"SUB %b %d\r\n" % (tokens, sid)


def unsub_frame(int64_t sid, uint64_t limit=0) -> bytes:
    """The UNSUB frame of a subscription, at once or after `limit` messages in all."""
    return b"UNSUB %d %d\r\n" % (sid, limit) if limit else b"UNSUB %d\r\n" % sid


def connect_frame(options: bytes) -> bytes:
    """The CONNECT frame with these JSON options."""
    return b"CONNECT %b\r\n" % options


# ---------------------------------------------------------------------------------------
# Publishes under way

cdef enum SlotState:
    SLOT_FREE
    SLOT_WAITING
    SLOT_STORED
    SLOT_MIXED               # of rows that share it some are stored, if any, some refused
    SLOT_ANSWERED            # with something that is not the usual ack
    SLOT_FAILED              # before it was sent, or refused by the server's -ERR
    SLOT_LOST                # it was sent, at least in part, and its link is gone
    SLOT_UNSENT              # no byte of it was sent, and none will be
    SLOT_OVERDUE             # it was sent, and its ack did not come in time
    SLOT_LATE                # it was not sent in time, and will not be

# What `take_odd` and `sweep` tell; the same words in the stub.
cdef dict SLOT_NAMES = {
    SLOT_ANSWERED: "answered",
    SLOT_FAILED: "failed",
    SLOT_LOST: "lost",
    SLOT_UNSENT: "unsent",
    SLOT_OVERDUE: "overdue",
    SLOT_LATE: "late",
    SLOT_MIXED: "mixed",
}


cdef struct Slot:
    SlotState state
    uint32_t next            # in the list of those under way, or of the free ones
    uint32_t previous
    uint64_t seq
    uint64_t turn            # of the subjects; where the ack goes
    uint64_t frame           # the how manieth frame is its own, or the first of its own
    Py_ssize_t row           # of its Rows, or the first of them
    uint32_t rows            # that share it; 1 for every other publish
    uint32_t answers         # that came, of several rows
    uint32_t acks            # among these, the usual ones
    uint32_t duplicates      # among these, those of what is stored already
    int64_t due_ns           # when its ack is overdue, on the core's own clock
    Span subject
    PyObject *holder         # of the subject's bytes: Rows, a str, bytes, a Pledge; an error
    PyObject *answer         # the PubAck, the Msg or the exception; or NULL


# So many subjects recur, or more if more publishes are under way at once. Servers remember
# where the last 512 of each publisher went.
cdef enum:
    FEW_SLOTS = 480
    NUMBER_SIZE = 20


cdef class Slots(Answers):
    """Publishes on their way to streams, in their order: a slot for each.

    The acks come to an inbox of its own, whose subjects end with the number of the slot, so an
    ack finds it without a table, and a server that knows these subjects by heart stores a third
    more. The slot that was free for longest is taken first, so that late answers find nobody.
    All slots get new subjects when an answer to what was given up may still come, and at every
    use when more than one answers. Few subjects are remembered better than many: only when acks
    take long to come does the window grow up to its limit.

    Frames are sent in the order in which they entered the outbox: one number, `begun`, tells
    which were. A subclass says what becomes of a publish that has ended.
    """

    cdef readonly str prefix           # of the inbox; ends with a dot
    cdef char *reply                   # the prefix, and room for a number
    cdef Py_ssize_t prefix_size
    cdef Outbox outbox
    cdef Slot *slots                   # and two more, the borders of lists
    cdef uint32_t border               # between the youngest and the oldest under way
    cdef uint32_t used                 # slots that were used, from 0 on
    cdef uint32_t first_free           # the one that was free for longest, or the border
    cdef uint32_t last_free
    cdef Py_ssize_t count              # of publishes under way
    cdef int bits                      # of a slot's number
    cdef uint64_t turn                 # of the subjects of acks
    cdef bint is_unsure                # more than one answers: every use is a new turn
    cdef readonly Msg stray            # a refusal that may be of any publish, or None
    cdef uint64_t frames               # that entered the outbox
    cdef uint64_t begun                # those below it were sent, in part at least, or withdrawn
    cdef readonly Py_ssize_t limit
    cdef readonly Py_ssize_t width     # how many may be under way for the time being
    cdef readonly Py_ssize_t outstanding
    cdef readonly object gone          # why the last link is gone, or None
    cdef readonly object reason        # why nothing more is answered, or None
    cdef readonly uint64_t unclaimed   # answers that nobody waited for
    cdef object literal                # the subject that was checked last

    cdef object checked_span(self, object subject, Span *to):
        """Checks a subject, unless it is the last one again, and lends its bytes."""
        holder = text_span(subject, "subject", to)
        if subject is not self.literal:
            refuse_subject(subject, "subject", check_subject_bytes(to.at, to.size))
            refuse_wildcard(subject, to)
            self.literal = subject
        return holder

    cdef int set_up(self, object prefix, Outbox outbox, Py_ssize_t limit) except -1:
        cdef bytes text = encode_text(prefix)
        cdef uint32_t i
        if self.slots != NULL:
            raise TypeError("a window is made once")
        if not 0 < limit < INT32_MAX:
            raise InvalidArgumentError(f"a window must have from 1 to {INT32_MAX} places: {limit}")
        self.prefix = prefix
        self.prefix_size = PyBytes_GET_SIZE(text)
        self.outbox = outbox
        self.limit = limit
        self.border = <uint32_t>max(limit, FEW_SLOTS)
        self.start_anew()
        while <uint64_t>1 << self.bits < self.border:
            self.bits += 1
        self.reply = <char *>PyMem_Malloc(<size_t>self.prefix_size + NUMBER_SIZE)
        if self.reply == NULL:
            raise MemoryError
        # Last: whoever finds slots relies on their borders.
        self.slots = <Slot *>PyMem_Malloc((<size_t>self.border + 2) * sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError
        memcpy(self.reply, PyBytes_AS_STRING(text), <size_t>self.prefix_size)
        for i in range(self.border, self.border + 2):
            self.slots[i].next = self.slots[i].previous = i
            self.slots[i].state = SLOT_FREE
            self.slots[i].holder = NULL
        return 0

    cdef void start_anew(self) noexcept:
        """None is under way: few slots are enough."""
        self.width = min(self.limit, FEW_SLOTS)
        self.used = 0
        self.first_free = self.last_free = self.border

    def __dealloc__(self):
        if self.slots != NULL:
            while self.count:
                self.release(self.oldest())
        PyMem_Free(self.slots)
        PyMem_Free(self.reply)

    cdef void frame_begun(self, uint64_t number) noexcept:
        self.begun = number + 1

    @property
    def time_left(self):
        """The seconds until the ack of the oldest publish is overdue."""
        if self.slots[self.border].next == self.border:
            return INFINITY
        return <double>(self.oldest().due_ns - jsc_now_ns()) * 1e-9

    @property
    def is_awaited(self):
        """Whether a publish that was added has no answer yet."""
        return self.outstanding > 0

    def widen(self):
        """Acks take their time: more publishes may be under way."""
        self.width = min(self.limit, 2 * self.width)

    cdef inline Slot *oldest(self) noexcept:
        """The border if there is none."""
        return &self.slots[self.slots[self.border].next]

    # Frames ---------------------------------------------------------------------------

    cdef int admit(self, Span to, Span head, Span body) except -1:
        """Whether the outbox takes such a message now, as its `admit`."""
        return ASK_LINK if self.outbox.is_leaving else self.readmit(to, head, body)

    cdef int readmit(self, Span to, Span head, Span body) except -1:
        """The same for a message that has a place already: its link waits for its outcome."""
        return self.outbox.admit(
            to.size + self.prefix_size + NUMBER_SIZE, head.size + body.size, True, True
        )

    cdef int post(
        self, Span to, Span head, Span body, object holder, Py_ssize_t row, int64_t timeout_ns
    ) except -1:
        """Publishes a message from a slot of its own; there is one, and the outbox has room.

        ASK_NOTHING or ASK_ALERT.
        """
        cdef Slot *slot
        slot = self.enter(to, holder, SLOT_WAITING, jsc_coarse_ns() + timeout_ns)
        slot.row = row
        self.outbox.append(to, self.reply_of(slot), head, body, False, self, slot.frame)
        return self.outbox.send_due(PROMPT)

    cdef Slot *enter(
        self, Span subject, object holder, SlotState state, int64_t due_ns
    ) noexcept:
        """A publish takes the slot that was free for longest, and is the youngest."""
        cdef uint32_t number = self.first_free
        cdef Slot *slot
        if self.used < FEW_SLOTS or number == self.border:
            number = self.used
            self.used += 1
            slot = &self.slots[number]
        else:
            slot = &self.slots[number]
            self.first_free = slot.next
            if self.is_unsure and slot.turn == self.turn:
                self.turn += 1
        slot.state = state
        slot.subject = subject
        slot.due_ns = due_ns
        slot.row = 0
        slot.rows = 1
        slot.answers = slot.acks = slot.duplicates = 0
        slot.seq = 0
        slot.answer = NULL
        slot.holder = <PyObject *>holder
        Py_INCREF(holder)
        slot.turn = self.turn
        self.link_in(slot, self.border)
        self.count += 1
        if state == SLOT_WAITING:
            slot.frame = self.frames
            self.frames += 1
            self.outstanding += 1
        return slot

    cdef Span reply_of(self, const Slot *slot) noexcept:
        """Where its ack goes."""
        cdef Span span
        cdef uint64_t number = <uint64_t>(slot - self.slots) | slot.turn << self.bits
        span.at = self.reply
        span.size = self.prefix_size + write_uint(self.reply + self.prefix_size, number)
        return span

    cdef void link_in(self, Slot *slot, uint32_t border) noexcept:
        """Makes it the youngest of the list with that border."""
        cdef uint32_t number = <uint32_t>(slot - self.slots)
        slot.next = border
        slot.previous = self.slots[border].previous
        self.slots[slot.previous].next = number
        self.slots[border].previous = number

    cdef void link_out(self, Slot *slot) noexcept:
        self.slots[slot.previous].next = slot.next
        self.slots[slot.next].previous = slot.previous

    cdef void release(self, Slot *slot) noexcept:
        """A publish that is over leaves its slot."""
        cdef uint32_t number = <uint32_t>(slot - self.slots)
        cdef PyObject *holder = slot.holder
        cdef PyObject *answer = slot.answer
        slot.holder = slot.answer = NULL
        # What comes for it now would be a second answer, if it got one at all.
        if slot.state > SLOT_ANSWERED:
            slot.state = SLOT_FREE
        self.link_out(slot)
        slot.next = self.border
        if self.first_free == self.border:
            self.first_free = number
        else:
            self.slots[self.last_free].next = number
        self.last_free = number
        self.count -= 1
        if self.count == 0 and self.width > FEW_SLOTS:
            self.start_anew()
            self.turn += 1
        # Other code may run from here on.
        Py_XDECREF(holder)
        Py_XDECREF(answer)

    # Outcomes -------------------------------------------------------------------------

    cdef int acked(
        self, Slot *slot, const Frame *frame, const AckBody *body, Parser parser
    ) except -1:
        """A publish got the usual ack."""
        return 0

    cdef int ending(self, Slot *slot, Parser parser) except -1:
        """A publish gets another end, which the parser brings or not. What may fail is here."""
        return 0

    cdef int end(
        self, Slot *slot, SlotState state, object answer=None, Parser parser=None
    ) except -1:
        self.ending(slot, parser)
        if answer is not None:
            Py_INCREF(answer)
            slot.answer = <PyObject *>answer
        slot.state = state
        self.outstanding -= 1
        return 0

    cdef int deliver(self, const Frame *frame, Parser parser) except -1:
        cdef uint64_t number = 0, index
        cdef AckBody body
        cdef Slot *slot
        cdef bint is_ours, is_usual
        if (
            frame.subject_size > self.prefix_size
            and memcmp(frame.subject, self.reply, <size_t>self.prefix_size) == 0
        ):
            is_ours = parse_uint64(
                frame.subject + self.prefix_size, frame.subject_size - self.prefix_size, &number
            )
            index = number & ((<uint64_t>1 << self.bits) - 1)
            slot = &self.slots[index]
            is_ours = is_ours and index < self.used and slot.turn == number >> self.bits
        else:
            # The server rewrote the subject; with one on its way it can only be its ack.
            slot = self.oldest()
            is_ours = self.outstanding == 1 and slot.next == slot.previous
        if not is_ours or slot.state != SLOT_WAITING:
            self.unclaimed += 1
            if is_ours and SLOT_STORED <= slot.state <= SLOT_ANSWERED:
                return self.doubt(frame)
            return 0
        is_usual = frame.header_size == 0 and read_ack_body(frame.data, frame.data_size, &body)
        if slot.rows > 1:
            return self.tally(slot, frame.data, &body if is_usual else NULL, parser)
        if is_usual:
            return self.acked(slot, frame, &body, parser)
        return self.end(slot, SLOT_ANSWERED, make_msg(frame, None), parser)

    cdef int tally(
        self, Slot *slot, const char *data, const AckBody *body, Parser parser
    ) except -1:
        """One of the rows that share a slot was answered; with the usual ack if there is a body."""
        return 0

    cdef int doubt(self, const Frame *frame) except -1:
        """A publish was answered twice: which answer was meant for which, nobody can tell."""
        cdef AckBody body
        self.is_unsure = True
        self.turn += 1
        if self.stray is None and frame.data_size and frame.data[0] == c'{' and (
            not read_ack_body(frame.data, frame.data_size, &body)
        ):
            # What a stream may have said. Anything else is no stream's word.
            self.stray = make_msg(frame, None)
        return 0

    cdef tuple outcome(self, const Slot *slot):
        answer = None if slot.answer == NULL else <object>slot.answer
        if slot.state == SLOT_MIXED and slot.acks == 0:
            return "refused", answer, decode_text(slot.subject.at, slot.subject.size)
        subject = "" if slot.subject.at == NULL else decode_text(
            slot.subject.at, slot.subject.size
        )
        return SLOT_NAMES[slot.state], answer, subject

    # What ends waits ------------------------------------------------------------------

    def give_up_oldest(self):
        """The time of the oldest publish is over: it is withdrawn, or a late ack ignored."""
        cdef Slot *slot = self.oldest()
        cdef SlotState state = SLOT_OVERDUE
        if slot.state != SLOT_WAITING:
            return
        self.turn += 1
        if slot.frame >= self.begun and self.outbox.take_back(self, slot.frame):
            state = SLOT_LATE
            if slot.frame == self.begun:
                self.begun += 1
        self.end(slot, state)

    def withdraw(self):
        """Takes back all of which no byte was sent; how many. Nothing may be added after."""
        cdef uint64_t first = self.outbox.first_unseen(self, self.frames)
        cdef Py_ssize_t taken = self.outbox.withdraw_all(self)
        self.end_all(SLOT_WAITING, first)
        self.cut_off(first)
        return taken

    cdef int cut_off(self, uint64_t first_unsent) except -1:
        """Rows that share a slot with others are not sent from that frame on."""
        return 0

    cdef int end_all(self, SlotState begun, uint64_t first_unsent) except -1:
        """Ends what waits: as unsent from that frame on, before it in the other way, if any."""
        cdef uint32_t number = self.slots[self.border].next
        cdef Slot *slot
        while number < self.border:
            slot = &self.slots[number]
            number = slot.next
            if slot.state == SLOT_WAITING:
                if slot.frame >= first_unsent:
                    self.end(slot, SLOT_UNSENT)
                elif begun != SLOT_WAITING:
                    self.end(slot, begun)
        return 0

    cdef int lose(self) except -1:
        """No ack comes any more for what waits."""
        cdef uint64_t begun = self.begun
        self.turn += 1
        self.begun = self.frames
        self.end_all(SLOT_LOST, begun)
        self.wake(INT64_MAX)
        return 0

    def fail_tied(self, error):
        """The link is lost, and with it what was under way; the outbox has given it up."""
        self.gone = error
        self.lose()

    def fail_all(self, error):
        """Nothing is answered any more; what can be taken back is."""
        if self.reason is None:
            self.reason = error
        self.withdraw()
        # What TLS has seen counts as sent.
        self.begun = self.frames
        self.lose()

    def fail_subject(self, subject, error):
        """Ends the oldest publish to the subject with the error; False if there is none.

        The server has refused it: it was sent.
        """
        cdef uint32_t number = self.slots[self.border].next
        cdef Slot *slot
        cdef bytes text = encode_text(subject)
        while number < self.border:
            slot = &self.slots[number]
            number = slot.next
            if slot.state != SLOT_WAITING:
                continue
            if slot.frame >= self.begun:
                break
            if (
                slot.subject.size == PyBytes_GET_SIZE(text)
                and memcmp(slot.subject.at, PyBytes_AS_STRING(text), len(text)) == 0
            ):
                if slot.rows > 1:
                    self.tally(slot, NULL, NULL, None)
                else:
                    self.end(slot, SLOT_FAILED, error)
                self.wake(INT64_MAX)
                return True
        return False


@cython.final
cdef class Window(Slots):
    """Publishes whose outcomes are taken in their order, from the oldest on.

    `publish_all` feeds it from an iterator and takes PubAcks; rows of columns are only counted.
    """

    cdef Py_ssize_t low                # a wait is over when no more are outstanding
    cdef bint keeps_acks
    # So many rows at most have one subject for their acks: then a server that remembers few
    # subjects can have many rows on their way. Which of them an odd answer is about cannot be
    # told, so only rows share that may be published once more, each alone.
    cdef public uint32_t sharing
    cdef Py_ssize_t shared             # rows under way that have no slot of their own
    cdef bytes stream                  # whose acks those are, and its domain
    cdef readonly object pending       # what the source gave and did not find room
    cdef readonly bint is_exhausted    # the source has ended
    cdef readonly uint64_t stored
    cdef readonly uint64_t duplicates
    cdef readonly uint64_t first_seq   # of all acks so far; 0 without any
    cdef readonly uint64_t last_seq

    def __init__(self, prefix, Outbox outbox not None, Py_ssize_t limit, bint keeps_acks=False):
        self.set_up(prefix, outbox, limit)
        self.low = -1
        self.keeps_acks = keeps_acks
        self.sharing = 1

    def __len__(self):
        """Publishes whose outcome was not taken yet."""
        return self.count + self.shared

    cdef bint is_ready(self) noexcept:
        return self.outstanding <= self.low

    @property
    def is_full(self):
        """Whether no more may be under way now."""
        return self.is_filled()

    cdef inline bint is_filled(self) noexcept:
        return self.count >= self.width or self.count + self.shared >= self.limit

    @property
    def has_outcome(self):
        """Whether the oldest publish is no longer waiting."""
        return self.count > 0 and self.oldest().state != SLOT_WAITING

    @property
    def is_sent(self):
        """Whether the link has begun to take every publish."""
        return self.begun == self.frames

    @property
    def oldest_row(self):
        """(rows, row) of the oldest publish, if it is one of rows."""
        if self.count:
            holder = <object>self.oldest().holder
            if isinstance(holder, Rows):
                return holder, self.oldest().row
        return None

    def await_some(self, bint is_all=False):
        """The next wait for this window lasts until a good part of it has been answered.

        An eighth is worth a wake-up; the rest keeps the server busy meanwhile.
        """
        cdef Py_ssize_t part = self.outstanding if is_all else max(1, self.outstanding // 8)
        self.low = max(0, self.outstanding - part)

    # Messages -------------------------------------------------------------------------

    def feed(self, source, double timeout):
        """Publishes what the iterator gives until the window is full or an outcome is due.

        Returns ASK_NOTHING, ASK_ALERT, or ASK_ROOM when the next message has to wait for that.
        Each message gets `timeout` seconds for its ack.

        What the iterator raises comes out of here, and so does what is wrong with a message,
        or DisconnectedError without a link: then the message is `pending`, and is tried again
        by the next call unless `refuse_pending` is called.
        """
        cdef int asked = ASK_NOTHING, result = ASK_NOTHING
        cdef int64_t timeout_ns = <int64_t>(min(timeout, 1e9) * 1e9)
        if self.count:
            self.outbox.go_on()
        while (
            not self.is_exhausted
            and self.count < self.width
            and (self.count == 0 or self.oldest().state == SLOT_WAITING)
        ):
            if self.pending is None:
                self.pending = next(source, NOTHING)
                if self.pending is NOTHING:
                    self.pending = None
                    self.is_exhausted = True
                    break
            asked = self.add_message(self.pending, timeout_ns)
            if asked == ASK_ROOM:
                return asked
            result |= asked
            self.pending = None
        return result

    cdef int add_message(self, object message, int64_t timeout_ns) except -1:
        cdef Span to, head, body
        cdef Py_buffer view
        cdef bint is_borrowed
        cdef int asked
        cdef object subject, data, holder, headers = None
        cdef bytes block
        if self.reason is not None:
            raise self.reason
        if not isinstance(message, (tuple, list)) or not 2 <= len(message) <= 3:
            raise TypeError(
                "each message must be a tuple (subject, data) or (subject, data, headers), "
                f"not {message!r:.200}"
            )
        if len(message) == 3:
            subject, data, headers = message
        else:
            subject, data = message
        holder = self.checked_span(subject, &to)
        block = None if headers is None else encode_headers(headers)
        block_span(block, &head)
        is_borrowed = borrow_data(data, &body, &view)
        try:
            asked = self.outbox.need(self.admit(to, head, body))
            if asked == ASK_NOTHING:
                asked = self.post(to, head, body, holder, 0, timeout_ns)
        finally:
            if is_borrowed:
                PyBuffer_Release(&view)
        return asked

    def refuse_pending(self, error):
        """The message that waits for room or a link is not sent: this becomes its outcome."""
        cdef Slot *slot
        cdef Span nothing
        nothing.at = NULL
        nothing.size = 0
        if self.pending is not None:
            self.pending = None
            slot = self.enter(nothing, error, SLOT_FAILED, 0)
            Py_INCREF(error)
            slot.answer = <PyObject *>error

    def end_source(self):
        """Nothing more is taken from the source."""
        self.is_exhausted = True
        self.pending = None

    def clear(self):
        """Forgets every publish: nobody asks for its outcome any more.

        The collector does not see what slots hold, and an error in them may lead back here.
        """
        cdef Slot *slot
        while self.count:
            slot = self.oldest()
            if slot.state == SLOT_WAITING:
                slot.state = SLOT_FREE
                self.outstanding -= 1
            self.release(slot)

    def take(self):
        """The PubAcks of the oldest publishes, up to the first that has none."""
        cdef Slot *slot
        cdef list acks = []
        while self.count:
            slot = self.oldest()
            if slot.state != SLOT_STORED:
                break
            acks.append(<object>slot.answer)
            self.release(slot)
        return acks

    def take_odd(self):
        """(what became of it, answer or error, subject) of the oldest publish if it has no ack."""
        cdef Slot *slot = self.oldest()
        if self.count == 0 or slot.state not in SLOT_NAMES:
            return None
        outcome = self.outcome(slot)
        self.release(slot)
        return outcome

    # Rows -----------------------------------------------------------------------------

    def fill(self, Rows rows not None, known=None):
        """Publishes rows from their `position` on until the window is full or all are sent.

        Returns ASK_NOTHING, ASK_ALERT or ASK_ROOM. Rows whose ids are in `known`, a set of
        bytes, count as duplicates. Raises what is wrong with the row at `position`, or
        DisconnectedError without a link.
        """
        self.outbox.go_on()
        while rows.position < rows.count and not self.is_filled():
            if self.add_row(rows, rows.position, known, rows.is_repeatable) == ASK_ROOM:
                return ASK_ROOM
            rows.position += 1
        # The last ones do not stay.
        self.outbox.push()
        return ASK_ALERT if self.outbox.is_neglected() else ASK_NOTHING

    def publish_row(self, Rows rows not None, Py_ssize_t row):
        """Publishes one row once more; what it returns and raises is what `fill` does."""
        if not 0 <= row < rows.count:
            raise IndexError("there is no such row")
        if self.is_filled():
            raise IndexError("the window is full")
        return self.add_row(rows, row, None, False)

    cdef int add_row(
        self, Rows rows, Py_ssize_t row, object known, bint may_share
    ) except -1:
        cdef Span to, head, body
        cdef Slot *slot
        if self.reason is not None:
            raise self.reason
        rows.subject_of(row, &to)
        if not rows.data.at(row, &body):
            body.size = 0
        rows.encode_head(row, &head)
        if known is not None and rows.id_size:
            if PyBytes_FromStringAndSize(rows.scratch + rows.id_start, rows.id_size) in known:
                self.duplicates += 1
                return ASK_NOTHING
        if self.outbox.need(self.admit(to, head, body)):
            return ASK_ROOM
        slot = &self.slots[self.slots[self.border].previous]
        if not may_share or not self.can_share(slot, rows, row, to):
            return self.post(to, head, body, rows, row, 0)
        slot.rows += 1
        self.shared += 1
        self.frames += 1
        self.outbox.append(to, self.reply_of(slot), head, body, False, self, self.frames - 1)
        return self.outbox.send_due(PROMPT)

    cdef bint can_share(self, const Slot *slot, Rows rows, Py_ssize_t row, Span to) noexcept:
        """Whether a row may have the slot of the youngest publish, which is of the row before."""
        return (
            slot.rows < self.sharing
            and slot.state == SLOT_WAITING
            and slot.answers == 0
            and not self.is_unsure
            and slot.turn == self.turn
            and slot.holder == <PyObject *>rows
            and slot.row + <Py_ssize_t>slot.rows == row
            and slot.frame + slot.rows == self.frames
            and slot.subject.size == to.size
            and memcmp(slot.subject.at, to.at, <size_t>to.size) == 0
        )

    def count_up(self, uint64_t seq, bint is_duplicate):
        """One more row is in the stream."""
        self.count_rows(1, is_duplicate)
        self.note_place(seq)

    cdef inline void count_rows(self, uint32_t rows, uint32_t duplicates) noexcept:
        self.stored += rows - duplicates
        self.duplicates += duplicates

    cdef inline void note_place(self, uint64_t seq) noexcept:
        # A duplicate of what is not stored yet has none.
        if seq:
            self.last_seq = max(self.last_seq, seq)
            self.first_seq = seq if self.first_seq == 0 else min(self.first_seq, seq)

    def sweep(self, bint is_last=False):
        """Counts the oldest rows that are stored; (rows, row, what, answer, subject) of others.

        `what` is as `take_odd` has it. With the last sweep, of rows of which some are stored
        and some refused only the former count, and the latter are not told.
        """
        cdef Slot *slot
        cdef list others = []
        cdef uint32_t i
        while self.count:
            slot = self.oldest()
            if slot.state == SLOT_WAITING:
                break
            if slot.state == SLOT_STORED or (slot.state == SLOT_MIXED and is_last):
                self.count_rows(slot.acks, slot.duplicates)
            else:
                outcome = self.outcome(slot)
                for i in range(slot.rows):
                    others.append((<object>slot.holder, slot.row + i, *outcome))
            self.shared -= slot.rows - 1
            self.release(slot)
        return others

    def give_up(self):
        """Late acks are ignored: what waits still has been sent and is overdue."""
        self.turn += 1
        self.end_all(SLOT_OVERDUE, self.frames)

    # Outcomes -------------------------------------------------------------------------

    cdef int acked(
        self, Slot *slot, const Frame *frame, const AckBody *body, Parser parser
    ) except -1:
        cdef PubAck ack
        self.ending(slot, parser)
        if self.keeps_acks:
            ack = make_pub_ack(frame.data, body)
            Py_INCREF(ack)
            slot.answer = <PyObject *>ack
        slot.acks = 1
        slot.duplicates = body.is_duplicate
        self.note_place(body.seq)
        slot.state = SLOT_STORED
        self.outstanding -= 1
        return 0

    cdef int tally(
        self, Slot *slot, const char *data, const AckBody *body, Parser parser
    ) except -1:
        cdef bint is_ack = body != NULL and self.is_next(slot, data, body)
        if slot.answers + 1 == slot.rows:
            self.ending(slot, parser)
        # Nothing fails from here on.
        slot.answers += 1
        if is_ack:
            slot.acks += 1
            slot.duplicates += body.is_duplicate
            slot.seq = max(slot.seq, 0 if body.is_duplicate else body.seq)
            self.note_place(body.seq)
        self.close_tally(slot)
        return 0

    cdef void close_tally(self, Slot *slot) noexcept:
        """Ends what rows share when all of them were answered."""
        if slot.answers == slot.rows:
            slot.state = SLOT_STORED if slot.acks == slot.rows else SLOT_MIXED
            self.outstanding -= 1

    cdef bint is_next(self, const Slot *slot, const char *data, const AckBody *body) except -1:
        """Whether an ack is of the stream that gave the others, and of a row of its own.

        One stream acknowledges what one publisher sends in its order. Where two answer, two acks
        could be of one row.
        """
        cdef Py_ssize_t size = body.stream.size + 12 + body.domain.size if body.domain.size else (
            body.stream.size
        )
        if self.stream is None:
            self.stream = data[body.stream.start:body.stream.start + size]
        if PyBytes_GET_SIZE(self.stream) != size or memcmp(
            PyBytes_AS_STRING(self.stream), data + body.stream.start, <size_t>size
        ) != 0:
            return False
        return body.is_duplicate or body.seq > slot.seq

    cdef int cut_off(self, uint64_t first_unsent) except -1:
        cdef Slot *slot
        cdef Slot *rest
        cdef uint32_t number = self.slots[self.border].next
        while number < self.border:
            slot = &self.slots[number]
            number = slot.next
            if slot.state == SLOT_WAITING and slot.frame + slot.rows > first_unsent:
                # There is a slot for them: as long as rows share some are left.
                rest = self.enter(slot.subject, <object>slot.holder, SLOT_UNSENT, 0)
                rest.rows = <uint32_t>(slot.frame + slot.rows - first_unsent)
                slot.rows -= rest.rows
                rest.row = slot.row + slot.rows
                self.shared -= 1
                self.close_tally(slot)
                break
        return 0

    cdef int ending(self, Slot *slot, Parser parser) except -1:
        if parser is not None and self.sleepers and self.outstanding - 1 <= self.low:
            parser.stir(self)
        return 0


cdef class Pledge(Awaited):
    """What a publish ends with, its ack or an error: what its future is made of.

    It is settled once. An ack settles it as soon as it is parsed.
    """

    cdef readonly object subject
    cdef object lender                 # of the subject's bytes
    cdef bytes data                    # kept for another try, as the header block is
    cdef bytes block
    cdef readonly str msg_id
    cdef readonly int retries          # that are left
    cdef readonly object owner
    cdef str stream                    # what the usual ack says, of which `ack` is made
    cdef str domain
    cdef uint64_t seq
    cdef bint is_duplicate
    cdef PubAck made
    cdef readonly object error
    cdef readonly bint is_settled
    cdef public bint is_observed       # somebody wants to be told, besides those who wait here

    cdef bint is_ready(self) noexcept:
        return self.is_settled

    @property
    def ack(self):
        """The PubAck, or None."""
        if self.made is None and self.stream is not None:
            self.made = new_pub_ack(self.stream, self.seq, self.is_duplicate, self.domain)
        return self.made

    cdef void close(self) noexcept:
        """It has its outcome."""
        self.is_settled = True
        self.data = self.block = None
        if not PyObject_GC_IsTracked(self):
            PyObject_GC_Track(self)

    def settle(self, PubAck ack, error=None):
        """Ends the wait; the first outcome counts."""
        if not self.is_settled:
            self.made = ack
            self.error = error
            self.close()
            self.wake(INT64_MAX)


@cython.final
cdef class Pledges(Slots):
    """Publishes whose outcomes settle pledges, in whatever order they come.

    Those that get the usual ack are over with it. The others wait to be looked at, as `odd`,
    or to be sent again, in `again`; they keep their places in the window. What somebody has to
    do is noticed: odd outcomes, settled pledges that are `observed`, gates that are due.
    """

    cdef type kind                     # of pledge
    cdef object owner
    cdef object attend                 # called with whether unsent bytes wait
    cdef int64_t timeout_ns
    cdef int retries
    cdef readonly object observed      # a deque
    cdef readonly dict again           # pledge -> when; in the order of these times
    cdef readonly dict gates           # gate -> how few publishes without an outcome open it
    cdef Py_ssize_t watched            # the largest of these, or -1
    cdef bint is_noticed
    cdef str last_stream               # that has acknowledged something

    def __init__(
        self,
        prefix,
        Outbox outbox not None,
        Py_ssize_t limit,
        type kind not None,
        owner,
        attend,
        *,
        double timeout,
        int retries=0,
    ):
        if not issubclass(kind, Pledge):
            raise TypeError("kind must be a kind of Pledge")
        self.set_up(prefix, outbox, limit)
        self.kind = kind
        self.owner = owner
        self.attend = attend
        self.timeout_ns = <int64_t>(min(timeout, 1e9) * 1e9)
        self.retries = retries
        self.observed = deque()
        self.again = {}
        self.gates = {}
        self.watched = -1

    def __dealloc__(self):
        if self.slots != NULL:
            while self.first_odd().holder != NULL:
                self.release(self.first_odd())

    cdef inline Py_ssize_t unsettled(self) noexcept:
        return self.count + PyDict_Size(self.again)

    @property
    def pending(self):
        """Publishes without an outcome."""
        return self.unsettled()

    @property
    def is_awaited(self):
        """Whether a publish that was added has no answer yet, or will be sent again."""
        return self.unsettled() > 0

    @property
    def is_full(self):
        """Whether no more may be under way now."""
        return self.unsettled() >= self.width

    # Publishing -----------------------------------------------------------------------

    cpdef Pledge launch(self, object subject, object data, bytes block=None, str msg_id=None):
        """Publishes a message; the pledge of its ack.

        None if it cannot be done now: the window is full, there is no link or no room in the
        outbox, or data is no bytes object.
        """
        cdef Pledge pledge
        cdef Span to
        if self.reason is not None:
            raise self.reason
        if self.unsettled() >= self.width or type(data) is not bytes:
            return None
        # Before the outbox is asked: the collector may run other code here.
        pledge = <Pledge>jsc_new(self.kind, ())
        # Its slot holds it, and the collector does not see that: it would look at it in vain
        # until it is settled.
        PyObject_GC_UnTrack(pledge)
        pledge.lender = self.checked_span(subject, &to)
        pledge.subject = subject
        pledge.data = data
        pledge.block = block
        pledge.msg_id = msg_id
        pledge.retries = self.retries
        pledge.owner = self.owner
        return pledge if self.send(pledge, to, False) else None

    def send_again(self, Pledge pledge not None, double later):
        """Publishes a message of `again` once more, or later if that cannot be now; whether."""
        cdef Span to
        if pledge.is_settled:
            self.again.pop(pledge, None)
            return True
        if type(pledge.lender) is bytes:
            to.at = PyBytes_AS_STRING(pledge.lender)
            to.size = PyBytes_GET_SIZE(pledge.lender)
        else:
            text_span(pledge.lender, "subject", &to)
        if self.send(pledge, to, True):
            return True
        if pledge in self.again:
            self.again[pledge] = later
        return False

    cdef bint send(self, Pledge pledge, Span to, bint is_again) except -1:
        """Whether it was sent, or need not be any more."""
        cdef Span head, body
        cdef bint was_idle
        cdef int asked
        block_span(pledge.block, &head)
        body.at = PyBytes_AS_STRING(pledge.data)
        body.size = PyBytes_GET_SIZE(pledge.data)
        asked = self.readmit(to, head, body) if is_again else self.admit(to, head, body)
        if asked:
            return False
        # Other threads ran if TLS had to make the room.
        if self.reason is not None:
            raise self.reason
        was_idle = self.outstanding == 0
        if is_again:
            if self.again.pop(pledge, None) is None:
                return True
        elif self.unsettled() >= self.width:
            return False
        asked = self.post(to, head, body, pledge, 0, self.timeout_ns)
        if was_idle or asked:
            self.attend(asked == ASK_ALERT)
        return True

    # Outcomes -------------------------------------------------------------------------

    cdef int acked(
        self, Slot *slot, const Frame *frame, const AckBody *body, Parser parser
    ) except -1:
        cdef Pledge pledge = <Pledge>slot.holder
        cdef str stream = self.stream_of(frame.data, body)
        cdef str domain = None
        if body.domain.size:
            domain = recurring_text(frame.data + body.domain.start, body.domain.size)
        if pledge.sleepers:
            parser.stir(pledge)
        if pledge.is_observed or self.unsettled() - 1 <= self.watched:
            self.notice(parser)
        # A frame whose delivery fails is parsed again: it is put there once.
        if pledge.is_observed:
            self.observed.append(pledge)
        # Nothing fails from here on.
        pledge.stream = stream
        pledge.domain = domain
        pledge.seq = body.seq
        pledge.is_duplicate = body.is_duplicate
        pledge.close()
        slot.state = SLOT_STORED
        self.outstanding -= 1
        self.release(slot)
        return 0

    cdef str stream_of(self, const char *data, const AckBody *body):
        """The name in an ack, which is mostly that of the last one."""
        cdef str known = self.last_stream
        if (
            known is None
            or PyUnicode_GET_LENGTH(known) != body.stream.size
            or memcmp(PyUnicode_DATA(known), data + body.stream.start, body.stream.size) != 0
        ):
            known = self.last_stream = decode_text(data + body.stream.start, body.stream.size)
        return known

    cdef int ending(self, Slot *slot, Parser parser) except -1:
        if parser is not None:
            self.notice(parser)
        self.link_out(slot)
        self.link_in(slot, self.border + 1)
        return 0

    cdef int notice(self, Parser parser) except -1:
        if not self.is_noticed:
            parser.notices.append(self)
            self.is_noticed = True
        return 0

    def look(self):
        """What there is to do from now on is noticed anew."""
        self.is_noticed = False

    @property
    def odd(self):
        """(pledge, what became of it, answer or error) of the oldest odd outcome, or None."""
        cdef Slot *slot = self.first_odd()
        if slot.state not in SLOT_NAMES:
            return None
        # First: another thread may put it away while the collector runs.
        holder = <object>slot.holder
        what, answer, _ = self.outcome(slot)
        return holder, what, answer

    cdef Slot *first_odd(self) noexcept:
        """The border of their list if there is none."""
        return &self.slots[self.slots[self.border + 1].next]

    def put_away(self, Pledge pledge not None):
        """The oldest odd outcome, if it is that of this pledge, was dealt with."""
        cdef Slot *slot = self.first_odd()
        if slot.holder == <PyObject *>pledge:
            self.release(slot)

    def rest(self, Pledge pledge not None, double due):
        """The oldest odd outcome is none: its message is to be sent again at that time."""
        cdef Slot *slot = self.first_odd()
        if slot.holder == <PyObject *>pledge:
            self.again[pledge] = due
            pledge.retries -= 1
            self.release(slot)

    def fail_tied(self, error):
        """The link is lost, and with it what was under way or about to be sent again."""
        Slots.fail_tied(self, error)
        self.end_again()

    def fail_all(self, error):
        """Nothing is answered any more, and nothing sent again."""
        Slots.fail_all(self, error)
        self.end_again()

    cdef int end_again(self) except -1:
        """Those that were to be sent again are not."""
        cdef Pledge pledge
        cdef Span nothing
        nothing.at = NULL
        nothing.size = 0
        for pledge in list(self.again):
            del self.again[pledge]
            self.ending(self.enter(nothing, pledge, SLOT_UNSENT, 0), None)
        return 0

    # Waiting --------------------------------------------------------------------------

    def await_pending(self, Py_ssize_t most):
        """A Gate that opens when so many publishes at most have no outcome."""
        cdef Gate gate = Gate()
        gate.is_open = self.unsettled() <= most
        if not gate.is_open:
            self.gates[gate] = most
            self.watched = max(self.watched, most)
        return gate

    def forget(self, Gate gate not None):
        """Nobody waits for that gate any more."""
        self.gates.pop(gate, None)

    def open_gates(self):
        """Opens the gates that are due."""
        cdef Py_ssize_t pending = self.unsettled(), most
        cdef list due = []
        cdef Gate gate
        self.watched = -1
        for gate, most in self.gates.items():
            if pending <= most:
                due.append(gate)
            else:
                self.watched = max(self.watched, most)
        for gate in due:
            self.gates.pop(gate, None)
            gate.open()


cdef class AsyncPublishing:
    """`publish_async` of a JetStream context, as far as it need not wait for anything.

    It is called so often that Python code around it would cost more than all the rest. What
    it cannot do at once it leaves to the method `_publish_async` of the subclass.
    """

    cdef public Pledges _pledges       # made by the first publish, or None

    def publish_async(self, subject, data=b"", *, headers=None, timeout=None, **options):
        """Publishes a message and returns a Future of its PubAck at once.

        At most `max_pending` publishes wait for their acks; with more the call waits, at most
        `timeout`, and raises TooManyPendingError. With some hundreds it lets a moment pass for
        acks, milliseconds, before it goes on. A future fails when its ack did not come within
        `ack_timeout`, or the link was lost. Options are those of `publish`.
        """
        cdef Pledge future
        if self._pledges is not None and headers is None and timeout is None and not options:
            future = self._pledges.launch(subject, data)
            if future is not None:
                return future
        return self._publish_async(subject, data, headers, timeout, options)


cdef object NOTHING = object()


# ---------------------------------------------------------------------------------------
# Rows: messages in columns

cdef const char *buffer_of(object source, list holders, Py_ssize_t *size) except? NULL:
    """The memory of a contiguous buffer, kept by an entry of `holders`."""
    cdef Py_buffer *view
    try:
        holder = memoryview(source)
    except TypeError:
        raise TypeError(
            f"a column is made of contiguous buffers, not of {type(source).__name__}"
        ) from None
    if not holder.c_contiguous:
        raise TypeError("a column is made of contiguous buffers")
    view = PyMemoryView_GET_BUFFER(holder)
    holders.append(holder)
    size[0] = view.len
    return <const char *>view.buf


@cython.final
cdef class Offsets:
    """Where the values of a column start and end: count + 1 numbers from `first` on.

    `validity`, if there is one, has a bit for each value, 0 for null, as Arrow has it.
    """

    cdef list holders
    cdef const uint8_t *validity
    cdef const char *at
    cdef bint is_large
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t count

    def __init__(
        self, offsets, Py_ssize_t count, *, validity=None, Py_ssize_t first=0, bint is_large=False
    ):
        cdef Py_ssize_t size = 0
        cdef const char *at
        cdef list holders = []
        if count < 0 or first < 0 or first > INT64_MAX // 16 - count:
            raise InvalidArgumentError("count and first must not be negative")
        if count:
            at = buffer_of(offsets, holders, &size)
            if size < (first + count + 1) * (8 if is_large else 4):
                raise InvalidArgumentError(
                    f"{count} values from {first} on need more offsets than {size} bytes hold"
                )
            self.at = at
            self.is_large = is_large
            if validity is not None:
                self.validity = <const uint8_t *>buffer_of(validity, holders, &size)
                if size < (first + count + 7) // 8:
                    raise InvalidArgumentError("the validity bitmap is too small")
        self.holders = holders
        self.first = first
        self.count = count

    cdef inline bint is_null(self, Py_ssize_t row) noexcept:
        cdef Py_ssize_t at = self.first + row
        return self.validity != NULL and not (self.validity[at >> 3] >> (at & 7)) & 1

    cdef inline void get(self, Py_ssize_t row, int64_t *start, int64_t *end) noexcept:
        # A user's buffer may begin at any address.
        cdef int32_t[2] small
        cdef int64_t[2] large
        if self.is_large:
            memcpy(large, self.at + 8 * (self.first + row), 16)
            start[0] = large[0]
            end[0] = large[1]
        else:
            memcpy(small, self.at + 4 * (self.first + row), 8)
            start[0] = small[0]
            end[0] = small[1]

    cdef int between(
        self, Py_ssize_t row, Py_ssize_t limit, int64_t *start, int64_t *end
    ) except -1:
        """Where a value starts and ends, which must be within the limit."""
        self.get(row, start, end)
        if not 0 <= start[0] <= end[0] <= limit:
            raise InvalidArgumentError(
                f"offsets {start[0]} and {end[0]} are outside of their {limit} values"
            )
        return 0


@cython.final
cdef class Column:
    """Texts or binary values: their bytes one after another, and where each ends."""

    cdef list holders
    cdef readonly Offsets offsets
    cdef const char *bytes
    cdef Py_ssize_t size

    def __init__(self, Offsets offsets not None, data):
        cdef list holders = []
        if data is not None:
            self.bytes = buffer_of(data, holders, &self.size)
        self.offsets = offsets
        self.holders = holders

    cdef bint at(self, Py_ssize_t row, Span *span) except -1:
        """Lends a value; False if it is null."""
        cdef int64_t start = 0, end = 0
        if self.offsets.is_null(row):
            return False
        self.offsets.between(row, self.size, &start, &end)
        span.at = self.bytes + start
        span.size = <Py_ssize_t>(end - start)
        return True


# An entry of Seen: 96 bits of a hash, and how often it came.
cdef struct Sight:
    uint64_t low
    uint32_t high
    uint32_t count


# The entries whose hashes begin with the same bits.
cdef struct Shelf:
    Sight *table
    size_t capacity          # a power of two
    size_t count

cdef enum:
    SHELF_BITS = 7
    SHELVES = 1 << SHELF_BITS


@cython.final
cdef class Seen:
    """How often each content came so far: equal rows get ids of their own.

    About 32 bytes for each row that was seen. It grows by a small part at a time: while one
    large table is copied, a server would run out of rows.
    """

    cdef Shelf[SHELVES] shelves
    cdef readonly Py_ssize_t count

    def __dealloc__(self):
        cdef int i
        for i in range(SHELVES):
            PyMem_Free(self.shelves[i].table)

    def __len__(self):
        return self.count

    @staticmethod
    cdef inline Sight *find(const Shelf *shelf, uint64_t low, uint32_t high) noexcept:
        cdef Sight *table = shelf.table
        cdef size_t at = <size_t>low & (shelf.capacity - 1)
        while table[at].count and (table[at].low != low or table[at].high != high):
            at = (at + 1) & (shelf.capacity - 1)
        return &table[at]

    @staticmethod
    cdef int grow(Shelf *shelf) except -1:
        cdef Sight *before = shelf.table
        cdef size_t i, held = shelf.capacity
        cdef size_t capacity = 2 * held if held else 16
        cdef Sight *table = <Sight *>PyMem_Calloc(capacity, sizeof(Sight))
        if table == NULL:
            raise MemoryError
        shelf.table = table
        shelf.capacity = capacity
        for i in range(held):
            if before[i].count:
                Seen.find(shelf, before[i].low, before[i].high)[0] = before[i]
        PyMem_Free(before)
        return 0

    cdef uint32_t add(self, Hash content) except? 0xFFFFFFFF:
        """How often the content came before."""
        cdef Shelf *shelf = &self.shelves[content.low >> (64 - SHELF_BITS)]
        cdef Sight *sight
        if 4 * shelf.count >= 3 * shelf.capacity:
            Seen.grow(shelf)
        sight = Seen.find(shelf, content.low, <uint32_t>content.high)
        if sight.count == 0:
            sight.low = content.low
            sight.high = <uint32_t>content.high
            shelf.count += 1
            self.count += 1
        sight.count += 1
        return sight.count - 1


cdef bytes ID_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_~"

cdef enum:
    ID_DIGIT_COUNT = 22      # of 6 bits each, for 128
    ID_ROOM = ID_DIGIT_COUNT + 1 + 10


cdef inline void write_digits(char *at, Hash content) noexcept:
    cdef const char *digits = PyBytes_AS_STRING(ID_DIGITS)
    cdef int i
    for i in range(ID_DIGIT_COUNT):
        at[i] = digits[content.low & 63]
        content.low = (content.low >> 6) | (content.high << 58)
        content.high >>= 6


@cython.final
cdef class Rows:
    """Messages in columns, to be published by a Window without an object for each.

    `subject` is a Column or a str for all rows. `headers` is (offsets, keys, lists, values): which
    keys belong to a row, and which values to a key; with None for `lists` each key has
    one. `fields` are header fields with a column for the value, null for none; `constant` is
    header fields for every row, as text of the wire.
    """

    cdef readonly Py_ssize_t count
    cdef public Py_ssize_t position    # the first row not yet published
    cdef public Py_ssize_t base        # the number of its first row, among several Rows
    cdef public bint is_repeatable     # publishing a row twice stores it once
    cdef public bint has_expectations  # of what the stream has last
    cdef Column subject
    cdef bytes fixed_subject
    cdef Column data
    cdef Offsets header_offsets
    cdef Column header_keys
    cdef Offsets header_lists
    cdef Column header_values
    cdef list fields                   # of (b"Key: ", Column)
    cdef bint has_ids
    cdef public bytes constant
    cdef bytes id_prefix               # of content ids; None without them
    cdef Hash id_key                   # with a fixed subject: hashed already
    cdef Seen seen
    cdef Py_ssize_t identified         # so many of the rows
    cdef Hash *hashes
    cdef uint32_t *nths
    cdef char *scratch                 # the header block of one row
    cdef Py_ssize_t scratch_size
    cdef Py_ssize_t scratch_room
    cdef Py_ssize_t id_start           # where the block has the id of its message
    cdef Py_ssize_t id_size
    cdef Span last_subject             # it was checked

    def __init__(
        self,
        Py_ssize_t count,
        Column data not None,
        subject,
        *,
        headers=None,
        fields=(),
        bytes constant=b"",
        Py_ssize_t base=0,
    ):
        cdef Column column
        self.count = count
        self.base = base
        self.data = data
        self.constant = constant
        self.fields = []
        if isinstance(subject, Column):
            self.subject = subject
            self.check_count(self.subject.offsets)
        else:
            check_literal(subject)
            self.fixed_subject = encode_text(subject)
        self.check_count(data.offsets)
        if headers is not None:
            self.header_offsets, self.header_keys, self.header_lists, self.header_values = headers
            self.check_count(self.header_offsets)
            if self.header_keys is None or self.header_values is None:
                raise TypeError("headers need columns of keys and of values")
        for key, column in fields:
            encode_fields([(key, "")])
            self.check_count(column.offsets)
            self.fields.append((encode_text(key) + b": ", column))
            self.has_ids = self.has_ids or key == "Nats-Msg-Id"

    def __dealloc__(self):
        PyMem_Free(self.hashes)
        PyMem_Free(self.nths)
        PyMem_Free(self.scratch)

    def __len__(self):
        return self.count

    cdef int check_count(self, Offsets offsets) except -1:
        if offsets is None or offsets.count < self.count:
            raise InvalidArgumentError(f"a column has fewer than {self.count} values")
        return 0

    @property
    def has_one_subject(self):
        """Whether all rows have the same subject."""
        return self.subject is None

    def subject_text(self, Py_ssize_t row):
        """The subject of a row, for messages; empty if it has none."""
        cdef Span span
        if not 0 <= row < self.count:
            raise IndexError("there is no such row")
        if self.subject is None:
            return decode_text(PyBytes_AS_STRING(self.fixed_subject), len(self.fixed_subject))
        return decode_text(span.at, span.size) if self.subject.at(row, &span) else ""

    cdef int subject_of(self, Py_ssize_t row, Span *span) except -1:
        """Lends the subject of a row, checked."""
        cdef SubjectFault fault
        if self.subject is None:
            span.at = PyBytes_AS_STRING(self.fixed_subject)
            span.size = PyBytes_GET_SIZE(self.fixed_subject)
            return 0
        if not self.subject.at(row, span):
            raise InvalidArgumentError("subject is null")
        if (
            span.size != self.last_subject.size
            or memcmp(span.at, self.last_subject.at, <size_t>span.size) != 0
        ):
            fault = check_subject_bytes(span.at, span.size)
            if fault != SUBJECT_OK:
                refuse_subject(decode_text(span.at, span.size), "subject", fault)
            if has_wildcard(span.at, span.size):
                refuse_wildcard(decode_text(span.at, span.size), span)
            self.last_subject = span[0]
        return 0

    # Ids ------------------------------------------------------------------------------

    def identify(self, prefix: str, key: bytes, Seen seen not None):
        """Every row gets an id of its content: prefix, hash, and how often it came before.

        The hash is over subject, headers and payload, under a key of 16 bytes. It is made when
        the row is published or `id_of` asks, after those of all rows before.
        """
        if PyBytes_GET_SIZE(key) != 16:
            raise InvalidArgumentError("the key of ids must be 16 bytes")
        encode_fields([("Nats-Msg-Id", prefix)])
        PyMem_Free(self.hashes)
        PyMem_Free(self.nths)
        self.hashes = NULL
        self.nths = NULL
        self.identified = 0
        self.hashes = <Hash *>PyMem_Malloc(<size_t>self.count * sizeof(Hash) + 1)
        self.nths = <uint32_t *>PyMem_Malloc(<size_t>self.count * sizeof(uint32_t) + 1)
        if self.hashes == NULL or self.nths == NULL:
            PyMem_Free(self.hashes)
            self.hashes = NULL
            raise MemoryError
        memcpy(&self.id_key, PyBytes_AS_STRING(key), 16)
        if self.subject is None:
            # All rows begin with it.
            self.id_key = siphash(
                self.id_key,
                PyBytes_AS_STRING(self.fixed_subject),
                PyBytes_GET_SIZE(self.fixed_subject),
            )
        self.id_prefix = encode_text(prefix)
        self.seen = seen
        self.has_ids = True

    cdef int identify_through(self, Py_ssize_t last) except -1:
        """Makes the ids of all rows up to this one that have none yet."""
        cdef Hash content
        while self.identified <= last:
            try:
                content = self.content_of(self.identified)
            except InvalidArgumentError:
                # Nor can it be published, and the rows after it need not suffer.
                memset(&self.hashes[self.identified], 0, sizeof(Hash))
                self.nths[self.identified] = 0
                self.identified += 1
                raise
            self.nths[self.identified] = self.seen.add(content)
            self.hashes[self.identified] = content
            self.identified += 1
        return 0

    cdef Hash content_of(self, Py_ssize_t row) except *:
        """The hash of subject, headers and payload."""
        cdef Hash content = self.id_key
        cdef Span span
        if self.subject is not None and self.subject.at(row, &span):
            content = siphash(content, span.at, span.size)
        if self.header_offsets is not None:
            content = self.hash_headers(row, content)
        if self.data.at(row, &span):
            content = siphash(content, span.at, span.size)
        return content

    cdef Hash hash_headers(self, Py_ssize_t row, Hash content) except *:
        cdef int64_t entry, end = 0, value, values_end = 0, first = 0, value_first = 0
        cdef Span span
        if self.header_offsets.is_null(row):
            return content
        self.header_offsets.between(row, self.header_keys.offsets.count, &first, &end)
        for entry in range(first, end):
            if self.header_keys.at(<Py_ssize_t>entry, &span):
                content = siphash(content, span.at, span.size)
            self.values_between(entry, &value_first, &values_end)
            for value in range(value_first, values_end):
                if self.header_values.at(<Py_ssize_t>value, &span):
                    content = siphash(content, span.at, span.size)
        return content

    def id_of(self, Py_ssize_t row):
        """The content id of a row; None without ids."""
        cdef char[ID_ROOM] text
        if not 0 <= row < self.count:
            raise IndexError("there is no such row")
        if self.hashes == NULL:
            return None
        self.identify_through(row)
        return decode_text(
            PyBytes_AS_STRING(self.id_prefix), len(self.id_prefix)
        ) + decode_text(text, self.write_id(row, text))

    cdef Py_ssize_t write_id(self, Py_ssize_t row, char *at) noexcept:
        """Writes what follows the prefix; the row is identified."""
        write_digits(at, self.hashes[row])
        at[ID_DIGIT_COUNT] = c'-'
        return ID_DIGIT_COUNT + 1 + write_uint(at + ID_DIGIT_COUNT + 1, self.nths[row])

    # Headers --------------------------------------------------------------------------

    cdef int reserve(self, Py_ssize_t size) except -1:
        """Makes room for that many bytes behind the header block."""
        cdef char *bigger
        cdef Py_ssize_t room
        if self.scratch_room - self.scratch_size < size:
            room = max(512, 2 * (self.scratch_size + size))
            bigger = <char *>PyMem_Realloc(self.scratch, <size_t>room)
            if bigger == NULL:
                raise MemoryError
            self.scratch = bigger
            self.scratch_room = room
        return 0

    cdef int put(self, const char *at, Py_ssize_t size) except -1:
        """Appends to the header block."""
        self.reserve(size)
        if size:
            memcpy(self.scratch + self.scratch_size, at, <size_t>size)
            self.scratch_size += size
        return 0

    cdef int values_between(self, int64_t entry, int64_t *first, int64_t *end) except -1:
        """The values of one key."""
        cdef Py_ssize_t limit = self.header_values.offsets.count
        if self.header_lists is None:
            first[0] = entry
            end[0] = entry + 1
            if end[0] > limit:
                raise InvalidArgumentError("headers have fewer values than keys")
            return 0
        if entry >= self.header_lists.count:
            raise InvalidArgumentError("headers have fewer lists of values than keys")
        if self.header_lists.is_null(<Py_ssize_t>entry):
            first[0] = end[0] = 0
            return 0
        return self.header_lists.between(<Py_ssize_t>entry, limit, first, end)

    cdef int put_value(self, Span value) except -1:
        """Appends the value of a field and ends its line."""
        cdef Py_ssize_t i
        for i in range(value.size):
            if value.at[i] == c'\r' or value.at[i] == c'\n' or value.at[i] == 0:
                raise InvalidArgumentError(
                    "the value of a header must not contain line breaks or NUL: "
                    f"{decode_text(value.at, min(value.size, 64))!r}"
                )
        self.put(value.at, value.size)
        return self.put(b"\r\n", 2)

    cdef inline bint is_overruled(self, Span key) noexcept:
        """Whether the row has this by other means: messages that are copied bring theirs."""
        if key.size == 11 and self.has_ids:
            return memcmp(key.at, b"Nats-Msg-Id", 11) == 0
        if key.size == 20 and self.constant:
            return memcmp(key.at, b"Nats-Expected-Stream", 20) == 0
        return False

    cdef int put_headers(self, Py_ssize_t row) except -1:
        """Appends the headers of a row."""
        cdef int64_t entry, first = 0, end = 0, value, value_first = 0, values_end = 0
        cdef Py_ssize_t i
        cdef Span key, text
        if self.header_offsets.is_null(row):
            return 0
        self.header_offsets.between(row, self.header_keys.offsets.count, &first, &end)
        for entry in range(first, end):
            if not self.header_keys.at(<Py_ssize_t>entry, &key) or key.size == 0:
                raise InvalidArgumentError("a header key must not be empty")
            if self.is_overruled(key):
                continue
            for i in range(key.size):
                if not is_key_byte(<uint8_t>key.at[i]):
                    raise InvalidArgumentError(
                        "a header key must be printable ASCII without blanks and colons: "
                        f"{decode_text(key.at, min(key.size, 64))!r}"
                    )
            self.values_between(entry, &value_first, &values_end)
            for value in range(value_first, values_end):
                if self.header_values.at(<Py_ssize_t>value, &text):
                    self.put(key.at, key.size)
                    self.put(b": ", 2)
                    self.put_value(text)
        return 0

    cdef int encode_head(self, Py_ssize_t row, Span *head) except -1:
        """Makes the header block of a row; empty when it has no headers."""
        cdef bytes key
        cdef Column column
        cdef Span text
        self.scratch_size = 0
        self.id_size = 0
        self.put(b"NATS/1.0\r\n", 10)
        self.put(PyBytes_AS_STRING(self.constant), PyBytes_GET_SIZE(self.constant))
        for key, column in self.fields:
            if column.at(row, &text):
                self.put(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
                if key == b"Nats-Msg-Id: ":
                    self.id_start = self.scratch_size
                    self.id_size = text.size
                self.put_value(text)
        if self.header_offsets is not None:
            self.put_headers(row)
        if self.hashes != NULL:
            self.identify_through(row)
            self.put(b"Nats-Msg-Id: ", 13)
            self.id_start = self.scratch_size
            self.put(PyBytes_AS_STRING(self.id_prefix), PyBytes_GET_SIZE(self.id_prefix))
            self.reserve(ID_ROOM)
            self.scratch_size += self.write_id(row, self.scratch + self.scratch_size)
            self.id_size = self.scratch_size - self.id_start
            self.put(b"\r\n", 2)
        head.at = NULL
        head.size = 0
        if self.scratch_size > 10:
            self.put(b"\r\n", 2)
            head.at = self.scratch
            head.size = self.scratch_size
        return 0


# ---------------------------------------------------------------------------------------
# Links

@cython.final
cdef class Link:
    """One open non-blocking socket, plain or TLS, as the core reads and writes it.

    A plain socket is used through its descriptor, without releasing the interpreter lock: the
    calls do not block. TLS goes through the compiled read and write of the ssl module, which
    release it, so one lock keeps reading and writing apart. The socket itself stays the
    caller's, who closes it.
    """

    cdef jsc_socket fd
    cdef object tls                    # the ssl module's compiled object, or None
    cdef object tls_again              # (SSLWantReadError, SSLWantWriteError)
    cdef PyThread_type_lock tls_lock
    cdef unsigned long tls_thread      # who has the lock
    cdef bint is_interrupted           # inside TLS, which cannot be used any more
    cdef Py_ssize_t doubtful           # bytes that TLS was given and has not answered for
    cdef bint is_closed
    cdef bytes tls_pending             # what TLS was given and wants to be given again
    cdef readonly bint is_blocked      # the last write was not taken whole
    cdef readonly object error         # the OSError of a failed write, or None
    cdef readonly uint64_t bytes_in
    cdef readonly uint64_t bytes_out

    def __init__(self, fd, tls=None, tls_again=()):
        self.fd = fd
        self.tls = tls
        self.tls_again = tuple(tls_again)
        if tls is not None:
            self.tls_lock = PyThread_allocate_lock()
            if self.tls_lock == NULL:
                raise MemoryError

    def __dealloc__(self):
        if self.tls_lock != NULL:
            PyThread_free_lock(self.tls_lock)

    def receive(self, Parser parser not None):
        """One read into the parser, parsed and delivered: bytes read, 0 at the end, -1 for none.

        Raises OSError when the link is broken, ProtocolError when the bytes are.
        """
        return self.read(parser)

    cdef Py_ssize_t read(self, Parser parser) except -3:
        cdef char *where = NULL
        cdef Py_ssize_t room, got
        cdef int error = 0
        if parser.state == BROKEN:
            parser.fail("the stream is broken already", NULL, 0)
        if parser.is_busy:
            # A finalizer or a signal handler runs in the midst of a read and waits.
            return JSC_AGAIN
        if self.is_closed:
            raise OSError(EBADF, "the link was ended")
        if self.is_interrupted:
            raise self.error
        parser.is_busy = True
        try:
            room = parser.room(&where)
            if self.tls is not None:
                got = self.read_tls(where, room)
            else:
                got = jsc_recv(self.fd, where, <size_t>room, &error)
            if got > 0:
                self.bytes_in += <uint64_t>got
                parser.received(got)
            elif got == JSC_ERROR:
                raise OSError(error, "reading failed")
        finally:
            parser.is_busy = False
        return got

    def close(self):
        """The socket is about to be closed: its descriptor, soon another's, is left alone."""
        if self.tls is not None and self.lock_tls():
            # No other thread is reading or writing now, and none will.
            self.is_closed = True
            self.unlock_tls()
        self.is_closed = True

    def abandon(self):
        """This is a forked child: a thread of the parent may have the lock for ever."""
        self.is_closed = True

    cdef bint lock_tls(self) noexcept:
        """False if this thread has it already: a signal handler runs inside TLS."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.tls_thread == me:
            return False
        with nogil:
            PyThread_acquire_lock(self.tls_lock, 1)
        self.tls_thread = me
        return True

    cdef void unlock_tls(self) noexcept:
        self.tls_thread = 0
        PyThread_release_lock(self.tls_lock)

    cdef void interrupted(self) noexcept:
        """A signal handler raised inside TLS: nobody knows which bytes went through."""
        self.is_interrupted = True
        self.error = ConnectionAbortedError("a signal handler interrupted TLS")

    cdef Py_ssize_t read_tls(self, char *where, Py_ssize_t room) except -3:
        cdef Py_ssize_t got = JSC_AGAIN
        if not self.lock_tls():
            return JSC_AGAIN
        try:
            if self.is_closed:
                raise OSError(EBADF, "the link was ended")
            view = PyMemoryView_FromMemory(where, room, 0x200)    # PyBUF_WRITE
            got = self.tls.read(room, view)
        except self.tls_again:
            pass
        except OSError:
            raise
        except BaseException:
            self.interrupted()
            raise
        finally:
            self.unlock_tls()
        return got

    cdef Py_ssize_t write(self, const char *at, Py_ssize_t size) except -3:
        """How many bytes the link took; 0 or less when it takes none now."""
        cdef Py_ssize_t sent
        cdef int error = 0
        if self.error is not None or self.is_closed:
            return 0
        if self.tls is not None:
            sent = self.write_tls(at, size)
        else:
            sent = jsc_send(self.fd, at, <size_t>size, &error)
            if sent == JSC_ERROR:
                self.error = OSError(error, "writing failed")
        if sent > 0:
            self.bytes_out += <uint64_t>sent
        self.is_blocked = sent < size
        return sent

    cdef Py_ssize_t write_tls(self, const char *at, Py_ssize_t size) except -3:
        # The outbox may move its bytes while TLS works on them: give it a copy. What TLS did
        # not take must be offered again unchanged.
        cdef bytes chunk = self.tls_pending
        cdef Py_ssize_t sent = JSC_AGAIN
        cdef Py_ssize_t seen = self.doubtful
        if chunk is None:
            chunk = PyBytes_FromStringAndSize(at, min(size, WORTH_SENDING))
        # From here on none of it is taken back: others run while this waits for the lock.
        self.doubtful = PyBytes_GET_SIZE(chunk)
        if not self.lock_tls():
            self.doubtful = seen
            return JSC_AGAIN
        try:
            if self.is_closed:
                self.doubtful = seen
                return 0
            sent = self.tls.write(chunk)
            self.doubtful = 0
            self.tls_pending = None
        except self.tls_again:
            self.tls_pending = chunk
        except OSError as error:
            self.error = error
            sent = JSC_ERROR
        except BaseException:
            self.interrupted()
            raise
        finally:
            self.unlock_tls()
        return sent

    def send(self, data: bytes):
        """Writes bytes outside any outbox, as the handshake does; how many were taken."""
        sent = self.write(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if self.error is not None:
            raise self.error
        return max(sent, 0)
