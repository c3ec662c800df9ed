//! The suites: what each needs, and what it runs.

use crate::command::{Command, Counts, root};
use crate::{fuzz, node, python};
use anyhow::{Context, Result, bail};

/// A named set of tests.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Runs on any machine with Rust, Python 3.11 and Node 20.
    pub(crate) default: bool,
    pub(crate) run: fn() -> Result<Counts>,
}

pub(crate) const ALL: &[Suite] = &[
    Suite { name: "format", about: "rustfmt", default: true, run: format },
    Suite { name: "lint", about: "clippy, warnings are errors", default: true, run: lint },
    Suite { name: "rust", about: "unit, property and process tests", default: true, run: rust },
    Suite { name: "python", about: "the Python SDK: tests, types, style", default: true, run: sdk },
    Suite {
        name: "clients",
        about: "the official Python packages of the dialects against the gateway",
        default: true,
        run: clients,
    },
    Suite {
        name: "clients-js",
        about: "the official JavaScript packages of the dialects against the gateway",
        default: true,
        run: clients_js,
    },
    Suite {
        name: "wheel",
        about: "pip install ./python gives the SDK, the launchers and the binary",
        default: true,
        run: wheel,
    },
    Suite {
        name: "clis",
        about: "the quick start: unmodified Pi and Claude Code repair a test",
        default: true,
        run: clis,
    },
    Suite {
        name: "llama",
        about: "the whole path against a real llama.cpp with a tiny model",
        default: true,
        run: || real_engine("llama", &[]),
    },
    Suite {
        name: "engine-templates",
        about: "prompts of published chat templates, rendered as vLLM and llama.cpp render them",
        default: false,
        run: engine_templates,
    },
    Suite {
        name: "templates",
        about: "published chat templates, rendered as transformers renders them",
        default: true,
        run: templates,
    },
    Suite {
        name: "vllm",
        about: "the same against vLLM on CPU; installs 6 GB",
        default: false,
        run: || real_engine("vllm", &[]),
    },
    Suite {
        name: "sglang",
        about: "the same against SGLang on CPU; installs vLLM too, for its packages",
        default: false,
        run: || real_engine("sglang", &[]),
    },
    Suite {
        name: "trainers",
        about: "bridges to trainers and exported files, checked by the trainers' own classes; installs vLLM too, for its packages",
        default: false,
        run: trainers,
    },
    Suite {
        name: "tiny-grpo",
        about: "the closed loop of examples/tiny-grpo for a few steps, on a real vLLM; installs it",
        default: false,
        run: tiny_grpo,
    },
    Suite {
        name: "raw-text",
        about: "the same against vLLM and SGLang without their parsers, with Polar's",
        default: false,
        run: raw_text,
    },
    Suite {
        name: "bubblewrap",
        about: "sandboxes by bubblewrap; needs bubblewrap",
        default: false,
        run: bubblewrap,
    },
    Suite {
        name: "vision",
        about: "token mode with pictures against vLLM and SGLang on CPU, with a tiny model that sees",
        default: false,
        run: vision,
    },
    Suite {
        name: "docker",
        about: "sandboxes by Docker; needs a Docker daemon",
        default: false,
        run: docker,
    },
    Suite {
        name: "apptainer",
        about: "sandboxes by Apptainer, with and without root; installs it on Debian as root",
        default: false,
        run: apptainer,
    },
    Suite {
        name: "podman",
        about: "sandboxes by Podman without root; installs it on Debian as root",
        default: false,
        run: podman,
    },
    Suite {
        name: "docker-clis",
        about: "agent CLIs in Docker without egress; 3 GB at first; needs root, debootstrap, Docker",
        default: false,
        run: docker_clis,
    },
    Suite {
        name: "grading",
        about: "real bugs and fixes as SWE-bench instances and Harbor tasks; as docker-clis, and bubblewrap",
        default: false,
        run: grading,
    },
    Suite {
        name: "attack",
        about: "hostile agents in every kind of sandbox that is there; as docker-clis, and bubblewrap",
        default: false,
        run: attack,
    },
    Suite {
        name: "storm",
        about: "$POLAR_STORM_SESSIONS sessions, or 60, while all around them is killed; root, as docker-clis",
        default: false,
        run: storm,
    },
    Suite {
        name: "deny",
        about: "licences and sources of dependencies; needs cargo-deny",
        default: false,
        run: deny,
    },
    Suite {
        name: "fuzz",
        about: "each fuzz target for $POLAR_FUZZ_SECONDS, or 20; needs a C++ compiler",
        default: false,
        run: fuzz::run,
    },
    Suite {
        name: "harnesses",
        about: "every shipped agent CLI in every scenario; installs 3 GB at first",
        default: false,
        run: || every_harness(&["--parallel=2"]),
    },
    Suite {
        name: "token-mode",
        about: "every shipped agent CLI in every scenario, with prompts made of sampled ids",
        default: false,
        run: || every_harness(&["--token-mode", "--parallel=2"]),
    },
    Suite {
        name: "faults",
        about: "every shipped agent CLI with an engine that fails; most of it is waiting",
        default: false,
        run: || every_harness(&["--faults", "--parallel=4"]),
    },
    Suite {
        name: "extras",
        about: "every agent CLI uses an MCP server, and some a skill; installs 3 GB at first",
        default: false,
        run: extras,
    },
    Suite {
        name: "kill",
        about: "kill -9 of server, nodes and trainers at random points; five minutes",
        default: false,
        run: kill,
    },
];

