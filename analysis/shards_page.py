"""What prepared text holds: documents, tokens, unknown tokens and languages by source, and lengths; as a table, or a
page."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from contexture.analysis.pages.html_page import html_figure, html_page, html_table
from contexture.data.pretraining.manifest import read_manifest
from contexture.data.pretraining.shards import Shards
from contexture.data.storage import atomic_file
from contexture.data.tokenizers.unknown_tokens import unknown_id
from contexture.train.errors import ConfigError
from contexture.train.run.plots import COLOURS, add_title, new_figure, unknown_letters_as_boxes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST = 30
"""Sources and languages that a picture and a table have; all others are one."""


class ShardsDescription(TypedDict):
    """What shards hold.

    Args:
        shards: their folder.
        stream: what they were prepared for: sentence_pairs (BERT), windows (GPT), lanes (ELMo).
        tokenizer: its kind, size and fingerprint.
        command: the command that makes them; "" where it is not known.
        versions: of the libraries that made them.
        fingerprint: of the shards.
        tokens: in all splits.
        unknown: the share of unknown tokens in the train split; None for a vocabulary that has none.
        splits: documents, sentences and tokens of each.
        lengths: of each split, how many documents have so many tokens: {"64-127": 1200, …}.
        counts: documents by language and by source, as the rows of tables say.
        sources: a row for each file: its name, its split, documents, tokens, share of the tokens, share of unknown
            tokens.
    """

    shards: str
    stream: str
    tokenizer: dict[str, Any]
    command: str
    versions: dict[str, str]
    fingerprint: str
    tokens: int
    unknown: float | None
    splits: dict[str, dict[str, int]]
    lengths: dict[str, dict[str, int]]
    counts: dict[str, dict[str, int]]
    sources: list[dict[str, Any]]


def describe_shards(folder: Path) -> ShardsDescription:
    """Returns what shards hold. Raises: DataError for a folder without shards, damaged ones, and a manifest of others.

    Shards that were made before there were manifests lack lengths, counts, and what is known of each source.
    """
    shards = Shards.open(folder)
    tokenizer, unigrams = shards.tokenizer, shards.unigrams()
    manifest = read_manifest(folder, shards.fingerprint) or {}
    facts: Sequence[Mapping[str, Any]] = manifest.get("sources", [])
    unk = unknown_id(tokenizer)
    return {
        "shards": str(folder),
        "stream": shards.stream,
        "tokenizer": {"kind": tokenizer.kind, "size": tokenizer.size, "fingerprint": tokenizer.fingerprint},
        "command": manifest.get("command", ""),
        "versions": manifest.get("versions", {}),
        "fingerprint": shards.fingerprint,
        "tokens": shards.tokens,
        "unknown": None if unk is None else float(unigrams[unk] / max(unigrams.sum(), 1)),
        "splits": {
            name: {"documents": split.documents, "sentences": split.sentences, "tokens": split.tokens}
            for name, split in shards.splits.items()
        },
        "lengths": {name: _by_length(counts) for name, counts in manifest.get("lengths", {}).items()},
        "counts": _counts(facts),
        "sources": [_source(each, shards.tokens) for each in facts],
    }


def _by_length(counts: Sequence[int]) -> dict[str, int]:
    """Returns counts by powers of two with the lengths that they stand for, from the first to the last that is not
    0."""
    full = [power for power, count in enumerate(counts) if count]
    powers = range(full[0], full[-1] + 1) if full else ()
    return {f"{2**power}-{2 ** (power + 1) - 1}" if power else "1": counts[power] for power in powers}


def _counts(sources: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for source in sources:
        for name, values in source["counts"].items():
            for value, count in values.items():
                of = total.setdefault(name, {})
                of[value] = of.get(value, 0) + count
    # The largest first. Too many distinct values are counted under an empty name.
    named = {name: {value or "too many distinct values": n for value, n in of.items()} for name, of in total.items()}
    return {name: dict(sorted(of.items(), key=lambda item: (-item[1], item[0]))) for name, of in named.items()}


def _source(facts: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    names = ("name", "split", "documents", "tokens")
    shares = {"share": facts["tokens"] / max(tokens, 1), "unknown": facts["unknown"] / max(facts["tokens"], 1)}
    return {**{name: facts[name] for name in names}, **shares}


def write_shards_page(description: ShardsDescription, to: Path) -> None:
    """Writes a page, whole or not at all: splits, lengths, sources and languages, drawn and as tables.

    Raises: ConfigError for a path that is no *.html, or whose folder is not there.
    """
    check_page(to)
    splits = [[name, *(f"{count:,}" for count in of.values())] for name, of in description["splits"].items()]
    heads = ("split", "documents", "runs" if description["stream"] == "windows" else "sentences", "tokens")
    body = html_table(heads, splits, numbers=True)
    with unknown_letters_as_boxes():
        body += html_figure(_draw(description))
    if sources := grouped_sources(description["sources"]):
        rows = [[str(value) for value in row.values()] for row in sources]
        body += "<h2>Sources</h2>\n" + html_table(list(sources[0]), rows, numbers=True)
    for name, counts in description["counts"].items():
        rows = [[value, f"{count:,}"] for value, count in _grouped(counts).items()]
        body += f"<h2>Documents by {name}</h2>\n" + html_table((name, "documents"), rows, numbers=True)
    tokenizer, unknown = description["tokenizer"], description["unknown"]
    facts = [["vocabulary", f"{tokenizer['size']:,} tokens, {tokenizer['kind']}, {tokenizer['fingerprint'][:16]}…"]]
    facts += [["unknown tokens", f"{unknown:.3%}"]] if unknown is not None else []
    facts += [["fingerprint", description["fingerprint"]]]
    facts += [[name, version] for name, version in description["versions"].items()]
    body += "<h2>How they were made</h2>\n"
    body += f"<pre>{html.escape(description['command'])}</pre>\n" if description["command"] else ""
    body += html_table(("what", ""), facts)
    with atomic_file(to) as part:
        part.write_text(html_page(f"Prepared text: {description['shards']}", body), "utf-8")


def check_page(to: Path) -> None:
    """Raises: ConfigError for a path where no page can be written."""
    if to.suffix != ".html":
        raise ConfigError(f"--to {to}: not a *.html; give such a name")
    if not to.parent.is_dir():
        raise ConfigError(f"--to {to}: its folder is not there; make it, or give another name")


def grouped_sources(sources: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Returns sources as rows of text, the largest first, and those beyond the first _MOST together."""
    ordered = sorted(sources, key=lambda each: -each["tokens"])
    shown, rest = ordered[:_MOST], ordered[_MOST:]
    rows = [*shown]
    if rest:
        sums = {name: sum(each[name] for each in rest) for name in ("documents", "tokens", "share")}
        unknown = sum(each["unknown"] * each["tokens"] for each in rest) / max(sums["tokens"], 1)
        rows.append({"name": f"{len(rest):,} others", "split": "", **sums, "unknown": unknown})
    return [
        {
            **{"name": each["name"], "split": each["split"]},
            **{name: f"{each[name]:,}" for name in ("documents", "tokens")},
            **{"share": f"{each['share']:.2%}", "unknown": f"{each['unknown']:.3%}"},
        }
        for each in rows
    ]


