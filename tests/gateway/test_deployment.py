"""What is deployed agrees with the gateway: recipes load, paths and routes exist, nothing is root.

The schemas of Compose and Kubernetes are checked by the linters that docs/deploying.md names.
"""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from support.small_gateway import ask, with_gateway
from waltzrl.__main__ import app
from waltzrl.gateway.environment import VARIABLES
from waltzrl.gateway.processes.supervisor import STOP_SECONDS
from waltzrl.gateway.settings import load_gateway
from waltzrl.operations.flywheel import load_turn_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RECIPES = {
    "compose": DEPLOY / "compose/recipe/gateway.toml",
    "kubernetes": DEPLOY / "kubernetes/gateway.toml",
}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]
KUBERNETES = DEPLOY / "kubernetes"
USER = 10001


def manifests():
    """Return the resources of the kustomization, by kind."""
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    texts = [(KUBERNETES / name).read_text() for name in names]
    return {part["kind"]: part for text in texts for part in yaml.safe_load_all(text)}


def pod():
    return manifests()["StatefulSet"]["spec"]["template"]["spec"]


def container():
    (only,) = pod()["containers"]
    return only


def served_recipe():
    """Return the recipe that the image serves."""
    (path,) = re.findall(r'^CMD \["serve", "(.+?)"', DOCKERFILE, re.MULTILINE)
    return Path(path)


def test_a_changed_recipe_reaches_a_gateway_that_runs():
    # A file that is mounted by subPath, or alone by compose, stays the old one.
    assert not any("subPath" in mount for mount in container()["volumeMounts"])
    recipes = {volume.split(":")[0] for volume in COMPOSE["gateway-1"]["volumes"]}
    assert (DEPLOY / "compose/recipe" / served_recipe().name).is_file()
    assert "./recipe" in recipes
    assert not any(recipe.endswith(".toml") for recipe in recipes)
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    # With a hash in its name, a changed one would be another ConfigMap.
    assert kustomization["generatorOptions"] == {"disableNameSuffixHash": True}
    (generated,) = kustomization["configMapGenerator"]
    assert generated["files"] == [served_recipe().name]
    (mounted,) = (v["configMap"] for v in pod()["volumes"] if "configMap" in v)
    assert mounted["name"] == generated["name"]
    assert "args" not in container()  # the image's


def test_a_pod_serves_until_no_client_is_sent_to_it_and_has_time_to_end_its_requests():
    command, seconds = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    period = container()["readinessProbe"]["periodSeconds"]
    assert int(seconds) >= 2 * period
    assert pod()["terminationGracePeriodSeconds"] >= int(seconds) + STOP_SECONDS + 5
    for name in ("gateway-1", "gateway-2"):
        assert int(COMPOSE[name]["stop_grace_period"].removesuffix("s")) >= STOP_SECONDS + 5


def test_compose_passes_the_variables_of_stage_2_and_has_a_reviewer():
    known = {name for variable in VARIABLES for name in variable.names}
    passed = set(COMPOSE["gateway-1"]["environment"])
    assert {"WALTZRL_STAGE", "WALTZRL_TRAFFIC_PERCENTAGE"} <= passed & known
    example = (DEPLOY / "compose/example.env").read_text()
    for name in ("WALTZRL_STAGE", "WALTZRL_TRAFFIC_PERCENTAGE", "REVIEWER_MODEL"):
        assert f"\n{name}=" in example
    environ = {"WALTZRL_STAGE": "2", "WALTZRL_TRAFFIC_PERCENTAGE": "10"}
    recipe = load_gateway(RECIPES["compose"], {}, [], environ)
    assert (recipe.stage, recipe.stage2_percentage) == (2, 10.0)
    reviewer = COMPOSE["reviewer"]
    assert reviewer["profiles"] == ["reviewer"]
    assert recipe.feedback.model in reviewer["command"]
    assert recipe.feedback.server == "http://reviewer:8000/v1"
    defaults = {"WALTZRL_STAGE": "1", "WALTZRL_TRAFFIC_PERCENTAGE": ""}
    assert load_gateway(RECIPES["compose"], {}, [], defaults).stage == 1