/// The suites named, or the default ones.
pub(crate) fn choose(names: &[String]) -> Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(ALL.iter().filter(|suite| suite.default).collect());
    }
    names
        .iter()
        .map(|name| match ALL.iter().find(|suite| suite.name == name) {
            Some(suite) => Ok(suite),
            None => {
                let known: Vec<&str> = ALL.iter().map(|suite| suite.name).collect();
                bail!("no suite {name:?}; there are {}", known.join(", "))
            }
        })
        .collect()
}

fn format() -> Result<Counts> {
    let mut counts = Command::new("cargo", &["fmt", "--all", "--check"]).check()?;
    let fuzz = ["fmt", "--manifest-path=fuzz/Cargo.toml", "--check"];
    counts.add(Command::new("cargo", &fuzz).check()?);
    Ok(counts)
}

fn lint() -> Result<Counts> {
    // Not among all targets, because they need engines, templates or every agent program.
    let by_name = ["real_engines", "published_templates", "templates_by_engines", "extras"];
    let by_name: Vec<String> = by_name.iter().map(|test| format!("--test={test}")).collect();
    let by_name: Vec<&str> = by_name.iter().map(String::as_str).collect();
    let mut counts = Counts::default();
    for targets in [&["--all-targets"][..], &by_name] {
        let args = ["clippy", "--workspace", "--all-features", "--quiet"];
        let lint = Command::new("cargo", &args).args(targets).args(&["--", "-D", "warnings"]);
        counts.add(lint.check()?);
    }
    Ok(counts)
}

/// Tests of one target. All packages are named, whichever it is of, so that it is built with the
/// features that everything else was built with: with others, half of all dependencies would be
/// built once more.
fn test_target(name: &str) -> Command {
    Command::new("cargo", &TEST).args(&["--test", name])
}

const TEST: [&str; 3] = ["test", "--workspace", "--quiet"];

/// Installs and starts an engine and runs its tests, which show what they measured.
fn raw_text() -> Result<Counts> {
    let mut counts = real_engine("vllm", &["--raw-text"])?;
    counts.add(real_engine("sglang", &["--raw-text"])?);
    Ok(counts)
}

fn vision() -> Result<Counts> {
    let mut counts = engine_tests("vllm-vision", "vision", &[])?;
    counts.add(engine_tests("sglang-vision", "vision", &[])?);
    Ok(counts)
}

fn real_engine(name: &str, options: &[&str]) -> Result<Counts> {
    engine_tests(name, name, options)
}

/// Runs the tests of real engines whose names hold `tests` while this one is up.
fn engine_tests(engine: &str, tests: &str, options: &[&str]) -> Result<Counts> {
    let start = [&["tests/engines/engines.py", "run"], options, &[engine, "--"]].concat();
    let test = ["cargo", "test", "--workspace", "--no-fail-fast", "--test", "real_engines", tests];
    let how = ["--", "--test-threads=1", "--show-output"];
    Command::new("python3", &start).args(&test).args(&how).run()
}

fn trainers() -> Result<Counts> {
    let polar = polar()?;
    let pytest = ["tests/trainers/environment.py", "-m", "pytest", "-q", "tests/trainers"];
    Command::new("python3", &pytest)
        .env("TRL_EXPERIMENTAL_SILENCE", "1")
        .env("POLAR_BINARY", &polar)
        .run()
}

/// It ends with 1 where trainer and engine differ, an update fails, or nothing is rewarded; and
/// where they do not differ though calls were merged by their prompts alone.
fn tiny_grpo() -> Result<Counts> {
    let polar = polar()?;
    let out = root().join("target/tiny-grpo");
    let out = out.to_str().context("the repository's path is not UTF-8")?;
    let short = ["--check", "--seeds=1", "--steps=3", "--threads=1", "--out", out];
    Command::new("examples/tiny-grpo/run", &short)
        .args(&["--variant", "exact", "by-prompts"])
        .env("POLAR_BINARY", &polar)
        .run()
}

