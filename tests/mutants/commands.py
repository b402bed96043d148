"""Faults in the command line: help, completion, settings from files, what is refused."""

from tests.mutants.row import mutants_of

_HELP = "cli/test_help.py::"
_MISTAKES = "cli/test_forty_mistakes.py"
_REFUSED = "test_a_mistake_is_one_clear_line_and_nothing_is_written"
_FILES = "cli/test_settings_file.py::"

COMMANDS = (
    *mutants_of(
        "contexture/cli/help.py",
        ("help.wider", "_NARROWEST, _WIDEST = 60, 110", "_NARROWEST, _WIDEST = 60, 120",
         f"{_HELP}test_no_line_is_wider_than_the_terminal"),
    ),
    *mutants_of(
        "contexture/cli/option_model.py",
        ("help.default-of-one-recipe", "if all(others[option.name].default == option.default",
         "if any(others[option.name].default == option.default", f"{_HELP}test_defaults_are_those_of_the_recipe"),
    ),
    *mutants_of(
        "contexture/option_scope.py",
        ("scope.turned-round", "if given and not given.has(run)", "if given and given.has(run)",
         f"{_HELP}test_help_all_has_the_options_of_the_family_and_the_command_alone"),
    ),
    *mutants_of(
        "contexture/cli/argv.py",
        ("alias.both", "if alias in given and name in given:", "if alias in given and name in ():",
         "cli/test_requests.py::test_a_short_form_and_its_option_are_not_given_together"),
        ("config.value-left-behind", '"=" not in argv[places[0]]', '"=" in argv[places[0]]',
         f"{_FILES}test_an_option_is_taken_out_of_the_arguments"),
    ),
    *mutants_of(
        "contexture/cli/completion.py",
        ("completion.one-value-of-several", "(option.several or not values)", "(not values)",
         "cli/test_completion.py::test_files_stand_where_a_file_or_a_folder_is_wanted"),
    ),
    *mutants_of(
        "contexture/cli/settings_file.py",
        ("config.yaml-truth", "Loader.yaml_implicit_resolvers = {}", "pass",
         f"{_FILES}test_words_that_yaml_takes_for_truth_values_stay_words"),
        ("config.yaml-octal", ".get(text[:2], 10)", ".get(text[:2], 8 if text[0] == '0' else 10)",
         f"{_FILES}test_numbers_are_those_of_yaml_1_2"),
    ),
    *mutants_of(
        "contexture/cli/parse.py",
        ("command.flag-inverted", "= not _is_no(name)", "= _is_no(name)", "cli/test_bounds.py"),
        ("command.later-words-lost", "else min(first + 1, end)", "else end", "cli/test_command_line.py"),
    ),
    *mutants_of(
        "contexture/cli/output.py",
        ("command.below-for-programs", "if width is not None and", "if width is None and",
         "cli/test_output.py::test_a_word_that_fits_a_line_of_its_own_stands_below_its_name"),
    ),
    *mutants_of(
        "train/text_checks.py",
        ("command.text-not-looked-at", '                check_beginnings(sources)',
         "                pass",
         "cli/test_command_line.py::test_files_that_are_wrong_give_one_clear_line"),
    ),
    *mutants_of(
        "train/step.py",
        ("plan.key-on-a-device", "(state, jax.eval_shape(jax.random.key, 0))",
         "(state, jax.random.key(0))",
         "train/plan/test_plan.py::test_a_states_shapes_are_computed_without_a_device"),
    ),
    *mutants_of(
        "train/plan/topology.py",
        ("command.any-slice", '_AXES = {"tpu": (2, 3)', '_AXES = {"tpu": (1, 2, 3)',
         "train/plan/test_plan.py::test_a_mistake_is_one_line"),
    ),
    *mutants_of(
        "configs/finetuning.py",
        ("finetune.other-sizes", "if mine != others and not run.init.random:",
         "if mine != others and run.init.random:", f"{_MISTAKES}::{_REFUSED}"),
    ),
)  # fmt: skip
