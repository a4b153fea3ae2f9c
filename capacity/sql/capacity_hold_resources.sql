-- What a slot holds of network, disk I/O and GPUs: as much of its flavor's needs as it blocks of the
-- flavor's memory, rounded up (spec hosts, D.12). Of a flavor that is gone nothing is known: the slot
-- keeps what it holds as long as it blocks something. What a trigger looks at before it calls a function
-- is short: its text is read anew for each statement.
CREATE OR REPLACE FUNCTION capacity_hold_resources() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_flavor record;
    v_need record;
BEGIN
    IF TG_OP = 'UPDATE'
       AND (NEW.blocked_memory_bytes, NEW.resource_name, NEW.held_network_bps, NEW.held_disk_io_bps,
            NEW.held_gpus)
           IS NOT DISTINCT FROM
           (OLD.blocked_memory_bytes, OLD.resource_name, OLD.held_network_bps, OLD.held_disk_io_bps,
            OLD.held_gpus) THEN
        RETURN NEW;
    END IF;
    IF NEW.blocked_memory_bytes > 0 THEN
        SELECT flavor.memory_bytes, flavor.extra_specs INTO v_flavor FROM hosts_flavor AS flavor
         WHERE flavor.name = NEW.resource_name AND flavor.memory_bytes > 0;
        IF NOT FOUND THEN
            IF TG_OP = 'UPDATE' THEN
                NEW.held_network_bps := OLD.held_network_bps;
                NEW.held_disk_io_bps := OLD.held_disk_io_bps;
                NEW.held_gpus := OLD.held_gpus;
                RETURN NEW;
            END IF;
        -- Most flavors need none, and a hundred slots are written at once: the needs are read for
        -- those alone that name one.
        ELSIF v_flavor.extra_specs ?| '{quota:vif_inbound_average,quota:vif_outbound_average,
                                        quota:disk_total_bytes_sec,quota:disk_read_bytes_sec,
                                        quota:disk_write_bytes_sec,resources:VGPU,
                                        resources:PGPU}' THEN
            SELECT * INTO v_need FROM capacity_flavor_needs(v_flavor.extra_specs);
            NEW.held_network_bps :=
                ceil(v_need.network::numeric * NEW.blocked_memory_bytes / v_flavor.memory_bytes);
            NEW.held_disk_io_bps :=
                ceil(v_need.disk_io::numeric * NEW.blocked_memory_bytes / v_flavor.memory_bytes);
            NEW.held_gpus :=
                ceil(v_need.gpu::numeric * NEW.blocked_memory_bytes / v_flavor.memory_bytes);
            RETURN NEW;
        END IF;
    END IF;
    NEW.held_network_bps := 0;
    NEW.held_disk_io_bps := 0;
    NEW.held_gpus := 0;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER capacity_reservation_hold_resources_insert
    BEFORE INSERT ON capacity_reservation
    FOR EACH ROW WHEN (NEW.kind = 'committed') EXECUTE FUNCTION capacity_hold_resources();
CREATE OR REPLACE TRIGGER capacity_reservation_hold_resources_update
    BEFORE UPDATE OF blocked_memory_bytes, resource_name, held_network_bps, held_disk_io_bps, held_gpus
    ON capacity_reservation
    FOR EACH ROW WHEN (NEW.kind = 'committed') EXECUTE FUNCTION capacity_hold_resources();
