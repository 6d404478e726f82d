"""Why results do not count, read from the database."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select

from grader.db.engine import connect
from grader.db.tables import voids
from grader.server.services.admin_service import AdminService


def void_reasons(admin: AdminService, result_ids: Collection[int]) -> dict[int, set[str]]:
    """The reasons of those of `result_ids` that are void."""
    query = select(voids.c.result_id, voids.c.why).where(voids.c.result_id.in_(result_ids))
    found: dict[int, set[str]] = {}
    with connect(admin._engine) as connection:
        for number, why in connection.execute(query):
            found.setdefault(number, set()).add(why)
    return found
