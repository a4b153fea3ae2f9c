-- When a VM came to the host it is on: its creation for one that is new to us, which may be older
-- than our list; the time of the statement whenever the host changes.
CREATE OR REPLACE FUNCTION hosts_instance_keep_arrival() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.host_id IS NULL THEN
        NEW.arrived_at := NULL;
    ELSIF TG_OP = 'INSERT' THEN
        NEW.arrived_at := coalesce(NEW.arrived_at, NEW.nova_created_at, statement_timestamp());
    ELSIF NEW.host_id IS DISTINCT FROM OLD.host_id THEN
        NEW.arrived_at := statement_timestamp();
    ELSIF NEW.arrived_at IS NULL THEN
        NEW.arrived_at := OLD.arrived_at;
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER hosts_instance_keep_arrival
    BEFORE INSERT OR UPDATE OF host_id, arrived_at ON hosts_instance
    FOR EACH ROW EXECUTE FUNCTION hosts_instance_keep_arrival();
