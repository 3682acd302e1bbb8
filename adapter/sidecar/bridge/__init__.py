"""The bridge to a stock RocketMQ broker (`[rocketmq]`): keeps its offsets here, and gives a broker back what it lost.

`bridge` (the task: polls, commits, gives back), `agreement` (what is to be done about one offset; pure), `marks` (the file that
survives a restart of the sidecar), `store_changes` (what others changed in the store), `giving` (what is sent to the broker),
`broker_log` (the bounds of the broker's queues for resets and lag), `counts` (its metrics). The wire is `adapter.rocketmq`.
"""
