"""The feedback agent: judges whether, and how, a reply should be revised."""

import json
from collections.abc import Sequence
from dataclasses import replace

from waltzrl.agents.coaching import ExampleSource
from waltzrl.agents.feedback_json import is_approval, read_feedback
from waltzrl.agents.fence import LONGEST_TEXT, fence
from waltzrl.agents.pieces import review_pieces
from waltzrl.agents.wording import Wording
from waltzrl.policies import Policy, Sampling
from waltzrl.records import Feedback, Message, Prompt, Reply

GAP = " [...] "
"""The mark that stands for what was left out."""


class FeedbackAgent:
    """A policy in the role of the feedback agent: f_t ~ pi_f(. | p, c_t).

    It does not see earlier rounds.
    """

    def __init__(
        self,
        policy: Policy,
        wording: Wording,
        sampling: Sampling,
        *,
        formatted: bool = False,
        examples: ExampleSource | None = None,
    ) -> None:
        """Give a policy the role.

        Args:
            policy: reviews.
            wording: its prompts.
            sampling: how it generates.
            formatted: keep its feedback to the wording's format, where the policy can, and read
                the labels' probabilities. Training does neither.
            examples: finds examples that stand above what is reviewed; None for none.
        """
        self.policy = policy
        self.examples = examples
        self.wording = wording
        if wording.labels_first:
            sampling = replace(sampling, enough=is_approval)
        self.sampling = replace(sampling, format=wording.format) if formatted else sampling

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, and advise; see `review_pieces`.

        Raises:
            PolicyError: the policy could not reply, or its context has no room for any review.
        """
        return await review_pieces(self._review, prompt, reply)

    async def _review(self, prompt: Prompt, reply: Reply, longest: int) -> Feedback:
        messages = self.review_messages(prompt, reply, longest)
        if self.examples is not None:
            system, request = messages
            shown = (await self.examples.examples_for(prompt), request.content)
            messages = [system, replace(request, content="\n\n".join(filter(None, shown)))]
        answer = await self.policy.reply(messages, self.sampling)
        feedback = read_feedback(answer)
        if not (answer.label_probabilities and feedback.well_formed):
            return feedback
        unsafe, overrefuse = answer.label_probabilities
        return replace(feedback, risk=unsafe, overrefusal_probability=overrefuse)

    def review_messages(
        self, prompt: Prompt, reply: Reply, longest: int = LONGEST_TEXT
    ) -> list[Message]:
        """Return the messages that ask for a review.

        They contain all that steers the reply: tools, formats and documents precede the turns. Of
        a long conversation they contain the end, with the request, and both ends of what stands
        above it: together at most `longest` characters.
        """
        request = self.wording.review.format(
            conversation=fence("conversation", _render_conversation(prompt, longest)),
            reply=fence("reply", reply.reviewed_text),
        )
        return [
            Message(role="system", content=self.wording.feedback_system),
            Message(role="user", content=request, images=prompt.images),
        ]


def _render_conversation(prompt: Prompt, longest: int) -> str:
    """Return what the reply answers, in at most `longest` characters.

    The context and the system's turns, which may be far from the end, get half of that if they
    need it.
    """
    if len(prompt.messages) == 1 and not prompt.context:
        return prompt.messages[0].content[-longest:]
    whole = "\n".join(_render_turn(turn, prompt) for turn in (*prompt.context, *prompt.messages))
    if len(whole) <= longest:
        return whole
    system = [turn for turn in prompt.messages if turn.role == "system"]
    above = _fit_lines(
        [_render_turn(turn, prompt) for turn in (*prompt.context, *system)], longest // 2
    )
    turns = "\n".join(turn.line for turn in prompt.messages if turn.role != "system")
    # Every line above has a line end, too.
    room = longest - sum(map(len, above)) - len(above)
    # At least one character, because `[-0:]` would be all of them.
    return "\n".join([*above, turns[-max(1, room) :]])


def _render_turn(turn: Message, prompt: Prompt) -> str:
    """Return a turn as a line of JSON, which says so if it is the operator's."""
    if turn.role == "system" and prompt.trusted:
        fields = {"role": turn.role, "author": "operator", "content": turn.content}
        return json.dumps(fields, ensure_ascii=False)
    return turn.line


def _fit_lines(lines: Sequence[str], room: int) -> list[str]:
    """Shorten the longest lines in the middle, so that all together have so many characters."""
    longest = room
    # Lines that are short leave their share of the room to those that are longer.
    for number, length in enumerate(sorted(map(len, lines))):
        longest = room // (len(lines) - number)
        if length > longest:
            break
        room -= length
    half = max(0, longest - len(GAP)) // 2
    return [
        line if len(line) <= longest else f"{line[:half]}{GAP}{line[len(line) - half :]}"
        for line in lines
    ]
