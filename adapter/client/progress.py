"""Progress: the next offset to read of a shard, with what a commit may tell beside it."""

from dataclasses import dataclass

from adapter.errors import InvalidInputError
from adapter.model.names import check_metadata, check_topic
from adapter.model.records import U64_MAX
from adapter.rpc import offsets_pb

_U32_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Progress:
    """The next offset to read, and what is known beside it: for `commit`, in the place of a plain offset.

    `high` and `low`: the offset that the next message of the log will get, and the first one that can be read; lag is counted by
    them. `log_id`: which log they are of, any text that is another one when the log was made anew, such as the id of its topic.
    `metadata`: at most 4,096 bytes. `topic`, `partition`: labels that travel to the Meta Service.
    """

    offset: int
    high: int | None = None
    low: int = 0
    log_id: str = ""
    metadata: str = ""
    topic: str = ""
    partition: int = 0

    def __post_init__(self) -> None:
        """Check the values. Raises InvalidInputError."""
        numbers = (("offset", self.offset, U64_MAX), ("low", self.low, U64_MAX), ("partition", self.partition, _U32_MAX))
        for field, value, most in (*numbers, ("high", self.high or 0, U64_MAX)):
            if type(value) is not int or not 0 <= value <= most:
                raise InvalidInputError(f"{field}: {value!r} is not a number from 0 to {most}")
        if self.high is None and (self.low or self.log_id):
            raise InvalidInputError("high is missing: low and log_id alone say nothing")
        if self.high is not None and self.low > self.high:
            raise InvalidInputError(f"low: {self.low} is over high, {self.high}")
        check_metadata(self.metadata, "metadata")
        check_topic(self.topic, "topic")
        check_topic(self.log_id, "log_id")

    @property
    def text_bytes(self) -> int:
        """The size of its texts in a request, about."""
        return sum(len(text.encode()) for text in (self.metadata, self.topic, self.log_id))

    def write_to(self, commit: offsets_pb.ShardCommit) -> None:
        """Write it into a request."""
        commit.offset, commit.metadata, commit.topic, commit.partition = self.offset, self.metadata, self.topic, self.partition
        if self.high is not None:
            commit.low_watermark, commit.high_watermark, commit.log_id = self.low, self.high, self.log_id
