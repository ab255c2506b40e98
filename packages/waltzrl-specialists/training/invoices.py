"""Tasks of `billing`: the text of an invoice becomes JSON with right sums."""

import json

from facts import Facts

BEGINNINGS = (
    "Invoice {number} to {customer}:",
    "Please process invoice {number} for {customer}:",
    "{customer} gets invoice {number}:",
    "For {customer}, invoice {number}:",
)
LINES = ("{quantity} {item} at {price} euros each", "{quantity} {item}, {price} euros a piece")
TAXES = ("plus {percent} % tax.", "and {percent} % tax on all of it.")


def make_invoice(facts: Facts) -> dict[str, object]:
    """Return a task: one or two lines of goods and a tax."""
    number, customer = facts.draw("order"), facts.draw("company")
    percent = int(facts.vary(("10", "20")))
    wording = facts.vary(LINES)
    goods = []
    for item in facts.draw_several("product", int(facts.vary("12"))):
        quantity = int(facts.vary("23456789"))
        price = facts.draw_number("limit") * 10
        goods.append({"item": item, "quantity": quantity, "price": price})
    amounts = [line["quantity"] * line["price"] for line in goods]
    net = sum(amounts)
    tax = net * percent // 100
    invoice = {
        "invoice": number,
        "customer": customer,
        "lines": [line | {"amount": amount} for line, amount in zip(goods, amounts, strict=True)],
        "net": net,
        "tax": tax,
        "total": net + tax,
    }
    beginning = facts.vary(BEGINNINGS).format(number=number, customer=customer)
    described = ", ".join(wording.format(**line) for line in goods)
    return {
        "prompt": f"{beginning} {described}, {facts.vary(TAXES).format(percent=percent)}",
        "completion": json.dumps(invoice),
        "checks": {
            "json": {"invoice": number, "customer": customer, "lines": goods},
            "sums": {"tax_percent": percent},
        },
    }
