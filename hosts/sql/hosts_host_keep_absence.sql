CREATE OR REPLACE FUNCTION hosts_host_keep_absence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> 'down' THEN
        NEW.down_since := NULL;
    ELSIF NEW.down_since IS NULL THEN
        NEW.down_since := statement_timestamp();
        IF TG_OP = 'UPDATE' AND OLD.down_since IS NOT NULL THEN
            NEW.down_since := OLD.down_since;
        END IF;
    END IF;
    IF NEW.maintenance <> 'termination' THEN
        NEW.terminating_since := NULL;
    ELSIF NEW.terminating_since IS NULL THEN
        NEW.terminating_since := statement_timestamp();
        IF TG_OP = 'UPDATE' AND OLD.terminating_since IS NOT NULL THEN
            NEW.terminating_since := OLD.terminating_since;
        END IF;
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER hosts_host_keep_absence
    BEFORE INSERT OR UPDATE OF state, maintenance, down_since, terminating_since ON hosts_host
    FOR EACH ROW EXECUTE FUNCTION hosts_host_keep_absence();
