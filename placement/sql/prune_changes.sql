-- When a row was written says nothing of when it was committed. So an hour ago it was noted which
-- transactions had ended by then; what these wrote, every reader has seen or reads everything anew.
WITH due AS (
    SELECT pruned_xid FROM journal_prunedlog
     WHERE log = 'placement_changes' AND pruned_at <= statement_timestamp() - %s
), gone AS (
    DELETE FROM placement_change USING due WHERE xid < due.pruned_xid RETURNING seq
), noted AS (
    INSERT INTO journal_prunedlog (log, pruned_xid)
    SELECT 'placement_changes', pg_snapshot_xmin(pg_current_snapshot())::text::bigint
     WHERE EXISTS (SELECT FROM due)
        OR NOT EXISTS (SELECT FROM journal_prunedlog WHERE log = 'placement_changes')
        ON CONFLICT (log) DO UPDATE
       SET pruned_xid = excluded.pruned_xid, pruned_at = statement_timestamp()
)
SELECT count(*) FROM gone
