"""Faults in grids of fine-tunings, and in what their runs share."""

from tests.mutants.row import mutants_of

_STEP = "train/test_step.py::test_runs_share_a_step_with_masks_and_a_rate_of_their_own"
_SEEDED = "train/test_step.py::test_a_first_state_is_that_of_its_seed_on_any_mesh"
_SHARED = "train/test_step.py::test_a_seed_and_a_rate_have_no_step_of_their_own"
_MIXED = "train/test_step.py::test_a_step_that_mixes_layers_at_a_rate_of_their_own_is_of_one_rate"
_COUNTS = "train/grid/test_grid_results.py::test_the_last_figures_count_and_with_patience_the_best_ones"
_SPREAD = "train/grid/test_grid_results.py::test_a_spread_is_the_mean_and_the_deviation_of_a_sample"
_BEST = "train/grid/test_grid_results.py::test_the_best_has_the_best_mean_in_the_metrics_own_direction"
_FOLDER = "train/grid/test_grid_folder.py::"
_REFUSED = f"{_FOLDER}test_a_second_start_with_other_settings_is_refused_by_name"
_ADDED = f"{_FOLDER}test_values_and_seeds_may_be_added"
_NAMES = f"{_FOLDER}test_each_setting_and_seed_has_a_run_of_its_own_folder"
_MISTAKES = "cli/test_grid_options.py::test_a_mistake_in_a_grid_is_one_line_and_nothing_is_written"
_EXAMPLES = "train/grid/test_train_grid.py::test_runs_on_other_examples_are_not_added"
_TEST = "train/grid/test_train_grid.py::test_the_test_figures_are_those_of_the_test_examples_that_are_given"
_OTHERS = "train/grid/test_train_grid.py::test_a_run_of_other_settings_does_not_count_for_the_grid"
_START = "train/grid/test_train_grid.py::test_runs_that_would_begin_from_another_checkpoint_are_not_added"
_METRIC = "train/grid/test_train_grid.py::test_a_metric_that_no_run_has_is_refused"
_WINDOWS = "cli/test_grid_options.py::test_losses_over_other_windows_are_not_compared"
_REDRAWN = "train/checkpoints/test_transfer.py::test_every_family_has_layers_to_redraw"
_REDRAW = "train/settings/test_run.py::test_layers_are_redrawn_only_where_they_are_taken_over_and_trained"

GRIDS = (
    *mutants_of(
        "train/step.py",
        ("grid.masks-of-one-seed", "dropout_key(settings.seed, state.step, row_B)",
         "dropout_key(run.seed, state.step, row_B)", _STEP),
        ("grid.rate-of-one-run", "state.step, settings.peak_lr)", "state.step, run.optim.peak_lr)", _STEP),
        ("grid.start-of-one-seed", "return lambda seed: jitted(jax.random.key(seed)), shapes, shardings",
         "return lambda seed: jitted(jax.random.key(0)), shapes, shardings", _SEEDED),
    ),
    *mutants_of(
        "train/programs.py",
        ("grid.compiled-for-each-seed", "seed=0, ", "", _SHARED),
        ("grid.mixing-rate-shared", 'run.optim if run.head.mix != "off" and run.optim.mix_lr else ', "", _MIXED),
        ("evaluate.compiled-for-each-checkpoint", "            _kept[key] = made\n", "",
         "train/evaluation/test_every_checkpoint.py::test_nothing_is_compiled_or_encoded_twice"),
        ("grid.told-apart-by-one-argument", "*map(_value, traced))", "*map(_value, traced[:1]))",
         "train/test_programs.py::test_what_is_made_for_equal_arguments_is_made_once"),
    ),
    *mutants_of(
        "train/grid/results.py",
        ("grid.patience-forgotten", "return find_steps(folder, None)[0]", "return saved[-1]", _COUNTS),
        ("grid.unfinished-run-counts", "saved[-1] != record.total_steps and not stopped_early", "False", _COUNTS),
        ("grid.unmeasured-run-counts", 'if meta.get("unevaluated") or', "if", _COUNTS),
        ("grid.deviation-of-all", "statistics.stdev(numbers)", "statistics.pstdev(numbers)", _SPREAD),
        ("grid.gaps-left-out-of-the-mean", "if len(numbers) < len(values):", "if not numbers:", _SPREAD),
        ("grid.diverged-may-be-best", 'if any("dev" not in run for run in setting["runs"]) or', "if", _BEST),
        ("grid.test-figures-of-other-examples", 'now in ("", then) for', "True for", _TEST),
        ("grid.lower-is-better", "metrics.rank(metric, value) if isinstance", "value if isinstance", _BEST),
    ),
    *mutants_of(
        "train/grid/folder.py",
        ("grid.other-settings-pass", "(run_file.may_change(name) and not _decides(name, now))", "name",
         _REFUSED),
        ("grid.other-evaluations-pass", "return name in _DECIDE or", "return", _REFUSED),
        ("grid.run-of-other-settings-counts", "_decides(name, run) or not run_file.may_change(name)", "False", _OTHERS),
        ("grid.fewer-seeds-pass", 'if grid.seeds < old["seeds"]:', "if False:", _REFUSED),
        ("grid.seeds-cannot-be-added", 'if grid.seeds < old["seeds"]:', 'if grid.seeds != old["seeds"]:', _ADDED),
        ("grid.divergence-forgotten", 'return dict(old["diverged"])', "return {}", _ADDED),
    ),
    *mutants_of(
        "train/grid/train_grid.py",
        ("grid.runs-on-other-examples", "for folder in stored[:1]:", "for folder in stored[:0]:", _EXAMPLES),
        ("grid.runs-from-other-parameters", 'now["digest"] == before["digest"]', "True", _START),
        ("grid.metric-that-no-run-has", 'if names and result["metric"] not in names:', "if False:", _METRIC),
    ),
    *mutants_of(
        "contexture/grid_search.py",
        ("grid.seeds-from-zero", "seed = run.seed + number", "seed = number", _NAMES),
        ("grid.value-twice", "if value in values:", "if False:", _MISTAKES),
        ("grid.field-given-besides", "if other in given), None):", "if other in ()), None):", _MISTAKES),
        ("grid.loss-that-varies", 'if changes_loss and run.evaluate.metric == "loss":', "if False:", _MISTAKES),
        ("grid.loss-of-other-windows", ' or (name == "data.length" and windows)', "", _WINDOWS),
    ),
    *mutants_of(
        "train/checkpoints/transfer.py",
        ("redraw.bottom-layers", "x.at[first:].set(new[first:])", "x.at[:count].set(new[:count])", _REDRAWN),
        ("redraw.pooler-kept", "if path.startswith(_POOLER):\n            return new", "if path.startswith(_POOLER):\n"
         "            return x", _REDRAWN),
    ),
    *mutants_of(
        "train/settings/run.py",
        ("redraw.frozen-layers-drawn", "if optim.frozen_layers > self.model.layers - count:", "if False:", _REDRAW),
    ),
)  # fmt: skip
