"""What can go wrong with JetStream: refusals, publishes without an ack, lost pulls.

The tree, with the classes that a class also is, and the server's numbers:

    Error
    └── JetStreamError
        ├── ApiError                          the server said no
        │   ├── BadRequestError               10003, 10038, 10056, 10193; status 408
        │   │   └── InvalidJSONError          10025
        │   ├── JetStreamNotEnabledError      10035, 10039, 10076
        │   ├── JetStreamUnavailableError     10004, 10005, 10008, 10009, 10063, 10163
        │   ├── RequiredApiLevelError         10185
        │   ├── TooManyRequestsError          10167; status 429
        │   │   └── TooManyBatchesError       10210, 10211
        │   ├── TooManyResultsError           status 413
        │   ├── AccountLimitError             10002, 10120, 10121, 10125, 10153
        │   │   ├── MaximumConsumersError     10026
        │   │   ├── MaximumStreamsError       10027
        │   │   ├── MaxBytesRequiredError     10113
        │   │   └── MaxStreamBytesError       10122
        │   ├── InsufficientResourcesError    10023, 10028, 10047
        │   ├── StreamNotFoundError           10059
        │   ├── ConsumerNotFoundError         10014, 10149
        │   ├── MessageNotFoundError          10037, 10043; status 404
        │   ├── StreamNameInUseError          10058, 10130
        │   ├── ConsumerExistsError           10013, 10105, 10106, 10148
        │   ├── StreamOfflineError            10118, 10194
        │   ├── ConsumerOfflineError          10119, 10195
        │   ├── InvalidStreamConfigError      10052, and other numbers of rules
        │   │   └── MirrorNotUpdatableError   10055
        │   ├── SubjectsOverlapError          10065
        │   ├── ConsumerCreateError           10012
        │   ├── InvalidConsumerConfigError    10078-10184: numbers of rules
        │   │   ├── ConsumerFilterError       10093, 10131, 10136-10139
        │   │   ├── PriorityGroupError        10159-10162, 10178, 10196, 10197
        │   │   └── FlowControlAckError       10218-10222
        │   ├── InvalidConsumerResetError     10204
        │   ├── InvalidNameError              10102, 10103, 10127, 10128
        │   ├── PedanticError                 10157
        │   ├── StreamSealedError             10109
        │   ├── MessageDeleteFailedError      10057
        │   ├── PurgeFailedError              10110
        │   ├── RollupFailedError             10111
        │   ├── ExpectedStreamError           10060
        │   ├── WrongLastMsgIdError           10070
        │   ├── WrongLastSequenceError        10071, 10164
        │   ├── DuplicateInProcessError       10158
        │   ├── MessageTooLargeError          10054
        │   │   └── HeaderTooLargeError       10097
        │   ├── SourceHeaderNotAllowedError   10227
        │   ├── InvalidMessageTTLError        10165
        │   ├── MessageTTLDisabledError       10166
        │   ├── CounterError                  10168-10173
        │   ├── ScheduleError                 10186-10192, 10203, 10212, 10223
        │   ├── AtomicBatchError              10174, 10175, 10177, 10179, 10198-10201
        │   │   └── IncompleteBatchError      10176
        │   ├── FastBatchError                10205-10209
        │   └── StreamStoreFailedError        10077
        │       └── LimitReachedError         10077 `maximum …`: the stream is full
        ├── NoStreamResponseError ··········· NoRespondersError
        ├── InvalidAckError                   who answered a publish is no stream
        ├── PublishOutcomeUnknownError        nobody can know if it was stored
        │   ├── PublishTimeoutError ········· TimeoutError
        │   └── PublishDisconnectedError ···· ConnectionError
        ├── PublishColumnsError               a row of columns is not stored
        ├── TooManyPendingError ············· TimeoutError
        ├── ConsumerStatusError               trouble between consumer and reader
        │   ├── PullError                     a pull ended without its messages
        │   │   ├── BadPullError              status 400
        │   │   ├── ConsumerDeletedError      status 409
        │   │   │   └── StreamDeletedError    the same, and its stream is gone
        │   │   ├── LeadershipChangedError    status 409
        │   │   ├── MessageSizeError          status 409
        │   │   ├── PullLimitError            status 408, 409
        │   │   ├── PushConsumerError         status 409
        │   │   ├── ServerShutdownError       status 409
        │   │   ├── RequiredApiLevelPullError status 412
        │   │   ├── UnpinnedError             status 423
        │   │   ├── UnreachableConsumerError  status 503
        │   │   ├── MissedHeartbeatError ···· PushError
        │   │   └── LostPullError             no status came
        │   └── PushError                     a push consumer sent an error
        │       └── MessageGapError           deliveries of it did not arrive
        ├── NoMatchingStreamError             not exactly one stream has the subject
        ├── SubscriptionMismatchError         it does not fit the consumer that is there
        │   ├── SubjectMismatchError          the consumer filters another subject
        │   ├── PushConsumerMismatchError     a pull subscription to a push consumer
        │   ├── PullConsumerMismatchError     a push subscription to a pull consumer
        │   ├── NoDeliverGroupError           a queue for a consumer without a group
        │   ├── DuplicateSubscriptionError    somebody else is subscribed already
        │   ├── QueueRequiredError            the consumer is for a queue group
        │   ├── QueueMismatchError            the consumer is for another queue group
        │   ├── QueueStatusError              heartbeats or flow control in a queue
        │   └── ConfigMismatchError           fields of the consumer are different
        └── UnsupportedByServerError          the server is too old for it

Names follow numbers only: the server's texts change from release to release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import ConnectionError, Error, NoRespondersError, TimeoutError

if TYPE_CHECKING:
    from ._core import PubAck

__all__ = [
    "AccountLimitError",
    "ApiError",
    "AtomicBatchError",
    "BadPullError",
    "BadRequestError",
    "ConfigMismatchError",
    "ConsumerCreateError",
    "ConsumerDeletedError",
    "ConsumerExistsError",
    "ConsumerFilterError",
    "ConsumerNotFoundError",
    "ConsumerOfflineError",
    "ConsumerStatusError",
    "CounterError",
    "DuplicateInProcessError",
    "DuplicateSubscriptionError",
    "ExpectedStreamError",
    "FastBatchError",
    "FlowControlAckError",
    "HeaderTooLargeError",
    "IncompleteBatchError",
    "InsufficientResourcesError",
    "InvalidAckError",
    "InvalidConsumerConfigError",
    "InvalidConsumerResetError",
    "InvalidJSONError",
    "InvalidMessageTTLError",
    "InvalidNameError",
    "InvalidStreamConfigError",
    "JetStreamError",
    "JetStreamNotEnabledError",
    "JetStreamUnavailableError",
    "LeadershipChangedError",
    "LimitReachedError",
    "LostPullError",
    "MaxBytesRequiredError",
    "MaxStreamBytesError",
    "MaximumConsumersError",
    "MaximumStreamsError",
    "MessageDeleteFailedError",
    "MessageGapError",
    "MessageNotFoundError",
    "MessageSizeError",
    "MessageTTLDisabledError",
    "MessageTooLargeError",
    "MirrorNotUpdatableError",
    "MissedHeartbeatError",
    "NoDeliverGroupError",
    "NoMatchingStreamError",
    "NoStreamResponseError",
    "PedanticError",
    "PriorityGroupError",
    "PublishColumnsError",
    "PublishDisconnectedError",
    "PublishOutcomeUnknownError",
    "PublishTimeoutError",
    "PullConsumerMismatchError",
    "PullError",
    "PullLimitError",
    "PurgeFailedError",
    "PushConsumerError",
    "PushConsumerMismatchError",
    "PushError",
    "QueueMismatchError",
    "QueueRequiredError",
    "QueueStatusError",
    "RequiredApiLevelError",
    "RequiredApiLevelPullError",
    "RollupFailedError",
    "ScheduleError",
    "ServerShutdownError",
    "SourceHeaderNotAllowedError",
    "StreamDeletedError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "StreamOfflineError",
    "StreamSealedError",
    "StreamStoreFailedError",
    "SubjectMismatchError",
    "SubjectsOverlapError",
    "SubscriptionMismatchError",
    "TooManyBatchesError",
    "TooManyPendingError",
    "TooManyRequestsError",
    "TooManyResultsError",
    "UnpinnedError",
    "UnreachableConsumerError",
    "UnsupportedByServerError",
    "WrongLastMsgIdError",
    "WrongLastSequenceError",
]

# Refused for a passing reason and without effect: the same request may succeed later.
_RETRYABLE = frozenset({10004, 10008, 10009, 10063, 10158, 10163, 10167, 10210, 10211})
_RETRYABLE_STATUSES = frozenset({429, 503})
_NO_PEERS = 10005


class JetStreamError(Error):
    """What all errors of JetStream derive from."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors have keywords that `args` does not hold: the state is copied.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[JetStreamError], args: tuple[Any, ...], state: dict[str, Any]
) -> JetStreamError:
    error = kind.__new__(kind, *args)
    error.args = args  # a builtin TimeoutError leaves that to its constructor
    error.__dict__.update(state)
    return error


