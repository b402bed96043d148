"""What the tests of evaluation share."""

from tests.train.evaluation.conftest import tiny_run

__all__ = ["tiny_run"]
