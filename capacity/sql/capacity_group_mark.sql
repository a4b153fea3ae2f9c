CREATE OR REPLACE FUNCTION capacity_group_mark() RETURNS TABLE (is_ready boolean, mark text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT (SELECT snapshot.is_ready FROM capacity_flavorgroupsnapshot AS snapshot),
        concat_ws('|',
        (SELECT content_hash FROM capacity_flavorgroupsnapshot),
        (SELECT count(*) || '/' || coalesce(sum(hashint8extended(id, changed_xid)), 0)
           FROM capacity_flavorgroup),
        (SELECT count(*) || '/' || coalesce(sum(hashint8extended(id, 0)), 0)
           FROM capacity_flavorgroupmember),
        (SELECT count(*) || '/' || coalesce(sum(hashint8extended(id, changed_xid)), 0)
           FROM hosts_flavor));
END
$$;
