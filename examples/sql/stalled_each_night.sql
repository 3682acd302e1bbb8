-- Which groups stall each night? Those that stalled or had stopped at some time between 22 and 6 o'clock, in every night of
-- which there are batches: [lag] keep_hours = 168 keeps those of a week.
WITH nights AS (
  SELECT namespace, `group`, status, total_lag, to_date(evaluated_at + INTERVAL 2 HOURS) AS morning
  FROM lag_groups
  WHERE hour(evaluated_at) >= 22 OR hour(evaluated_at) < 6
)
SELECT namespace, `group`, count(DISTINCT morning) AS nights, max(total_lag) AS largest_lag
FROM nights
WHERE status IN ('STALL', 'STOP')
GROUP BY namespace, `group`
HAVING count(DISTINCT morning) = (SELECT count(DISTINCT morning) FROM nights)
ORDER BY largest_lag DESC NULLS LAST, namespace, `group`
