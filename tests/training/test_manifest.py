"""The KubeRay manifest, against the published schema of its kind.

tests/support/rayjob_schema.json.gz is the schema of RayJob, version v1, in KubeRay's
ray-operator/config/crd/bases/ray.io_rayjobs.yaml (Apache-2.0) at commit
feeaf72facab4881ba2b179248bb67315634e229, without descriptions and without `status`.
"""

import gzip
import json
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.main import get_command

from waltzrl.__main__ import app
from waltzrl.training.recipe import load_recipe

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "tests" / "support" / "rayjob_schema.json.gz"


def strict(schema):
    """Refuse unknown fields, as `kubectl apply --validate=strict` does; the API would drop them."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    kept = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and "type" in schema and not kept:
        closed["additionalProperties"] = False
    return closed


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(strict(json.loads(gzip.decompress(SCHEMA.read_bytes()))))


@pytest.fixture
def manifest():
    return yaml.safe_load((ROOT / "deploy" / "rayjob.yaml").read_text())


@pytest.mark.promise(
    "Evaluation",
    "The Kubernetes manifest is a RayJob by KubeRay's schema, and its command one of ours",
)
def test_the_manifest_is_a_rayjob_by_its_schema(manifest, validator):
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    assert [error.message for error in validator.iter_errors(manifest)] == []


def test_the_schema_finds_what_is_wrong(manifest, validator):
    (workers,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    del workers["minReplicas"]
    workers["template"]["spec"]["container"] = []
    manifest["spec"]["backoffLimit"] = "three"
    assert {error.message for error in validator.iter_errors(manifest)} == {
        "'minReplicas' is a required property",
        "Additional properties are not allowed ('container' was unexpected)",
        "'three' is not of type 'integer'",
    }


@pytest.mark.promise(
    "Evaluation",
    "The Kubernetes manifest is a RayJob by KubeRay's schema, and its command one of ours",
)
def test_its_command_is_one_of_ours_with_a_gpu_for_every_process(manifest):
    program, command, recipe, *options = shlex.split(manifest["spec"]["entrypoint"])
    assert (program, command, recipe) == ("waltzrl", "train", "/recipe/recipe.toml")
    parsed = get_command(app).commands["train"].make_context("train", [recipe, *options]).params
    loaded = load_recipe(ROOT / "recipes" / "llama-8b-adapters.toml", parsed["settings"])
    settings = loaded.compute.ray
    (workers,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    gpus = workers["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert gpus == settings.learners + settings.workers
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/runs", "/recipe"} <= mounted
    assert parsed["ray"] == "auto"
