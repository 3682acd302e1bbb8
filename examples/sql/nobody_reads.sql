-- Which groups does nobody read any more? Nothing was committed for a day, and there is something to read.
SELECT namespace, `group`, count(*) AS shards, max(committed_at) AS last_commit, sum(lag) AS lag
FROM lag_shards
GROUP BY namespace, `group`
HAVING max(committed_at) < max(evaluated_at) - INTERVAL 1 DAY AND sum(lag) > 0
ORDER BY lag DESC, namespace, `group`
