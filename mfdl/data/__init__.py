"""Public data files: fetched once, compared with their checksums, stored in the data folder.

pooch and scikit-learn are imported inside functions: this package must stay cheap to import because `graphs` needs it.
"""

from .registered_files import a9a, california_housing, expand, femnist, fetch, home, mnist, names, status

__all__ = ["a9a", "california_housing", "expand", "femnist", "fetch", "home", "mnist", "names", "status"]


def __dir__() -> list[str]:
    return sorted(__all__)
