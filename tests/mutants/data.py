"""Faults on the way from text to batches of pretraining."""

from tests.mutants.row import mutants_of

_MASKING = "data/pretraining/test_masking.py"
_SPANS = "data/pretraining/test_span_masking.py"
_STREAMS = "data/pretraining/test_sentence_pairs.py::"
_PLAN = f"{_STREAMS}test_the_plan_is_exactly_the_originals"
_DRAWS = f"{_STREAMS}test_draws_are_those_of_splitmix64_and_uniform"
_ORDER = f"{_STREAMS}test_an_order_without_memory_is_a_permutation"
_CUT = f"{_STREAMS}test_cutting_is_the_originals_token_by_token"
_WINDOWS = "data/pretraining/test_lm_windows.py::"
_PACKED = f"{_WINDOWS}test_packed_documents_do_not_see_each_other"
_LANES = "data/pretraining/test_bilm_lanes.py::"
_WORDS = "data/tokenizers/test_word_level.py::"
_SLOW = "data/pretraining/test_slow_preparation.py::test_the_shards_are_those_of_a_slow_reader"
_VECTORS = "data/test_word_vectors.py::"
_STATIC = "interchange/test_static_vectors.py::"

_CREATED = "data/pretraining/test_create_instances.py"
_RECORDS = "data/pretraining/test_record_store.py::"

_CLEANED = "data/cleaning/test_clean_parts.py::"
_RULES = "data/cleaning/test_rules.py::"
_NEAR = "data/cleaning/test_near_duplicates.py::"
_BENCHMARKS = "data/cleaning/test_contamination.py::"

