"""Plans over HTTP: tasks in, agents and reasons out, and which tasks must not be carried out.

The client runs the tasks itself. What agents return can be reviewed with `POST /v1/review`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from waltzrl.errors import InputError, RequestError, StorageError
from waltzrl.foundation.texts import is_utf8
from waltzrl.gateway.gateway import all_of
from waltzrl.gateway.guard import ACCEPTANCE
from waltzrl.records import Feedback, Reply
from waltzrl.store.memory.items import PutOp
from waltzrl.store.memory.plans import TaskState
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl_routing.documents import VERSION, convert_document
from waltzrl_routing.plan import Explanation, RoutingPlan
from waltzrl_routing.progress import SuccessHistory
from waltzrl_routing.registry import AgentRegistry, load_registry
from waltzrl_routing.router import Router
from waltzrl_routing.runner import Work, join_names, prompt_of
from waltzrl_routing.tasks import Task, TaskGraph

MOST_TASKS = 1_000
REPLAYS = ("routing", "responses")
"""The namespace of responses to requests with an idempotency key; those with personal data are not
kept."""
REPLAY_SECONDS = 86_400.0
RETRY_AFTER_SECONDS = 5.0
REVIEWS_AT_ONCE = 8
"""The most concurrent reviews of one request: a batch of a classifier, and few of the reviews that
a server of a feedback model gets at once, so that other requests have theirs."""
OTHER_NAMES = {"task_id": "id", "task_type": "type", "dependencies": "depends_on"}
"""The requirement's names of fields of a task, and ours."""

Review = Callable[[str, Reply, int], Awaitable[Feedback]]
"""Reviews a draft that answers a request; the number is that of the review."""


class RoutingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request for a plan."""

    version: int = VERSION
    tasks: tuple[Task, ...]
    dag_id: str = ""
    """The client's name for the graph, which is returned."""
    available_agents: tuple[str, ...] | None = None
    """The names of the agents that may be used; None for all."""
    completed: tuple[str, ...] = ()
    """The ids of tasks that are done."""
    enable_casebank: bool = True
    """Whether the successes that the gateway's memory holds are used."""
    enable_cost_optimization: bool = False
    """Whether the cheapest is preferred of the agents that are as good as can be told."""