class ApiError(JetStreamError):
    """The server refused a request or a publish.

    `code` is an HTTP-like status, `err_code` the number of this very refusal (0 if the
    server gave none), `description` the server's text, `doing` what was being done. Of
    a publish `stream` and `seq` are what the answer has besides, None if it has not.
    """

    stream: str | None = None
    seq: int | None = None

    def __init__(
        self, *, code: int, err_code: int = 0, description: str = "", doing: str = ""
    ) -> None:
        number = f"{code}, error {err_code}" if err_code else f"{code}"
        text = f"{description or 'refused by the server'} ({number})"
        super().__init__(f"{doing}: {text}" if doing else text)
        self.code = code
        self.err_code = err_code
        self.description = description
        self.doing = doing

    @property
    def is_retryable(self) -> bool:
        """Whether the same request had no effect and may succeed a little later."""
        if self.err_code == _NO_PEERS:
            # A cluster that has just started has not heard of its servers yet; what
            # else stands against all of them, tags or storage, will not pass.
            return "peer offline" in self.description
        if self.err_code in _CLASSES:
            return self.err_code in _RETRYABLE
        return self.code in _RETRYABLE_STATUSES


class BadRequestError(ApiError):
    """The server does not understand the request."""


class InvalidJSONError(BadRequestError):
    """The server cannot read the request: often a field is newer than the server."""


