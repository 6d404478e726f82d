"""The board: the permanent store of graded results, and their ranking."""

from grader.board.ranking import BoardEntry, ranks
from grader.board.store import Attempt, Board, ListedResult, StoredResult, default_url
from grader.board.versions import NoSuchVersion, ProblemVersion, choose_version
from grader.db.engine import BoardError, MissingBoardError

__all__ = [
    "Attempt",
    "Board",
    "BoardEntry",
    "BoardError",
    "ListedResult",
    "MissingBoardError",
    "NoSuchVersion",
    "ProblemVersion",
    "StoredResult",
    "choose_version",
    "default_url",
    "ranks",
]
