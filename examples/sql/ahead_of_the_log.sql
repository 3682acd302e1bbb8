-- Which offsets are ahead of the log? Such a group misses what is written until the log has caught up: the topic was made anew,
-- or a broker lost data. A head that is older than the commit proves nothing.
SELECT namespace, `group`, shard, broker, offset, head, offset - head AS ahead, committed_at, head_at
FROM lag_shards
WHERE offset > head AND head_at >= committed_at
ORDER BY ahead DESC, namespace, `group`, shard