class AssessedTask(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a task may be carried out."""

    state: TaskState
    """One of `pending`, `declined` and `blocked`."""
    reason: str = ""
    category: str = ""
    """The subject of an unsafe request."""
    risk: float | None = None
    """The risk of its request, 0 to 1; None for a task that was not reviewed."""
    rules: tuple[str, ...] = ()


def open_routes(agents: Path | None, memory: Callable[[], SafetyMemory] | None) -> "RoutingService":
    """Return what answers `POST /v1/route` in a gateway.

    Args:
        agents: file of agents and rules; None for those that `waltzrl route` uses by default.
        memory: of the gateway; None for none.
    """
    return RoutingService(load_registry(agents), memory)


class RoutingService:
    """Answers requests for plans."""

    def __init__(
        self, registry: AgentRegistry, memory: Callable[[], SafetyMemory] | None = None
    ) -> None:
        """Route with the agents of a registry.

        Args:
            registry: agents, rules, and the types of tasks that are reviewed.
            memory: opens the memory, which has successes and keeps responses; None for none.
        """
        self._registry = registry
        self._memory = memory

    async def respond(self, body: bytes, key: str, request_id: str, review: Review) -> bytes:
        """Return the JSON of a plan.

        Args:
            body: a `RoutingRequest` in JSON.
            key: the caller's name and its idempotency key; empty without one. The same request
                gets the same response for a day.
            request_id: of this request.
            review: reviews an agent's agreement to do a task.

        Raises:
            RequestError: 400, the request is invalid, or its response cannot be kept; 422, the
                key was used for another request; 503, the memory is unavailable.
        """
        name, digest = sha256(key.encode()).hexdigest(), sha256(body).hexdigest()
        try:
            if key and (earlier := await self._find_earlier(name, digest)) is not None:
                return earlier
            response = await self._answer(body, request_id, review)
            return await self._keep_first(name, digest, response) if key else response
        except InputError as error:
            raise RequestError(400, "invalid_request", str(error)) from error
        except StorageError as error:
            raise RequestError(
                503, "overloaded", str(error), retry_after_seconds=RETRY_AFTER_SECONDS
            ) from error

    async def _answer(self, body: bytes, request_id: str, review: Review) -> bytes:
        request = _read_request(body)
        graph = TaskGraph(request.tasks)
        plan = await asyncio.to_thread(self._plan, request, graph)
        assessed = await self._assess(graph, plan, review)
        response = {
            "object": "waltzrl.plan",
            "id": request_id,
            "dag_id": request.dag_id,
            "plan": plan,
            "tasks": assessed,
        }
        return msgspec.json.encode(response)

    def _plan(self, request: RoutingRequest, graph: TaskGraph) -> RoutingPlan:
        uses_history = request.enable_casebank and self._memory is not None
        history = SuccessHistory(self._open_memory()) if uses_history else None
        router = Router(self._registry, history, optimize_cost=request.enable_cost_optimization)
        return router.route(graph, request.available_agents, request.completed)

    async def _assess(
        self, graph: TaskGraph, plan: RoutingPlan, review: Review
    ) -> dict[str, AssessedTask]:
        """Review the tasks of the critical types; what depends on a declined one is blocked."""
        assessed: dict[str, AssessedTask] = {}
        is_assessed = {task_id: asyncio.Event() for task_id in plan.explanations}
        places = asyncio.Semaphore(REVIEWS_AT_ONCE)

        async def assess(number: int, task: Task, explanation: Explanation) -> None:
            for needed in task.depends_on:
                if needed in is_assessed:  # others are completed
                    await is_assessed[needed].wait()
            # What is not assessed is completed.
            needed_here = [id_ for id_ in task.depends_on if id_ in assessed]
            stopped = [id_ for id_ in needed_here if assessed[id_].state != "pending"]
            if explanation.agent is None:
                outcome = AssessedTask(state="blocked", reason=explanation.words)
            elif stopped:
                reason = f"it depends on {stopped[0]!r}, which is {assessed[stopped[0]].state}"
                outcome = AssessedTask(state="blocked", reason=reason)
            elif task.type in self._registry.safety_critical:
                async with places:
                    await asyncio.sleep(0)  # rules alone wait for nothing; others get a turn
                    outcome = await _assess_request(task, explanation.agent, review, number)
            else:
                outcome = AssessedTask(state="pending")
            assessed[task.id] = outcome
            is_assessed[task.id].set()

        await all_of(
            assess(number, graph.tasks[task_id], explanation)
            for number, (task_id, explanation) in enumerate(plan.explanations.items())
        )
        return {task_id: assessed[task_id] for task_id in plan.explanations}

    async def _find_earlier(self, name: str, digest: str) -> bytes | None:
        """Return the response to an earlier request with the key.

        Raises:
            RequestError: the request was another.
        """
        item = await asyncio.to_thread(lambda: self._open_memory().store.get(REPLAYS, name))
        if item is None:
            return None
        if item.value["request_hash"] != digest:
            raise RequestError(
                422,
                "invalid_request",
                "the idempotency key was used for another request; use another key",
            )
        return msgspec.json.encode(item.value["response"])

    async def _keep_first(self, name: str, digest: str, response: bytes) -> bytes:
        """Keep a response, unless another request with the key was faster; return what is kept.

        Raises:
            InputError: without its personal data, the response would be another.
        """
        await asyncio.to_thread(self._store_response, name, digest, response)
        return await self._find_earlier(name, digest) or response

    def _store_response(self, name: str, digest: str, response: bytes) -> None:
        store = self._open_memory().store
        value = {"request_hash": digest, "response": msgspec.json.decode(response)}
        kept = store.scrubbed(PutOp(REPLAYS, name, value))
        if kept.value != value:
            raise InputError(
                "the ids of the tasks or dag_id hold personal data, which is not kept; use others, "
                "or send no idempotency key"
            )
        store.add(REPLAYS, name, value, time.time() + REPLAY_SECONDS)

    def _open_memory(self) -> SafetyMemory:
        if self._memory is None:
            raise InputError(
                "an idempotency key needs a gateway with a memory (--memory); send none"
            )
        return self._memory()


def _read_request(body: bytes) -> RoutingRequest:
    """Read a request, in our names or the requirement's.

    Raises:
        InputError: it is invalid.
    """
    try:
        table = msgspec.json.decode(body)
        if isinstance(table, dict) and isinstance(table.get("tasks"), list):
            table = {**table, "tasks": [_rename_fields(task) for task in table["tasks"]]}
        request = convert_document(table, RoutingRequest, "request")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # by version, for what is no UTF-8
        reason = str(error) if is_utf8(body) else "the body is not UTF-8; encode it so"
        raise InputError(reason) from error
    except RecursionError as error:
        raise InputError("nested too deeply to be read") from error
    if not 1 <= len(request.tasks) <= MOST_TASKS:
        raise InputError(
            f"tasks: got {len(request.tasks)}; need 1 to {MOST_TASKS}, so split larger graphs"
        )
    return request


def _rename_fields(task: object) -> object:
    if not isinstance(task, dict):
        return task
    for other, name in OTHER_NAMES.items():
        if other in task and name in task:
            raise InputError(f"a task has both {other!r} and {name!r}; send one of them")
    return {OTHER_NAMES.get(name, name): value for name, value in task.items()}


async def _assess_request(task: Task, agent: str, review: Review, number: int) -> AssessedTask:
    """Review the request that an agent would get, and what is said of the task besides."""
    request = prompt_of(Work(task=task, agent=agent, results={})).request
    feedback = await review(f"{request}\n{join_names(task)}", ACCEPTANCE, number)
    if not feedback.well_formed:
        reason = f"its request could not be reviewed: {feedback.failure or 'invalid feedback'}"
        return AssessedTask(state="declined", reason=reason)
    return AssessedTask(
        state="declined" if feedback.refuses else "pending",
        reason="its request is unsafe" if feedback.refuses else "",
        category=feedback.category,
        risk=feedback.risk,
        rules=feedback.rules,
    )
