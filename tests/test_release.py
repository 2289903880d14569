"""The check before a release finds what must not be released."""

import runpy
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / ".ci/release.py"

pytestmark = pytest.mark.skipif(not CHECK.exists(), reason="needs a clone of the repository")


def problems(version):
    return runpy.run_path(str(CHECK))["problems"](version)


def test_placeholders_can_not_be_released():
    found = problems("0.1.0")
    assert sum("is a placeholder" in line for line in found) == 5
    assert any("'Unreleased'" in line for line in found)


def test_versions_must_agree():
    found = problems("9.9.9")
    assert "skbayes_sym/__init__.py says 0.1.0, not 9.9.9" in found
    assert "CITATION.cff says 0.1.0, not 9.9.9" in found


def test_a_version_has_three_numbers():
    assert any("three numbers" in line for line in problems("1.0"))
