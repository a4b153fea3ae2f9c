CREATE OR REPLACE FUNCTION failover_host_changed() RETURNS trigger LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_indexonlyscan = off AS $$
BEGIN
    UPDATE failover_failoverreservation AS known SET next_validation_at = now()
      FROM capacity_reservation AS held
     WHERE held.id = known.reservation_id AND held.kind = 'failover'
       AND held.target_host_id = NEW.id AND known.next_validation_at > now();
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER hosts_host_failover_change
    AFTER UPDATE OF state, is_lost, status, maintenance, conditions, zone, traits, custom_traits,
        aggregate_uuids, allowed_projects, effective_memory_bytes, effective_vcpus ON hosts_host
    FOR EACH ROW
    WHEN ((OLD.state, OLD.is_lost, OLD.status, OLD.maintenance, OLD.conditions, OLD.zone, OLD.traits,
        OLD.custom_traits, OLD.aggregate_uuids, OLD.allowed_projects,
        OLD.effective_memory_bytes, OLD.effective_vcpus) IS DISTINCT FROM (NEW.state,
        NEW.is_lost, NEW.status, NEW.maintenance, NEW.conditions, NEW.zone, NEW.traits, NEW.custom_traits,
        NEW.aggregate_uuids, NEW.allowed_projects, NEW.effective_memory_bytes,
        NEW.effective_vcpus))
    EXECUTE FUNCTION failover_host_changed();
