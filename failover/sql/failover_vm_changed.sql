-- A VM changed: a note, as in failover_vms_came.
CREATE OR REPLACE FUNCTION failover_vm_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO failover_duevm (vm_uuid) VALUES (NEW.openstack_id);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER hosts_instance_failover_change
    AFTER UPDATE OF host_id, status, flavor_name, memory_bytes, vcpus ON hosts_instance
    FOR EACH ROW
    WHEN (NEW.host_id IS NOT NULL AND (OLD.host_id, OLD.status, OLD.flavor_name,
        OLD.memory_bytes, OLD.vcpus) IS DISTINCT FROM (NEW.host_id, NEW.status, NEW.flavor_name,
        NEW.memory_bytes, NEW.vcpus))
    EXECUTE FUNCTION failover_vm_changed();
