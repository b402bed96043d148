"""Plans every pretraining recipe on the smallest slice that makes sense, and writes the table docs/plans.md.

Compiling takes a minute or so each. What is done is kept in --cache, so that an interrupted run resumes; delete it
after a change of the programs. `--only bert.large gpt.gpt1` plans some again.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from contexture.configs import recipes

ROOT = Path(__file__).parents[1]
# Where a recipe is planned: the devices, and the options that it needs there.
SMALL, MEDIUM, LARGE = "v5e:2x2", "v5e:4x4", "v5e:8x8"
PLACES: dict[str, tuple[str, str]] = {
    **{f"bert.{name}": (MEDIUM, "") for name in ("large", "large_cased", "base_phase2", "base_cased_phase2",
                                                 "multilingual", "large_phase2", "large_cased_phase2")},
    "elmo.original": (MEDIUM, ""),
    "elmo.original_5_5b": (MEDIUM, ""),
    "gpt.gpt2_124m": (MEDIUM, "--optim.accumulate 2"),
    "gpt.gpt2_355m": (LARGE, ""),
    "gpt.gpt2_774m": (LARGE, "--mesh.fsdp 8"),
    "gpt.gpt2_1558m": (LARGE, "--mesh.fsdp 8"),
    "gpt.gpt3_125m": (MEDIUM, ""),
    "gpt.gpt3_350m": (LARGE, ""),
    "gpt.gpt3_760m": (LARGE, "--mesh.fsdp 8"),
    "gpt.gpt3_1_3b": (LARGE, "--mesh.fsdp 64"),
    "gpt.gpt3_2_7b": ("v5p:4x4x4", "--mesh.fsdp 64"),
    "gpt.gpt3_6_7b": ("v5p:4x4x4", "--mesh.fsdp 64"),
    "gpt.gpt3_13b": ("v5p:4x4x4", "--mesh.fsdp 32 --mesh.tensor 2 --optim.accumulate 2 --model.remat dots"),
    "gpt.gpt3_175b": ("v5p:8x8x8", "--mesh.fsdp 64 --mesh.tensor 8 --optim.accumulate 8"),
}  # fmt: skip
HEAD = """# Recipes on devices

What each recipe takes of the smallest slice that makes sense for it, by `make plans`: the step that `pretrain` runs,
compiled ahead of time and not run. Times are those that the chip's peaks allow (the roofline); a real step takes
longer. MFU counts the model's operations in that time, 1 at most. `contexture plan RECIPE --topology …` plans another
slice, `--suggest` looks for mesh, microbatches and remat. [Accelerators](accelerators.md) explains the columns.

| recipe | devices | mesh | batch × length | parts | remat | GiB of | ms a step | bound by | MFU | days | chip-hours |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def planned(name: str) -> dict[str, object]:
    topology, options = PLACES.get(name, (SMALL, ""))
    words = [sys.executable, "-m", "contexture", "plan", name, "--topology", topology, *options.split(), "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: planned, and it does not fit
        raise SystemExit(f"{' '.join(words[2:])}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def row(made: dict) -> str:
    memory, gib = made["bytes_per_device"], 2**30
    mesh = " × ".join(f"{axis} {size}" for axis, size in made["mesh"].items() if size > 1)
    fits = f"{memory['total'] / gib:.1f} of {memory['available'] / gib:.1f}" + ("" if made["fits"] else ", too much")
    figures = ("–",) * 5
    if "step_ms" in made:
        whole = ("–", "–")  # a recipe that counts in epochs: its data says how many steps
        if made["days"] is not None:
            days = f"{made['days']:.1f}" if made["days"] >= 0.1 else f"{made['days']:.3f}"
            whole = (days, f"{made['chip_hours']:,.0f}")
        figures = (f"{made['step_ms']:.1f}", made["bound_by"], f"{made['mfu']:.2f}", *whole)
    cells = (made["recipe"], made["topology"], mesh, f"{made['batch']} × {made['length']}", made["accumulate"],
             made["remat"] or "–", fits, *figures)  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "plans.json")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "plans.md")
    parser.add_argument("--only", nargs="+", default=[], metavar="RECIPE")
    args = parser.parse_args()
    plans = json.loads(args.cache.read_text()) if args.cache.exists() else {}
    args.cache.parent.mkdir(parents=True, exist_ok=True)
    for name in args.only or [name for name in recipes() if name not in plans]:
        plans[name] = planned(name)
        args.cache.write_text(json.dumps(plans))
        print(row(plans[name]), end="", flush=True)
        missing = ", ".join(f"`{name}`" for name in recipes() if name not in plans)
        note = f"\nNot planned yet: {missing}.\n" if missing else ""
        args.to.write_text(HEAD + "".join(row(plans[name]) for name in recipes() if name in plans) + note)


main()
