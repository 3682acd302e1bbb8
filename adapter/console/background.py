"""What runs beside the pages: the live streams, and the collection of what charts show."""

import anyio

from adapter.console.views.charts import Charts
from adapter.console.views.live import Live


class Background:
    """Runs until cancelled. `stop` ends the live streams, so that a stop need not wait for them."""

    def __init__(self, live: Live, charts: Charts) -> None:
        self.live = live
        self.charts = charts

    async def run(self) -> None:
        """Run until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.live.run, name="live")
            tasks.start_soon(self.charts.run, name="charts")

    def stop(self) -> None:
        """End the streams."""
        self.live.stop()