class JetStreamNotEnabledError(ApiError):
    """JetStream is off: on the server, or for this account."""


class JetStreamUnavailableError(ApiError):
    """JetStream cannot answer right now: no leader, or servers are missing."""


class RequiredApiLevelError(ApiError):
    """The answering server is older than the API level that the request demands."""


class TooManyRequestsError(ApiError):
    """The stream's queue is full; wait a little, then publish again."""


class TooManyBatchesError(TooManyRequestsError):
    """Too many batches are open on the stream or the server."""


class TooManyResultsError(ApiError):
    """A read of the last message per subject matches too many subjects."""


class AccountLimitError(ApiError):
    """A limit of the account or the server stands against it."""


class MaximumConsumersError(AccountLimitError):
    """The stream or the account has as many consumers as it may have."""


class MaximumStreamsError(AccountLimitError):
    """The account has as many streams as it may have."""


class MaxBytesRequiredError(AccountLimitError):
    """The account demands that a stream sets `max_bytes`."""


class MaxStreamBytesError(AccountLimitError):
    """`max_bytes` is more than the account allows one stream."""


class InsufficientResourcesError(ApiError):
    """The servers have no memory or storage left for it."""


class StreamNotFoundError(ApiError):
    """There is no such stream."""


class ConsumerNotFoundError(ApiError):
    """There is no such consumer."""


class MessageNotFoundError(ApiError):
    """The stream holds no such message."""


class StreamNameInUseError(ApiError):
    """A stream of this name exists and is configured differently."""


