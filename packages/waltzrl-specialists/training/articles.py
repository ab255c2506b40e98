"""Tasks of `content`: a brief becomes a short article of a title and three sections."""

from facts import Facts

PROMPTS = (
    "Article on {topic} in {place} for {readers}. Facts: {facts}. Sections: {sections}.",
    "Write for {readers} about {topic} in {place}. Use these facts: {facts}. Headings: {sections}.",
    "Brief: {topic} in {place}. Readers: {readers}. Facts: {facts}. Parts: {sections}.",
    "{place} has {topic}. Tell {readers} about it: {facts}. Sections: {sections}.",
)
TITLES = (
    "{topic} in {place}: a guide for {readers}",
    "What {readers} can learn from {topic} in {place}",
    "How {topic} work in {place}",
)
SECTIONS = {
    "Start": (
        "it began on {first}",
        (
            "The first {topic} in {place} opened on {first}. Nobody knew then how many people would"
            " come, so the team began with a small budget and a simple plan.",
            "It all began on {first}, after a long winter of meetings. People in {place} had asked"
            " for {topic} for years, and a small group of neighbours took the first step.",
            "On {first} the doors opened for the first time. There was no speech and no ribbon,"
            " only coffee, a few tools and a long list of people who wanted to help.",
        ),
    ),
    "Costs": (
        "it cost {cost} euros",
        (
            "The whole project cost {cost} euros. Most of the money went into material and tools,"
            " and the rest paid for help in the first months.",
            "Setting everything up took {cost} euros. Members shared this sum with the town, and a"
            " part of it comes back every year in saved expenses.",
            "In the end {cost} euros were spent, a little less than planned. A loan paid for half"
            " of it, and {readers} can read every bill on the notice board.",
        ),
    ),
    "Results": (
        "use grew by {percent} percent",
        (
            "Since then, use has grown by {percent} percent. For {readers} this is the most useful"
            " number, because it shows that the demand is real and lasts.",
            "Use grew by {percent} percent within the first year. That surprised even the people"
            " who had planned it, and it is a good reason for {readers} to look closer.",
            "The numbers are clear: use went up by {percent} percent. The town counted every week,"
            " in summer and in winter, and the growth did not stop when the weather did.",
        ),
    ),
    "People": (
        "{quantity} volunteers help",
        (
            "Today {quantity} volunteers keep things going. They meet once a week, share the tasks"
            " among them, and explain to newcomers how everything works.",
            "Without its {quantity} volunteers nothing would happen here. Each of them gives a few"
            " hours a month, and new helpers are always welcome.",
            "A team of {quantity} volunteers runs the place. Some repair, some plan and some only"
            " talk to visitors, which turned out to be the most important task of all.",
        ),
    ),
    "Next steps": (
        "a second place opens on {second}",
        (
            "A second place opens on {second}. The plan is ready and the money is there, so"
            " {readers} who want to take part should get in touch soon.",
            "The next date is already fixed: on {second} a second place opens its doors. It will be"
            " larger than the first one and easier to reach.",
            "What comes next is no secret: a second place opens on {second}. Until then the team"
            " collects ideas from {readers}, and every good one will be tried.",
        ),
    ),
}


def make_article(facts: Facts) -> dict[str, object]:
    """Return a task: a topic, its readers, and three facts, each of a section."""
    first, second = facts.draw_dates()
    known = {
        "topic": facts.draw("topic"),
        "place": facts.draw("place"),
        "readers": facts.draw("readers"),
        "cost": f"{facts.draw_number('thousands')},000",
        "percent": facts.draw("percent"),
        "quantity": facts.draw("quantity"),
        "first": first,
        "second": second,
    }
    chosen = facts.shuffle(tuple(SECTIONS))[:3]
    headings = [name for name in SECTIONS if name in chosen]
    notes = [SECTIONS[name][0].format(**known) for name in headings]
    prompt = facts.vary(PROMPTS).format(
        **known, facts="; ".join(notes), sections=", ".join(headings)
    )
    title = facts.vary(TITLES).format(**known)
    parts = [f"## {name}\n{facts.vary(SECTIONS[name][1]).format(**known)}" for name in headings]
    # A fact of a note is its only word with a digit, and a date is two words.
    numbers = {"Start": first, "Next steps": second, "Costs": known["cost"]} | {
        "Results": f"{known['percent']} percent",
        "People": known["quantity"],
    }
    return {
        "prompt": prompt,
        "completion": "\n\n".join((f"# {title[0].upper()}{title[1:]}", *parts)),
        "checks": {
            "sections": {name: [numbers[name]] for name in headings},
            "facts": [known["topic"], known["place"]],
            "words": [70, 160],
        },
    }
