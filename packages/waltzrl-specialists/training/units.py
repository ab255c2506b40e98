"""Tasks of `deploy`: the description of a service becomes a unit of systemd."""

from facts import Facts

BEGINNINGS = (
    "Run {command} as user {user}; it is the {what}.",
    "The {what} starts with {command} and belongs to user {user}.",
    "We deploy the {what}: command {command}, user {user}.",
    "Unit for the {what}, please. User {user}, command {command}.",
)
RESTARTS = {
    "on-failure": (
        "Restart it {delay} seconds after a failure.",
        "If it fails, start it again after {delay} seconds.",
    ),
    "always": (
        "Whenever it ends, restart it after {delay} seconds.",
        "Always restart it, {delay} seconds later.",
    ),
}
MEMORY = ("It gets {memory} MB of memory at most.", "Limit its memory to {memory} MB.")
AFTER = ("It needs {other}.service first.", "Start it after {other}.service.")


def make_unit(facts: Facts) -> dict[str, object]:
    """Return a task: what to run and how it is kept running."""
    service, other = facts.draw_several("service", 2)
    role = facts.draw("role")
    command = f"/opt/{service}/{role} --port {facts.draw('port')}"
    restart = facts.vary(tuple(RESTARTS))
    delay, memory = facts.draw("seconds"), facts.draw("megabytes")
    beginning = facts.vary(BEGINNINGS).format(
        command=command, user=service, what=f"{service} {role}"
    )
    wishes = facts.shuffle(
        (
            facts.vary(RESTARTS[restart]).format(delay=delay),
            facts.vary(MEMORY).format(memory=memory),
            facts.vary(AFTER).format(other=other),
        )
    )
    unit = {
        "Unit": {"Description": f"{service} {role}", "After": f"{other}.service"},
        "Service": {
            "ExecStart": command,
            "User": service,
            "Restart": restart,
            "RestartSec": delay,
            "MemoryMax": f"{memory}M",
        },
    }
    sections = [
        "\n".join((f"[{name}]", *(f"{key}={value}" for key, value in keys.items())))
        for name, keys in unit.items()
    ]
    return {
        "prompt": " ".join((beginning, *wishes)),
        "completion": "\n".join(sections),
        "checks": {"ini": unit},
    }
