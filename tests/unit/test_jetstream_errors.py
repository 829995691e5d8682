"""The error tree of JetStream: a class for each number, texts, pickles."""

from __future__ import annotations

import builtins
import copy
import pickle
import re

import pytest

from jsclient import errors, jetstream_errors
from jsclient.jetstream_errors import (
    AccountLimitError,
    ApiError,
    AtomicBatchError,
    BadRequestError,
    ConsumerCreateError,
    ConsumerExistsError,
    ConsumerFilterError,
    ConsumerNotFoundError,
    ConsumerOfflineError,
    CounterError,
    DuplicateInProcessError,
    ExpectedStreamError,
    FastBatchError,
    FlowControlAckError,
    HeaderTooLargeError,
    IncompleteBatchError,
    InsufficientResourcesError,
    InvalidAckError,
    InvalidConsumerConfigError,
    InvalidConsumerResetError,
    InvalidJSONError,
    InvalidMessageTTLError,
    InvalidNameError,
    InvalidStreamConfigError,
    JetStreamError,
    JetStreamNotEnabledError,
    JetStreamUnavailableError,
    LimitReachedError,
    MaxBytesRequiredError,
    MaximumConsumersError,
    MaximumStreamsError,
    MaxStreamBytesError,
    MessageDeleteFailedError,
    MessageNotFoundError,
    MessageTooLargeError,
    MessageTTLDisabledError,
    MirrorNotUpdatableError,
    NoStreamResponseError,
    PedanticError,
    PriorityGroupError,
    PublishColumnsError,
    PublishDisconnectedError,
    PublishOutcomeUnknownError,
    PublishTimeoutError,
    PurgeFailedError,
    RequiredApiLevelError,
    RollupFailedError,
    ScheduleError,
    SourceHeaderNotAllowedError,
    StreamNameInUseError,
    StreamNotFoundError,
    StreamOfflineError,
    StreamSealedError,
    StreamStoreFailedError,
    SubjectsOverlapError,
    TooManyBatchesError,
    TooManyPendingError,
    TooManyRequestsError,
    TooManyResultsError,
    UnsupportedByServerError,
    WrongLastMsgIdError,
    WrongLastSequenceError,
    api_error,
    status_error,
)

NAMED: dict[int, type[ApiError]] = {
    10002: AccountLimitError,
    10003: BadRequestError,
    10004: JetStreamUnavailableError,
    10005: JetStreamUnavailableError,
    10008: JetStreamUnavailableError,
    10009: JetStreamUnavailableError,
    10012: ConsumerCreateError,
    10013: ConsumerExistsError,
    10014: ConsumerNotFoundError,
    10023: InsufficientResourcesError,
    10025: InvalidJSONError,
    10026: MaximumConsumersError,
    10027: MaximumStreamsError,
    10028: InsufficientResourcesError,
    10034: InvalidStreamConfigError,
    10035: JetStreamNotEnabledError,
    10037: MessageNotFoundError,
    10038: BadRequestError,
    10039: JetStreamNotEnabledError,
    10043: MessageNotFoundError,
    10047: InsufficientResourcesError,
    10052: InvalidStreamConfigError,
    10054: MessageTooLargeError,
    10055: MirrorNotUpdatableError,
    10056: BadRequestError,
    10057: MessageDeleteFailedError,
    10058: StreamNameInUseError,
    10059: StreamNotFoundError,
    10060: ExpectedStreamError,
    10063: JetStreamUnavailableError,
    10065: SubjectsOverlapError,
    10070: WrongLastMsgIdError,
    10071: WrongLastSequenceError,
    10074: InvalidStreamConfigError,
    10076: JetStreamNotEnabledError,
    10077: StreamStoreFailedError,
    10080: InvalidConsumerConfigError,
    10094: InvalidConsumerConfigError,
    10097: HeaderTooLargeError,
    10105: ConsumerExistsError,
    10106: ConsumerExistsError,
    10108: InvalidConsumerConfigError,
    10109: StreamSealedError,
    10110: PurgeFailedError,
    10111: RollupFailedError,
    10113: MaxBytesRequiredError,
    10116: InvalidConsumerConfigError,
    10118: StreamOfflineError,
    10119: ConsumerOfflineError,
    10122: MaxStreamBytesError,
    10127: InvalidNameError,
    10128: InvalidNameError,
    10131: ConsumerFilterError,
    10132: InvalidConsumerConfigError,
    10136: ConsumerFilterError,
    10137: ConsumerFilterError,
    10138: ConsumerFilterError,
    10139: ConsumerFilterError,
    10140: InvalidStreamConfigError,
    10148: ConsumerExistsError,
    10149: ConsumerNotFoundError,
    10157: PedanticError,
    10158: DuplicateInProcessError,
    10159: PriorityGroupError,
    10160: PriorityGroupError,
    10161: PriorityGroupError,
    10162: PriorityGroupError,
    10163: JetStreamUnavailableError,
    10164: WrongLastSequenceError,
    10165: InvalidMessageTTLError,
    10166: MessageTTLDisabledError,
    10167: TooManyRequestsError,
    **dict.fromkeys(range(10168, 10174), CounterError),
    10174: AtomicBatchError,
    10175: AtomicBatchError,
    10176: IncompleteBatchError,
    10177: AtomicBatchError,
    10178: PriorityGroupError,
    10179: AtomicBatchError,
    10185: RequiredApiLevelError,
    **dict.fromkeys(range(10186, 10193), ScheduleError),
    10193: BadRequestError,
    10194: StreamOfflineError,
    10195: ConsumerOfflineError,
    10196: PriorityGroupError,
    10197: PriorityGroupError,
    **dict.fromkeys(range(10198, 10202), AtomicBatchError),
    10203: ScheduleError,
    10204: InvalidConsumerResetError,
    **dict.fromkeys(range(10205, 10210), FastBatchError),
    10210: TooManyBatchesError,
    10211: TooManyBatchesError,
    10212: ScheduleError,
    **dict.fromkeys(range(10218, 10223), FlowControlAckError),
    10223: ScheduleError,
    10227: SourceHeaderNotAllowedError,
}

