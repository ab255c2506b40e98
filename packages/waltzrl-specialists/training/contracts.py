"""Tasks of `legal`: a short contract becomes a review in a fixed form."""

from facts import Facts

INTRODUCTIONS = (
    "Agreement of {supplier} (supplier) with {customer} (customer).",
    "Contract: {supplier} supplies {product} to {customer}.",
    "{customer} buys {product} from {supplier} on these terms.",
    "The supplier {supplier} and the customer {customer} agree as follows.",
)
PAYMENTS = (
    "Invoices are due within {days} days.",
    "The customer pays {days} days after the invoice.",
    "Payment follows no later than {days} days after receipt of the invoice.",
    "Each invoice is payable in {days} days.",
)
CAPS = (
    "The supplier is liable for up to {cap} euros a year.",
    "Liability of either party ends at {cap} euros.",
    "Damages are limited to {cap} euros in all.",
)
UNLIMITED = (
    "The customer answers for all damage without any limit.",
    "There is no limit to the customer's liability.",
    "The customer is liable for every loss, whatever its size.",
)
NOTICES = (
    "Either party may end it with {notice} days' notice.",
    "Both may terminate, {notice} days in advance.",
    "It can be ended by either side with a notice of {notice} days.",
)
TIED = (
    "Only the supplier may end it, at any time and without notice.",
    "The customer has no right to terminate.",
    "It renews every year, and the customer cannot end it.",
)


def make_contract(facts: Facts) -> dict[str, object]:
    """Return a task: who agrees, three terms in any order, and which of them are risky."""
    supplier, customer = facts.draw_several("company", 2)
    payment, notice = facts.draw_several("days", 2)
    cap = f"{facts.draw_number('thousands')},000"
    unlimited, tied = facts.vary("yn") == "y", facts.vary("yn") == "y"
    terms = facts.shuffle(
        (
            facts.vary(PAYMENTS).format(days=payment),
            facts.vary(UNLIMITED) if unlimited else facts.vary(CAPS).format(cap=cap),
            facts.vary(TIED) if tied else facts.vary(NOTICES).format(notice=notice),
        )
    )
    introduction = facts.vary(INTRODUCTIONS).format(
        supplier=supplier, customer=customer, product=facts.draw("product")
    )
    risks = [name for name, risky in (("liability", unlimited), ("termination", tied)) if risky]
    lines = {
        "Supplier": supplier,
        "Customer": customer,
        "Payment": f"{payment} days",
        "Liability": "unlimited" if unlimited else f"{cap} euros",
        "Notice": "none" if tied else f"{notice} days",
        "Risks": ", ".join(risks) or "none",
    }
    return {
        "prompt": " ".join((introduction, *terms)),
        "completion": "\n".join(f"{name}: {value}" for name, value in lines.items()),
        "checks": {"lines": lines},
    }