PRETRAINING = (
    *mutants_of(
        "data/cleaning/gopher.py",
        ("cleaning.gopher-starts-of-n-grams-alone", "    edges[n : n + len(starts)]", "    edges[1 : 1 + len(starts)]",
         f"{_RULES}test_a_document_is_refused_by_this_rule"),
        ("cleaning.gopher-first-one-a-duplicate", "if unit in seen:\n", "if units.count(unit) > 1:\n",
         f"{_RULES}test_a_document_is_refused_by_this_rule"),
    ),
    *mutants_of(
        "data/cleaning/c4.py",
        ("cleaning.c4-markers-stay", '_CITATION.sub("", text)', "text", f"{_RULES}test_c4_keeps_what_the_paper_keeps"),
    ),
    *mutants_of(
        "data/cleaning/near_duplicates.py",
        ("cleaning.near-compared-with-what-has-gone", "            doubles[document] = twin\n            continue\n",
         "            doubles[document] = twin\n", f"{_NEAR}test_what_resembles_only_what_has_gone_stays"),
        ("cleaning.near-by-the-estimate-alone", "if _jaccard(ours, shingles_of(each)) >= threshold", "if True",
         f"{_NEAR}test_what_goes_resembles_what_stays"),
    ),
    *mutants_of(
        "data/cleaning/repeated.py",
        ("cleaning.paragraphs-of-what-has-gone", " & self._stays[at : at + len(block)])", ")",
         f"{_NEAR}test_what_resembles_only_what_has_gone_stays"),
    ),
    *mutants_of(
        "data/cleaning/kept_documents.py",
        ("cleaning.numbers-of-kept-documents", 'self.read[span["source"]] += span["documents"]',
         'self.read[span["source"]] += span["kept"]', f"{_CLEANED}test_joined_parts_are_the_cleaning_of_the_whole"),
    ),
    *mutants_of(
        "data/cleaning/contamination.py",
        ("cleaning.n-grams-across-texts", "range(len(ids), len(ids) + len(words) - length + 1)",
         "range(len(ids), len(ids) + len(words))", f"{_BENCHMARKS}test_a_document_goes_where_an_n_gram_is_in_common"),
    ),
    *mutants_of(
        "data/pretraining/create_instances.py",
        ("pairs.instances-documents-in-order", "    generator.shuffle(documents)\n", "", _CREATED),
        ("pairs.instances-shorter-side-cut", "a if len(a) > len(b) else b", "a if len(a) >= len(b) else b", _CREATED),
        ("pairs.instances-words-too-many", "len(replaced) + len(word) > count", "len(replaced) > count", _CREATED),
        ("pairs.instances-file-ends-a-document", "    for source in sources:\n",
         "    for source in sources:\n        documents.append([])\n", _CREATED),
        ("pairs.instances-unused-sentences-lost", "            at = middle\n", "            pass\n", _CREATED),
    ),
    *mutants_of(
        "data/pretraining/record_batches.py",
        ("pairs.records-one-order-for-all-epochs", "rng.key(rng.RECORD_ORDER, self.seed, e)",
         "rng.key(rng.RECORD_ORDER, self.seed)",
         f"{_RECORDS}test_an_epoch_is_every_record_once_in_an_order_of_its_own"),
    ),
    *mutants_of(
        "data/pretraining/record_store.py",
        ("pairs.records-held-out-counted", "self._count_labels(first, cut)", "self._count_labels(first, self._count)",
         f"{_RECORDS}test_held_out_files_and_guesses"),
        ("pairs.records-no-look-at-the-vocabulary", "!= tokenizer.cls:", "< 0:",
         f"{_RECORDS}test_a_wrong_record_is_one_line_with_its_number"),
    ),
    *mutants_of(
        "data/pretraining/masking.py",
        ("masking.90-percent-masked", "rng.uniform(first) < masking", "rng.uniform(first) - 0.1 < masking", _MASKING),
        ("masking.fewer-kept", "rng.uniform(second) < kept", "rng.uniform(second) < 0.4 * kept", _MASKING),
        ("masking.rounded-down", "np.rint(lengths_B * masking", "np.floor(lengths_B * masking",
         _MASKING),
        ("masking.none-in-short-lines", "np.maximum(1, np.rint(", "np.maximum(0, np.rint(", _MASKING),
        ("masking.special-tokens-too", "lots_BL[~candidates_BL] = ", "lots_BL[candidates_BL & ~candidates_BL] = ",
         _MASKING),
        ("masking.labels-are-the-masked", "labels = tokens_BL[rows, columns]",
         "labels = np.full_like(columns, masking.mask)",
         _MASKING),
        ("masking.a-span-runs-over-a-gap", "going &= follows_BW[rows, word]", "going &= True", _SPANS),
        ("masking.longer-spans", "LONGEST_SPAN, _SPAN_END = 10, 0.2", "LONGEST_SPAN, _SPAN_END = 10, 0.15", _SPANS),
        ("masking.boundary-inside", '"left": starts_BP - 1', '"left": starts_BP', _SPANS),
        ("masking.random-ids-too-few", "(third, masking.vocab - lowest)", "(third, masking.vocab // 2)", _MASKING),
        ("masking.one-seed-for-all", "rng.key(rng.MASK_CHOICE, seed)", "rng.key(rng.MASK_CHOICE, 0)", _MASKING),
    ),
    *mutants_of(
        "data/pretraining/sentence_pairs.py",
        ("nsp.fewer-random", "stop - first == 1 or uniform() < 0.5:", "stop - first == 1 or uniform() < 0.4:", _PLAN),
        ("nsp.lone-sentence-not-random", "if stop - first == 1 or uniform() < 0.5:", "if uniform() < 0.5:", _PLAN),
        ("nsp.from-the-same-document", "if other != document:", "if other >= 0:", _PLAN),
        ("nsp.unused-sentences-lost", "first = middle\n", "first = stop\n", _PLAN),
        ("nsp.short-lines-longer", "2 + below(max_tokens - 1)", "3 + below(max_tokens - 1)", _PLAN),
        ("nsp.no-random-tokens-wanted", "end - sentence, target - (begin - start), 1)", "end - sentence, target, 1)",
         _PLAN),
        ("pairs.surplus-not-left-out", "return plan.take(np.sort(chosen[:quota]))", "return plan",
         f"{_STREAMS}test_a_block_gives_as_many_lines_in_every_pass"),
        ("pairs.one-order-for-all-passes", "rng.key(rng.WINDOW_ORDER, self.seed, e, w)",
         "rng.key(rng.WINDOW_ORDER, self.seed, 0, w)",
         f"{_STREAMS}test_the_lines_of_a_single_block_have_another_order_in_each_pass"),
    ),
    *mutants_of(
        "data/rng.py",
        ("draws.no-second-mix", "z *= np.uint64(_MUL2)", "z *= np.uint64(1)", _DRAWS),
        ("draws.counter-from-zero", "(counter.astype(np.uint64) + np.uint64(1))", "(counter.astype(np.uint64))",
         _DRAWS),
        ("draws.unit-too-wide", "* 2.0**-53", "* 2.0**-52", _DRAWS),
        ("draws.shuffled-one-too-far", "rows = rows[elements[rows] >= size]", "rows = rows[elements[rows] > size]",
         _ORDER),
        ("negatives.from-one", "np.log(limit + 1)).astype(np.int64) - 1", "np.log(limit + 1)).astype(np.int64)",
         f"{_LANES}test_negatives_follow_the_law_of_zipf"),
        ("negatives.tries-not-counted", "int(new[-1]) + 1", "count",
         f"{_LANES}test_negatives_are_drawn_until_there_are_enough"),
        ("negatives.last-place-counts", "first[drawn[::-1]] = place[::-1]", "first[drawn] = place",
         f"{_LANES}test_negatives_are_drawn_until_there_are_enough"),
    ),
    *mutants_of(
        "data/layouts.py",
        ("layout.segments-from-the-mark", "((place > a_end[:, None]) &", "((place >= a_end[:, None]) &",
         "data/test_layouts.py::test_texts_are_laid_out_like_the_originals"),
        ("layout.mask-without-the-end", 'batch["mask"] = (place <= last)', 'batch["mask"] = (place < last)',
         "data/test_layouts.py::test_texts_are_laid_out_like_the_originals"),
        ("layout.ties-cut-a", "over, half = a + b > room, room // 2", "over, half = a + b > room, (room + 1) // 2",
         _CUT),
        ("layout.cut-at-the-end-alone", "heads[rows] += np.bitwise_count(bits << spare)", "heads[rows] += 0",
         f"{_STREAMS}test_front_and_end_are_cut_equally_often"),
        ("layout.gpt-weights-not-a-mean", "np.where(target_BL, 1.0 / last, 0.0)", "np.where(target_BL, 1.0, 0.0)",
         "data/tasks/batch/test_gpt_layout.py::test_a_text_of_a_class"),
        ("layout.gpt-next-is-itself", "tokens_BL[:, 1:], 0)", "tokens_BL[:, :-1], 0)",
         "data/tasks/batch/test_gpt_layout.py::test_a_text_of_a_class"),
        ("layout.one-order-twice", "(starts[:, ::-1].ravel(), lengths[:, ::-1].ravel())",
         "(starts.ravel(), lengths.ravel())",
         "data/tasks/batch/test_gpt_layout.py::test_a_pair_in_both_orders"),
    ),
    *mutants_of(
        "data/pretraining/lm_windows.py",
        ("windows.next-is-itself", '"next": windows[:, 1:].copy()', '"next": windows[:, :-1].copy()',
         f"{_WINDOWS}test_every_held_out_token_but_the_first_is_predicted_once"),
        ("windows.the-next-document-predicted", "predicted_BL = inside_BL & ~ends_BL", "predicted_BL = inside_BL",
         _PACKED),
        ("windows.positions-go-on", "place - np.maximum.accumulate(begins_BL * place, 1)", "place + 0 * begins_BL",
         _PACKED),
        ("windows.end-in-the-next-pack", "np.concatenate([np.ones_like(ends_BL[:, :1]), ends_BL[:, :-1]], 1)",
         "np.concatenate([ends_BL[:, :1] | True, ends_BL[:, 1:]], 1)", _PACKED),
        ("windows.cuts-do-not-move", "% self._shifts + windows", "% 1 + windows",
         f"{_WINDOWS}test_each_pass_has_each_window_once_and_windows_are_slices"),
        ("windows.held-out-filled-up-counts", 'batch["next_weights"][spare] = 0.0',
         'batch["next_weights"][spare] += 0.0',
         f"{_WINDOWS}test_every_held_out_token_but_the_first_is_predicted_once"),
        ("windows.held-out-last-left-out", "self.count = -(-(self.row.tokens - 1) // self.length)",
         "self.count = (self.row.tokens - 1) // self.length",
         f"{_WINDOWS}test_every_held_out_token_but_the_first_is_predicted_once"),
    ),
    *mutants_of(
        "data/pretraining/bilm_lanes.py",
        ("lanes.one-set-of-negatives", "self.seed, step, direction)", "self.seed, step, 0)",
         f"{_LANES}test_negatives_belong_to_the_step_and_the_direction"),
        ("lanes.negatives-of-no-step", "self.seed, step, direction)", "self.seed, 0, direction)",
         f"{_LANES}test_negatives_belong_to_the_step_and_the_direction"),
        ("lanes.backward-end-predicted", "next_backward_BL[next_backward_BL == end] = begin", "pass",
         f"{_LANES}test_a_batch_is_what_the_sentences_say"),
    ),
    *mutants_of(
        "data/tokenizers/elmo_char_ids.py",
        ("characters.47-bytes", "MAX_BYTES = 48", "MAX_BYTES = 47",
         f"{_WORDS}test_a_word_is_read_by_its_first_48_bytes"),
        ("characters.not-one-more", "+ np.int32(1)\n", "+ np.int32(0)\n",
         f"{_WORDS}test_a_word_is_read_by_its_first_48_bytes"),
        ("characters.marks-turned", "row[:3] = BEGIN_WORD, mark, END_WORD", "row[:3] = mark, BEGIN_WORD, END_WORD",
         f"{_WORDS}test_begin_and_end_of_a_sentence_are_rows_that_no_text_spells"),
    ),
    *mutants_of(
        "data/tokenizers/word_counts.py",
        ("words.rarest-first", "key=lambda each: (-each[1], each[0])", "key=lambda each: (each[1], each[0])",
         f"{_WORDS}test_the_most_frequent_words_come_first_and_ties_by_unicode"),
    ),
    *mutants_of(
        "data/tokenizers/word_level.py",
        ("words.published-mark-is-a-word", "line != _NO_WORD]", "line is not _NO_WORD]",
         f"{_WORDS}test_lines_that_count_for_nothing_are_skipped"),
        ("words.special-ones-in-text", "if number >= len(SPECIAL)}", "if number >= 0}",
         f"{_WORDS}test_texts_become_ids_and_words_again"),
    ),
    *mutants_of(
        "data/pretraining/sentence_pairs.py",
        ("packing.lengths-before-the-cut", "np.minimum(pairs.a_length + pairs.b_length + 3, self.length)",
         "pairs.a_length + pairs.b_length + 3",
         "data/pretraining/test_packed_pairs.py::test_a_packed_batch_has_the_same_sequences_in_fewer_rows"),
    ),
    *mutants_of(
        "data/pretraining/sequence_batches.py",
        ("held-out.filled-up-lines-count", 'batch["valid"][spare] = 0.0', 'batch["valid"][spare] = 1.0',
         "data/test_batches.py::test_every_held_out_line_is_read_once_and_the_last_batch_is_filled_up"),
        ("packing.what-fills-up-lies-in-rows", "whole.pop(name)[:count]", "whole.pop(name)[:]",
         "data/pretraining/test_packed_pairs.py::test_held_out_pairs_share_rows_and_what_fills_up_has_none"),
        ("held-out.filled-up-slots-count", 'batch["slot_weights"][spare] = 0.0', 'batch["slot_weights"][spare] += 0.0',
         "data/test_batches.py::test_every_held_out_line_is_read_once_and_the_last_batch_is_filled_up"),
    ),
    *mutants_of(
        "data/config.py",
        ("ramp.one-stage-short", "return sizes[step * len(sizes) // self.ramp_steps]",
         "return sizes[min(step * len(sizes) // self.ramp_steps + 1, len(sizes) - 1)]",
         "data/test_batches.py::test_a_ramp_doubles_the_batch_at_equal_intervals"),
    ),
    *mutants_of(
        "data/text/tfds.py",
        ("tfds.any-module-imported", "if not _FEATURE.fullmatch(name):", "if not name:",
         "data/text/test_tfds.py::test_a_class_that_is_not_of_tfds_is_not_imported"),
        ("tfds.any-dtype", "if dtype is not None and not _is_dtype(dtype):", "if dtype == 5:",
         "data/text/test_tfds.py::test_a_dtype_that_is_none_is_told_without_tensorflow"),
    ),
    *mutants_of(
        "data/binary_files.py",
        ("shards.fingerprint-of-names-alone",
         'content = {key: value for key, value in index.items() if key != "fingerprint"}', "content = sorted(index)",
         "data/pretraining/test_damaged_shards.py::test_a_flipped_byte_of_any_file_is_found "
         "data/pretraining/test_damaged_shards.py::test_an_index_that_is_not_as_it_was_written_is_refused_in_one_line"),
        ("shards.bytes-not-checked", "if digest.hexdigest() != sha256:", 'if digest.hexdigest() == "":',
         "data/pretraining/test_damaged_shards.py::test_a_flipped_byte_of_any_file_is_found"),
    ),
    *mutants_of(
        "data/storage.py",
        ("storage.file-in-place", "    part = partial_beside(path)\n    _unfinished.add(part)\n    try:\n        yield",
         "    part = path\n    _unfinished.add(part)\n    try:\n        yield",
         "train/run/test_nothing_deleted.py::test_an_atomic_file_is_whole_or_as_it_was"),
        ("storage.part-left-behind", "        part.unlink(missing_ok=True)\n        raise", "        raise",
         "train/run/test_nothing_deleted.py::test_an_atomic_file_is_whole_or_as_it_was"),
        ("storage.other-files-deleted", " or not (part / name).exists():", ":",
         "train/run/test_nothing_deleted.py::test_a_folder_is_overwritten_where_each_file_has_a_successor"),
        ("storage.folder-over-another", "check_free(path, overwrite)  # another process may have been faster",
         "shutil.rmtree(path, ignore_errors=True)",
         "train/run/test_nothing_deleted.py::test_an_atomic_folder_never_takes_the_place_of_another"),
        ("storage.any-dotted-name-is-partial", "[0-9a-f]{8}", ".{8}",
         "train/run/test_nothing_deleted.py::test_only_names_of_partial_files_are_partial"),
        ("storage.aside-meets-aside", "if not os.path.lexists(each :=", "if (each :=",
         "train/run/test_nothing_deleted.py::test_what_is_moved_aside_never_meets_what_was_moved_before"),
    ),
    *mutants_of(
        "data/config.py",
        ("slots.twenty-always", "max(math.ceil(round(expected, 6)), 1)", "20",
         "train/test_phases.py::test_masked_slots_follow_the_length"),
        ("slots.rounded-down", "math.ceil(round(expected, 6))",
         "int(expected)",
         "train/test_phases.py::test_masked_slots_follow_the_length"),
    ),
    *mutants_of(
        "data/word_vectors.py",
        ("vectors.words-end-at-a-space", "b\" \".join(fields[:-dim])", "fields[0]",
         f"{_VECTORS}test_each_form_gives_the_words_and_the_numbers_of_the_file"),
        ("vectors.header-not-compared", "if rows.read != count:", "if rows.read > count:",
         f"{_VECTORS}test_each_fault_is_one_line_that_says_where"),
        ("vectors.nan-passes", "if not finite_B.all():", "if not finite_B.any():",
         f"{_VECTORS}test_each_fault_is_one_line_that_says_where"),
        ("vectors.rest-of-a-block-lost", "buffer, at = buffer[at:] + more, 0", "buffer, at = more, 0",
         f"{_VECTORS}test_rows_across_blocks_are_whole"),
        ("vectors.bytes-counted-as-words", "self.left_out += 1", "self.left_out = 1",
         f"{_VECTORS}test_words_that_are_not_utf_8_are_left_out_and_counted"),
    ),
    *mutants_of(
        "data/tokenizers/word_level.py",
        ("vectors.case-as-written", "word.lower() if self.lowercase else word", "word",
         f"{_STATIC}test_offsets_are_the_places_of_words_also_in_lower_case"),
        ("vectors.rows-from-zero", "enumerate(vocabulary, len(STATIC_SPECIAL))", "enumerate(vocabulary)",
         f"{_STATIC}test_a_text_that_spells_a_special_row_is_a_word_like_others"),
    ),
    *mutants_of(
        "interchange/static_vectors.py",
        ("vectors.unknown-is-zero", "if known else mean_D", "if known else 0 * mean_D",
         f"{_STATIC}test_words_are_the_rows_of_the_file_and_unknown_ones_their_mean"),
        ("vectors.padding-last", "[np.zeros((1, dim), np.float32), unknown_D[None], read.vectors_VD]",
         "[unknown_D[None], np.zeros((1, dim), np.float32), read.vectors_VD]",
         f"{_STATIC}test_words_are_the_rows_of_the_file_and_unknown_ones_their_mean"),
    ),
    *mutants_of(
        "data/text/lines.py",
        ("shards.a-block-ends-within-a-line", "file.readline(short - len(block) + start)", "file.readline(1)",
         "data/text/test_lines.py::test_line_feeds_and_carriage_returns_end_lines_and_nothing_else"),
    ),
    *mutants_of(
        "data/pretraining/tokenize_corpus.py",
        ("shards.a-document-is-cut-by-the-later-limit", "min(sentence + LONGEST_DOCUMENT,",
         "max(sentence + LONGEST_DOCUMENT,", _SLOW),
        ("shards.a-dropped-sentence-is-a-border", "np.cumsum(kept)[lengths < 0]", "np.cumsum(kept)[lengths <= 0]",
         "data/pretraining/test_shards.py::test_empty_sentences_and_documents_are_dropped"),
        ("shards.the-open-document-is-closed", "else ends[:-1]", "else ends", _SLOW),
    ),
    *mutants_of(
        "data/tokenizers/open_vocabulary.py",
        ("words.an-end-after-nothing", "if len(ids) > before:", "if len(ids) >= before:",
         f"{_WORDS}test_words_that_the_vocabulary_lacks_are_numbered_behind_it"),
    ),
    *mutants_of(
        "data/layouts.py",
        ("vectors.a-pair-s-texts-joined", "lengths.reshape(sequences or len(lengths), -1).sum(1)",
         "lengths.reshape(len(lengths), -1).sum(1)",
         f"{_STATIC}test_pairs_are_two_sequences_of_words_and_alternatives_one"),
    ),
)  # fmt: skip
