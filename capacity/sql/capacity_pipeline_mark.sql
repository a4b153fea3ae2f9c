CREATE OR REPLACE FUNCTION capacity_pipeline_mark() RETURNS TABLE (is_ready boolean, mark text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT true, concat_ws('|',
        (SELECT count(*) || '/' || coalesce(sum(hashint8extended(id, changed_xid)), 0)
           FROM capacity_pipeline),
        (SELECT count(*) || '/' || coalesce(sum(hashint8extended(id, changed_xid)), 0)
           FROM capacity_schedulingknowledge
          WHERE expires_at IS NULL OR expires_at > statement_timestamp()));
END
$$;
