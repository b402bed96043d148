"""Faults in what is asked of a trained model: evaluations, scores, vectors, texts."""

from tests.mutants.row import mutants_of

_UNITS = "analysis/test_units.py"
_ONCE = f"{_UNITS}::test_every_token_is_scored_once_with_all_context_of_its_window"
_PIECES = "analysis/test_embed.py::test_pieces_have_the_vectors_of_their_model"
_LANES = "analysis/test_embed.py::test_sentences_in_lanes_keep_their_order_and_their_vectors"
_ONE_BY_ONE = f"{_UNITS}::test_a_score_is_that_of_the_tokens_one_by_one"
_MASKED = "analysis/scoring/test_score.py::test_a_berts_score_masks_each_token_alone"
_BOTH = "analysis/scoring/test_score.py::test_an_elmos_score_is_that_of_both_directions_word_by_word"
_BLIMP = "analysis/zeroshot/test_minimal_pairs.py::"
_BLIMP_PAIRS = f"{_BLIMP}test_a_pair_is_right_where_the_acceptable_sentence_is_more_probable"
_ZEROSHOT = "analysis/zeroshot/test_zeroshot.py::"
_CONTINUED = f"{_ZEROSHOT}test_a_gpts_continuation_is_the_whole_text_less_its_context"
_WRITERS = "analysis/zeroshot/test_written_answers.py::"
_WRITTEN = f"{_WRITERS}test_greedy_answers_are_those_of_a_slow_loop"
_NEIGHBOURS = "analysis/neighbours/test_nearest.py::"
_NEAREST = f"{_NEIGHBOURS}test_the_nearest_are_those_of_a_sort_of_all"
_WHITENED = f"{_NEIGHBOURS}test_whitened_vectors_have_mean_0_and_the_identity_as_covariance"
_EVERY = "train/evaluation/test_every_checkpoint.py::"
_ROW_ONCE = f"{_EVERY}test_every_checkpoint_has_a_row_and_is_evaluated_once"
_SEEN = "train/evaluation/test_several_runs.py::test_a_run_that_fails_is_one_line_before_any_is_evaluated"
_FIGURES = "train/evaluation/test_figures.py::"
_CELLS = f"{_FIGURES}test_every_prediction_is_in_one_cell_and_one_bin"
_SUBMITTED = "train/evaluation/test_submission.py::"
_NLI = f"{_SUBMITTED}test_mnli_is_named_by_its_files_and_writes_names"
_PROBE = "analysis/probing/test_probe_numbers.py::"
_PROBE_FIGURE = "analysis/probing/test_probe_figure.py::"
_FOLLOWED = f"{_EVERY}test_a_training_is_followed_to_its_end"

_MAPS = "analysis/attention/test_maps.py::"
_MAP = f"{_MAPS}test_a_map_is_the_softmax_of_queries_and_keys_over_what_a_query_sees"
_TRAINED = f"{_MAPS}test_maps_are_those_of_a_training_step"
_PAGE = "analysis/attention/test_page.py::"
_SENSES = "analysis/senses/test_senses_numbers.py::"
_PAIRS = f"{_SENSES}test_figures_are_those_of_all_pairs_one_by_one"
_TOKENS = "analysis/scoring/test_token_scores.py::"
_GATES = "analysis/attention/test_gates.py::test_gates_are_those_of_the_equations_in_both_directions"

