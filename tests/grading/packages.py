"""Real bugs and their fixes, from two releases of a package each.

Nothing of the packages is kept here: their sources come from the registry at pinned versions,
by pip. The older release has the bug; of the newer one come the fix and the tests.
"""

import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """Two releases, and what of them matters."""

    name: str
    before: str
    after: str
    problem: str
    """What somebody who meets the bug would say."""
    source: tuple[str, ...]
    """Files and folders of the fix."""
    tests: tuple[str, ...]
    """Files and folders of the tests."""
    fail_to_pass: tuple[str, ...] = ()


SWEBENCH = [
    Package(
        "parse",
        "1.20.0",
        "1.20.1",
        "`parse` must accept %f with one to six digits, as strptime does, and a compiled Parser "
        "must tell its format as the property `format`. The module is parse.py.",
        ("parse.py",),
        ("tests/test_parse.py",),
        (
            "tests/test_parse.py::test_datetime_with_various_subsecond_precision",
            "tests/test_parse.py::test_parser_format",
        ),
    ),
    Package(
        "xmltodict",
        "0.12.0",
        "0.13.0",
        "`xmltodict.parse` must be able to keep comments (`process_comments`), collapse all "
        "namespaces and take a generator of bytes, and `unparse` must take any iterable as a list "
        "(`expand_iter`). The module is xmltodict.py.",
        ("xmltodict.py",),
        ("tests",),
        (
            "tests/test_dicttoxml.py::DictToXMLTestCase::test_list_expand_iter",
            "tests/test_xmltodict.py::XMLToDictTestCase::test_comments",
            "tests/test_xmltodict.py::XMLToDictTestCase::test_namespace_collapse_all",
            "tests/test_xmltodict.py::XMLToDictTestCase::test_streaming_generator",
        ),
    ),
    Package(
        "toolz",
        "0.11.1",
        "0.11.2",
        "On newer Pythons the table of builtin signatures in toolz/_signatures.py no longer "
        "covers all functions of the builtin modules that it lists.",
        ("toolz",),
        ("toolz/tests",),
        ("toolz/tests/test_inspect_args.py::test_introspect_builtin_modules",),
    ),
]

HARBOR = [
    Package(
        "more-itertools",
        "9.0.0",
        "9.1.0",
        "In /app is more-itertools. Add the functions `gray_product`, `iter_index` and "
        "`transpose`, and mend `split_after`, which gives an empty last part with `maxsplit`.",
        ("more_itertools",),
        ("tests",),
    ),
    Package(
        "tabulate",
        "0.8.9",
        "0.8.10",
        "In /app is tabulate. Add the formats `outline` and its kin, and wrapping of long cells "
        "by `maxcolwidths`.",
        ("tabulate.py",),
        ("test",),
    ),
    Package(
        "sqlparse",
        "0.4.3",
        "0.4.4",
        "In /app is sqlparse. `a NOT IN (…)` must be grouped as a comparison, numbers such as "
        "`1.` must be read as floats, and the lexer's keywords must be configurable.",
        ("sqlparse",),
        ("tests",),
    ),
]


def source(name: str, version: str, cache: Path) -> Path:
    """The folder of a release's source archive."""
    folder = cache / f"{name}-{version}"
    if folder.exists():
        return folder
    downloads = cache / "downloads"
    line = ["download", "--quiet", "--no-deps", "--no-binary=:all:", f"--dest={downloads}"]
    subprocess.run([sys.executable, "-m", "pip", *line, f"{name}=={version}"], check=True)

    def plain(text: str) -> str:
        return re.sub(r"[-_.]+", "-", text.lower())

    wanted = plain(f"{name}-{version}-tar-gz")
    archive = next(path for path in downloads.iterdir() if plain(path.name) == wanted)
    opened = cache / f"opened-{name}-{version}"
    with tarfile.open(archive) as tree:
        tree.extractall(opened, filter="data")
    (inner,) = opened.iterdir()
    inner.rename(folder)
    opened.rmdir()
    return folder


def test_program(cache: Path) -> Path:
    """An archive of pytest and what it needs, at pinned versions, for machines without network."""
    archive = cache / "pytest.tar"
    if not archive.exists():
        folder = cache / "pytest"
        pinned = ["pytest==8.3.4", "pluggy==1.5.0", "iniconfig==2.0.0", "packaging==24.2"]
        line = ["install", "--quiet", "--no-compile", "--no-deps", f"--target={folder}"]
        subprocess.run([sys.executable, "-m", "pip", *line, *pinned], check=True)
        with tarfile.open(archive, "w") as tree:
            tree.add(folder, arcname=".")
    return archive


def patch(package: Package, paths: tuple[str, ...], without: tuple[str, ...], cache: Path) -> str:
    """What the newer release changes at some paths, as git tells it."""
    work = cache / "work"
    shutil.rmtree(work, ignore_errors=True)
    before = source(package.name, package.before, cache)
    after = source(package.name, package.after, cache)
    shutil.copytree(before, work)

    def git(*line: str) -> str:
        settings = ["-c", "user.name=suite", "-c", "user.email=suite@example.org"]
        done = subprocess.run(["git", *settings, *line], cwd=work, check=True, capture_output=True)
        # As it is: ends of lines are part of a patch.
        return done.stdout.decode()

    git("init", "--quiet")
    git("add", "--all", "--force")
    git("commit", "--quiet", "--message=before")
    for path in paths:
        replace(work / path, after / path)
    for path in without:
        git("checkout", "--quiet", "HEAD", "--", path)
        git("clean", "--quiet", "-fdx", "--", path)
    git("add", "--all", "--force")
    text = git("diff", "--cached", "--no-renames", "--", ".", ":!*.pyc")
    shutil.rmtree(work)
    return text


def replace(old: Path, new: Path) -> None:
    """Puts a file or folder in the place of another."""
    if new.is_dir():
        shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(new, old, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(new, old)
