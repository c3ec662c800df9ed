//! The sandbox of a published task.

use super::request::{Runtime, Step};
use super::translate::{Problems, in_login_shell, no_equal};
use super::uploads::Budget;
use polar_types::{FieldProblem, MountSpec, Network, PrepareStep, RuntimeKind, RuntimeSpec};
use serde_json::Value;

/// The same sandbox in our terms.
pub(super) fn translate(
    runtime: Runtime,
    budget: &mut Budget<'_>,
    problems: &mut Problems,
) -> RuntimeSpec {
    refuse_what_has_no_equal(&runtime, problems);
    let mut spec = RuntimeSpec::of_kind(kind(&runtime.backend, problems));
    spec.image = Some(runtime.image);
    spec.network = network(runtime.network.as_deref(), runtime.allow_internet, problems);
    if let Some(workdir) = runtime.workdir {
        spec.workdir = workdir;
    }
    spec.env = runtime.env;
    spec.cpus = runtime.cpus;
    spec.memory_mb = runtime.memory_mb;
    spec.storage_mb = runtime.storage_mb;
    spec.gpus = (runtime.gpus > 0).then_some(runtime.gpus);
    spec.mounts = mounts(&runtime.kwargs, problems);
    if runtime.allow_internet {
        for (index, volume) in runtime.internet_volumes.iter().enumerate() {
            let at = format!("runtime.internet_volumes[{index}]");
            spec.mounts.extend(mount(&at, volume, problems));
        }
    }
    for (index, step) in runtime.prepare.iter().enumerate() {
        let at = format!("runtime.prepare[{index}]");
        spec.prepare.extend(prepare(&at, step, budget, problems));
    }
    spec
}

fn refuse_what_has_no_equal(runtime: &Runtime, problems: &mut Problems) {
    if runtime.import_path.is_some() {
        problems.push(no_equal(
            "runtime.import_path",
            "sandboxes are docker, podman, apptainer or local; POST /api/tasks takes them all",
        ));
    }
    if runtime.direct_exec_init_command.is_some() {
        problems.push(no_equal(
            "runtime.direct_exec_init_command",
            "a command before all others is a first step of `runtime.prepare`",
        ));
    }
    let other = runtime.eval_prepare.as_ref().filter(|steps| **steps != runtime.prepare);
    if other.is_some() {
        problems.push(no_equal(
            "runtime.eval_prepare",
            "the grader's sandbox is made by the steps of `prepare`; leave it null, or use \
             `grading.setup` of POST /api/tasks for steps that only graders see",
        ));
    }
}

fn kind(backend: &str, problems: &mut Problems) -> RuntimeKind {
    match backend {
        "docker" => RuntimeKind::Docker,
        "apptainer" => RuntimeKind::Apptainer,
        _ => {
            problems.push(FieldProblem::new(
                "runtime.backend",
                format!("is {backend:?}, and there are docker and apptainer"),
                r#""docker""#,
            ));
            RuntimeKind::Docker
        }
    }
}

fn network(said: Option<&str>, allow_internet: bool, problems: &mut Problems) -> Network {
    match said {
        Some("none") => Network::None,
        None | Some("host" | "bridge") if allow_internet => Network::Open,
        None | Some("host" | "bridge") => Network::None,
        Some(_) => {
            problems.push(no_equal(
                "runtime.network",
                "say \"host\" or \"bridge\" for an open network, \"none\" for one that leads to the \
                 session's own gateway only",
            ));
            Network::None
        }
    }
}

fn mounts(kwargs: &serde_json::Map<String, Value>, problems: &mut Problems) -> Vec<MountSpec> {
    let mut mounts = Vec::new();
    for (name, value) in kwargs {
        let at = format!("runtime.kwargs.{name}");
        match (name.as_str(), value.as_array()) {
            ("volumes", Some(volumes)) => {
                for (index, volume) in volumes.iter().enumerate() {
                    let at = format!("{at}[{index}]");
                    mounts.extend(mount(&at, volume.as_str().unwrap_or_default(), problems));
                }
            }
            ("volumes", None) if value.is_null() => {}
            _ => problems.push(no_equal(at, "of `kwargs`, `volumes` is known, a list of texts")),
        }
    }
    mounts
}

