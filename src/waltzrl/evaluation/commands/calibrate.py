"""`waltzrl calibrate`: when a reviewer may challenge a refusal."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.foundation.options import Server, Settings

if TYPE_CHECKING:
    from waltzrl.agents.calibration import RefusalCount, ReviewerCalibration

Replies = Annotated[Path, typer.Argument(help="JSON Lines that `waltzrl judge` wrote.")]


def calibrate(
    development: Replies,
    held_out: Replies,
    model: Annotated[str, typer.Option(help="Folder of weights, or name on the server.")],
    server: Server = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write [calibration.json in the folder of weights].")
    ] = None,
    settings: Settings = None,
) -> None:
    """Measure a reviewing model on labelled replies, so that it may challenge refusals.

    Chooses on the development replies from which probability a refusal is challenged, and counts
    on the held-out replies, to other prompts, how many right refusals and how many over-refusals
    are. Where more than 2 % of right refusals would be, or fewer than 150 were held out, none is
    challenged. `--set` changes a key of a gateway's `feedback`, such as `wording=plain`.

    **Examples**

    `waltzrl calibrate dev.jsonl test.jsonl --model agents/waltzrl_feedback_stage2
    --set wording=plain`

    `waltzrl calibrate dev.jsonl test.jsonl --model qwen --server http://localhost:8001/v1
    --out qwen.json`
    """
    from waltzrl.agents.calibration import CALIBRATION, write_calibration
    from waltzrl.agents.opening import reviewer_folder
    from waltzrl.agents.settings import FeedbackConfig
    from waltzrl.errors import InputError
    from waltzrl.evaluation.reviewer_calibration import measure_reviewer, read_judged
    from waltzrl.foundation.validation import validate_table, with_overrides
    from waltzrl.policies.gguf import find_gguf

    if out is None and (server is not None or find_gguf(model) is not None):
        raise InputError("a model on a server, or in one file, has no folder; name --out FILE")
    table: dict[str, object] = {"model": model, "server": server}
    config = validate_table(FeedbackConfig, with_overrides(table, settings or []), "--set")
    replies = read_judged(development), read_judged(held_out)
    calibration = asyncio.run(measure_reviewer(config, *replies))
    path = out or (reviewer_folder(model) or Path(model)) / CALIBRATION
    write_calibration(path, calibration)
    print(_summarise_calibration(calibration, path))


def _summarise_calibration(calibration: "ReviewerCalibration", path: Path) -> str:
    threshold = calibration.challenge_from
    return "\n".join(
        [
            f"reviewer: {calibration.reviewer}",
            f"right refusals challenged: {_render_share(calibration.right_refusals)}",
            f"over-refusals challenged: {_render_share(calibration.over_refusals)}",
            f"unsafe replies among those labelled safe: {calibration.unsafe_given_safe:.1%}, "
            f"unsafe: {calibration.unsafe_given_unsafe:.1%}",
            f"challenges refusals from probability {threshold:.3f}"
            if threshold is not None
            else "challenges no refusal: no probability was shown to spare 98 % of right refusals",
            f"written: {path}",
        ]
    )


def _render_share(count: "RefusalCount") -> str:
    from waltzrl.evaluation.intervals import share

    measured = share(count.challenged, count.n)
    if measured.value is None or measured.low is None or measured.high is None:
        return "none to measure"
    return f"{measured.value:.1%} ({measured.low:.1%} to {measured.high:.1%}) of {count.n} held out"