RETRYABLE = {10004, 10008, 10009, 10063, 10158, 10163, 10167, 10210, 10211}


@pytest.mark.parametrize("number", NAMED)
def test_each_number_of_the_server_has_its_class(number: int) -> None:
    error = api_error({"code": 400, "err_code": number, "description": "no"})
    assert type(error) is NAMED[number]
    assert (error.code, error.err_code, error.description) == (400, number, "no")
    assert error.is_retryable is (number in RETRYABLE)


def test_a_number_that_is_named_is_retryable_by_the_table_not_by_its_code() -> None:
    full = api_error({"code": 503, "err_code": 10077, "description": "maximum bytes"})
    assert not full.is_retryable


@pytest.mark.parametrize(
    ("code", "retryable"), [(503, True), (429, True), (500, False), (404, False)]
)
def test_an_unknown_number_is_an_api_error_retryable_by_code(
    code: int, retryable: bool
) -> None:
    error = api_error({"code": code, "err_code": 19999, "description": "new"})
    assert type(error) is ApiError
    assert error.is_retryable is retryable


def test_a_full_stream_is_told_from_one_that_cannot_store() -> None:
    full = {"code": 503, "err_code": 10077, "description": "maximum messages exceeded"}
    assert type(api_error(full)) is LimitReachedError
    assert type(api_error({**full, "description": "disk"})) is StreamStoreFailedError


@pytest.mark.parametrize(
    ("number", "text", "expected"),
    [
        (10071, "wrong last sequence: 5", 5),
        (10071, "wrong last sequence: 18446744073709551615", 18446744073709551615),
        (10071, "wrong last sequence", None),
        (10071, "wrong last sequence: ²", None),
        (10164, "wrong last sequence", None),
        (10164, "wrong last sequence: 5", None),
    ],
)
def test_a_conflict_tells_the_right_sequence_if_the_server_did(
    number: int, text: str, expected: int | None
) -> None:
    error = api_error({"code": 400, "err_code": number, "description": text})
    assert isinstance(error, WrongLastSequenceError)
    assert error.expected == expected


def test_a_text_says_what_was_being_done() -> None:
    error = api_error(
        {"code": 404, "err_code": 10059, "description": "stream not found"},
        doing="read stream ORDERS",
    )
    assert str(error) == "read stream ORDERS: stream not found (404, error 10059)"
    assert error.doing == "read stream ORDERS"


