-- Who rewound yesterday? Each move of an offset on the day before that of the newest data, the costliest first.
SELECT at, kind, namespace, `group`, shard, broker, from_offset, offset, duplicates, skipped
FROM lag_rewinds
WHERE to_date(at) = (SELECT date_sub(to_date(max(evaluated_at)), 1) FROM lag_shards)
ORDER BY duplicates DESC NULLS LAST, at
