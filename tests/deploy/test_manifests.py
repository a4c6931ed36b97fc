"""The manifests of deploy/ fit their schemas, the options of the server that they start, and its metrics."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from support.places import ROOT
from tensorwright.runtime.commands.cli import serve
from tensorwright.runtime.requests import metrics
from tensorwright.runtime.serving.server.process import FLUSH

DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
METRIC = re.compile(r"\btensorwright_[a-z_]+\b")
VERSIONS = ("1.30", "1.37")
"""The oldest and the newest Kubernetes that the manifests are checked for."""


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document is not None]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (each for path in KUBERNETES for each in documents(path) if each["kind"] == kind)
    return found


def pod() -> dict[str, Any]:
    return of_kind("Deployment")["spec"]["template"]["spec"]


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return found


def compose() -> dict[str, Any]:
    (found,) = documents(DEPLOY / "compose.yaml")
    return found["services"]["tensorwright"]


def options(arguments: list[str]) -> dict[str, Any]:
    """The values of `tensorwright serve` with these arguments. click refuses an option that does not exist."""
    assert arguments[0] == "serve"
    return serve.make_context("serve", list(arguments[1:])).params


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
def test_kubernetes_takes_the_manifests(path: Path, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    assert documents(path)
    for document in documents(path):
        validator.validate(document, version, strict=True)


def test_the_validator_sees_what_is_wrong() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    wrong = of_kind("Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(validator.ValidationError, match="readinessprobe"):
        validator.validate(wrong, VERSIONS[-1], strict=True)


def test_compose_takes_its_file() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schemas = pytest.importorskip("check_jsonschema.builtin_schemas")
    schema = schemas.get_builtin_schema("vendor.compose-spec")
    (document,) = documents(DEPLOY / "compose.yaml")
    jsonschema.validate(document, schema)
    document["services"]["tensorwright"]["read_onli"] = True
    with pytest.raises(jsonschema.ValidationError, match="read_onli"):
        jsonschema.validate(document, schema)


def test_ray_serve_takes_its_file() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    (document,) = documents(DEPLOY / "ray/serve.yaml")
    config = schema.ServeDeploySchema.model_validate(document)
    (application,) = config.applications
    module, _, name = application.import_path.partition(":")
    assert module == "tensorwright.runtime.serving.ray.application"
    made = pytest.importorskip(module)
    settings = made.split_arguments(application.args)
    assert (settings.path, settings.name, settings.ray.max_replicas, settings.ray.resume) == (
        "/engines/model", "model", 8, True,
    )  # fmt: skip
    assert callable(getattr(made, name))


@pytest.mark.parametrize("arguments", [container()["args"], compose()["command"]], ids=["kubernetes", "compose"])
def test_the_server_takes_its_arguments(arguments: list[str]) -> None:
    given = options(arguments)
    assert given["host"] == "0.0.0.0", "from outside of the container nobody reaches 127.0.0.1"
    assert given["port"] == 8000


def test_a_wrong_argument_is_seen() -> None:
    with pytest.raises(click.UsageError, match="--drain-time"):
        options(["serve", "x=/x", "--drain-time=3"])


def test_requests_have_their_time_to_finish_on_kubernetes() -> None:
    """First nobody sends more, then SIGTERM comes and requests finish, and then answers reach their clients."""
    word, seconds = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    readiness = container()["readinessProbe"]
    assert int(seconds) >= readiness["periodSeconds"], "or an endpoint may be used after SIGTERM"
    needed = int(seconds) + options(container()["args"])["drain_timeout"] + FLUSH
    assert pod()["terminationGracePeriodSeconds"] >= needed


def test_requests_have_their_time_to_finish_under_compose() -> None:
    assert compose()["stop_signal"] == "SIGTERM"
    needed = options(compose()["command"])["drain_timeout"] + FLUSH
    assert int(compose()["stop_grace_period"].removesuffix("s")) >= needed


def test_probes_ask_what_there_is() -> None:
    from tensorwright.runtime.serving.server.health import router

    paths = {route.path for route in router.routes}
    probes = {name: container()[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["path"] for probe in probes.values()} < paths
    assert probes["readinessProbe"]["path"] == "/ready"
    assert probes["livenessProbe"]["path"] == "/health", "a drain must not end the pod"
    (port,) = container()["ports"]
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert port["containerPort"] == options(container()["args"])["port"]
    assert of_kind("Service")["spec"]["ports"][0]["targetPort"] == port["name"]
    annotations = of_kind("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in paths
    asked = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", " ".join(compose()["healthcheck"]["test"]))
    assert asked is not None
    assert (int(asked[1]), asked[2]) == (8000, "/ready")
    (published,) = compose()["ports"]
    assert published.startswith("127.0.0.1:")


def test_metrics_that_scale_are_metrics_that_there_are() -> None:
    """Gauges, for their values are compared; and each has a rule by which the autoscaler gets it."""
    asked = {metric["pods"]["metric"]["name"] for metric in of_kind("HorizontalPodAutoscaler")["spec"]["metrics"]}
    gauges = {metric.name for metric in metrics.GAUGES_AND_TOTALS if metric.kind == "gauge"}
    assert asked <= gauges
    rules = yaml.safe_load(of_kind("ConfigMap")["data"]["config.yaml"])["rules"]
    assert {name for rule in rules for name in METRIC.findall(rule["seriesQuery"])} == asked


def test_objects_select_the_pods() -> None:
    labels = of_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert of_kind("Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert of_kind("Service")["spec"]["selector"] == labels
    assert of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    target = of_kind("HorizontalPodAutoscaler")["spec"]
    assert target["scaleTargetRef"]["name"] == of_kind("Deployment")["metadata"]["name"]
    assert target["minReplicas"] > of_kind("PodDisruptionBudget")["spec"]["maxUnavailable"]
    assert "replicas" not in of_kind("Deployment")["spec"], "it would fight with the autoscaler"


def test_containers_have_no_rights_that_they_do_not_need() -> None:
    security = pod()["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 0
    own = container()["securityContext"]
    assert own["readOnlyRootFilesystem"] is True
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"]["drop"] == ["ALL"]
    assert pod()["automountServiceAccountToken"] is False
    writable = {mount["name"] for mount in container()["volumeMounts"] if not mount.get("readOnly")}
    bounded = {volume["name"] for volume in pod()["volumes"] if "sizeLimit" in volume.get("emptyDir", {})}
    assert writable <= bounded
    for bound in ("requests", "limits"):
        assert {"cpu", "memory"} <= container()["resources"][bound].keys()
    service = compose()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert int(service["user"].partition(":")[0]) == security["runAsUser"]
    assert {"cpus", "memory"} <= service["deploy"]["resources"]["limits"].keys()


def test_the_image_has_what_the_manifests_rely_on() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    user = next(line for line in lines if line.startswith("USER "))
    assert user == f"USER {pod()['securityContext']['runAsUser']}:{pod()['securityContext']['runAsGroup']}"
    assert 'ENTRYPOINT ["tensorwright"]' in lines
    assert container()["image"] == compose()["image"]
    tmpfs = [shlex.split(mount)[0].partition(":")[0] for mount in compose()["tmpfs"]]
    assert tmpfs == ["/tmp"]
    assert any("HOME=/tmp" in line for line in lines), "the root is read-only"
