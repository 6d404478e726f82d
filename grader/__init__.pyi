from grader.automation import Grader, Item, Result, check, grade

__all__ = ["Grader", "Item", "Result", "__version__", "check", "grade"]
__version__: str
