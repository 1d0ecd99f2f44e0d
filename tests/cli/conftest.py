"""Commands rehearse what they plan: here with fewer records and mixtures, which is soon done."""

import pytest

from dpfedc.verdict import rehearsal, verdict


@pytest.fixture(scope="module", autouse=True)
def short_rehearsals():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "MAX_RECORDS", 400)
        patch.setattr(verdict, "GEOMETRIES", 1)
        yield