def _grouped(counts: Mapping[str, int]) -> dict[str, int]:
    items = list(counts.items())
    rest = sum(count for _, count in items[_MOST:])
    return dict(items[:_MOST]) | ({f"{len(items) - _MOST:,} others": rest} if rest else {})


def _draw(description: ShardsDescription) -> "Figure":
    """Returns bars: documents by length for each split, tokens by source, documents by language and source."""
    panels: list[tuple[str, Mapping[str, int]]] = [
        (f"documents of {name}, by tokens", of) for name, of in description["lengths"].items() if of
    ]
    if len(description["sources"]) > 1:
        largest = sorted(description["sources"], key=lambda each: -each["tokens"])
        panels.append(("tokens by source", _grouped({each["name"]: each["tokens"] for each in largest})))
    panels += [(f"documents by {name}", _grouped(of)) for name, of in description["counts"].items()]
    # Without a manifest there are the splits alone.
    panels = panels or [("tokens by split", {name: of["tokens"] for name, of in description["splits"].items()})]
    # As high as they have bars.
    heights = [1.0 + 0.22 * len(of) for _, of in panels]
    figure, axes = new_figure(9, sum(heights), len(panels))
    if grid := figure.axes[0].get_gridspec():
        grid.set_height_ratios(heights)
    for each, (title, of) in zip(axes, panels, strict=True):
        _draw_bars(each, title, of)
    return figure


def _draw_bars(axes: "Axes", title: str, counts: Mapping[str, int]) -> None:
    names = [name if len(name) <= 40 else f"{name[:39]}…" for name in counts]
    # By their places: two files may have one name.
    axes.barh(range(len(names)), list(counts.values()), color=COLOURS["light"][0], height=0.7)
    axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names], fontsize=8)
    # The first one on top.
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    add_title(axes, title)
