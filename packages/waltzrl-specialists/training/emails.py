"""Tasks of `email`: notes become a draft that keeps all of them, in the tone that is asked for."""

from facts import Facts

NOTES = {
    "delay": (
        ("order {order} of {quantity} {product} is late", "new delivery date {first}"),
        "please confirm by {second}",
    ),
    "reminder": (
        ("invoice {order} over {price} euros is unpaid", "it was due on {first}"),
        "please pay by {second}",
    ),
    "invitation": (
        ("we meet on {first} at {hour}", "place: {room} in {place}"),
        "please answer by {second}",
    ),
    "request": (
        ("we need {quantity} {product}", "delivery to {place} on {first}"),
        "please send an offer by {second}",
    ),
    "apology": (
        ("we sent {quantity} wrong {product}", "it concerns order {order}"),
        "the right ones arrive on {second}",
    ),
}
BODIES = {
    ("delay", "formal"): (
        "We regret to inform you that order {order} of {quantity} {product} is delayed. The new"
        " delivery date is {first}. Please confirm this date by {second}.",
        "Unfortunately, your order {order} of {quantity} {product} will be late. We will deliver it"
        " on {first}. We ask you to confirm by {second}.",
    ),
    ("delay", "friendly"): (
        "Sorry, order {order} of {quantity} {product} is running late. We'll bring it on {first}."
        " Could you confirm by {second}? Thanks for your patience!",
        "Bad news first: order {order} of {quantity} {product} is late. We'll deliver on {first}."
        " It'd be great if you could confirm by {second}. Thanks!",
    ),
    ("reminder", "formal"): (
        "According to our records, invoice {order} over {price} euros is still unpaid. It was due"
        " on {first}. We kindly ask you to pay by {second}.",
        "We would like to remind you of invoice {order} over {price} euros, which was due on"
        " {first}. Please arrange payment by {second}.",
    ),
    ("reminder", "friendly"): (
        "Just a small reminder: invoice {order} over {price} euros was due on {first}. We'd be glad"
        " if you could pay by {second}. Thanks!",
        "It looks like invoice {order} over {price} euros slipped through. It was due on {first}."
        " Could you pay it by {second}? Thanks a lot!",
    ),
    ("invitation", "formal"): (
        "We would like to invite you to a meeting on {first} at {hour}. It takes place in {room} in"
        " {place}. Please let us know by {second} whether you will attend.",
        "You are invited to our meeting on {first} at {hour}, in {room} in {place}. We ask for your"
        " answer by {second}.",
    ),
    ("invitation", "friendly"): (
        "We'd love to see you on {first} at {hour}. We're meeting in {room} in {place}. Just tell"
        " us by {second} if you can come. Thanks!",
        "Save the date: we're meeting on {first} at {hour}, in {room} in {place}. Drop us a line by"
        " {second}. Thanks!",
    ),
    ("request", "formal"): (
        "We would like to purchase {quantity} {product}. Delivery should be to {place} on {first}."
        " Please send us your offer by {second}.",
        "For delivery to {place} on {first}, we require {quantity} {product}. We ask you to send an"
        " offer by {second}.",
    ),
    ("request", "friendly"): (
        "We're looking for {quantity} {product}, delivered to {place} on {first}. Could you send us"
        " an offer by {second}? Thanks a lot!",
        "Could you help us out with {quantity} {product}? We'd need them in {place} on {first}. An"
        " offer by {second} would be great. Thanks!",
    ),
    ("apology", "formal"): (
        "We apologize for sending you {quantity} wrong {product} with order {order}. The right ones"
        " will arrive on {second}. We regret the inconvenience.",
        "Please accept our apology: {quantity} {product} of order {order} were wrong. You will"
        " receive the right ones on {second}.",
    ),
    ("apology", "friendly"): (
        "We're so sorry, we sent you {quantity} wrong {product} with order {order}. The right ones"
        " are on their way and arrive on {second}. Thanks for your patience!",
        "Our mistake: {quantity} {product} of order {order} were wrong. We'll have the right ones"
        " with you on {second}. Thanks for bearing with us!",
    ),
}
PROMPTS = (
    "To: {to}. From: {sender}. Tone: {tone}. Notes: {notes}.",
    "{sender} writes a {tone} email to {to}: {notes}.",
    "Write to {to} for {sender}, {tone}. Say this: {notes}.",
    "Draft a {tone} email from {sender} to {to}. Points: {notes}.",
)
GREETINGS = {
    "formal": ("Dear {to} team,", "Kind regards,\n{sender}"),
    "friendly": ("Hello {to} team,", "Best wishes,\n{sender}"),
}
TONES = {
    "formal": {"has": ["please", "we ask", "we kindly", "we regret", "apologize", "you will"],
               "lacks": ["!", "thanks", "we'll", "we'd", "we're", "it'd"]},
    "friendly": {"has": ["thanks", "!"], "lacks": ["dear", "kindly", "regret", "according to"]},
}  # fmt: skip


def make_email(facts: Facts) -> dict[str, object]:
    """Return a task: who writes to whom, three notes, and the tone."""
    purpose, tone = facts.vary(tuple(NOTES)), facts.vary(tuple(GREETINGS))
    to, sender = facts.draw_several("company", 2)
    first, second = facts.draw_dates()
    if purpose in {"delay", "invitation", "request"}:  # the answer comes before the event
        first, second = second, first
    known = {
        name: facts.draw(name)
        for name in ("order", "quantity", "product", "price", "hour", "room", "place")
    } | {"first": first, "second": second}
    notes, last = NOTES[purpose]
    written = "; ".join((*notes, last))
    prompt = facts.vary(PROMPTS).format(
        to=to, sender=sender, tone=tone, notes=written.format(**known)
    )
    greeting, closing = (part.format(to=to, sender=sender) for part in GREETINGS[tone])
    body = facts.vary(BODIES[purpose, tone]).format(**known)
    return {
        "prompt": prompt,
        "completion": f"{greeting}\n\n{body}\n\n{closing}",
        "checks": {
            "facts": [value for name, value in known.items() if f"{{{name}}}" in written],
            "frame": {"begins": greeting, "ends": closing},
            "words": [25, 90],
            "tone": TONES[tone],
        },
    }
