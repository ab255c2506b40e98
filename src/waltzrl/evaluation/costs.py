"""What evaluations cost, as charges in their folder, and what their rates are worth."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from waltzrl.budget import LEDGER, BudgetSettings, CostMeter, Ledger, PriceBook, priced_replies
from waltzrl.budget.energy import open_energy
from waltzrl.budget.ledger import Activity
from waltzrl.budget.roi import OwnNumbers, RateDrop, ReturnOnInvestment, return_on_investment
from waltzrl.errors import InputError
from waltzrl.evaluation import read_evaluation
from waltzrl.evaluation.comparison import compare
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.judges.judge import Judge, ObservedJudge
from waltzrl.evaluation.rows import read_rows
from waltzrl.evaluation.settings import EvaluationConfig, EvaluationPrices
from waltzrl.foundation.validation import read_table, validate_table, with_overrides
from waltzrl.records import Collaboration, Prompt, Usage, Verdict


@contextmanager
def charge_evaluation(
    config: EvaluationConfig, judge: tuple[str, str | None], folder: Path
) -> Iterator[None]:
    """Charge the rows of an evaluation to its folder at the end; rows that it has, it skips.

    Also at the end of one that is stopped, or of which some rows failed: they may fail for good.

    Args:
        config: of the evaluation, with the server of the agents.
        judge: the judge's model and its server; see `judge_place`.
        folder: of the evaluation; its rows are there before they are charged, so that nothing is
            lost when the process is killed in between: the same command charges them.

    Raises:
        InputError: the folder cannot be written.
    """
    with _open_meter(config, "evaluation", folder) as meter:
        try:
            yield
        except InputError:  # such as that the rows in the folder are of other agents
            raise
        except BaseException:
            _charge_rows(meter, config, judge, folder)
            raise
        _charge_rows(meter, config, judge, folder)


def _charge_rows(
    meter: CostMeter, config: EvaluationConfig, judge: tuple[str, str | None], folder: Path
) -> None:
    model, server = judge
    charged = {charge.id for charge in meter.ledger.contents.charges}
    for row in read_rows(folder):
        id_ = f"{row.pattern}/{row.prompt_id}/{row.sample}"
        if row.judged is None or row.pattern not in config.patterns or id_ in charged:
            continue
        for role, usages in collaboration_usages(row.judged.collaboration).items():
            meter.count(role, usages, config.server)
        meter.count("judge", verdict_usages(row.judged.verdicts), server, model)
        meter.charge(id_)


@contextmanager
def charge_judge(
    judge: Judge, place: tuple[str, str | None], id_: str, config: EvaluationPrices, folder: Path
) -> Iterator[Judge]:
    """Yield a judge whose answers are charged to a folder at the end, also that of a failure.

    Args:
        judge: labels the replies.
        place: its model and its server; see `judge_place`.
        id_: of the charge, which replaces an earlier one: answers that were kept count again.
        config: what models and the machine cost.
        folder: of the ledger.

    Raises:
        InputError: the folder cannot be written.
    """
    model, server = place
    with _open_meter(config, "judging", folder) as meter:

        def count(_: Prompt, verdict: Verdict) -> None:
            meter.count("judge", verdict_usages([verdict]), server, model)

        try:
            yield ObservedJudge(judge, count)
        finally:
            meter.charge(id_)


@contextmanager
def _open_meter(config: EvaluationPrices, activity: Activity, folder: Path) -> Iterator[CostMeter]:
    with Ledger(folder / LEDGER) as ledger:
        yield CostMeter(
            ledger=ledger,
            prices=PriceBook(config.prices),
            settings=BudgetSettings(usd_per_hour=config.usd_per_hour),
            activity=activity,
            energy=open_energy(),
        )


def collaboration_usages(collaboration: Collaboration) -> dict[str, list[Usage | None]]:
    """Return the tokens of every reply that a policy wrote, by the role."""
    usages: dict[str, list[Usage | None]] = {}
    for role, reply in priced_replies(collaboration):
        usages.setdefault(role, []).append(reply.usage)
    return usages


def verdict_usages(verdicts: Iterable[Verdict]) -> list[Usage | None]:
    """Return the tokens of every answer of the judge's model, also of those that it had kept."""
    return [answer.usage for verdict in verdicts for answer in verdict.answers]


def measure_return(
    numbers: Path, settings: Sequence[str], evaluation: Path, patterns: tuple[str, str]
) -> ReturnOnInvestment:
    """Work out the return on investment from own numbers and the rates of two patterns.

    Args:
        numbers: a TOML file with the fields of `OwnNumbers`.
        settings: `key=value`, which override it.
        evaluation: folder of the evaluation.
        patterns: without and with what was invested in.

    Raises:
        InputError: a number is missing or invalid, or the evaluation lacks a pattern or a rate.
    """
    table = with_overrides(read_table(numbers), settings)
    own = validate_table(OwnNumbers, table, str(numbers))
    rows = read_evaluation(evaluation)
    before, after = ([row for row in rows if row.pattern == name] for name in patterns)
    if not (before and after):
        known = ", ".join(sorted({row.pattern for row in rows}))
        # False is 0: the index is that of the first pattern without rows.
        raise InputError(
            f"{evaluation} has no pattern {patterns[bool(before)]!r}; name two of its own: {known}"
        )
    changes = {change.metric: change.change for change in compare(before, after)}
    drops = [_read_drop(changes.get(name), name, evaluation, patterns) for name in ("asr", "orr")]
    return return_on_investment(own, *drops)


def _read_drop(
    change: Estimate | None, name: str, evaluation: Path, patterns: tuple[str, str]
) -> RateDrop:
    """Return by how much a rate fell: its change, turned round."""
    if change is None or change.value is None or change.low is None or change.high is None:
        raise InputError(
            f"{evaluation} has no {name} of both {' and '.join(patterns)} on the same prompts; "
            "evaluate both patterns on unsafe and benign prompts, or name others"
        )
    return RateDrop(low=-change.high, value=-change.value, high=-change.low)
