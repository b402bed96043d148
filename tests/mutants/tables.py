"""All rows, area by area."""

from tests.mutants.analysis import ANALYSIS, EVALUATION
from tests.mutants.commands import COMMANDS
from tests.mutants.data import PRETRAINING
from tests.mutants.grids import GRIDS
from tests.mutants.loggers import LOGGERS
from tests.mutants.models import MODELS
from tests.mutants.published import PUBLISHED
from tests.mutants.row import Mutant
from tests.mutants.spans import SPANS, TAGGING
from tests.mutants.tasks import TASKS
from tests.mutants.training import TRAINING

MUTANTS: tuple[Mutant, ...] = (
    *MODELS, *PRETRAINING, *TASKS, *TRAINING, *LOGGERS, *GRIDS, *EVALUATION, *SPANS, *TAGGING, *PUBLISHED, *ANALYSIS,
    *COMMANDS,
)  # fmt: skip