class ConsumerExistsError(ApiError):
    """A consumer of this name exists and is configured differently, or is in use."""


class StreamOfflineError(ApiError):
    """No server that has the stream can serve it."""


class ConsumerOfflineError(ApiError):
    """No server that has the consumer can serve it."""


class InvalidStreamConfigError(ApiError):
    """The server does not accept the stream's configuration, or this change of it."""


class MirrorNotUpdatableError(InvalidStreamConfigError):
    """The mirror setting of a stream cannot be changed."""


class SubjectsOverlapError(ApiError):
    """Another stream of the account stores some of these subjects."""


class ConsumerCreateError(ApiError):
    """The consumer cannot be made, or may not be changed like this."""


class InvalidConsumerConfigError(ApiError):
    """The server does not accept the consumer's configuration."""


class ConsumerFilterError(InvalidConsumerConfigError):
    """The filter subjects overlap, are empty, or are none of the stream's."""


class PriorityGroupError(InvalidConsumerConfigError):
    """A priority group is unknown, badly named, or not possible here."""


class FlowControlAckError(InvalidConsumerConfigError):
    """The `flow_control` ack policy does not go with the other fields."""


class InvalidConsumerResetError(ApiError):
    """The consumer cannot be set to this sequence."""


class InvalidNameError(ApiError):
    """The server does not accept the name of the stream or consumer."""


class PedanticError(ApiError):
    """The server would have to adjust the configuration, and was told not to."""


class StreamSealedError(ApiError):
    """The stream is sealed: nothing in it changes any more."""


class MessageDeleteFailedError(ApiError):
    """The message cannot be deleted; the stream may deny it."""


class PurgeFailedError(ApiError):
    """The stream cannot be purged; it may deny it."""


class RollupFailedError(ApiError):
    """The stream does not take messages that replace older ones."""


class ExpectedStreamError(ApiError):
    """The subject is stored by another stream than the publish expected."""


class WrongLastMsgIdError(ApiError):
    """The stream's last message has another id than the publish expected."""


class WrongLastSequenceError(ApiError):
    """The stream, or the subject, is not at the sequence that the publish expected."""

    @property
    def expected(self) -> int | None:
        """The sequence that would have been right, if the server told it."""
        if self.err_code != 10071:
            return None
        number = self.description.rpartition(":")[2].strip()
        return int(number) if number.isascii() and number.isdecimal() else None


class DuplicateInProcessError(ApiError):
    """A message of the same id is being stored at this moment."""


class MessageTooLargeError(ApiError):
    """The message is larger than the stream's `max_msg_size`."""


class HeaderTooLargeError(MessageTooLargeError):
    """The headers are larger than a stream can store."""


class SourceHeaderNotAllowedError(ApiError):
    """The message has a header that only servers may set."""


class InvalidMessageTTLError(ApiError):
    """The message's TTL is no duration, or shorter than a second."""


class MessageTTLDisabledError(ApiError):
    """The stream does not take messages with a TTL (`allow_msg_ttl`)."""


class CounterError(ApiError):
    """The stream is no counter, or the increment is not one it takes."""


class ScheduleError(ApiError):
    """The stream takes no schedules, or not this one."""


class AtomicBatchError(ApiError):
    """The atomic batch was given up: none of it is stored."""


class IncompleteBatchError(AtomicBatchError):
    """Messages of the batch are missing or it took too long; begin a new one."""


class FastBatchError(ApiError):
    """The stream takes no batches, does not know this one, or ended it early.

    `ack` tells what is stored of a batch that was ended.
    """

    ack: PubAck | None = None


class StreamStoreFailedError(ApiError):
    """The stream could not store the message."""


class LimitReachedError(StreamStoreFailedError):
    """The stream is full and refuses new messages (`discard` is `new`)."""