/// What `transformers` gives is written to a file, which the test reads.
fn templates() -> Result<Counts> {
    let venv =
        python::venv("templates", &["--requirement", "tests/templates/requirements.txt"], &[])?;
    let cases = root().join("target/templates.json");
    let cases = cases.to_str().context("the repository's path is not UTF-8")?;
    venv.python(&["tests/templates/expected.py", cases]).check()?;
    test_target("published_templates").env("POLAR_TEMPLATE_CASES", cases).run()
}

/// What the engines make is written to a file, which the test reads.
fn engine_templates() -> Result<Counts> {
    let prompts = root().join("target/engine-templates.json");
    let prompts = prompts.to_str().context("the repository's path is not UTF-8")?;
    Command::new("python3", &["tests/templates/by_engines.py", prompts]).check()?;
    let test = test_target("templates_by_engines").args(&["--", "--show-output"]);
    test.env("POLAR_ENGINE_TEMPLATES", prompts).run()
}

fn rust() -> Result<Counts> {
    Command::new("cargo", &TEST).args(&["--no-fail-fast"]).run()
}

fn sdk() -> Result<Counts> {
    let polar = polar()?;
    let venv = python::venv("sdk", &SDK, &DEVELOPMENT)?;
    let mut counts = venv.tool("ruff", &["check"]).args(&PYTHON).check()?;
    counts.add(venv.tool("ruff", &["format", "--check"]).args(&PYTHON).check()?);
    let mypy = ["--config-file", "pyproject.toml"];
    counts.add(venv.tool("mypy", &mypy).within("python").check()?);
    let pytest = ["-m", "pytest", "-q", "python/tests", "-c", "python/pyproject.toml"];
    let run = venv
        .python(&pytest)
        .env("PYTHONPATH", "python/src")
        .env("POLAR_BINARY", &polar)
        .env("PYTHONSAFEPATH", "1");
    counts.add(run.run()?);
    Ok(counts)
}

/// Folders whose Python is held to one style.
const PYTHON: [&str; 4] = ["python", "tests/sdk", "tests/trainers", "examples"];

/// What the SDK needs, as `python/pyproject.toml` says.
const SDK: [&str; 2] = ["httpx>=0.25,<1", "pydantic>=2.5,<3"];

/// As `dev` in `python/pyproject.toml` says.
const DEVELOPMENT: [&str; 4] = ["numpy>=1.22,<3", "pytest>=8,<10", "mypy>=1.11,<3", "ruff>=0.6,<1"];

fn clients() -> Result<Counts> {
    let polar = polar()?;
    let venv = python::venv("clients", &["--requirement", "tests/sdk/requirements.txt"], &[])?;
    venv.python(&["-m", "pytest", "-q", "tests/sdk"]).env("POLAR_BINARY", &polar).run()
}

fn clients_js() -> Result<Counts> {
    let polar = polar()?;
    let policy = root().join("tests/sdk/policy.yaml");
    let policy = policy.to_str().context("the repository's path is not UTF-8")?;
    node::project("tests/sdk/js")?
        .node(&["--test", "--test-reporter=spec"])
        .env("POLAR_BINARY", &polar)
        .env("POLAR_POLICY", policy)
        .run()
}

/// With the profile of the other suites, whose build it goes on with.
fn wheel() -> Result<Counts> {
    let venv = python::venv("wheel", &SDK, &[])?;
    let profile = "--config-settings=build-args=--profile dev";
    let mut counts =
        venv.python(&["-m", "pip", "install", "--quiet", "./python", profile]).check()?;
    counts.add(venv.tool("polar", &["--version"]).check()?);
    for module in ["polar", "polar.rollout_server", "polar.gateway"] {
        counts.add(venv.python(&["-P", "-m", module, "--help"]).check()?);
    }
    Ok(counts)
}

fn clis() -> Result<Counts> {
    Command::new("cargo", &["run", "--quiet", "--", "quickstart"]).check()
}

/// Tests of sandboxes. All features, so that those of one kind don't build those of another anew.
fn sandbox_tests(name: &str) -> Command {
    test_target(name).args(&["--features", SANDBOXES])
}

const SANDBOXES: &str = "polar-sandbox/apptainer-tests,polar-sandbox/bubblewrap-tests,\
    polar-sandbox/docker-tests,polar-sandbox/podman-tests";

fn bubblewrap() -> Result<Counts> {
    sandbox_tests("conformance").args(&["--", "bubblewrap"]).run()
}

fn docker() -> Result<Counts> {
    sandbox_tests("docker").run()
}

