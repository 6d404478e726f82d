from grader.automation import Grader, Item, Result, check, grade, profile

__all__ = ["Grader", "Item", "Result", "__version__", "check", "grade", "profile"]
__version__: str
