import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.errors import InputError
from waltzrl.operations.release.plan import ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.operations.release.state import Release, apply_action, first_state

BOUNDS = ReleaseLimits(unsafe=0.05, overrefusal=0.1)
ACTIONS = ("advance", "hold", "resume", "roll_back")


def step(percentage):
    return ReleaseStep(percentage=percentage, seconds=0, samples=0)


def plan(*percentages, shadow=True):
    return ReleasePlan(
        name="p",
        shadow=step(10) if shadow else None,
        canary=tuple(map(step, percentages)),
        targets=BOUNDS,
        limits=BOUNDS,
    )


def new_release(its_plan):
    state = first_state(its_plan)
    return Release(id="r1", candidate="b", serving="a", plan=its_plan, state=state, since=0.0)


def test_a_release_goes_from_the_shadow_by_every_step_to_all():
    now = new_release(plan(5, 50))
    places = [(now.state, now.percentage)]
    for second in (1, 2, 3):
        now = apply_action(now, "advance", second)
        places.append((now.state, now.percentage))
    assert places == [("shadow", 0), ("canary", 5), ("canary", 50), ("full", 100)]
    assert (now.version, now.since) == (3, 3)


def test_a_plan_without_a_shadow_begins_with_the_canary():
    assert new_release(plan(5, shadow=False)).percentage == 5


def test_a_plan_without_a_canary_goes_from_the_shadow_to_all():
    assert apply_action(new_release(plan()), "advance", 1).state == "full"


def test_a_plan_of_nothing_is_refused():
    with pytest.raises(InputError, match="neither a shadow nor a canary"):
        first_state(plan(shadow=False))


def test_a_held_release_does_not_advance_until_it_is_resumed():
    held = apply_action(new_release(plan(5)), "hold", 1)
    assert held.held
    assert held.since == 0.0  # it did not move
    with pytest.raises(InputError, match="is held; resume it"):
        apply_action(held, "advance", 2)
    assert apply_action(apply_action(held, "resume", 2), "advance", 3).state == "canary"


def test_holding_twice_is_told():
    with pytest.raises(InputError, match="release r1 is held"):
        apply_action(apply_action(new_release(plan(5)), "hold", 1), "hold", 2)
    with pytest.raises(InputError, match="release r1 is not held"):
        apply_action(new_release(plan(5)), "resume", 2)


def test_a_held_release_is_rolled_back_all_the_same():
    back = apply_action(apply_action(new_release(plan(5)), "hold", 1), "roll_back", 2)
    assert (back.state, back.held, back.is_open) == ("rolled_back", False, False)


def test_rolling_back_twice_changes_nothing():
    back = apply_action(new_release(plan(5)), "roll_back", 1)
    assert apply_action(back, "roll_back", 2) is back


def test_a_full_release_can_still_be_rolled_back_but_nothing_else():
    full = apply_action(apply_action(new_release(plan(5)), "advance", 1), "advance", 2)
    for action in ("advance", "hold", "resume"):
        with pytest.raises(InputError, match="is full and cannot"):
            apply_action(full, action, 3)
    assert apply_action(full, "roll_back", 3).state == "rolled_back"


def test_what_was_proposed_is_not_proposed_again():
    with pytest.raises(InputError, match="proposed already"):
        apply_action(new_release(plan(5)), "propose", 1)


@given(st.lists(st.sampled_from(ACTIONS)))
def test_whatever_is_done_the_percentage_rises_until_a_rollback_which_is_final(actions):
    now = new_release(plan(5, 25, 50))
    for second, action in enumerate(actions):
        try:
            after = apply_action(now, action, second)
        except InputError:
            continue
        if now.state == "rolled_back":
            assert after is now
        elif after.state == "rolled_back":
            assert after.percentage == 0
        else:
            assert after.percentage >= now.percentage
        assert after.version == now.version + (after is not now)
        now = after
