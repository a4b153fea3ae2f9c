-- A VM came: whoever writes it, the note is in the same transaction. Notes are only ever inserted
-- here, so nobody waits for anybody. A statement that brings very many VMs, such as an import,
-- leaves them to the next run of their zone.
CREATE OR REPLACE FUNCTION failover_vms_came() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(*) FROM (SELECT FROM fresh LIMIT 201) AS first_ones) <= 200 THEN
        INSERT INTO failover_duevm (vm_uuid)
        SELECT openstack_id FROM fresh WHERE host_id IS NOT NULL;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER hosts_instance_failover_came
    AFTER INSERT ON hosts_instance REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION failover_vms_came();