ANALYSIS = (
    *mutants_of(
        "analysis/attention/maps.py",
        ("maps.input-of-another-layer", "inputs[layer - 1]", "inputs[layer - 2]", _TRAINED),
        ("maps.band-of-another-layer", "jnp.int32(layer - 1)", "jnp.int32(layer)", _MAP),
        ("maps.another-head", "of_head = np.array(heads) - 1", "of_head = np.array(heads) - 2", _TRAINED),
        ("maps.longer-than-the-model", "if len(ids) > config.length:", "if len(ids) > config.length + 1000:",
         f"{_MAPS}test_what_cannot_be_computed_is_one_clear_line"),
    ),
    *mutants_of(
        "analysis/pages/one_page.py",
        ("page.less-than-sign-acts", '.replace("<", "\\\\u003c")', "",
         f"{_PAGE}test_text_stays_text_and_nothing_but_the_pages_own_script_may_run"),
    ),
    *mutants_of(
        "analysis/attention/write_page.py",
        ("page.weights-rounded-off", "np.round(one.weights * 10**decimals)", "(one.weights * 10**decimals)",
         f"{_PAGE}test_a_page_holds_the_maps_rounded_as_it_says"),
        ("page.band-of-dense-layers", "if n % 2 == 0 else 0", "if n % 2 == 1 else 0",
         f"{_PAGE}test_a_page_says_which_layers_are_banded"),
    ),
    *mutants_of(
        "analysis/cosines.py",
        ("senses.a-vector-with-itself", " - np.square(unit_ND).sum()", "", _PAIRS),
        ("senses.between-holds-within", "(whole - within) / between_pairs", "whole / between_pairs", _PAIRS),
    ),
    *mutants_of(
        "analysis/senses/word_senses.py",
        ("senses.baseline-of-one-word", "_, between = mean_cosines(", "between, _ = mean_cosines(",
         f"{_SENSES}test_adjusted_figures_are_above_the_mean_cosine_of_different_words"),
    ),
    *mutants_of(
        "analysis/senses/layer_vectors.py",
        ("senses.another-word-of-the-sentence", "[number].place for number", "[number].place - 1 for number",
         f"{_SENSES}test_a_words_vectors_are_those_of_embed_at_every_layer"),
    ),
    *mutants_of(
        "analysis/senses/static_vector.py",
        ("senses.static-word-as-given-alone", "dict.fromkeys((word, word.lower()))", "(word,)",
         "analysis/senses/test_senses_command.py::test_a_static_vector_tells_no_senses_apart"),
    ),
    *mutants_of(
        "analysis/attention/gates.py",
        ("gates.begin-is-a-word", "[1 : count + 1, 0]", "[:count, 0]", _GATES),
        ("gates.backward-in-its-own-order", "own_LG[::-1]", "own_LG", _GATES),
        ("gates.shares-without-weights", 'np.array(mix["weights"], np.float32)[:, None] * ', "",
         "analysis/attention/test_gates.py::test_each_words_shares_of_the_layers_are_weight_times_length"),
    ),
    *mutants_of(
        "analysis/scoring/scorer.py",
        ("tokens.rank-from-nought", "1 + (log_probs_PV > own_P1)", "(log_probs_PV > own_P1)",
         f"{_TOKENS}test_a_gpts_predictions_are_those_of_each_prefix_alone"),
        ("score.stride-not-read", "scored, start = end, start + stride", "scored, start = end, start + size", _ONCE),
        ("score.context-scored-again", "yield start, end, end - scored", "yield start, end, end - start", _ONCE),
    ),
    *mutants_of(
        "analysis/scoring/gpt.py",
        ("score.first-tokens-of-a-window", "range(end - start - new, end - start)", "range(new)", _ONCE),
        ("score.bits-are-nats", 'nats["forward"] / math.log(2) / max', 'nats["forward"] / max', _UNITS),
        ("score.perplexity-per-byte", '"perplexity": perplexity(loss),\n            "bits',
         '"perplexity": perplexity(nats["forward"] / totals["bytes"]),\n            "bits', _ONE_BY_ONE),
        ("score.words-are-tokens", 'perplexity(nats["forward"] / totals["words"])',
         'perplexity(nats["forward"] / totals["tokens"])', _UNITS),
        ("zeroshot.context-is-scored", "range(len(kept) - 1, len(read)), own, number)",
         "range(len(kept) - 2, len(read) - 1), own, number)", _CONTINUED),
    ),
    *mutants_of(
        "analysis/scoring/bert.py",
        ("score.masks-the-context", "range(1 + len(window) - new, 1 + len(window))", "range(1, 1 + new)", _MASKED),
        ("score.padded-rows-are-tokens", "min(self.pieces.size, self.config.vocab)", "self.config.vocab", _MASKED),
        ("zeroshot.one-token-too-few", "self._masked([*kept, *own], len(own), number)",
         "self._masked([*kept, *own], len(own) - 1, number)",
         f"{_ZEROSHOT}test_a_berts_continuation_is_that_of_each_masked_token"),
    ),
    *mutants_of(
        "analysis/scoring/elmo.py",
        ("score.backward-begins-at-the-beginning", "[2 if back else 1, *index", "[1, *index", _BOTH),
        ("score.backward-ends-at-the-end", "self.words.begin if back else self.words.end]", "self.words.end]", _BOTH),
        ("tokens.backward-in-reading-order", '*predictions["backward"][::-1]', '*predictions["backward"]',
         f"{_TOKENS}test_an_elmos_predictions_are_those_of_both_directions"),
    ),
    *mutants_of(
        "analysis/zeroshot/continuations.py",
        ("zeroshot.end-of-the-sentence-is-a-word", "slice(len(nats) - 1 - of.tokens, -1)",
         "slice(len(nats) - of.tokens, None)",
         f"{_ZEROSHOT}test_the_last_of_an_elmo_is_its_last_word_read_forward"),
    ),
    *mutants_of(
        "analysis/zeroshot/minimal_pairs.py",
        ("zeroshot.tie-is-a-hit", "is_hit(log_probs, 0) for", "bool(log_probs.argmax() == 0) for", _BLIMP_PAIRS),
        ("zeroshot.mean-over-paradigms-is-their-sum", "else error / count", "else error",
         f"{_BLIMP}test_a_mean_over_paradigms_has_the_errors_of_all"),
    ),
    *mutants_of(
        "analysis/zeroshot/standard_error.py",
        ("zeroshot.error-of-a-population", "/ (count - 1) / count", "/ count / count",
         f"{_BLIMP}test_the_standard_error_is_the_deviation_over_the_root_of_n"),
    ),
    *mutants_of(
        "analysis/vectors/row_names.py",
        ("embed.words-are-tokens", 'if of == "words":', 'if of == "nothing":',
         "analysis/vectors/test_words_of_vectors.py::test_an_elmos_words_stand_between_spaces_and_tokens_between_marks"),
    ),
    *mutants_of(
        "analysis/vectors/text_files.py",
        ("embed.digits-are-lost", "%.9g", "%.6g",
         "analysis/vectors/test_vector_files.py::test_rows_of_text_hold_every_vector_with_its_name_to_the_bit"),
    ),
    *mutants_of(
        "analysis/probing/probe.py",
        ("probe.seeds-are-one", "seed=how.seed + n,", "seed=how.seed,",
         "analysis/probing/test_probe_runs.py::test_several_seeds_have_mean_and_deviation_of_probes_trained_alone"),
    ),
    *mutants_of(
        "analysis/zeroshot/word_perplexity.py",
        ("zeroshot.words-of-the-joined-text", "own = line.split()", "own = join_tokens(line).split()",
         f"{_ZEROSHOT}test_perplexity_by_word_divides_by_the_originals_words"),
    ),
    *mutants_of(
        "analysis/zeroshot/written_answers.py",
        ("zeroshot.answer-goes-on", 'stop="\\n")\n    for row, question', ")\n    for row, question", _WRITTEN),
        ("zeroshot.left-out-answer-counts", "if n != out", "if True",
         f"{_WRITERS}test_one_right_answer_is_left_out_in_turn"),
        ("zeroshot.rouge-without-stems", "use_stemmer=True)", "use_stemmer=False)",
         f"{_WRITERS}test_summaries_have_the_librarys_rouge"),
    ),
    *mutants_of(
        "analysis/zeroshot/files.py",
        ("zeroshot.question-is-its-own-example", "if each != question]", "]",
         f"{_ZEROSHOT}test_shots_are_drawn_for_each_question"),
        ("zeroshot.example-has-another-answer", "own[label], number", "own[0], number",
         f"{_ZEROSHOT}test_an_answered_example_has_its_answer_in_the_blank"),
    ),
    *mutants_of(
        "analysis/zeroshot/prompts.py",
        ("zeroshot.sentence-is-its-own-example", "if each != text]", "]",
         f"{_WRITERS}test_prompts_are_those_written_by_hand"),
        ("zeroshot.article-loses-its-beginning", "return summary_prompt(article[:kept])",
         "return summary_prompt(article[len(article) - kept :])",
         f"{_WRITERS}test_an_article_that_is_too_long_loses_its_end"),
    ),
    *mutants_of(
        "analysis/generate.py",
        ("generate.prompt-loses-its-end", "del self.prompt[: self.truncated]",
         "del self.prompt[len(self.prompt) - self.truncated :]", _WRITTEN),
    ),
    *mutants_of(
        "analysis/neighbours/nearest.py",
        ("neighbours.padding-is-near", "len(block_ND)) < own", "len(block_ND)) < len(block_ND)", _NEAREST),
        ("neighbours.numbers-within-the-block", "places_QK.astype(jnp.int32) + seen", "places_QK.astype(jnp.int32)",
         _NEAREST),
        ("neighbours.last-vectors-are-lost", "if rest := [", "if rest := [] and [", _NEAREST),
    ),
    *mutants_of(
        "analysis/neighbours/whitening.py",
        ("whitening.not-around-the-mean", "- np.outer(mean_D, mean_D)", "", _WHITENED),
        ("whitening.least-variance-first", "variance_E[::-1], directions_DE[:, ::-1]", "variance_E, directions_DE",
         _WHITENED),
    ),
    *mutants_of(
        "analysis/layers.py",
        ("mix.last-four-are-the-lowest", 'run.head.mix == "last-four" else 0', "False else 0",
         "analysis/test_layers.py::test_the_weights_of_the_last_four_layers_have_those_layers_numbers"),
    ),
    *mutants_of(
        "analysis/pooling.py",
        ("embed.mean-is-first", "mean_over(states, units)),", "mean_over(states, first(units))),", _PIECES),
        ("embed.mean-without-marks", '"mean": Pooling(lambda states, units, words: mean_over(states, units)',
         '"mean": Pooling(lambda states, units, words: mean_over(states, words)', _PIECES),
        ("embed.cls-elsewhere", "first(units)), reads_cls", "first(words)), reads_cls", _UNITS),
        ("embed.last-is-the-first-word", "first(words[:, ::-1])[:, ::-1]", "first(words)", _PIECES),
    ),
    *mutants_of(
        "analysis/embed.py",
        ("embed.marks-in-the-mean", "(place_1L < count_B1 - int(ends))", "(place_1L < count_B1)", _PIECES),
        ("embed.sorted-vectors", "vectors[place] = own[", "vectors[row] = own[", _LANES),
    ),
    *mutants_of(
        "analysis/options.py",
        ("embed.last-is-first", "return (top,) if layers", "return (0,) if layers",
         "api/test_trained_model.py"),
    ),
    *mutants_of(
        "analysis/generate.py",
        ("generate.end-is-text", 'ids[: ids.index(tokenizer.end)], "end"', 'ids[: ids.index(tokenizer.end) + 1], "end"',
         "analysis/test_generate_units.py"),
        ("generate.stop-is-text", 'text.text[: min(places)], "stop"', 'text.text[: max(places)], "stop"',
         "analysis/test_generate_units.py"),
        ("generate.half-characters-told", 'ready = len(text.rstrip("\\ufffd"))', "ready = len(text)",
         "analysis/test_generate_units.py"),
        ("generate.part-of-a-stop-told", "ready -= size\n", "ready -= 0\n", "analysis/test_generate_units.py"),
    ),
)  # fmt: skip