class NoStreamResponseError(JetStreamError, NoRespondersError):
    """No stream stores the subject of a publish, or its leader is away."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.args = (f"no stream answers for {subject!r}",)


class InvalidAckError(JetStreamError):
    """A publish was answered by something that is no stream; `data` is the answer."""

    def __init__(self, subject: str, data: bytes = b"") -> None:
        super().__init__(f"the answer to a publish to {subject!r} is no stream's ack")
        self.subject = subject
        self.data = data


class PublishOutcomeUnknownError(JetStreamError):
    """A publish was sent and its ack never came: the message may be stored or not.

    To send it again is safe if it has a `msg_id`, within the stream's
    `duplicate_window`.
    """

    def __init__(self, subject: str, reason: str, *, msg_id: str | None = None) -> None:
        super().__init__(f"{reason}: the message to {subject!r} may be stored or not")
        self.subject = subject
        self.reason = reason
        self.msg_id = msg_id


class PublishTimeoutError(PublishOutcomeUnknownError, TimeoutError):
    """The ack of a publish did not come in time."""


class PublishDisconnectedError(PublishOutcomeUnknownError, ConnectionError):
    """The link was lost before the ack of a publish came."""


class PublishColumnsError(JetStreamError):
    """A row of published columns is not stored; its `__cause__` says why.

    `row` is its number and `subject` its subject. Of all rows `stored` and `duplicates`
    are in the stream, and of `unknown` ones nobody can know. No other row is or will be
    stored.
    """

    def __init__(
        self,
        *,
        row: int,
        subject: str,
        error: Exception | str,
        stored: int,
        duplicates: int,
        unknown: int,
    ) -> None:
        known = f", {duplicates} were there already" if duplicates else ""
        doubt = f", {unknown} may be stored or not" if unknown else ""
        super().__init__(
            f"row {row} for {subject!r}: {error} ({stored} rows are stored{known}"
            f"{doubt})"
        )
        self.row = row
        self.subject = subject
        self.stored = stored
        self.duplicates = duplicates
        self.unknown = unknown


class TooManyPendingError(JetStreamError, TimeoutError):
    """Too many publishes wait for their acks, and none came within the deadline.

    The message that met this was not sent.
    """


class ConsumerStatusError(JetStreamError):
    """What went wrong between a consumer and who reads it.

    `code` and `description` are the server's status, 0 if it sent none; `doing` says
    which consumer it was.
    """

    meaning = ""  # of a status for which the server has no words

    def __init__(self, *, code: int, description: str = "", doing: str = "") -> None:
        number = f"{code} " if code else ""
        told = description or self.meaning
        super().__init__(f"{doing}: {number}{told}".strip(": "))
        self.code = code
        self.description = description
        self.doing = doing


class PullError(ConsumerStatusError):
    """A pull ended otherwise than with its messages."""


class ConsumerDeletedError(PullError):
    """The consumer, or its stream, was deleted.

    The server says the same of both; `Consumer.info` then raises StreamNotFoundError or
    ConsumerNotFoundError.
    """


class StreamDeletedError(ConsumerDeletedError):
    """The stream was deleted while it was read, and with it the consumer."""


class PushConsumerError(PullError):
    """The consumer is a push consumer: it cannot be pulled from."""


class BadPullError(PullError):
    """The server does not understand the pull."""


class RequiredApiLevelPullError(PullError):
    """The server is older than the API level that the pull demands."""


class PullLimitError(PullError):
    """The consumer takes no further pulls now, or none like this."""


class MessageSizeError(PullError):
    """The next message is larger than the pull's limit of bytes."""


class LeadershipChangedError(PullError):
    """Another server leads the consumer now; its pulls are lost."""


class ServerShutdownError(PullError):
    """The server that leads the consumer shuts down."""


class UnpinnedError(PullError):
    """We are not the pinned client of the priority group any more."""


class UnreachableConsumerError(PullError):
    """Nobody answers for the consumer: it is gone, or has no leader."""

    meaning = "nobody answers for it: it is gone, or has no leader just now"


class LostPullError(PullError):
    """A pull ended without a word of the server."""


class PushError(ConsumerStatusError):
    """A push consumer sent a status that is an error, or not what it should."""


class MissedHeartbeatError(PullError, PushError):
    """Nothing was heard of the consumer, pull or push, for several heartbeats."""


