"""The settings that all named tasks share, from BERT's paper (Devlin et al. 2018, section 4, appendix A.3)."""

from contexture.data.config import Context, DataConfig, TaskConfig
from contexture.train.settings.run import Run
from contexture.train.settings.sections import OptimConfig


def paper_settings(
    task: TaskConfig,
    *,
    epochs: float = 3.0,
    peak_lr: float = 2e-5,
    batch: int = 32,
    length: int = 128,
    context: Context = "sentence",
) -> Run:
    """Returns the run that learns a task: batches of 32, 3 epochs, a rate that rises over the first tenth of the
    steps."""
    return Run(
        data=DataConfig(batch=batch, length=length, max_predictions=1, context=context),
        optim=OptimConfig(peak_lr=peak_lr, warmup=0, warmup_fraction=0.1),
        task=task,
        steps=0,
        epochs=epochs,
    )
