"""All targets."""

from tests.fuzz.command_line import TARGETS as COMMANDS
from tests.fuzz.published import TARGETS as PUBLISHED
from tests.fuzz.publishers import TARGETS as PUBLISHERS
from tests.fuzz.runs import TARGETS as RUNS
from tests.fuzz.tables import TARGETS as TABLES
from tests.fuzz.tokenizers import TARGETS as TOKENIZERS

TARGETS = (*TOKENIZERS, *TABLES, *RUNS, *PUBLISHED, *PUBLISHERS, *COMMANDS)
