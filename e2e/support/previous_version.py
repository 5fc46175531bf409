"""This chart as it might have been before."""

import shutil
from pathlib import Path

import helm
import yaml

VERSION = "0.0.1"
FIELD = "autoRollback"  # of spec.rollout: the previous version has no such field


def previous_chart(folder: Path) -> Path:
    """This chart as it might have been before: a lower version, and a CRD without one of the fields."""
    copied = folder / "legato"
    shutil.copytree(helm.CHART, copied)
    about = yaml.safe_load((copied / "Chart.yaml").read_text())
    (copied / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": VERSION}))
    file = copied / "files" / "crds" / "inferenceservices.yaml"
    crd = yaml.safe_load(file.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rollout = schema["properties"]["spec"]["properties"]["rollout"]
    del rollout["properties"][FIELD], rollout["default"][FIELD]
    file.write_text(yaml.safe_dump(crd))
    return copied
