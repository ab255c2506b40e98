"""The facts that tasks are made of, each drawn from a list; all names are invented.

Every sixth entry of a list is kept for the held-out scenarios, so no fact of a scenario is a fact
of a row to learn from.
"""

import random
from collections.abc import Sequence

FIRST = (
    *("Nor", "Pel", "Ost", "Har", "Quin", "Vel", "Drix", "Lum", "Tav", "Cor", "Wex", "Bran"),
    *("Zel", "Fen", "Gal", "Mir", "Sol", "Ark", "Thal", "Iver"),
)
LAST = ("vane", "lica", "rel", "bella", "torra", "mora", "dyne", "ex")
TRADES = ("Tools", "Foods", "Lighting", "Paper", "Textiles", "Logistics", "Garden", "Media")

MONTHS = ("March", "April", "May", "June", "September", "October", "November")

LISTS: dict[str, tuple[str, ...] | range] = {
    "company": tuple(
        f"{FIRST[n % 20]}{LAST[n * 7 % 8]} {TRADES[n * 3 // 8 % 8]}" for n in range(150)
    ),
    "brand": tuple(f"{FIRST[n * 3 % 20]}{LAST[n * 5 // 20 % 8]}" for n in range(5, 155)),
    "product": (
        *("lamps", "crates", "shelves", "kettles", "notebooks", "blankets", "drills", "vases"),
        *("tents", "stools", "mirrors", "ladders", "teapots", "backpacks", "curtains", "pumps"),
        *("benches", "helmets", "baskets", "printers", "candles", "carpets", "gloves", "trays"),
        *("scales", "racks", "umbrellas", "cushions", "buckets", "clocks", "jackets", "tables"),
        *("saws", "bowls", "hammocks", "desks", "bottles", "towels", "brushes", "boxes"),
    ),
    "material": (
        *("oak", "steel", "linen", "glass", "bamboo", "cotton", "copper", "clay", "wool", "cork"),
        *("walnut", "leather", "marble", "birch", "felt", "zinc", "rattan", "canvas"),
    ),
    "order": range(2103, 9800, 13),
    "quantity": range(12, 96),
    "days": (10, 14, 20, 21, 25, 28, 30, 35, 40, 42, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90),
    "thousands": range(15, 400, 5),
    "price": range(17, 190),
    "percent": range(11, 72),
    "date": tuple(f"{day} {month}" for day in range(3, 29) for month in MONTHS),
    "hour": tuple(f"{hour}:{minute:02}" for hour in range(8, 19) for minute in (0, 15, 30, 45)),
    "room": tuple(f"room {letter}{number}" for letter in "ABCDE" for number in range(11, 40, 3)),
    "place": (
        *("Alderholm", "Brackwick", "Carsted", "Dunmerrow", "Eastvale", "Farnbeck", "Gristead"),
        *("Hollowmere", "Inverdale", "Kestwick", "Larkstone", "Merridge", "Northam Cross"),
        *("Ottermouth", "Penhallow", "Quarrybank", "Ravensby", "Saltmarsh End", "Thornbury Cross"),
        *("Underhill", "Vennworth", "Wexcombe", "Yarrowdale", "Zennor Green"),
    ),
    "service": (
        *("ledger", "parcel", "beacon", "harvest", "atlas", "quill", "orchid", "comet", "mosaic"),
        *(
            "falcon",
            "harbor",
            "signal",
            "lantern",
            "meadow",
            "nimbus",
            "pebble",
            "ripple",
            "saffron",
        ),
        *("timber", "velvet", "walnut", "zephyr", "anchor", "bramble", "cobalt", "drift", "ember"),
        *("fjord", "garnet", "hazel"),
    ),
    "role": ("api", "worker", "mailer", "cache", "export", "search", "import", "proxy", "queue"),
    "port": range(4003, 9900, 7),
    "megabytes": range(128, 4000, 32),
    "seconds": range(2, 60),
    "word": (
        *("orders", "invoices", "tickets", "parcels", "visits", "sensors", "plants", "players"),
        *("routes", "books", "rooms", "loans", "trips", "shifts", "wines", "films", "songs"),
        *("readings", "contracts", "members", "devices", "recipes", "courses", "crates", "letters"),
        *("stations", "flights", "policies", "vehicles", "animals"),
    ),
    "key": (
        *("amount", "weight", "score", "price", "length", "hours", "height", "width", "cost"),
        *("points", "duration", "distance", "speed", "volume", "level", "rating", "age", "depth"),
        *("balance", "load", "pages", "share", "fee", "energy"),
    ),
    "state": (
        *("paid", "open", "late", "lost", "ready", "new", "sold", "broken", "closed", "empty"),
        *("packed", "active", "frozen", "booked", "signed", "missing", "sent", "clean"),
    ),
    "label": (
        *("status", "kind", "region", "color", "owner", "group", "city", "phase", "source"),
        *("category", "model", "shelf", "team", "zone", "grade", "branch", "season", "brand"),
    ),
    "limit": range(4, 97),
    "topic": (
        *("rainwater barrels", "repair cafes", "night trains", "roof gardens", "cargo bikes"),
        *("tool libraries", "heat pumps", "bread ovens", "seed swaps", "solar awnings"),
        *("parcel lockers", "school kitchens", "meeting-free days", "open workshops"),
        *("shared laundries", "bee hotels", "timber offices", "tram gardens", "reading corners"),
        *("compost hubs", "quiet rooms", "bike garages", "market halls", "green facades"),
        *("clothing swaps", "water fountains", "paperless offices", "walking meetings"),
        *("toy libraries", "shade trees"),
    ),
    "readers": (
        *("city planners", "shop owners", "tenants", "teachers", "office managers", "parents"),
        *("craftspeople", "students", "caretakers", "volunteers", "engineers", "librarians"),
    ),
}


class Facts:
    """Draws facts for the rows to learn from, or for the held-out scenarios."""

    def __init__(self, seed: str, *, held_out: bool) -> None:
        """Start with a seed; the same one draws the same facts in the same order."""
        self._random = random.Random(seed)
        self._held_out = held_out
        self.drawn: set[tuple[str, str]] = set()
        """All facts that were drawn, each with the name of its list."""

    def draw(self, name: str) -> str:
        """Return one fact of a list."""
        return self.draw_several(name, 1)[0]

    def draw_number(self, name: str) -> int:
        """Return one fact of a list of numbers."""
        return int(self.draw(name))

    def draw_several(self, name: str, count: int) -> list[str]:
        """Return distinct facts of a list."""
        part = [
            str(fact)
            for place, fact in enumerate(LISTS[name])
            if (place % 6 == 5) is self._held_out
        ]
        facts = self._random.sample(part, count)
        self.drawn |= {(name, fact) for fact in facts}
        return facts

    def draw_dates(self) -> tuple[str, str]:
        """Return two dates, the earlier one first."""

        def find_place(date: str) -> tuple[int, int]:
            day, month = date.split()
            return MONTHS.index(month), int(day)

        earlier, later = sorted(self.draw_several("date", 2), key=find_place)
        return earlier, later

    def vary(self, wordings: Sequence[str]) -> str:
        """Return one of several ways to say a thing, which rows and scenarios have in common."""
        return self._random.choice(wordings)

    def shuffle(self, parts: Sequence[str]) -> list[str]:
        """Return the parts in another order."""
        return self._random.sample(parts, len(parts))
