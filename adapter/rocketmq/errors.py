"""What can go wrong with a RocketMQ broker."""

from adapter.errors import BrokerLogError


class BrokerError(BrokerLogError):
    """The broker cannot be reached, did not answer in time, or gave an answer that cannot be right."""


class BrokerUnreachableError(BrokerError):
    """No connection could be made."""


class BrokerRefusedError(BrokerError):
    """The broker answered with an error. `code` is RocketMQ's ResponseCode."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code
