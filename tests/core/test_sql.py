"""SQL as files: applied after ``migrate``, told when missing, and each loaded and tested."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import close_old_connections, connection, transaction

from core.sql import (
    ROOT,
    SqlFile,
    apply_sql,
    created_files,
    load_sql,
    ordered,
    unapplied_sql,
)
from journal import health
from tests.capacity.test_ledger_writers import APPS

ONE = "CREATE OR REPLACE FUNCTION one() RETURNS integer LANGUAGE sql AS $$ SELECT 1 $$;"
TWO = ONE.replace("SELECT 1", "SELECT 2")
TEXT = "CREATE OR REPLACE FUNCTION one() RETURNS text LANGUAGE sql AS $$ SELECT 'one' $$;"
OF_TWO = "CREATE OR REPLACE FUNCTION one(a int, b int) RETURNS int LANGUAGE sql AS $$ SELECT a $$;"
REFUSE = """
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE 'refused';
END
$$;

CREATE OR REPLACE TRIGGER refused
    BEFORE INSERT OR UPDATE OF beaten_at ON journal_heartbeat
    FOR EACH ROW EXECUTE FUNCTION refuse();
"""


def files(*texts: str) -> list[SqlFile]:
    """Return the current files and these."""
    made = [SqlFile.of(f"core/sql/made_{number}.sql", text) for number, text in enumerate(texts)]
    return ordered([*created_files(), *made])


def asked(statement: str) -> list[object]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return [row[0] for row in cursor.fetchall()]


class TestApply:
    pytestmark = pytest.mark.django_db

    def test_migrate_has_applied_all(self) -> None:
        assert (unapplied_sql(), apply_sql()) == ("", [])

    def test_a_file_is_applied_once_and_again_when_its_text_changes(self) -> None:
        assert apply_sql(files(ONE)) == ["core/sql/made_0.sql"]
        assert apply_sql(files(ONE)) == []
        assert apply_sql(files(TWO)) == ["core/sql/made_0.sql"]
        assert asked("SELECT one()") == [2]

    def test_what_no_file_creates_any_more_is_dropped(self) -> None:
        apply_sql(files(REFUSE))
        apply_sql(files())
        assert asked("SELECT count(*) FROM pg_proc WHERE proname = 'refuse'") == [0]
        assert asked("SELECT count(*) FROM pg_trigger WHERE tgname = 'refused'") == [0]

    def test_what_others_created_is_left_alone(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(ONE)
        apply_sql(files())
        assert asked("SELECT one()") == [1]

    @pytest.mark.parametrize(
        ("text", "call", "answer"),
        [(TEXT, "one()", "one"), (OF_TWO, "one(3, 4)", 3)],
        ids=["of another result", "of other parameters"],
    )
    def test_a_function_gives_way_to_one(self, text: str, call: str, answer: object) -> None:
        apply_sql(files(ONE))
        assert apply_sql(files(text)) == ["core/sql/made_0.sql"]
        assert asked(f"SELECT {call}") == [answer]
        assert asked("SELECT count(*) FROM pg_proc WHERE proname = 'one'") == [1]

    def test_a_function_that_a_migration_made_gives_way_as_well(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(ONE)
        apply_sql(files(OF_TWO))
        assert asked("SELECT count(*) FROM pg_proc WHERE proname = 'one'") == [1]

    def test_what_was_dropped_by_hand_is_missed(self) -> None:
        apply_sql(files(REFUSE))
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER refused ON journal_heartbeat")
        assert apply_sql(files(REFUSE)) == ["core/sql/made_0.sql"]
        assert asked("SELECT count(*) FROM pg_trigger WHERE tgname = 'refused'") == [1]

    def test_a_file_comes_after_those_whose_functions_it_names(self) -> None:
        of_one = ONE.replace("one()", "all_of_it()").replace("SELECT 1", "SELECT one() + 1")
        said = f"-- As all_of_it() does.\n{ONE}"  # a comment needs nothing
        apply_sql(files(of_one, said))
        assert asked("SELECT all_of_it()") == [2]

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            (REFUSE.replace("RAISE", "RAZE"), r'core/sql/made_0.sql:4: syntax error .*"RAZE"'),
            (REFUSE.replace("OF beaten_at", "OF beat"), "core/sql/made_0.sql:1: column"),
        ],
        ids=["with a line", "without one"],
    )
    def test_a_refused_file_is_named_and_nothing_is_applied(self, text: str, told: str) -> None:
        with pytest.raises(CommandError, match=told), transaction.atomic():
            apply_sql(files(text, ONE))
        assert asked("SELECT count(*) FROM pg_proc WHERE proname IN ('one', 'refuse')") == [0]


@pytest.mark.django_db(transaction=True)
def test_who_comes_second_waits_and_finds_nothing_to_do() -> None:
    applied: list[list[str]] = []

    def apply() -> None:
        applied.append(apply_sql(files(ONE)))
        close_old_connections()
        connection.close()

    second = threading.Thread(target=apply)
    try:
        with transaction.atomic():
            applied.append(apply_sql(files(ONE)))
            second.start()
        second.join()
    finally:
        apply_sql()
    assert applied == [["core/sql/made_0.sql"], []]


@pytest.fixture
def outdated() -> Iterator[None]:
    """A database with another text of one function than ours."""
    health._migrations_applied.clear()
    with connection.cursor() as cursor:
        cursor.execute("COMMENT ON FUNCTION placement_lock_consumers IS 'headroom an older one'")
    yield
    health._migrations_applied.clear()


@pytest.mark.django_db
class TestOutdated:
    pytestmark = pytest.mark.usefixtures("outdated")

    def test_a_process_is_not_ready_before_the_step_ran(self) -> None:
        found = health.check_migrations()
        assert (found.is_ok, found.detail) == (False, "1 SQL files are not applied")
        apply_sql()
        assert health.check_migrations().is_ok

    def test_no_role_starts(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            call_command("migrate", "--check")
        assert (ended.value.code, "SQL files" in capsys.readouterr().out) == (1, True)
        call_command("migrate", verbosity=0)
        call_command("migrate", "--check")


def product_text() -> Iterator[str]:
    for app in APPS:
        for path in (ROOT / app).rglob("*"):
            if path.suffix in {".py", ".sql"} and "migrations" not in path.parts:
                yield re.sub("--.*", "", path.read_text(encoding="utf-8"))


def marked() -> set[str]:
    """Return the names in ``pytest.mark.sql(...)`` of all tests."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if "mark.sql(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.sql":
                found |= {str(ast.literal_eval(argument)) for argument in node.args}
    return found


def test_every_file_is_loaded_and_tested() -> None:
    """A function is called by name, a statement loaded by name; triggers need nobody."""
    paths = {path.stem: path for path in ROOT.glob("*/sql/*.sql")}
    used = " ".join(product_text())
    creating = {name for file in created_files() for name in file.functions}
    unused = [
        name
        for name, path in paths.items()
        if not name.endswith("_triggers")
        and f'load_sql("{path.parts[-3]}", "{name}")' not in used
        and not (name in creating and len(re.findall(rf"\b{name}\b", used)) > 1)
    ]
    assert unused == []
    assert marked() == set(paths)


def test_a_file_bears_the_name_of_what_is_in_it() -> None:
    wrong = [
        file.place
        for file in created_files()
        if (file.functions or {f"{file.place.partition('/')[0]}_triggers"})
        != {Path(file.place).stem}
    ]
    assert wrong == []


def test_a_statement_comes_without_its_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app" / "sql").mkdir(parents=True)
    (tmp_path / "app" / "sql" / "one.sql").write_text("-- What it asks.\n\nSELECT 1 -- one\n;\n")
    monkeypatch.setattr("core.sql.ROOT", tmp_path)
    assert load_sql("app", "one").strip() == "SELECT 1 -- one"