/// As root the tests run twice: as a user without rights, and as root.
fn apptainer() -> Result<Counts> {
    let mut counts = Command::new("tests/apptainer/install.sh", &[]).check()?;
    if is_root()? {
        let user = as_user()?;
        let user = user.each_ref().map(String::as_str);
        counts.add(sandbox_tests("apptainer").args(&user).run()?);
    }
    counts.add(sandbox_tests("apptainer").run()?);
    Ok(counts)
}

fn podman() -> Result<Counts> {
    let mut counts = Command::new("tests/podman/install.sh", &[]).check()?;
    let user = if is_root()? { as_user()?.to_vec() } else { vec![] };
    let user: Vec<&str> = user.iter().map(String::as_str).collect();
    counts.add(sandbox_tests("podman").args(&user).run()?);
    Ok(counts)
}

fn is_root() -> Result<bool> {
    Ok(Command::new("id", &["--user"]).output()? == "0")
}

/// What has cargo run tests as a user without rights.
fn as_user() -> Result<[String; 2]> {
    let runner = root().join("tests/rootless/as_user.sh").canonicalize()?;
    let runner = runner.to_str().context("the repository's path is not UTF-8")?;
    Ok(["--config".to_owned(), format!("target.'cfg(all())'.runner='{runner}'")])
}

fn docker_clis() -> Result<Counts> {
    let polar = polar()?;
    Command::new("python3", &["tests/docker/clis.py", &polar]).run()
}

/// The image is that of `docker-clis`.
fn grading() -> Result<Counts> {
    let polar = polar()?;
    Command::new("python3", &["tests/grading/run.py", &polar]).run()
}

/// The image is that of `docker-clis`.
fn attack() -> Result<Counts> {
    Command::new("python3", &["tests/attack/run.py"]).env("POLAR_BINARY", &polar()?).run()
}

/// The image is that of `docker-clis`.
fn storm() -> Result<Counts> {
    Command::new("python3", &["tests/storm/run.py"]).env("POLAR_BINARY", &polar()?).run()
}

fn deny() -> Result<Counts> {
    Command::new("cargo", &["deny", "--offline", "check", "bans", "licenses", "sources"]).check()
}

/// All agent CLIs but the one that asks for more than the machine must have.
const ON_ANY_MACHINE: [&str; 7] =
    ["claude_code", "codex", "gemini_cli", "mini_swe_agent", "opencode", "pi", "qwen_code"];

fn every_harness(how: &[&str]) -> Result<Counts> {
    let chosen = if openhands_installs()? { &["--all"][..] } else { &ON_ANY_MACHINE };
    let polar = polar()?;
    Command::new(polar, &["harness", "check", "--strict"]).args(chosen).args(how).run()
}

/// OpenHands needs Python 3.12. Where there is none, it is left out, and the output says why.
fn openhands_installs() -> Result<bool> {
    let polar = polar()?;
    match Command::new(polar, &["harness", "install", "openhands"]).check() {
        Ok(_) => Ok(true),
        Err(error) => {
            println!("OpenHands is left out: {error:#}");
            Ok(false)
        }
    }
}

/// With the installations that `polar harness check` uses.
fn extras() -> Result<Counts> {
    let left_out: &[&str] = if openhands_installs()? { &[] } else { &["--skip", "openhands"] };
    test_target("extras").args(&["--"]).args(left_out).env("POLAR_CACHE", &cache()?).run()
}

/// Polar's own cache folder.
fn cache() -> Result<String> {
    if let Ok(chosen) = std::env::var("POLAR_CACHE") {
        return Ok(chosen);
    }
    let base = std::env::var("XDG_CACHE_HOME").or_else(|_| {
        std::env::var("HOME").map(|home| format!("{home}/.cache")).context("HOME is not set")
    })?;
    Ok(format!("{base}/polar"))
}

fn kill() -> Result<Counts> {
    let polar = polar()?;
    let mut counts =
        Command::new("python3", &["tests/kill/run.py"]).env("POLAR_BINARY", &polar).run()?;
    let venv = python::venv("trainer", &SDK, &[])?;
    let trainers = venv.python(&["tests/kill/trainers.py"]).env("PYTHONPATH", "python/src");
    counts.add(trainers.env("POLAR_BINARY", &polar).run()?);
    Ok(counts)
}

/// Builds the `polar` binary, as the tests of the command line have it, and says where it is.
fn polar() -> Result<String> {
    test_target("cli").args(&["--no-run"]).run()?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let binary = target.join("debug/polar");
    let binary = binary.canonicalize().with_context(|| format!("find {}", binary.display()))?;
    binary.into_os_string().into_string().ok().context("the target folder's path is not UTF-8")
}
