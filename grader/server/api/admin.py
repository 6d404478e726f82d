"""The API of admins, under `/api/v1/admin`: what `grade admin` speaks. All that changes something
is noted in the audit."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from grader.problem import Problem
from grader.server.api.admin_schemas import (
    Applied,
    Audit,
    Board,
    Deleted,
    Ended,
    Held,
    HeldJob,
    NewRejudge,
    NewSettings,
    NewToken,
    NewUser,
    Rejudges,
    RejudgeShown,
    Secret,
    Started,
    Tokens,
    Users,
    Why,
)
from grader.server.api.schemas import Words
from grader.server.http.auth import Admin, Tools, errors
from grader.server.services.admin_service import BoardSettings
from grader.server.services.errors import Conflict, NotThere
from grader.server.services.services import Services

router = APIRouter(prefix="/admin", tags=["admin"])


Name = Annotated[Words, Path(description="A user's name, upper and lower case alike.")]
ProblemName = Annotated[Words, Path(description="A problem's name.")]
Number = Annotated[int, Path(description="Its number.")]


@router.get("/users", response_model=Users, responses=errors(401, 403), summary="List the users")
def users(tools: Tools, admin: Admin) -> Users:
    """Every user, with ban and last use."""
    return Users(users=tools.accounts.users())


@router.post(
    "/users",
    status_code=201,
    response_model=Secret,
    responses=errors(401, 403, 409),
    summary="Add a user",
)
def add_user(tools: Tools, admin: Admin, new: NewUser) -> Secret:
    """Make a user, and a first token, which is never shown again."""
    token = tools.accounts.add_user(new.name, new.role, by=admin.name)
    return Secret(name=new.name.strip(), token=token)


@router.get(
    "/users/{name}/tokens",
    response_model=Tokens,
    responses=errors(401, 403, 404),
    summary="List a user's tokens",
)
def tokens(tools: Tools, admin: Admin, name: Name) -> Tokens:
    """Their numbers, labels and times."""
    return Tokens(tokens=tools.accounts.tokens(name))


@router.post(
    "/users/{name}/tokens",
    status_code=201,
    response_model=Secret,
    responses=errors(401, 403, 404),
    summary="Make one more token for a user",
)
def add_token(tools: Tools, admin: Admin, name: Name, new: NewToken) -> Secret:
    """The token is never shown again."""
    return Secret(name=name, token=tools.accounts.new_token(name, new.label, by=admin.name))


@router.delete(
    "/users/{name}/tokens",
    response_model=Ended,
    responses=errors(401, 403, 404, 409),
    summary="Revoke all of a user's tokens",
)
def revoke_all(tools: Tools, admin: Admin, name: Name) -> Ended:
    """Sessions of the pages end with them."""
    return Ended(ended=tools.accounts.revoke(name, by=admin.name))


@router.delete(
    "/tokens/{number}",
    response_model=Ended,
    responses=errors(401, 403, 404, 409),
    summary="Revoke a token",
)
def revoke(tools: Tools, admin: Admin, number: Number) -> Ended:
    """The sessions that it opened end with it."""
    return Ended(ended=tools.accounts.revoke(number, by=admin.name))


@router.post(
    "/users/{name}/ban",
    status_code=204,
    responses=errors(401, 403, 404, 409),
    summary="Ban a user",
)
def ban(tools: Tools, admin: Admin, name: Name, why: Why) -> None:
    """Shut a user out, cancel what is in flight, and take his results off the boards."""
    tools.office.ban(name, why.reason, by=admin.name)


@router.post(
    "/users/{name}/unban",
    status_code=204,
    responses=errors(401, 403, 404, 409),
    summary="Take back a ban",
)
def unban(tools: Tools, admin: Admin, name: Name) -> None:
    """The user's tokens work again, and the results count again."""
    tools.office.unban(name, by=admin.name)


@router.get(
    "/boards/{problem}",
    response_model=Board,
    responses=errors(401, 403, 404),
    summary="A board's settings",
)
def board(tools: Tools, admin: Admin, problem: ProblemName) -> Board:
    """The defaults where nobody has set any."""
    return Board.of(problem, tools.office.board(_known(tools, problem).name))


