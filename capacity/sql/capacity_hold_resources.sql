-- What a slot holds of network, disk I/O and GPUs: as much of its flavor's needs as it blocks of the
-- flavor's memory, rounded up (spec hosts, D.12). Of a flavor that is gone nothing is known: the slot
-- keeps what it holds as long as it blocks something.
CREATE OR REPLACE FUNCTION capacity_hold_resources() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_flavor record;
BEGIN
    IF NEW.blocked_memory_bytes > 0 THEN
        -- Most flavors need none, and a hundred slots are written at once: the needs are read for
        -- those alone that name one.
        PERFORM FROM hosts_flavor AS flavor
          WHERE flavor.name = NEW.resource_name AND flavor.memory_bytes > 0
            AND NOT flavor.extra_specs ?| '{quota:vif_inbound_average,quota:vif_outbound_average,
                                            quota:disk_total_bytes_sec,quota:disk_read_bytes_sec,
                                            quota:disk_write_bytes_sec,resources:VGPU,
                                            resources:PGPU}';
        IF FOUND THEN
            NEW.held_network_bps := 0;
            NEW.held_disk_io_bps := 0;
            NEW.held_gpus := 0;
            RETURN NEW;
        END IF;
        SELECT flavor.memory_bytes, need.network, need.disk_io, need.gpu INTO v_flavor
          FROM hosts_flavor AS flavor CROSS JOIN capacity_flavor_needs(flavor.extra_specs) AS need
         WHERE flavor.name = NEW.resource_name AND flavor.memory_bytes > 0;
        IF FOUND THEN
            NEW.held_network_bps :=
                ceil(v_flavor.network::numeric * NEW.blocked_memory_bytes / v_flavor.memory_bytes);
            NEW.held_disk_io_bps :=
                ceil(v_flavor.disk_io::numeric * NEW.blocked_memory_bytes / v_flavor.memory_bytes);
            NEW.held_gpus :=
                ceil(v_flavor.gpu::numeric * NEW.blocked_memory_bytes / v_flavor.memory_bytes);
            RETURN NEW;
        ELSIF TG_OP = 'UPDATE' THEN
            NEW.held_network_bps := OLD.held_network_bps;
            NEW.held_disk_io_bps := OLD.held_disk_io_bps;
            NEW.held_gpus := OLD.held_gpus;
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
    BEFORE UPDATE ON capacity_reservation
    FOR EACH ROW WHEN (NEW.kind = 'committed'
                       AND (NEW.blocked_memory_bytes, NEW.resource_name, NEW.held_network_bps,
                            NEW.held_disk_io_bps, NEW.held_gpus)
                           IS DISTINCT FROM
                           (OLD.blocked_memory_bytes, OLD.resource_name, OLD.held_network_bps,
                            OLD.held_disk_io_bps, OLD.held_gpus))
    EXECUTE FUNCTION capacity_hold_resources();
