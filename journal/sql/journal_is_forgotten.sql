-- What was forgotten is in doubt for positions that did not see all of it.
CREATE OR REPLACE FUNCTION journal_is_forgotten(p_since text)
RETURNS boolean LANGUAGE sql STABLE AS $$
SELECT EXISTS (
       SELECT FROM journal_prunedlog AS pruned
        WHERE pruned.log = 'deletions'
          AND pruned.pruned_xid >= pg_snapshot_xmin(p_since::pg_snapshot)::text::bigint)
$$;
