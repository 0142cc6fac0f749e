"""The bill of materials of a release: what pip would install, as CycloneDX and as requirements with their hashes.

    python -m pip install --dry-run --ignore-installed --report report.json -c constraints.txt ".[all]"
    python docs/bill_of_materials.py report.json dist

writes ``dist/bom.json`` (CycloneDX 1.6) and ``dist/requirements.txt``, for ``pip install --require-hashes``. They are
the archives that pip chooses for the machine and the Python that it runs on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def packages_of(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the packages of a report of pip by name: version, licence, address and SHA-256 of the archive.

    The project itself, which is installed from its folder and has no hash, is left out. Raises ValueError for any other
    package without one.
    """
    found = []
    for entry in report["install"]:
        metadata, source = entry["metadata"], entry["download_info"]
        if "dir_info" in source:
            continue
        digest = source.get("archive_info", {}).get("hashes", {}).get("sha256", "")
        if not digest:
            raise ValueError(f"{metadata['name']}: has no SHA-256, so its archive cannot be pinned")
        licence = metadata.get("license_expression") or (metadata.get("license") or "").partition("\n")[0]
        found.append({
            "name": metadata["name"].lower().replace("_", "-"), "version": metadata["version"], "licence": licence,
            "url": source["url"], "sha256": digest,
        })  # fmt: skip
    return sorted(found, key=lambda one: one["name"])


def bill_of(packages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return packages as a CycloneDX document; the same packages give the same text."""
    components = []
    for one in packages:
        component: dict[str, Any] = {
            "type": "library", "name": one["name"], "version": one["version"],
            "purl": f"pkg:pypi/{one['name']}@{one['version']}",
            "hashes": [{"alg": "SHA-256", "content": one["sha256"]}],
            "externalReferences": [{"type": "distribution", "url": one["url"]}],
        }  # fmt: skip
        if one["licence"]:
            component["licenses"] = [{"license": {"name": one["licence"][:200]}}]
        components.append(component)
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


def requirements_of(packages: Sequence[Mapping[str, str]]) -> str:
    """Return packages as requirements that pip installs only from these archives."""
    return "".join(f"{one['name']}=={one['version']} --hash=sha256:{one['sha256']}\n" for one in packages)


def main() -> None:
    """Write both files for a report."""
    report, folder = Path(sys.argv[1]), Path(sys.argv[2])
    packages = packages_of(json.loads(report.read_text()))
    folder.mkdir(exist_ok=True)
    (folder / "bom.json").write_text(json.dumps(bill_of(packages), indent=1) + "\n")
    (folder / "requirements.txt").write_text(requirements_of(packages))


if __name__ == "__main__":
    main()
