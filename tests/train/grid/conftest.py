"""What the tests of evaluation share."""

from tests.train.evaluation.conftest import shared_programs

__all__ = ["shared_programs"]
