"""The module of matrix-multiply functions: importable, with names that say that they are not there yet."""

from __future__ import annotations

import pytest

from fuseplan import gemm
from fuseplan.api.pending import GEMM_NAMES
from fuseplan.errors import NotYetAvailableError


@pytest.mark.parametrize("name", sorted(GEMM_NAMES))
def test_name_of_the_api_says_that_it_is_not_there_yet(name: str) -> None:
    assert not hasattr(gemm, name)
    with pytest.raises(NotYetAvailableError, match=f"fuseplan.gemm.{name} is part of the API(?s:.*)fix: "):
        getattr(gemm, name)


def test_other_name_is_a_plain_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'fuseplan.gemm' has no attribute 'nothing'") as caught:
        _ = gemm.nothing
    assert not isinstance(caught.value, NotYetAvailableError)
