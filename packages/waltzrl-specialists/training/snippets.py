"""Tasks of `seo`: what a page offers becomes its title and its description for search engines."""

from facts import Facts

PROMPTS = (
    "Page of {brand}: {keyword} from {price} euros, delivered within {days} days.",
    "{brand} sells {keyword}. They cost {price} euros or more and arrive in {days} days.",
    "Our shop {brand} has {keyword} at prices from {price} euros; delivery takes {days} days.",
    "Keyword: {keyword}. Shop: {brand}. Delivery: {days} days. Lowest price: {price} euros.",
)
TITLES = (
    "{keyword} from {price} euros | {brand}",
    "Buy {keyword} from {price} euros | {brand}",
    "{keyword} for your home from {price} euros | {brand}",
)
DESCRIPTIONS = (
    "Find {keyword} at {brand} from {price} euros. Order online today, and we deliver within"
    " {days} days.",
    "Looking for {keyword}? {brand} has them from {price} euros, delivered to your door in {days}"
    " days.",
    "{brand} offers {keyword} from {price} euros. See all models, choose yours, and have it in"
    " {days} days.",
)


def make_snippet(facts: Facts) -> dict[str, object]:
    """Return a task: a keyword, a shop, a price and a time of delivery."""
    page = {
        "keyword": f"{facts.draw('material')} {facts.draw('product')}",
        "brand": facts.draw("brand"),
        "price": facts.draw("price"),
        "days": facts.draw("seconds"),
    }
    title = facts.vary(TITLES).format(**page)
    description = facts.vary(DESCRIPTIONS).format(**page)
    return {
        "prompt": facts.vary(PROMPTS).format(**page),
        "completion": f"Title: {title[0].upper()}{title[1:]}\nDescription: {description}",
        "checks": {
            "characters": {"Title": [20, 60], "Description": [70, 155]},
            "line_facts": {
                "Title": [page["keyword"], page["brand"]],
                "Description": [page["keyword"], f"{page['price']} euros", f"{page['days']} days"],
            },
        },
    }
