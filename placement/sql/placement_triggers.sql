-- Names of projects and users stay for ever: consumers point at them without a foreign key, whose checks
-- would lock a project's row with each of its claims.
CREATE OR REPLACE TRIGGER placement_project_append_only
    BEFORE UPDATE OR DELETE ON placement_project
    FOR EACH ROW EXECUTE FUNCTION headroom_refuse_change();
CREATE OR REPLACE TRIGGER placement_user_append_only
    BEFORE UPDATE OR DELETE ON placement_user
    FOR EACH ROW EXECUTE FUNCTION headroom_refuse_change();
