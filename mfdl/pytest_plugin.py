"""Claims as tests: pytest collects every `Claim` of a test module, and functions marked `claim`.

    @pytest.mark.claim(n=st.integers(0, 9))
    def test_squares(n):
        "Squares are at most nine times their root."
        return 9 * n, n * n  # claimed bound, truth

`pytest -m claim` runs the claims alone. A test fails when the verdict is not the expected one, with the smallest
counterexample in words. Nothing else of the library is imported before that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import Claim

MARK = "claim"


def pytest_configure(config: pytest.Config) -> None:
    text = "the function returns (claimed bound, truth); a search tries to break it (mfdl.testing)"
    config.addinivalue_line("markers", f"claim(**strategies): {text}")


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> pytest.Item | None:
    """A test for a claim; None leaves everything else to pytest."""
    if not isinstance(collector, pytest.Module):
        return None
    claim_module = sys.modules.get("mfdl.testing.claims")  # not loaded: nothing can be a claim yet
    if claim_module is not None and isinstance(obj, claim_module.Claim):
        if obj.function.__module__ != collector.obj.__name__:
            return None  # imported: tested where it stands
        return ClaimItem.from_parent(collector, name=name, claim=obj)
    mark = next((mark for mark in getattr(obj, "pytestmark", []) if mark.name == MARK), None)
    if mark is None:
        return None
    from .testing import claim

    strategies = {"paper": "this test", "item": name, **mark.kwargs}
    paper, item = strategies.pop("paper"), strategies.pop("item")
    item_of = ClaimItem.from_parent(collector, name=name, claim=claim(paper, item, **strategies)(obj))
    item_of.own_markers += [other for other in obj.pytestmark if other.name != MARK]
    return item_of


class ClaimItem(pytest.Item):
    """Searches with the claim's own number of examples, seed 0; fails where the verdict is not the expected one."""

    def __init__(self, *, claim: Claim, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.claim = claim
        self.add_marker(MARK)

    def runtest(self) -> None:
        from .testing import check_claim

        result = check_claim(self.claim)
        if not result.as_registered:
            pytest.fail(f"{self.claim.statement}\n  expected: {self.claim.expect}\n  found: {result}", pytrace=False)

    def reportinfo(self) -> tuple[Any, int, str]:
        return self.path, self.claim.function.__code__.co_firstlineno - 1, self.name
