"""Faults in the data sets that are read as their publishers ship them."""

from tests.mutants.row import mutants_of

_FILES = "data/tasks/read/test_files_of_publishers.py::"
_READ = f"{_FILES}test_a_named_task_reads_the_files_of_its_publisher"
_ODD = f"{_FILES}test_a_row_in_another_form_is_one_line"
_MISSING = f"{_FILES}test_a_missing_file_is_one_line_that_says_who_publishes_it"
_NAMES = f"{_FILES}test_a_name_that_is_none_is_one_line"
_RACE = f"{_FILES}test_a_folder_of_race_is_one_source"
_ORDER = f"{_FILES}test_labels_are_in_the_order_of_the_publisher"

PUBLISHED = (
    *mutants_of(
        "data/tasks/read/published/choices.py",
        ("published.ending-alone", "{row['sent2']} {row[ending]}", "{row[ending]}", _READ),
        ("published.cause-or-effect", '"What was the cause of this?"', '"What happened as a result?"', _READ),
        ("published.passage-first", "{question} {passage}", "{passage} {question}", _READ),
        ("published.half-a-character", "json.dumps(content, ensure_ascii=False).encode()", "content", _ODD),
    ),
    *mutants_of(
        "data/tasks/read/published/texts.py",
        ("published.no-agreement", 'None if label == "-" else', "", _READ),
        ("published.contradictory", '.replace("contradictory", "contradiction")', "", _READ),
        ("published.words-with-spaces-lost", "([^()]+)", r"([^()\s]+)", _READ),
        ("published.brackets-stay", "(_BRACKETS.get(word) or word)", "word", _READ),
        ("published.tree-not-closed", ' or tree.count("(") != tree.count(")")', "", _ODD),
        ("published.all-languages", 'if language in ("", row["language"])', "if row",
         f"{_FILES}test_one_language_of_xnli_is_a_part_of_its_file"),
        ("published.spaces-alone", "cell.split(_BETWEEN) if _BETWEEN in cell else cell.split()", "cell.split()", _READ),
    ),
    *mutants_of(
        "data/tasks/read/published/publishers.py",
        ("published.outside-the-folder", ' or ".." in Path(inside).parts', "", _NAMES),
        ("published.part-of-any", "if part and not known.parts:", "if False:", _NAMES),
        ("published.missing-passes", "if not path.exists():", "if False:", _MISSING),
        ("published.one-passage", 'sorted(self.path.rglob("*.txt"))', 'sorted(self.path.rglob("*.txt"))[:1]', _RACE),
    ),
    *mutants_of(
        "data/tasks/read/read_examples.py",
        ("published.test-unseen", ', ("task.test", task.test)):', "):", _MISSING),
    ),
    *mutants_of(
        "configs/published_tasks.py",
        ("published.order", '_NLI = ("entailment", "neutral", "contradiction")', "_NLI = ()", _ORDER),
    ),
)  # fmt: skip