class MessageGapError(PushError):
    """Deliveries of a push consumer did not arrive, or it began to count anew.

    The consumer counts its deliveries: `expected` is the number that should have come
    and `came` the one that did. A heartbeat should tell the number of the last message.
    """

    def __init__(self, *, expected: int, came: int, doing: str = "") -> None:
        super().__init__(
            code=0,
            description=f"delivery {expected} was expected, {came} came",
            doing=doing,
        )
        self.expected = expected
        self.came = came

    @property
    def missing(self) -> int:
        """How many deliveries are lost; 0 if the consumer began to count anew."""
        return max(0, self.came - self.expected)


class NoMatchingStreamError(JetStreamError):
    """No stream, or more than one, has messages of `subject`: name the `stream`."""

    def __init__(self, subject: str, streams: Sequence[str] = ()) -> None:
        found = f"streams {', '.join(streams)} have" if streams else "no stream has"
        super().__init__(f"{found} messages of {subject!r}: give a stream by name")
        self.subject = subject
        self.streams = tuple(streams)


class SubscriptionMismatchError(JetStreamError):
    """A subscription does not fit the consumer of its name, which is left as it is."""

    def __init__(self, stream: str, consumer: str, why: str) -> None:
        super().__init__(f"consumer {consumer!r} of stream {stream!r} {why}")
        self.stream = stream
        self.consumer = consumer


class SubjectMismatchError(SubscriptionMismatchError):
    """The consumer delivers other subjects than the subscription asks for."""


class PushConsumerMismatchError(SubscriptionMismatchError):
    """It is a push consumer: a pull subscription cannot read it."""


class PullConsumerMismatchError(SubscriptionMismatchError):
    """It is a pull consumer: only a pull subscription can read it."""


class NoDeliverGroupError(SubscriptionMismatchError):
    """The consumer was made without a deliver group: a queue cannot share it."""


class DuplicateSubscriptionError(SubscriptionMismatchError):
    """Somebody is subscribed to the consumer, and it has room for one."""


class QueueRequiredError(SubscriptionMismatchError):
    """The consumer was made for a queue group: subscribe with that `queue`."""


class QueueMismatchError(SubscriptionMismatchError):
    """The consumer was made for another queue group."""


class QueueStatusError(SubscriptionMismatchError):
    """Members of a queue cannot share heartbeats or flow control."""


class ConfigMismatchError(SubscriptionMismatchError):
    """The consumer is configured otherwise than asked for, and was not changed.

    `differences` has, by field, what was asked for and what the consumer has.
    """

    def __init__(
        self, stream: str, consumer: str, differences: Mapping[str, tuple[Any, Any]]
    ) -> None:
        fields = ", ".join(
            f"{name}={actual!r} (asked for: {wanted!r})"
            for name, (wanted, actual) in differences.items()
        )
        super().__init__(stream, consumer, f"is left as it is, with {fields}")
        self.differences = dict(differences)


class UnsupportedByServerError(JetStreamError):
    """The server is too old for `feature`, which came with the release `needed`."""

    def __init__(
        self, feature: str, needed: tuple[int, int, int], server_version: str = ""
    ) -> None:
        release = ".".join(map(str, needed))
        super().__init__(
            f"{feature} needs nats-server {release} or later, "
            f"this one is {server_version or 'older'}"
        )
        self.feature = feature
        self.needed = needed
        self.server_version = server_version


