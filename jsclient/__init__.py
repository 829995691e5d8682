"""jsclient: a blocking, thread-safe NATS client with a compiled wire core.

    import jsclient

    with jsclient.connect("nats://127.0.0.1:4222") as nc:
        nc.publish("hello", b"world")
        print(nc.request("service", b"ping", timeout=1.0).data)

Public are the names in `__all__`; modules that start with `_` are not.
"""

from typing import TYPE_CHECKING

from . import errors, events
from ._core import Batch, Headers, Metadata, Msg, PubAck
from ._engine.info import ServerInfo
from ._io.live import Status
from .connection import Connection, Stats, connect
from .errors import *  # noqa: F403 - the error tree is part of the namespace
from .events import *  # noqa: F403 - so are the events
from .subscription import Subscription
from .version import __version__

if TYPE_CHECKING:
    from . import server
    from .ack_future import (
        AckFuture,
    )
    from .batch import (
        AtomicBatch,
        FastBatch,
    )
    from .config import (
        AckPolicy,
        ConsumerConfig,
        ConsumerLimits,
        DeliverPolicy,
        DiscardPolicy,
        ExternalStream,
        PersistMode,
        Placement,
        PriorityPolicy,
        ReplayPolicy,
        Republish,
        RetentionPolicy,
        StorageType,
        StoreCompression,
        StreamConfig,
        StreamConsumerSource,
        StreamSource,
        SubjectTransform,
    )
    from .consumer import (
        Consumer,
    )
    from .consuming import (
        Batches,
        ConsumeHandle,
        Messages,
    )
    from .fetching import (
        FetchResult,
    )
    from .info import (
        AccountInfo,
        AccountLimits,
        AccountTier,
        ApiStats,
        ClusterInfo,
        ConsumerInfo,
        LostData,
        PauseInfo,
        PeerInfo,
        PriorityGroupInfo,
        SequenceInfo,
        SourceInfo,
        StreamAlternate,
        StreamInfo,
        StreamState,
        Timestamp,
    )
    from .jetstream import (
        JetStream,
    )
    from .jetstream_errors import (
        AccountLimitError,
        ApiError,
        AtomicBatchError,
        BadPullError,
        BadRequestError,
        ConfigMismatchError,
        ConsumerCreateError,
        ConsumerDeletedError,
        ConsumerExistsError,
        ConsumerFilterError,
        ConsumerNotFoundError,
        ConsumerOfflineError,
        ConsumerStatusError,
        CounterError,
        DuplicateInProcessError,
        DuplicateSubscriptionError,
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
        LeadershipChangedError,
        LimitReachedError,
        LostPullError,
        MaxBytesRequiredError,
        MaximumConsumersError,
        MaximumStreamsError,
        MaxStreamBytesError,
        MessageDeleteFailedError,
        MessageGapError,
        MessageNotFoundError,
        MessageSizeError,
        MessageTooLargeError,
        MessageTTLDisabledError,
        MirrorNotUpdatableError,
        MissedHeartbeatError,
        NoDeliverGroupError,
        NoMatchingStreamError,
        NoStreamResponseError,
        PedanticError,
        PriorityGroupError,
        PublishColumnsError,
        PublishDisconnectedError,
        PublishOutcomeUnknownError,
        PublishTimeoutError,
        PullConsumerMismatchError,
        PullError,
        PullLimitError,
        PurgeFailedError,
        PushConsumerError,
        PushConsumerMismatchError,
        PushError,
        QueueMismatchError,
        QueueRequiredError,
        QueueStatusError,
        RequiredApiLevelError,
        RequiredApiLevelPullError,
        RollupFailedError,
        ScheduleError,
        ServerShutdownError,
        SourceHeaderNotAllowedError,
        StreamDeletedError,
        StreamNameInUseError,
        StreamNotFoundError,
        StreamOfflineError,
        StreamSealedError,
        StreamStoreFailedError,
        SubjectMismatchError,
        SubjectsOverlapError,
        SubscriptionMismatchError,
        TooManyBatchesError,
        TooManyPendingError,
        TooManyRequestsError,
        TooManyResultsError,
        UnpinnedError,
        UnreachableConsumerError,
        UnsupportedByServerError,
        WrongLastMsgIdError,
        WrongLastSequenceError,
    )
    from .ordered import (
        OrderedConsumer,
    )
    from .ordered_push import (
        OrderedPushSubscription,
    )
    from .publish_columns import (
        Published,
    )
    from .pull_subscription import (
        PullSubscription,
    )
    from .push import (
        PushSubscription,
    )
    from .stored import (
        StoredMessage,
    )
    from .stream import (
        Stream,
    )
    from .succession import (
        OrderedMessages,
    )

