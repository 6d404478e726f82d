from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, insert, inspect, select, text, update

from grader.board import Board, BoardError
from grader.db.engine import open_engine
from grader.db.migrate import current_revision, downgrade, upgrade
from grader.db.tables import (
    announcements,
    audit,
    batch_items,
    batches,
    blobs,
    boards,
    group_members,
    groups,
    identities,
    invitations,
    jobs,
    metadata,
    problem_versions,
    queue_turns,
    rejudges,
    results,
    schema_info,
    sign_ins,
    submissions,
    team_codes,
    team_members,
    teams,
    tokens,
    users,
    voids,
    workers,
)
from grader.fleet import BatchItem, Ledger, State
from grader.report import Report
from grader.server.services import Conflict
from grader.server.services.accounts import Accounts
from tests.fleet.conftest import DIGEST, Clock, a_submission, enqueue
from tests.fleet.conftest import report_of as report_of

MakeReport = Callable[..., Report]
BOARD = {table.name for table in (schema_info, results)}
LEDGER = {table.name for table in (blobs, submissions, jobs)}
HOSTED = {
    table.name
    for table in (
        announcements,
        groups,
        group_members,
        invitations,
        identities,
        sign_ins,
        users,
        tokens,
        boards,
        audit,
        voids,
        rejudges,
        workers,
        problem_versions,
        queue_turns,
        batches,
        batch_items,
        teams,
        team_members,
        team_codes,
    )
}
OURS = BOARD | LEDGER | HOSTED
HEAD = "0015"
ADDED = {
    "rejudge_id",
    "original_id",
    "progress",
    "updated_at",
    "idempotency_key",
    "stored_bytes",
    "source_removed_at",
    "batch_id",
    "team",
}


@pytest.fixture
def engine(url: str) -> Any:
    opened = open_engine(url, create=True)
    yield opened
    opened.dispose()


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def rows(engine: Engine) -> dict[str, list[Any]]:
    """All rows of our tables, by table."""
    there = tables(engine)
    with engine.connect() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(select(table))))
            for table in metadata.sorted_tables
            if table.name in there
        }