@router.put(
    "/boards/{problem}",
    response_model=Board,
    responses=errors(401, 403, 404),
    summary="Set a board's settings",
)
def set_board(tools: Tools, admin: Admin, problem: ProblemName, new: NewSettings) -> Board:
    """All of them: what is left out is set to its default."""
    settings = BoardSettings(new.deadline, new.hidden, new.publish_sources, new.note)
    name = _known(tools, problem).name
    return Board.of(problem, tools.office.set_board(name, settings, by=admin.name))


@router.get("/held", response_model=Held, responses=errors(401, 403), summary="List held jobs")
def held(tools: Tools, admin: Admin) -> Held:
    """What failed, or killed its workers, so often that a person must look."""
    return Held(held=[HeldJob.of(job) for job in tools.ledger.held()])


@router.post(
    "/submissions/{number}/release",
    status_code=204,
    responses=errors(401, 403, 409),
    summary="Queue a held submission again",
)
def release(tools: Tools, admin: Admin, number: Number) -> None:
    """Its failures and deaths are forgotten."""
    if not tools.office.release(number, by=admin.name):
        raise Conflict(f"submission {number} is not held; `grade admin held` lists those that are")


@router.delete(
    "/submissions/{number}",
    response_model=Deleted,
    responses=errors(401, 403, 404),
    summary="Delete a submission",
)
def delete(tools: Tools, admin: Admin, number: Number) -> Deleted:
    """Cancel one that is not done; take a done one off the board and out of everyone's sight."""
    became = tools.office.delete(number, by=admin.name)
    if became is None:
        raise NotThere(f"there is no submission {number}, or it is cancelled or deleted already")
    return Deleted(became=became)


@router.get(
    "/rejudges", response_model=Rejudges, responses=errors(401, 403), summary="List the rejudges"
)
def rejudges(tools: Tools, admin: Admin) -> Rejudges:
    """How far each is, and what was decided."""
    return Rejudges(rejudges=tools.office.rejudges.rejudges())


@router.post(
    "/rejudges",
    status_code=201,
    response_model=Started,
    responses=errors(401, 403, 404),
    summary="Grade results anew",
)
def start(tools: Tools, admin: Admin, new: NewRejudge) -> Started:
    """Queue them behind live submissions. Nothing changes on the board until it is applied."""
    problem = _known(tools, new.problem)
    which = new.which if new.submissions is None else new.submissions
    return Started(
        id=tools.office.rejudges.start(
            problem.name, problem.digest, which, reason=new.reason, by=admin.name
        )
    )


@router.get(
    "/rejudges/{number}",
    response_model=RejudgeShown,
    responses=errors(401, 403, 404),
    summary="What a rejudge changes",
)
def rejudge(tools: Tools, admin: Admin, number: Number) -> RejudgeShown:
    """Verdict, score and rank of each submission, old and new."""
    found = tools.office.rejudges.preview(number)
    if found is None:
        raise NotThere(f"there is no rejudge {number}")
    return RejudgeShown.of(found)


@router.post(
    "/rejudges/{number}/apply",
    response_model=Applied,
    responses=errors(401, 403, 404, 409),
    summary="Let the new results count",
)
def apply(tools: Tools, admin: Admin, number: Number) -> Applied:
    """All of them at once; the old ones are kept, and do not count."""
    return Applied(exchanged=tools.office.rejudges.apply(number, by=admin.name))


@router.post(
    "/rejudges/{number}/drop",
    status_code=204,
    responses=errors(401, 403, 404, 409),
    summary="Leave everything as it was",
)
def drop(tools: Tools, admin: Admin, number: Number) -> None:
    """What is not graded yet is cancelled."""
    tools.office.rejudges.drop(number, by=admin.name)


@router.get("/audit", response_model=Audit, responses=errors(401, 403), summary="What admins did")
def audit(
    tools: Tools,
    admin: Admin,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(description="Go on below this number.")] = None,
) -> Audit:
    """Newest first."""
    return Audit(acts=tools.office.audit(limit, before))


def _known(tools: Services, name: str) -> Problem:
    """A problem that the server has. Raises `NotThere`."""
    if name not in tools.problems:
        raise NotThere(f"there is no such problem here; there are: {', '.join(tools.problems)}")
    return tools.problems[name]
