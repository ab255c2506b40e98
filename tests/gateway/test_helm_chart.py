"""The Helm chart: by default it makes what the kustomization makes.

Helm is not installed, so `render` does what the chart's templates need of it: values, defaults,
indentation and conditions. It refuses any other action.
"""

import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from waltzrl import __version__

ROOT = Path(__file__).parents[2]
HELM, KUBERNETES = ROOT / "deploy/helm", ROOT / "deploy/kubernetes"
CHART = yaml.safe_load((HELM / "Chart.yaml").read_text())
VALUES = yaml.safe_load((HELM / "values.yaml").read_text())
SCHEMA = json.loads((HELM / "values.schema.json").read_text())
CONDITION = re.compile(r"\n *\{\{- if (\S+) \}\}\n(.*?)\n *\{\{- end \}\}", re.DOTALL)
ACTION = re.compile(r"(\n *)?\{\{(-?) (toYaml )?(\S+)(?: \| (default|nindent) (\S+))? \}\}")


def render(values, release="waltzrl"):
    """Return the resources that the chart makes, by kind."""
    chart = {"AppVersion": CHART["appVersion"]}
    scope = {"Values": values, "Release": {"Name": release}, "Chart": chart}

    def find(path):
        found = scope
        for name in path.removeprefix(".").split("."):
            found = found[name]
        return found

    def evaluate(match):
        space, trims, is_yaml, path, function, argument = match.groups()
        value = find(path)
        if function == "default":
            value = value or find(argument)
        text = yaml.safe_dump(value).rstrip("\n") if is_yaml else str(value)
        if function == "nindent":
            text = "".join(f"\n{' ' * int(argument)}{line}" for line in text.split("\n"))
        return text if trims else f"{space or ''}{text}"

    resources = {}
    for path in sorted((HELM / "templates").iterdir()):
        text = CONDITION.sub(lambda m: f"\n{m[2]}" if find(m[1]) else "", path.read_text())
        text = ACTION.sub(evaluate, text)
        assert "{{" not in text, text
        resources |= {part["kind"]: part for part in yaml.safe_load_all(text)}
    return resources


def kustomized():
    """Return the resources of the kustomization that are the gateway's, by kind."""
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    (image,) = (one for one in kustomization["images"] if one["name"] == "waltzrl-gateway")
    files = ("gateway.yaml", "scaling.yaml", "network.yaml")
    texts = [(KUBERNETES / name).read_text() for name in files]
    resources = {part["kind"]: part for text in texts for part in yaml.safe_load_all(text)}
    (container,) = resources["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    container["image"] = f"{image['newName']}:{image['newTag']}"
    return resources


def drop_labels(part):
    """Return a part without the labels that only the chart gives."""
    if isinstance(part, list):
        return [drop_labels(one) for one in part]
    if not isinstance(part, dict):
        return part
    kept = {key: drop_labels(value) for key, value in part.items() if not key.endswith("/instance")}
    if kept.get("name") == "waltzrl-gateway":  # the metadata of a resource
        kept.pop("labels", None)
    return kept


@pytest.mark.promise(
    "Routed tasks",
    "The image has no PyTorch and runs as nobody; Compose and Kubernetes confine the gateway, and "
    "mount and probe what exists",
)
def test_by_default_the_chart_makes_what_the_kustomization_makes():
    made = drop_labels(render(VALUES))
    recipe = made.pop("ConfigMap")["data"]
    assert made == kustomized()
    assert recipe == {"gateway.toml": (KUBERNETES / "gateway.toml").read_text()}


def test_two_releases_have_no_name_or_pod_in_common():
    first, second = render(VALUES, "one"), render(VALUES, "two")
    for kind, resource in first.items():
        assert resource["metadata"]["name"] == "one-gateway"
        assert second[kind]["metadata"]["name"] == "two-gateway"
    selector = first["StatefulSet"]["spec"]["selector"]["matchLabels"]
    assert selector["app.kubernetes.io/instance"] == "one"
    assert first["Service"]["spec"]["selector"] == selector
    assert first["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == selector
    assert first["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == selector


def test_values_reach_what_they_name():
    values = VALUES | {"storage": {"size": "5Gi", "class": "fast"}, "secret": "mine"}
    values |= {"image": {"repository": "r", "tag": "t"}, "recipe": "stage = 1\n\n[audit]\n"}
    made = render(values)
    (claim,) = made["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "5Gi"}}
    pod = made["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "r:t"
    assert {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v} == {"mine"}
    recipe = made["ConfigMap"]["data"]["gateway.toml"]
    assert tomllib.loads(recipe) == {"stage": 1, "audit": {}}


def test_the_schema_takes_the_default_values_and_refuses_others():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    for wrong in ({"replica": 3}, {"replicas": {"min": 1, "max": 8}}, {"recipe": ""}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(VALUES | wrong, SCHEMA)


def test_the_chart_is_of_the_version_of_the_package():
    assert CHART["version"] == CHART["appVersion"] == __version__


def test_no_value_is_left_unused():
    text = "".join(path.read_text() for path in (HELM / "templates").iterdir())
    used = set(re.findall(r"\.Values\.(\w+)", text))
    assert used == set(VALUES) == set(SCHEMA["properties"]) - {"global"}