def contents(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """The rows of the tables of the board and the ledger, with the columns that exist."""
    with engine.connect() as connection:
        return {
            name: [
                dict(row)
                for row in connection.execute(text(f"SELECT * FROM {name} ORDER BY 1")).mappings()
            ]
            for name in sorted(BOARD | LEDGER)
        }


def revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        return current_revision(connection)


def fill(url: str, report_of: MakeReport) -> None:
    """Add a result, a job in every state, and a batch."""
    ledger = Ledger.open(url, Clock())
    for _ in State:
        enqueue(ledger)
    done, running, given_up, _leased = (ledger.claim("w", lease_s=60) for _ in range(4))
    assert done
    assert running
    assert given_up
    assert ledger.begin(done)
    assert ledger.finish(done, report_of())
    assert ledger.begin(running)
    assert ledger.cancel(given_up.submission_id, "ada")
    with ledger._engine.begin() as connection:
        connection.execute(
            jobs.update().where(jobs.c.submission_id == 5).values(state=State.HELD, deaths=3)
        )
    ledger.submit_batch("ada", "softmax", DIGEST, [BatchItem("a", a_submission("x = 1"))])
    states = {ledger.job(number).state for number in range(1, 7)}  # type: ignore[union-attr]
    assert states == set(State)
    with ledger._engine.begin() as connection:
        fill_hosted(connection)
    ledger.close()


def fill_hosted(connection: Connection) -> None:
    """Add a row to each table of revision 3 and later, and set each column that a later one
    adds."""
    now = Clock()()
    user = connection.execute(
        insert(users).values(
            name="Ada", name_key="ada", role="admin", created_at=now, skeleton="ada"
        )
    ).inserted_primary_key
    assert user is not None
    token = {"user_id": user[0], "label": "", "created_at": now}
    api = connection.execute(
        insert(tokens).values(kind="api", hash="a" * 64, **token)
    ).inserted_primary_key
    assert api is not None
    session = {"kind": "session", "hash": "b" * 64, "opened_by": api[0]}
    connection.execute(insert(tokens).values(**session, **token))
    connection.execute(
        insert(identities).values(
            user_id=user[0], provider="https://github.com", subject="1", created_at=now
        )
    )
    group = connection.execute(
        insert(groups).values(name="course", name_key="course", created_at=now)
    ).inserted_primary_key
    assert group is not None
    connection.execute(insert(group_members).values(user_id=user[0], group_id=group[0]))
    connection.execute(
        insert(invitations).values(
            hash="d" * 64, group_id=group[0], uses=1, used=0, created_at=now, by="Ada"
        )
    )
    connection.execute(
        insert(sign_ins).values(hash="c" * 64, provider="github", details={}, expires_at=now)
    )
    connection.execute(
        insert(boards).values(
            problem="softmax",
            hidden=True,
            publish_sources=False,
            opens_at=now,
            group="course",
            freeze_at=now,
            team_size=3,
        )
    )
    team = connection.execute(
        insert(teams).values(name="Tile", name_key="tile", skeleton="tile", created_at=now)
    ).inserted_primary_key
    assert team is not None
    member = {"user_id": user[0], "team_id": team[0]}
    connection.execute(insert(team_members).values(member))
    connection.execute(insert(team_codes).values(hash="e" * 64, until=now, **member))
    connection.execute(insert(queue_turns).values(user="Tile", claimed_at=now))
    connection.execute(update(submissions).where(submissions.c.id == 2).values(team="Tile"))
    connection.execute(
        insert(announcements).values(created_at=now, by="Ada", text="lunch", until=now)
    )
    connection.execute(
        insert(audit).values(at=now, actor="Ada", action="ban", subject="bob", detail="")
    )
    connection.execute(insert(voids).values(result_id=1, why="deleted", at=now, by="Ada"))
    connection.execute(
        insert(rejudges).values(
            id=1, problem="softmax", created_at=now, by="Ada", reason="", state="preview"
        )
    )
    connection.execute(
        insert(workers).values(
            name="w",
            via="local",
            device="cpu",
            slots=1,
            last_seen=now,
            drained_at=now,
            problems={"softmax": "d"},
        )
    )
    connection.execute(
        insert(problem_versions).values(
            problem="softmax", digest="d", spec={"entry": "softmax"}, files={"inputs.py": "e"},
            first_served_at=now, last_served_at=now,
        )
    )  # fmt: skip
    again = submissions.c.id == 6
    connection.execute(
        update(submissions).where(again).values(rejudge_id=1, original_id=1, idempotency_key="k")
    )
    connection.execute(update(jobs).values(progress="{}", updated_at=now))


def test_the_migrations_make_the_tables_of_the_code(engine: Engine) -> None:
    upgrade(engine)
    assert tables(engine) == OURS | {"alembic_version"}
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_the_first_revision_equals_the_tables_of_a_board(url: str, engine: Engine) -> None:
    def shape() -> dict[str, Any]:
        seen = inspect(engine)
        columns = {t: repr(seen.get_columns(t)) for t in ("grade_board", "results")}
        indexes = repr(seen.get_indexes("results"))
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                query = "SELECT sql FROM sqlite_master WHERE type IN ('trigger', 'table', 'index')"
                query += " AND tbl_name = 'results' ORDER BY name"
                made = [" ".join((s or "").split()) for s in connection.scalars(text(query))]
            else:
                made = []
            version = connection.scalar(select(schema_info.c.value))
        return {"columns": columns, "indexes": indexes, "made": made, "version": version}

    upgrade(engine)
    downgrade(engine, "0001")
    migrated = shape()
    downgrade(engine, "base")
    assert tables(engine) == {"alembic_version"}
    Board.open(url).close()
    assert shape() == migrated


def test_upgrade_downgrade_upgrade_with_rows(
    url: str, engine: Engine, report_of: MakeReport
) -> None:
    fill(url, report_of)
    full = rows(engine)
    assert all(full[name] for name in OURS)
    upgrade(engine)
    assert rows(engine) == full, "it is up to date, so nothing changes"
    downgrade(engine, "0001")
    assert revision(engine) == "0001"
    assert rows(engine) == {name: full[name] for name in BOARD}
    board = Board.open(url)
    assert board.result(1).user == "ada"
    board.close()
    upgrade(engine)
    assert rows(engine) == full | {name: [] for name in OURS - BOARD}
    fill(url, report_of)
    downgrade(engine, "base")
    assert tables(engine) == {"alembic_version"}
    fill(url, report_of)
    assert {name: len(there) for name, there in rows(engine).items()} == {
        name: len(there) for name, there in full.items()
    }
    assert revision(engine) == HEAD


def test_a_downgrade_to_0002_keeps_the_ledger(
    url: str, engine: Engine, report_of: MakeReport
) -> None:
    fill(url, report_of)
    full = rows(engine)
    before = contents(engine)
    before["submissions"] = [one for one in before["submissions"] if one["id"] != 7]
    before["jobs"] = [one for one in before["jobs"] if one["batch_id"] is None]
    downgrade(engine, "0002")
    assert tables(engine) == BOARD | LEDGER | {"alembic_version"}
    assert contents(engine) == {
        name: [{k: v for k, v in row.items() if k not in ADDED} for row in before[name]]
        for name in BOARD | LEDGER
    }
    assert "submissions_by_rejudge" not in repr(inspect(engine).get_indexes("submissions"))
    upgrade(engine)
    kept = BOARD | {"blobs"}
    assert {name: rows(engine)[name] for name in kept} == {name: full[name] for name in kept}
    assert all(rows(engine)[name] == [] for name in HOSTED)
    with engine.connect() as connection:
        assert set(connection.execute(select(submissions.c.rejudge_id))) == {(None,)}
        assert set(connection.execute(select(jobs.c.progress))) == {(None,)}
    ledger = Ledger.open(url)
    assert enqueue(ledger) > 6, "ids continue"
    ledger.close()


def test_what_sources_take_is_known_of_old_submissions(
    url: str, engine: Engine, report_of: MakeReport
) -> None:
    fill(url, report_of)
    with engine.begin() as connection:
        connection.execute(insert(blobs).values(sha256="f" * 64, size_bytes=9, content=b""))
        connection.execute(update(submissions).where(submissions.c.id == 2).values(sha256="f" * 64))
    downgrade(engine, "0006")
    upgrade(engine)
    sizes = {number: len("x = 1") for number in range(1, 7)}
    sizes |= {2: 0, 6: 0}  # one without its source, and one of a rejudge
    columns = (submissions.c.id, submissions.c.stored_bytes, submissions.c.source_removed_at)
    with engine.connect() as connection:
        rows = list(connection.execute(select(*columns)))
    assert {row[0]: row[1] for row in rows} == sizes
    assert [row[0] for row in rows if row[2] is not None] == [2]


def test_users_who_look_alike_already_are_kept(url: str, engine: Engine) -> None:
    Ledger.open(url).close()
    downgrade(engine, "0007")
    with engine.begin() as connection:
        for name in ("bill", "BiIl", "ada", "\u0430\u0501\u0430", "bi1l"):
            connection.execute(
                text(
                    "INSERT INTO users (name, name_key, role, created_at) VALUES (:n, :n, 'x', :t)"
                ),
                {"n": name, "t": Clock()().isoformat()},
            )
    before = rows_of_users(engine)
    ledger = Ledger.open(url)
    accounts = Accounts(ledger._engine, Clock())
    assert rows_of_users(engine) == before
    with engine.connect() as connection:
        looks = list(connection.scalars(select(users.c.skeleton).order_by(users.c.id)))
    assert looks == ["bill", None, "ada", None, None]
    with pytest.raises(Conflict, match="the name bil1 looks like bill"):
        accounts.add_user("bil1")
    ledger.close()


def rows_of_users(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        query = text("SELECT id, name, name_key, role, created_at FROM users ORDER BY id")
        return [tuple(row) for row in connection.execute(query)]


def test_a_downgrade_hides_the_boards_of_groups(url: str, engine: Engine) -> None:
    upgrade(engine)
    shown = {"hidden": False, "publish_sources": False}
    with engine.begin() as connection:
        connection.execute(insert(boards).values(problem="softmax", group="course", **shown))
        connection.execute(insert(boards).values(problem="matmul", **shown))
    downgrade(engine, "0010")
    with engine.connect() as connection:
        found = connection.execute(text("SELECT problem, hidden FROM boards"))
        assert {row[0]: bool(row[1]) for row in found} == {"softmax": True, "matmul": False}


def test_the_audit_is_append_only(url: str, engine: Engine, report_of: MakeReport) -> None:
    fill(url, report_of)
    if engine.dialect.name != "sqlite":
        return
    for statement in ("DELETE FROM audit", "UPDATE audit SET actor = 'eve'"):
        with engine.connect() as connection, pytest.raises(Exception, match="append-only"):
            connection.execute(text(statement))


def test_an_existing_board_keeps_its_results(
    url: str, engine: Engine, make_report: MakeReport
) -> None:
    board = Board.open(url)
    board.record(make_report(), "ada", b"x")
    before = rows(engine)
    ledger = Ledger.open(url)
    assert revision(engine) == HEAD
    assert rows(engine) == before | {name: [] for name in OURS - BOARD}
    # Boards that are open, or opened now, still work.
    board.record(make_report(), "bob", b"y")
    board.close()
    again = Board.open(url, create=False)
    assert again.count("softmax") == ledger.board.count("softmax") == 2
    again.close()
    ledger.close()


def test_a_board_recreated_after_a_full_downgrade(url: str, engine: Engine) -> None:
    upgrade(engine)
    downgrade(engine, "base")
    Board.open(url).close()
    Ledger.open(url).close()
    assert revision(engine) == HEAD


def test_a_new_database_is_opened_concurrently(url: str, engine: Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda i: (Ledger if i % 2 else Board).open(url), range(16)))
    for one in opened:
        one.close()
    assert revision(engine) == HEAD
    assert rows(engine)["grade_board"] == ["('schema', '1')"]


def test_a_database_of_another_program_is_left_alone(url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE recipes (name TEXT)"))
    with pytest.raises(BoardError, match=r"another program \(it has tables recipes\)"):
        Ledger.open(url)
    assert tables(engine) == {"recipes"}


def test_a_database_of_a_newer_grade_is_refused(url: str, engine: Engine) -> None:
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(BoardError, match=r"revision that this grade does not know .*9999.*--db"):
        Ledger.open(url)


def test_a_board_of_another_version_is_refused(url: str, engine: Engine) -> None:
    Board.open(url).close()
    with engine.begin() as connection:
        connection.execute(schema_info.update().values(value="9"))
    with pytest.raises(BoardError, match="version 9, and this grade reads version 1"):
        Ledger.open(url)
    assert tables(engine) == {schema_info.name, results.name}


def test_a_failed_migration_changes_nothing(url: str, engine: Engine) -> None:
    Board.open(url).close()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE jobs (name TEXT)"))
    with pytest.raises(BoardError, match="jobs"):
        Ledger.open(url)
    assert tables(engine) == {schema_info.name, results.name, "jobs"}
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE jobs"))
    Ledger.open(url).close()


def test_results_stay_append_only_after_a_migration(
    url: str, engine: Engine, report_of: MakeReport
) -> None:
    fill(url, report_of)
    if engine.dialect.name != "sqlite":
        # There the foreign key of its job protects a result.
        pattern, statements = "foreign key", ["DELETE FROM results"]
    else:
        pattern = "append-only"
        statements = [
            "DELETE FROM results",
            "UPDATE results SET score_us = 1",
            "UPDATE results SET source = x'', report = ''",
            "UPDATE results SET source = x'00'",
        ]
    for statement in statements:
        with engine.connect() as connection, pytest.raises(Exception, match=pattern):
            connection.execute(text(statement))


def test_a_referenced_blob_cannot_be_deleted(
    url: str, engine: Engine, report_of: MakeReport
) -> None:
    fill(url, report_of)
    with engine.connect() as connection, pytest.raises(Exception, match=r"(?i)foreign key"):
        connection.execute(blobs.delete())
    with engine.connect() as connection, pytest.raises(Exception, match=r"(?i)foreign key"):
        connection.execute(
            insert(jobs).values(submission_id=99, state="queued", failures=0, deaths=0)
        )


def test_a_downgrade_hides_the_boards_that_are_not_open(url: str, engine: Engine) -> None:
    Ledger.open(url).close()
    opens = {"later": datetime(2999, 1, 1, tzinfo=UTC), "past": datetime(2001, 1, 1, tzinfo=UTC)}
    with engine.begin() as connection:
        for problem, at in {**opens, "open": None}.items():
            new = {"problem": problem, "hidden": False, "publish_sources": False, "opens_at": at}
            connection.execute(insert(boards).values(new))
    downgrade(engine, "0009")
    with engine.connect() as connection:
        hidden = connection.scalars(text("SELECT problem FROM boards WHERE hidden")).all()
    assert hidden == ["later"]


def test_a_downgrade_leaves_no_turn_of_a_team(
    url: str, engine: Engine, report_of: MakeReport
) -> None:
    """A user may then take its name."""
    fill(url, report_of)
    downgrade(engine, "0013")
    with engine.connect() as connection:
        users_with_turns = set(connection.scalars(select(queue_turns.c.user)))
    assert users_with_turns == {"ada"}
    upgrade(engine)
    with engine.connect() as connection:
        assert set(connection.scalars(select(submissions.c.team))) == {None}
