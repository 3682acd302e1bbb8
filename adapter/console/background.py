"""What runs beside the pages: the live streams, and the collection of what charts show."""

import anyio


class Background:
    """Runs until cancelled. `stop` ends the live streams, so that a stop need not wait for them."""

    def __init__(self) -> None:
        self._stopping = anyio.Event()

    async def run(self) -> None:
        """Run until cancelled."""
        await anyio.sleep_forever()

    def stop(self) -> None:
        """End the streams."""
        self._stopping.set()