/// `source:target[:ro|rw]`.
fn mount(at: &str, volume: &str, problems: &mut Problems) -> Option<MountSpec> {
    let parts: Vec<&str> = volume.split(':').collect();
    let (source, target, read_only) = match parts.as_slice() {
        [source, target] | [source, target, "rw"] => (source, target, false),
        [source, target, "ro"] => (source, target, true),
        _ => {
            problems.push(FieldProblem::new(
                at,
                "must be `source:target`, with `:ro` or `:rw` behind it or nothing",
                r#""/data/repos:/repos:ro""#,
            ));
            return None;
        }
    };
    Some(MountSpec { source: (*source).to_owned(), target: Some((*target).to_owned()), read_only })
}

/// One step as those it is made of here.
fn prepare(
    at: &str,
    step: &Step,
    budget: &mut Budget<'_>,
    problems: &mut Problems,
) -> Vec<PrepareStep> {
    let found = match step.kind.as_str() {
        "exec" => exec(at, step).map(|step| vec![step]),
        "upload_file" | "upload_dir" => upload(at, step, budget),
        other => Err(FieldProblem::new(
            format!("{at}.type"),
            format!("is {other:?}, and there are exec, upload_file and upload_dir"),
            r#""exec""#,
        )),
    };
    found.unwrap_or_else(|problem| {
        problems.push(problem);
        Vec::new()
    })
}

fn upload(
    at: &str,
    step: &Step,
    budget: &mut Budget<'_>,
) -> Result<Vec<PrepareStep>, FieldProblem> {
    let missing =
        |field: &str| FieldProblem::new(format!("{at}.{field}"), "is missing", r#""/path/to/it""#);
    let source = step.source.as_deref().ok_or_else(|| missing("source"))?;
    let target = step.target.as_deref().ok_or_else(|| missing("target"))?;
    let wants_folder = step.kind == "upload_dir";
    budget.steps(&format!("{at}.source"), source, target, wants_folder)
}

fn exec(at: &str, step: &Step) -> Result<PrepareStep, FieldProblem> {
    let command = step.command.as_deref().unwrap_or_default();
    if command.trim().is_empty() {
        let what = "must be a shell command";
        return Err(FieldProblem::new(format!("{at}.command"), what, r#""pip install -e .""#));
    }
    if !(1..=10).contains(&step.max_attempts) {
        return Err(FieldProblem::new(
            format!("{at}.max_attempts"),
            "must be between 1 and 10",
            "3",
        ));
    }
    if !(0.0..=60.0).contains(&step.retry_backoff_seconds) {
        let what = "must be between 0 and 60 seconds";
        return Err(FieldProblem::new(format!("{at}.retry_backoff_seconds"), what, "1.0"));
    }
    Ok(PrepareStep::Exec {
        command: tried_again(&in_login_shell(command), step),
        workdir: step.cwd.clone(),
        env: step.env.clone().unwrap_or_default(),
        attempts: 1,
    })
}

/// The command, and where it may fail, again after pauses that double up to five seconds.
fn tried_again(command: &str, step: &Step) -> String {
    if step.max_attempts <= 1 {
        return command.to_owned();
    }
    const LONGEST: f64 = 5.0;
    let mut script = format!("attempt() {{ {command}\n}}\nattempt");
    let mut pause = step.retry_backoff_seconds;
    for _ in 1..step.max_attempts {
        script.push_str(&format!(" || {{ sleep {}; attempt; }}", pause.min(LONGEST)));
        pause *= 2.0;
    }
    script
}
