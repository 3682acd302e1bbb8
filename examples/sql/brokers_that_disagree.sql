-- Which brokers disagree with the Meta Service? By the last run of `reconcile`. Keys of kind `ahead` were committed since the
-- snapshot, or flushed by another adapter; what is planned is merged by `reconcile --apply`.
SELECT broker, kind, count(*) AS keys, count_if(planned) AS planned, sum(abs(difference)) AS messages
FROM differences
WHERE kind <> 'ahead'
GROUP BY broker, kind
ORDER BY keys DESC, broker, kind
