"""A site's folder, and what its operator is told."""

import pytest

from support.site_services import site_folder


@pytest.fixture
def folder(tmp_path):
    return site_folder(tmp_path, "berlin")


@pytest.fixture
def told():
    return []
