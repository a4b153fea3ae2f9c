-- HostCondition follows Host.conditions and condition_reasons, whoever writes the host: a status that
-- changes does so now, words that change with the same status do not count (spec hosts, C.3).
CREATE OR REPLACE FUNCTION hosts_host_keep_conditions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM hosts_hostcondition AS known
     WHERE known.host_id = NEW.id AND NEW.conditions ->> known.type IS NULL;
    INSERT INTO hosts_hostcondition AS known
           (host_id, type, status, reason, message, last_transition_at)
    SELECT NEW.id, stated.type, left(initcap(stated.status), 16),
           coalesce(NEW.condition_reasons -> stated.type ->> 'reason', ''),
           coalesce(NEW.condition_reasons -> stated.type ->> 'message', ''), statement_timestamp()
      FROM jsonb_each_text(NEW.conditions) AS stated (type, status)
     WHERE stated.status IS NOT NULL AND length(stated.type) <= 255
     ORDER BY stated.type
        ON CONFLICT (host_id, type) DO UPDATE
       SET status = excluded.status, reason = excluded.reason, message = excluded.message,
           last_transition_at = CASE WHEN known.status = excluded.status
                                     THEN known.last_transition_at
                                     ELSE excluded.last_transition_at END
     WHERE (known.status, known.reason, known.message)
           IS DISTINCT FROM (excluded.status, excluded.reason, excluded.message);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER hosts_host_keep_conditions_insert
    AFTER INSERT ON hosts_host
    FOR EACH ROW WHEN (NEW.conditions <> '{}')
    EXECUTE FUNCTION hosts_host_keep_conditions();
CREATE OR REPLACE TRIGGER hosts_host_keep_conditions_update
    AFTER UPDATE OF conditions, condition_reasons ON hosts_host
    FOR EACH ROW WHEN ((OLD.conditions, OLD.condition_reasons)
                       IS DISTINCT FROM (NEW.conditions, NEW.condition_reasons))
    EXECUTE FUNCTION hosts_host_keep_conditions();

-- Of conditions that stood before this was followed nobody knows since when.
INSERT INTO hosts_hostcondition (host_id, type, status, reason, message)
SELECT host.id, stated.type, left(initcap(stated.status), 16),
       coalesce(host.condition_reasons -> stated.type ->> 'reason', ''),
       coalesce(host.condition_reasons -> stated.type ->> 'message', '')
  FROM hosts_host AS host CROSS JOIN jsonb_each_text(host.conditions) AS stated (type, status)
 WHERE stated.status IS NOT NULL AND length(stated.type) <= 255
 ORDER BY host.id, stated.type
    ON CONFLICT DO NOTHING;