EVALUATION = (
    *mutants_of(
        "train/evaluation/checkpoint_results.py",
        ("evaluate.results-of-other-data-taken", 'if record["of"] != of or digest', "if digest", _ROW_ONCE),
        ("evaluate.results-of-other-checkpoint-taken", 'digest not in (None, record["checkpoint"])', "False",
         _ROW_ONCE),
        ("evaluate.results-beside-other-predictions", 'if record["written"] == _sha256(file):', "if True:", _ROW_ONCE),
        ("evaluate.removed-checkpoint-forgotten", "if step not in existing and self.stored(step)]", "if False]",
         f"{_EVERY}test_the_results_of_a_checkpoint_outlive_it"),
        ("evaluate.torn-line-continued", "file.write(b\"\\n\" * torn + ", "file.write(",
         f"{_EVERY}test_a_torn_line_is_left_out_and_those_behind_it_count"),
        ("evaluate.curve-hides-what-comes-behind", "or self._events is not None):", "and True):",
         f"{_EVERY}test_the_curve_holds_each_step_once_beside_the_trainings"),
    ),
    *mutants_of(
        "train/evaluation/steps.py",
        ("evaluate.watch-ends-early", "if not training:", "if True:", _FOLLOWED),
        ("evaluate.ended-run-watched", "    if not holder_of(folder):\n", "    if False:\n",
         f"{_EVERY}test_a_mistake_is_one_line"),
    ),
    *mutants_of(
        "train/evaluation/evaluate.py",
        ("evaluate.first-run-before-the-second-is-seen", "first_good(request.folder, step, read_meta)", "pass",
         _SEEN),
    ),
    *mutants_of(
        "train/evaluation/figures.py",
        ("evaluate.matrix-turned", "confusion_matrix(predictions.gold, predictions.predicted, labels",
         "confusion_matrix(predictions.predicted, predictions.gold, labels", _CELLS),
        ("evaluate.calibration-of-empty-bins", "edges[:-1][held], accuracy", "edges[:-1][: held.sum()], accuracy",
         _CELLS),
        ("evaluate.calibration-unweighted", "- self.confidence), weights=self.counts)", "- self.confidence))",
         f"{_FIGURES}test_counts_and_rates_equal_an_independent_count"),
        ("evaluate.rare-labels-lost", "rows[:, others].sum(1, keepdims=True)", "rows[:, others[:1]]",
         f"{_FIGURES}test_rare_labels_stand_together_in_a_picture_and_no_count_is_lost"),
    ),
    *mutants_of(
        "train/evaluation/submission.py",
        ("evaluate.submission-not-clipped", "np.clip(float(value), 0.0, _HIGHEST)", "float(value)",
         f"{_SUBMITTED}test_likeness_is_a_number_from_0_to_5"),
        ("evaluate.submission-labels-turned", 'negative: "0", positive: "1", "0"', 'negative: "1", positive: "0", "0"',
         f"{_SUBMITTED}test_a_pair_of_classes_is_written_as_numbers"),
        ("evaluate.submission-in-the-order-of-tfds", "lines.sort(key=lambda line: int(str(line[0])))", "pass",
         f"{_SUBMITTED}test_without_files_the_test_set_of_glue_is_handed_in"),
        ("evaluate.submission-own-index-unread", "if own is None or isinstance(row, DataError):", "if True:", _NLI),
        ("evaluate.submission-mismatched-is-matched", '"MNLI-mm.tsv" if "mismatched" in name', '"MNLI-mm.tsv" if False',
         _NLI),
        ("evaluate.submission-odds-are-probabilities", '_sigmoid(answer.get("null_score", math.inf))',
         'answer.get("null_score", math.inf)', f"{_SUBMITTED}test_questions_are_answered_by_their_ids"),
    ),
    *mutants_of(
        "analysis/probing/probe_scores.py",
        ("probe.gravity-without-layers", " if layers is None else np.asarray(layers), weights_N", ", weights_N",
         f"{_PROBE}test_centre_differentials_and_expected_layer_are_their_formulas"),
        ("probe.expected-layer-from-0", "np.arange(1, len(scores)), gains", "np.arange(len(gains)), gains",
         f"{_PROBE}test_centre_differentials_and_expected_layer_are_their_formulas"),
        ("probe.f1-without-misses", "whole = 2 * counts.right + counts.wrong + counts.missed",
         "whole = 2 * counts.right + counts.wrong", f"{_PROBE}test_micro_f1_is_scikit_learns"),
    ),
    *mutants_of(
        "analysis/probing/probe_model.py",
        ("probe.mix-of-all-layers", "jnp.where(layers_N, weights_N, -jnp.inf)", "weights_N",
         f"{_PROBE}test_the_mix_is_its_formula"),
        ("probe.pool-reads-padding", "jnp.where(inside_BSW, scores_BSW, -jnp.inf)", "scores_BSW",
         f"{_PROBE}test_a_pooled_span_is_its_formula_and_sees_no_padding"),
    ),
    *mutants_of(
        "analysis/probing/probe_examples.py",
        ("probe.control-of-one-span", "for span in words)", "for span in words[:1])",
         "analysis/probing/test_probe_laws.py::test_a_control_label_of_a_pair_is_one_of_both_words"),
        ("probe.unknown-labels-forgiven", "missed.append(len(lacking))", "missed.append(0)",
         "analysis/probing/test_probe_laws.py::test_labels_that_the_training_set_lacks_are_missed"),
    ),
    *mutants_of(
        "analysis/probing/probe_figure.py",
        ("probe.scale-from-the-least-value", "vmin=0.0, vmax=end", "vmax=end",
         f"{_PROBE_FIGURE}test_equal_differences_of_a_map_are_equal_differences_of_colour"),
        ("probe.scales-of-their-own", "axes.set_ylim(*_limits(rows,", "axes.set_ylim(*_limits([row],",
         f"{_PROBE_FIGURE}test_all_panels_of_one_figure_have_one_scale"),
    ),
    *mutants_of(
        "analysis/compare.py",
        ("evaluate.compared-best-is-lowest", "key=lambda point: rank(metric, point[1])", "key=lambda point: point[1]",
         "analysis/test_compare.py::test_metrics_of_tasks_are_listed_with_their_best_step"),
    ),
    *mutants_of(
        "analysis/probing/targets.py",
        ("targets.root-has-no-head", 'head = n if cells[at.head] == "0"', 'head = 0 if cells[at.head] == "0"',
         "analysis/probing/test_targets.py::test_a_dependency_is_a_head_and_its_dependent"),
    ),
)  # fmt: skip