def test_an_error_of_an_old_server_may_lack_everything() -> None:
    error = api_error({"code": "x", "err_code": None, "description": None})
    assert (error.code, error.err_code, error.description) == (0, 0, "")
    assert str(error) == "refused by the server (0)"


def test_a_refused_api_level_has_its_class() -> None:
    error = api_error({"code": 412, "err_code": 10185, "description": "level"})
    assert type(error) is RequiredApiLevelError


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, MessageNotFoundError),
        (408, BadRequestError),
        (412, RequiredApiLevelError),
        (413, TooManyResultsError),
        (429, TooManyRequestsError),
        (500, ApiError),
    ],
)
def test_a_status_line_has_the_class_of_the_same_refusal(
    code: int, kind: type[ApiError]
) -> None:
    error = status_error(code, "No", doing="read")
    assert type(error) is kind
    assert (error.code, error.description, error.doing) == (code, "No", "read")


OTHERS: list[JetStreamError] = [
    NoStreamResponseError("a.b"),
    InvalidAckError("a.b", b"hello"),
    PublishOutcomeUnknownError("a.b", "the link was lost", msg_id="m1"),
    PublishDisconnectedError("a.b", "the link was lost", msg_id="m1"),
    PublishTimeoutError("a.b", "no ack in 5 s"),
    TooManyPendingError("4000 acks are pending"),
    UnsupportedByServerError("allow_msg_ttl", (2, 11, 0), "2.10.4"),
    PublishColumnsError(
        row=7, subject="a.b", error="too large", stored=6, duplicates=1, unknown=2
    ),
    api_error(
        {"code": 400, "err_code": 10071, "description": "is: 5"}, doing="publish"
    ),
]


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_every_error_survives_a_pickle_and_a_copy(error: JetStreamError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_errors_without_the_server_tell_what_they_know() -> None:
    subject, ack, unknown, lost, timeout, _pending, old, row, _api = OTHERS
    assert str(subject) == "no stream answers for 'a.b'"
    assert isinstance(subject, errors.NoRespondersError)
    assert subject.subject == "a.b"
    assert isinstance(ack, InvalidAckError)
    assert (ack.subject, ack.data) == ("a.b", b"hello")
    assert isinstance(unknown, PublishOutcomeUnknownError)
    assert (unknown.subject, unknown.msg_id) == ("a.b", "m1")
    assert not isinstance(unknown, builtins.TimeoutError)
    assert str(timeout) == "no ack in 5 s: the message to 'a.b' may be stored or not"
    assert isinstance(timeout, errors.TimeoutError)
    assert isinstance(lost, errors.ConnectionError)
    assert str(row) == (
        "row 7 for 'a.b': too large (6 rows are stored, 1 were there already, "
        "2 may be stored or not)"
    )
    assert isinstance(old, UnsupportedByServerError)
    assert (old.feature, old.needed, old.server_version) == (
        "allow_msg_ttl",
        (2, 11, 0),
        "2.10.4",
    )
    assert str(old) == (
        "allow_msg_ttl needs nats-server 2.11.0 or later, this one is 2.10.4"
    )
    assert "this one is older" in str(UnsupportedByServerError("x", (2, 11, 0)))


def test_waiting_for_acks_too_long_is_a_timeout() -> None:
    assert issubclass(TooManyPendingError, builtins.TimeoutError)


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (jetstream_errors.__doc__ or "").splitlines():
        match = re.match(r"    ((?:[│ ]   )*(?:[├└]── )?)(\w+Error|Error)\b", line)
        if match:
            del path[len(match[1]) // 4 :]
            drawn[match[2]] = path[-1] if path else ""
            path.append(match[2])
    classes = {
        name: value
        for name in jetstream_errors.__all__
        if isinstance(value := getattr(jetstream_errors, name), type)
    }
    assert {name: kind.__bases__[0].__name__ for name, kind in classes.items()} == {
        name: parent for name, parent in drawn.items() if parent
    }


def test_every_name_in_all_is_a_documented_error() -> None:
    for name in jetstream_errors.__all__:
        kind = getattr(jetstream_errors, name)
        assert issubclass(kind, JetStreamError)
        assert kind.__doc__