_GROUPS: dict[type[ApiError], tuple[int | range, ...]] = {
    BadRequestError: (10003, 10038, 10056, 10193),
    InvalidJSONError: (10025,),
    JetStreamNotEnabledError: (10035, 10039, 10076),
    JetStreamUnavailableError: (10004, 10005, 10008, 10009, 10063, 10163),
    RequiredApiLevelError: (10185,),
    TooManyRequestsError: (10167,),
    TooManyBatchesError: (10210, 10211),
    AccountLimitError: (10002, 10120, 10121, 10125, 10153),
    MaximumConsumersError: (10026,),
    MaximumStreamsError: (10027,),
    MaxBytesRequiredError: (10113,),
    MaxStreamBytesError: (10122,),
    InsufficientResourcesError: (10023, 10028, 10047),
    StreamNotFoundError: (10059,),
    ConsumerNotFoundError: (10014, 10149),
    MessageNotFoundError: (10037, 10043),
    StreamNameInUseError: (10058, 10130),
    ConsumerExistsError: (10013, 10105, 10106, 10148),
    StreamOfflineError: (10118, 10194),
    ConsumerOfflineError: (10119, 10195),
    InvalidStreamConfigError: (
        *(10021, 10022, 10024, range(10030, 10035), 10046, 10052, 10053, 10061),
        *(10074, 10123, 10133, range(10140, 10148), range(10150, 10153)),
        *(range(10154, 10157), range(10213, 10218)),
    ),
    MirrorNotUpdatableError: (10055,),
    SubjectsOverlapError: (10065,),
    ConsumerCreateError: (10012,),
    InvalidConsumerConfigError: (
        *(range(10016, 10021), range(10078, 10093), 10094, 10095),
        *(range(10098, 10102), 10107, 10108, 10112, range(10114, 10117), 10126),
        *(10132, 10134, 10135, range(10181, 10185)),
    ),
    ConsumerFilterError: (10093, 10131, range(10136, 10140)),
    PriorityGroupError: (range(10159, 10163), 10178, 10196, 10197),
    FlowControlAckError: (range(10218, 10223),),
    InvalidConsumerResetError: (10204,),
    InvalidNameError: (10102, 10103, 10127, 10128),
    PedanticError: (10157,),
    StreamSealedError: (10109,),
    MessageDeleteFailedError: (10057,),
    PurgeFailedError: (10110,),
    RollupFailedError: (10111,),
    ExpectedStreamError: (10060,),
    WrongLastMsgIdError: (10070,),
    WrongLastSequenceError: (10071, 10164),
    DuplicateInProcessError: (10158,),
    MessageTooLargeError: (10054,),
    HeaderTooLargeError: (10097,),
    SourceHeaderNotAllowedError: (10227,),
    InvalidMessageTTLError: (10165,),
    MessageTTLDisabledError: (10166,),
    CounterError: (range(10168, 10174),),
    ScheduleError: (range(10186, 10193), 10203, 10212, 10223),
    AtomicBatchError: (10174, 10175, 10177, 10179, range(10198, 10202)),
    IncompleteBatchError: (10176,),
    FastBatchError: (range(10205, 10210),),
    StreamStoreFailedError: (10077,),
}

_CLASSES: dict[int, type[ApiError]] = {
    number: kind
    for kind, numbers in _GROUPS.items()
    for entry in numbers
    for number in (entry if isinstance(entry, range) else (entry,))
}

# Reads of messages are refused by a status line, without a number; these say the same.
_STATUSES: dict[int, tuple[type[ApiError], int]] = {
    404: (MessageNotFoundError, 10037),
    408: (BadRequestError, 10003),
    412: (RequiredApiLevelError, 10185),
    413: (TooManyResultsError, 0),
    429: (TooManyRequestsError, 10167),
}


def api_error(error: Mapping[str, Any], *, doing: str = "") -> ApiError:
    """The exception for the `error` object of a server's answer.

    Anything may be missing from it: very old servers send no `err_code`.
    """
    code, err_code = (
        value if isinstance(value := error.get(name), int) else 0
        for name in ("code", "err_code")
    )
    description = str(error.get("description") or "")
    kind = _CLASSES.get(err_code, ApiError)
    # The one text that counts: a full stream shares its number with broken storage.
    if kind is StreamStoreFailedError and description.startswith("maximum"):
        kind = LimitReachedError
    return kind(code=code, err_code=err_code, description=description, doing=doing)


def status_error(code: int, description: str, *, doing: str = "") -> ApiError:
    """The exception for the status line that answers a read of messages."""
    kind, err_code = _STATUSES.get(code, (ApiError, 0))
    return kind(code=code, err_code=err_code, description=description, doing=doing)
