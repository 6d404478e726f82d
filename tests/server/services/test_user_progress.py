"""What users have tried and solved is read on from the last result, and read anew after a void."""

from __future__ import annotations

from grader.server.services.user_progress import ProblemState
from tests.db.conftest import url as database  # noqa: F401  # on both databases
from tests.server.conftest import H100, World


def test_progress_follows_the_results(world: World) -> None:
    progress, digest = world.services.progress, world.problem.digest
    before = progress.snapshot()
    assert before == {}
    world.graded("ada", verdict="wrong_answer", ranked=False, score_us=None, score_ci_us=None)
    assert progress.snapshot() == {"ada": {"softmax": ProblemState(False, {})}}
    world.graded("ada", gpu=H100, score_us=30.0)
    world.graded("bob", gpu=H100, score_us=20.0)
    best = world.graded("ada", gpu=H100, score_us=25.0)
    found = progress.snapshot()
    assert found["ada"] == {"softmax": ProblemState(True, {digest: 25.0})}
    assert found["bob"] == {"softmax": ProblemState(True, {digest: 20.0})}
    assert before == {}, "a snapshot never changes"
    assert world.services.admin.delete(best, "root") == "deleted"
    assert progress.snapshot()["ada"] == {"softmax": ProblemState(True, {digest: 30.0})}
    assert progress.snapshot() is progress.snapshot(), "an unchanged database is not read again"