__all__ = [
    "AccountInfo",
    "AccountLimitError",
    "AccountLimits",
    "AccountTier",
    "AckFuture",
    "AckPolicy",
    "ApiError",
    "ApiStats",
    "AtomicBatch",
    "AtomicBatchError",
    "BadPullError",
    "BadRequestError",
    "Batch",
    "Batches",
    "ClusterInfo",
    "ConfigMismatchError",
    "Connection",
    "ConsumeHandle",
    "Consumer",
    "ConsumerConfig",
    "ConsumerCreateError",
    "ConsumerDeletedError",
    "ConsumerExistsError",
    "ConsumerFilterError",
    "ConsumerInfo",
    "ConsumerLimits",
    "ConsumerNotFoundError",
    "ConsumerOfflineError",
    "ConsumerStatusError",
    "CounterError",
    "DeliverPolicy",
    "DiscardPolicy",
    "DuplicateInProcessError",
    "DuplicateSubscriptionError",
    "ExpectedStreamError",
    "ExternalStream",
    "FastBatch",
    "FastBatchError",
    "FetchResult",
    "FlowControlAckError",
    "HeaderTooLargeError",
    "Headers",
    "IncompleteBatchError",
    "InsufficientResourcesError",
    "InvalidAckError",
    "InvalidConsumerConfigError",
    "InvalidConsumerResetError",
    "InvalidJSONError",
    "InvalidMessageTTLError",
    "InvalidNameError",
    "InvalidStreamConfigError",
    "JetStream",
    "JetStreamError",
    "JetStreamNotEnabledError",
    "JetStreamUnavailableError",
    "LeadershipChangedError",
    "LimitReachedError",
    "LostData",
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
    "Messages",
    "Metadata",
    "MirrorNotUpdatableError",
    "MissedHeartbeatError",
    "Msg",
    "NoDeliverGroupError",
    "NoMatchingStreamError",
    "NoStreamResponseError",
    "OrderedConsumer",
    "OrderedMessages",
    "OrderedPushSubscription",
    "PauseInfo",
    "PedanticError",
    "PeerInfo",
    "PersistMode",
    "Placement",
    "PriorityGroupError",
    "PriorityGroupInfo",
    "PriorityPolicy",
    "PubAck",
    "PublishColumnsError",
    "PublishDisconnectedError",
    "PublishOutcomeUnknownError",
    "PublishTimeoutError",
    "Published",
    "PullConsumerMismatchError",
    "PullError",
    "PullLimitError",
    "PullSubscription",
    "PurgeFailedError",
    "PushConsumerError",
    "PushError",
    "PushSubscription",
    "PushConsumerMismatchError",
    "QueueMismatchError",
    "QueueRequiredError",
    "QueueStatusError",
    "ReplayPolicy",
    "Republish",
    "RequiredApiLevelError",
    "RequiredApiLevelPullError",
    "RetentionPolicy",
    "RollupFailedError",
    "ScheduleError",
    "SequenceInfo",
    "ServerInfo",
    "ServerShutdownError",
    "SourceHeaderNotAllowedError",
    "SourceInfo",
    "Stats",
    "Status",
    "StorageType",
    "StoreCompression",
    "StoredMessage",
    "Stream",
    "StreamAlternate",
    "StreamConfig",
    "StreamConsumerSource",
    "StreamInfo",
    "StreamDeletedError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "StreamOfflineError",
    "StreamSealedError",
    "StreamSource",
    "StreamState",
    "StreamStoreFailedError",
    "SubjectMismatchError",
    "SubjectTransform",
    "SubjectsOverlapError",
    "Subscription",
    "SubscriptionMismatchError",
    "Timestamp",
    "TooManyBatchesError",
    "TooManyPendingError",
    "TooManyRequestsError",
    "TooManyResultsError",
    "UnpinnedError",
    "UnreachableConsumerError",
    "UnsupportedByServerError",
    "WrongLastMsgIdError",
    "WrongLastSequenceError",
    "__version__",
    "connect",
    "errors",
    "events",
    "server",
    *errors.__all__,
    *events.__all__,
]

# Where the names of JetStream are looked up, each module before those that need it:
# who does not use JetStream does not pay for its import.
_LATER = (
    "jetstream_errors",
    "config",
    "info",
    "stored",
    "consuming",
    "fetching",
    "push",
    "consumer",
    "succession",
    "ordered",
    "ordered_push",
    "stream",
    "ack_future",
    "publish_columns",
    "batch",
    "pull_subscription",
    "jetstream",
)


# Type checkers would take any name for an attribute.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        # A local server is for demos and tests: its imports are paid when it is used.
        if name == "server":
            return import_module(".server", __name__)
        if name in __all__:
            for module in _LATER:
                found = getattr(import_module(f".{module}", __name__), name, None)
                if found is not None:
                    globals()[name] = found
                    return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