@pytest.mark.promise(
    "Routed tasks",
    "The image has no PyTorch and runs as nobody; Compose and Kubernetes confine the gateway, and "
    "mount and probe what exists",
)
def test_the_image_has_no_torch_and_runs_as_nobody():
    (installed,) = re.findall(r'"\.\[(.+?)\]"', DOCKERFILE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for extra in installed.split(","):
        assert not any(re.match("torch|waltzrl", needed) for needed in extras[extra])
    # The last stage is built by default; it has what the first installed.
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert last == "base AS gateway\nCOPY --from=build /opt/waltzrl /opt/waltzrl\n"
    base = DOCKERFILE.partition(" AS base\n")[2].partition("\nFROM ")[0]
    assert f"USER {USER}\n" in base
    assert "/healthz" in DOCKERFILE.partition("HEALTHCHECK")[2]


def test_everything_that_the_image_copies_reaches_the_build():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    allowed = (ROOT / ".dockerignore").read_text().split("\n")
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert f"!{name}" in allowed


@pytest.mark.promise(
    "Routed tasks",
    "The image has no PyTorch and runs as nobody; Compose and Kubernetes confine the gateway, and "
    "mount and probe what exists",
)
@pytest.mark.parametrize("folder", ["compose", "kubernetes"])
def test_the_recipes_load_and_keep_everything_in_the_places_that_are_mounted(folder):
    recipe = load_gateway(RECIPES[folder], {}, [], {})
    assert recipe.memory.url.startswith("postgresql://")
    assert recipe.audit.folder == Path("/data/audit")
    secrets = Path("/etc/waltzrl/secrets")
    assert (recipe.keys.parent, recipe.memory.subject_key.parent) == (secrets, secrets)
    if folder == "kubernetes":
        mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
        (kept,) = (volume["secret"] for volume in pod()["volumes"] if "secret" in volume)
        files = {item["path"] for item in kept["items"]}
    else:
        paths = [volume.split(":") for volume in COMPOSE["gateway-1"]["volumes"]]
        mounts = {path[1] for path in paths}
        files = {recipe.keys.name, recipe.memory.subject_key.name}  # its folder is mounted
    assert {served_recipe().parent.as_posix(), str(secrets), "/data"} <= mounts
    assert files == {recipe.keys.name, recipe.memory.subject_key.name}


@pytest.mark.promise(
    "Routed tasks",
    "The image has no PyTorch and runs as nobody; Compose and Kubernetes confine the gateway, and "
    "mount and probe what exists",
)
@pytest.mark.promise("Requirements", "docker-compose, production deployment")
def test_both_gateways_of_compose_are_confined_and_have_logs_of_their_own():
    first, second = COMPOSE["gateway-1"], COMPOSE["gateway-2"]
    for gateway in (first, second):
        assert (gateway["read_only"], gateway["cap_drop"]) == (True, ["ALL"])
        assert gateway["security_opt"] == ["no-new-privileges:true"]
        assert gateway["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    data = [volume for service in (first, second) for volume in service["volumes"]]
    assert [volume for volume in data if volume.endswith(":/data")] == [
        "gateway-1:/data",
        "gateway-2:/data",
    ]


def test_every_file_that_compose_mounts_exists_and_prometheus_asks_both_gateways():
    mounts = [v for service in COMPOSE.values() for v in service.get("volumes", ())]
    files = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert len(files) >= 8
    assert all((DEPLOY / "compose" / name).exists() for name in files)
    scraped = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["gateway-1:8080", "gateway-2:8080"]}]
    assert set(job) == {"job_name", "static_configs"}  # /metrics by default


@pytest.mark.promise(
    "Routed tasks",
    "The image has no PyTorch and runs as nobody; Compose and Kubernetes confine the gateway, and "
    "mount and probe what exists",
)
@pytest.mark.promise("Requirements", "docker-compose, production deployment")
def test_pods_are_confined():
    security = pod()["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, USER)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod()["automountServiceAccountToken"] is False
    assert pod()["enableServiceLinks"] is False
    assert container()["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"requests", "limits"} == set(container()["resources"])


@pytest.mark.promise(
    "Routed tasks",
    "The image has no PyTorch and runs as nobody; Compose and Kubernetes confine the gateway, and "
    "mount and probe what exists",
)
def test_probes_ask_routes_that_the_gateway_has():
    probes = {name: container()[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness")}
    probes["readiness"] = container()["readinessProbe"]["httpGet"]
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }

    async def asked(app):
        return [(await ask(app, path, method="GET")).status for path in ("/healthz", "/readyz")]

    alive, ready = with_gateway(asked)
    assert alive == 200
    assert ready in (200, 503)  # until its upstream has answered
    assert container()["ports"] == [{"name": "http", "containerPort": 8080}]
    assert "EXPOSE 8080" in DOCKERFILE


@pytest.mark.promise(
    "Routed tasks",
    "The image has no PyTorch and runs as nobody; Compose and Kubernetes confine the gateway, and "
    "mount and probe what exists",
)
def test_scaling_disruptions_and_the_network_are_about_the_gateways():
    parts = manifests()
    labels = parts["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert parts["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert parts["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert parts["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert parts["Service"]["spec"]["selector"] == labels
    scaler = parts["HorizontalPodAutoscaler"]["spec"]
    target = (scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"])
    assert target == ("StatefulSet", parts["StatefulSet"]["metadata"]["name"])
    replicas = parts["StatefulSet"]["spec"]["replicas"]
    away = parts["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    assert scaler["minReplicas"] == replicas > away
    assert parts["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_the_flywheel_s_cron_job_is_confined_and_only_prints_until_run_is_added():
    job = manifests()["CronJob"]["spec"]
    recipe = ROOT / "recipes/quarterly.toml"
    assert f"{job['schedule']}  cd" in recipe.read_text()  # of the recipe's line for cron
    assert (job["concurrencyPolicy"], job["suspend"]) == ("Forbid", True)
    spec = job["jobTemplate"]["spec"]["template"]["spec"]
    (only,) = spec["containers"]
    assert spec["securityContext"] == pod()["securityContext"]
    assert only["securityContext"] == container()["securityContext"]
    images = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["images"]
    assert only["image"] in {image["name"] for image in images}
    program, name, path, *options = only["command"]
    assert (program, name, Path(path).name) == ("waltzrl", "flywheel", recipe.name)
    parsed = get_command(app).commands[name].make_context(name, [str(recipe), *options]).params
    assert parsed["run"] is False
    turn = load_turn_settings(recipe, parsed["settings"])
    assert turn.memory == load_gateway(RECIPES["kubernetes"], {}, [], {}).memory.url
    assert turn.train.parent == Path(path).parent
    mounts = {mount["mountPath"] for mount in only["volumeMounts"]}
    assert mounts == {str(turn.train.parent), "/data", "/tmp"}
