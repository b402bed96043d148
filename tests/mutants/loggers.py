"""Faults in what experiment trackers receive."""

from tests.mutants.row import mutants_of

_TRACKERS = "train/loggers/test_trackers.py::"
_CLIENTS = "train/loggers/test_real_packages.py::"

LOGGERS = (
    *mutants_of(
        "train/loggers/trackers.py",
        ("trackers.steps-sent-again", 'if step > self._last[split]:', 'if step >= self._last[split]:',
         f"{_TRACKERS}test_a_start_sends_what_a_tracker_lacks"),
        ("trackers.ids-forgotten", "place = Place(self._folder.name, self._folder, config, ids.get(name, {}))",
         "place = Place(self._folder.name, self._folder, config, {})",
         f"{_TRACKERS}test_a_start_sends_what_a_tracker_lacks"),
        ("trackers.the-step-is-not-the-last", 'return figures | {"step": figures.pop("step")}', "return figures",
         f"{_TRACKERS}test_figures_are_numbers_and_the_step_is_the_last"),
    ),
    *mutants_of(
        "train/loggers/wandb_tracker.py",
        ("trackers.the-user-s-run-of-wandb-taken", 'reinit="create_new",', 'reinit="finish_previous",',
         f"{_CLIENTS}test_an_open_run_of_wandb_stays_open_and_gets_nothing"),
    ),
    *mutants_of(
        "train/loggers/mlflow_tracker.py",
        ("trackers.deleted-run-of-mlflow-taken", 'info and info.lifecycle_stage == "active"', "info",
         f"{_CLIENTS}test_a_run_of_mlflow_that_was_deleted_is_sent_whole_to_a_new_one"),
    ),
    *mutants_of(
        "train/run/report.py",
        ("trackers.before-the-checkpoint", 'self._trackers.send(r for r in self._unsent if r["step"] <= saved)',
         'self._trackers.send(r for r in self._unsent if r["step"] <= safe)',
         f"{_TRACKERS}test_a_record_is_sent_when_its_checkpoint_is_on_disk"),
    ),
)  # fmt: skip
