"""Build a release in dist/, ready to push: sdist, wheel, images, bills of materials, checksums. Nothing is pushed.

`make release` runs it. The release is built from the last commit only. A failed step leaves no files behind.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMS = "SHA256SUMS"
LINK = re.compile(r"(!?\[[^\]]*\])\((?!https?:|#)([^)\s]+)\)")


class Refused(Exception):
    """A release that cannot be made; the message is one line."""


@dataclass(frozen=True)
class Release:
    """A release of the last commit of a checkout."""

    version: str
    repository: str
    revision: str
    seconds: int  # time of the commit, Unix seconds
    tree: Path  # folder with the files of the commit
    out: Path  # folder that becomes dist/
    image: str  # name of the images, without the tag
    targets: tuple[str, ...]  # targets of the Dockerfile
    draft: bool  # True for a test release, which must not be pushed
    offline: bool  # True to test the wheel with the packages of this environment, without downloads

    def tag(self, target: str) -> str:
        return f"{self.image}:{self.version}-{target}"


def main(words: list[str] | None = None) -> int:
    """Build the release; return 0, 1 if a step failed, or 2 if this commit cannot be released."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--draft", action="store_true", help="build from any commit, without make check; do not push it"
    )
    parser.add_argument("--offline", action="store_true", help="test the wheel with the packages of this environment")
    parser.add_argument("--no-images", action="store_true", help="build no images, even if podman is installed")
    flags = parser.parse_args(words)
    image = os.environ.get("IMAGE") or "localhost/evenshard"
    targets = tuple((os.environ.get("TARGETS") or "cpu mlflow").split())
    try:
        version, repository = _declared(flags.draft)
        with _folder() as folder:
            seconds, revision = int(_git("log", "-1", "--format=%ct")), _git("rev-parse", "HEAD")
            tree, out = folder / "evenshard", folder / "dist"
            release = Release(
                *(version, repository, revision, seconds, tree, out, image, targets, flags.draft, flags.offline)
            )
            if not flags.draft:
                _run("make", "check", "PYTHON=python3")
            steps: list[Callable[[Release], None]] = [_export, _build, _try]
            if flags.no_images or shutil.which("podman") is None:
                _say("no images: " + ("--no-images" if flags.no_images else "podman is not installed"))
                release = Release(**{**release.__dict__, "targets": ()})
            else:
                steps.append(_images)
            for step in (*steps, _checksums, _publish):
                step(release)
    except Refused as reason:
        print(f"make release: {reason}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        print(f"make release: exit code {error.returncode} from {command}. Nothing was released.", file=sys.stderr)
        return 1
    _say(_next_steps(release))
    return 0


def _declared(draft: bool) -> tuple[str, str]:
    """Return version and repository address; raise Refused if git or CHANGELOG.md disagree with them."""
    found = re.search(r'__version__ = "(.+)"', (ROOT / "src/evenshard/version.py").read_text())
    assert found is not None
    version = found[1]
    repository = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"])
    dist = ROOT / "dist"
    if dist.exists() and not (dist / SUMS).exists():
        raise Refused(f"dist/ is not a release, because it has no {SUMS}. Move it away.")
    if draft:
        return version, repository
    if _git("status", "--porcelain"):
        raise Refused("there are uncommitted changes. Commit them, or build a draft with FLAGS=--draft.")
    newest = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    if newest.split(" ")[0] != version:
        raise Refused(f"CHANGELOG.md begins with {newest!r}, but the version is {version}. Rename that section.")
    return version, repository


@contextmanager
def _folder() -> Iterator[Path]:
    """Create a temporary folder beside dist/, so that a finished release is moved there in one step."""
    with tempfile.TemporaryDirectory(prefix=".release-", dir=ROOT) as name:
        (Path(name) / "dist").mkdir()
        yield Path(name)


def _export(release: Release) -> None:
    """Export the files of the commit, and point README.md's links to the repository, because an index has no files."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(release.tree, filter="data")
    readme, base = release.tree / "README.md", release.repository

    def to_repository(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("!") else "blob"  # "blob" of an image is an HTML page
        return f"{link[1]}({base}/{kind}/v{release.version}/{link[2]})"

    readme.write_text(LINK.sub(to_repository, readme.read_text()))


def _build(release: Release) -> None:
    _run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        release.out,
        release.tree,
        epoch=release.seconds,
        quiet=True,
    )
    _run(sys.executable, "-m", "twine", "check", "--strict", *release.out.iterdir())


def _try(release: Release) -> None:
    """Install the wheel into a new environment, place tables with it, and write its bill of materials."""
    home = release.tree.parent / "environment"
    _run(sys.executable, "-m", "venv", "--without-pip", home)
    (wheel,) = release.out.glob("*.whl")
    constraints = ["--constraint", release.tree / "requirements/constraints-cpu.txt"]
    if release.offline:
        (site,) = home.glob("lib/python*/site-packages")
        (site / "here.pth").write_text(f"{Path(sys.prefix) / site.relative_to(home)}\n")
    pip = [sys.executable, "-m", "pip", "--python", home / "bin/python", "--disable-pip-version-check"]
    _run(*pip, "install", "--quiet", *(["--no-deps"] if release.offline else constraints), wheel)
    place = ["place", "criteo_kaggle", "--devices", "2", "-o", home / "placement.json"]
    _run(home / "bin/evenshard", *place, folder=home, quiet=True)
    bill = release.out / f"evenshard-{release.version}.cdx.json"
    # validating the bill of a whole development environment (offline) takes half a minute
    unchecked = ["--no-validate"] if release.offline else []
    _run(*_CYCLONEDX, *unchecked, "--output-file", bill, home / "bin/python", folder=home)


_CYCLONEDX = (sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible")


def _images(release: Release) -> None:
    """Build the images into podman's store, and copy their bills of materials."""
    made = []
    try:
        for target in release.targets:
            variables = [f"IMAGE={release.image}", f"TARGETS={target}", f"REVISION={release.revision}"]
            created = _git("log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd")
            _run("make", "image", *variables, f"CREATED={created}", folder=release.tree)
            made.append(release.tag(target))
            with (release.out / f"evenshard-{release.version}-{target}.cdx.json").open("w") as bill:
                words = ["podman", "run", "--rm", release.tag(target), "cat", "/opt/evenshard/sbom.cdx.json"]
                subprocess.run(words, check=True, stdout=bill)
    except BaseException:
        for tag in made:
            subprocess.run(["podman", "untag", tag], check=False)
        raise


def _checksums(release: Release) -> None:
    files = sorted(release.out.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (release.out / SUMS).write_text("".join(lines))


def _publish(release: Release) -> None:
    """Replace dist/ by the new release."""
    dist = ROOT / "dist"
    if dist.exists():
        dist.rename(release.out.parent / "earlier")
    release.out.rename(dist)


def _next_steps(release: Release) -> str:
    made = "dist/ has\n" + "".join(f"  {file.name}\n" for file in sorted((ROOT / "dist").iterdir()))
    if release.draft:
        return f"{made}This is a draft of {release.revision[:12]}. Do not push it."
    name, version = release.image.replace("localhost/", "registry.example.com/"), release.version
    images = [f"  podman push {release.tag(one)} {name}:{version}-{one}\n" for one in release.targets]
    return (
        f"{made}Nothing was pushed. To publish it:\n"
        f"  git tag --annotate v{version} --message v{version} {release.revision} && git push origin v{version}\n"
        f"  twine upload dist/*.whl dist/evenshard-{version}.tar.gz\n"
        f"{''.join(images)}"
        "Or push only the tag: .github/workflows/release.yml publishes the rest."
    )


def _run(*words: object, folder: Path = ROOT, epoch: int | None = None, quiet: bool = False) -> None:
    """Run a command, without this checkout on its Python path; print its output to stderr, if quiet only on failure."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    variables |= {"TZ": "UTC"} | ({"SOURCE_DATE_EPOCH": str(epoch)} if epoch is not None else {})
    command = [str(word) for word in words]
    if not quiet:
        subprocess.run(command, cwd=folder, env=variables, check=True, stdout=sys.stderr)
        return
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    done.check_returncode()


def _git(*words: str) -> str:
    variables = {**os.environ, "TZ": "UTC"}
    done = subprocess.run(["git", *words], cwd=ROOT, env=variables, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _say(text: str) -> None:
    print(text)


if __name__ == "__main__":
    sys.exit(main())
