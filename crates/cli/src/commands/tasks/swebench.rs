//! Instances of SWE-bench and SWE-Gym.
//!
//! The agent gets the problem and the repository at its base commit, without its future; the
//! test patch is the evaluator's alone.

use super::{image, read, task_id, template};
use crate::args::ImportSwebench;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Where the benchmark's images have the repository, and how they make its programs known.
const REPOSITORY: &str = "/testbed";
const ACTIVATE: &str = ". /opt/miniconda3/bin/activate testbed && ";
/// Where an instance's own patch lies for `--oracle`.
const GOLD: &str = "/tmp/gold.patch";

/// Endings of files of a test patch that are no tests.
const NO_TESTS: [&str; 12] = [
    ".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml",
    ".cfg",
];

/// How the benchmark runs a repository's tests; pytest for any other.
const TEST_COMMANDS: [(&str, &str); 8] = [
    ("astropy/astropy", "pytest -rA -vv -o console_output_style=classic --tb=no"),
    ("django/django", "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"),
    ("matplotlib/matplotlib", "pytest -rA"),
    ("mwaskom/seaborn", "pytest --no-header -rA"),
    ("pytest-dev/pytest", "pytest -rA"),
    ("psf/requests", "pytest -rA"),
    ("sphinx-doc/sphinx", "tox --current-env -epy39 -v --"),
    (
        "sympy/sympy",
        "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
    ),
];
const PYTEST: &str = "pytest --no-header -rA --tb=no -p no:cacheprovider";

pub(super) fn import(args: &ImportSwebench) -> Result<Vec<Value>> {
    let template = template(&args.common)?;
    let mut tasks = Vec::new();
    for (number, instance) in instances(&args.file)?.into_iter().enumerate() {
        let id = text(&instance, "instance_id").with_context(|| format!("instance {number}"))?;
        if !args.only.is_empty() && !args.only.contains(&id) {
            continue;
        }
        let task = task(&id, &instance, args, template.clone())
            .with_context(|| format!("instance {id}"))?;
        tasks.push(task);
    }
    let missing: Vec<_> = args
        .only
        .iter()
        .filter(|id| tasks.iter().all(|task| task["evaluator"]["instance_id"] != **id))
        .collect();
    ensure!(missing.is_empty(), "there is no instance {missing:?} in {}", args.file.display());
    Ok(tasks)
}

/// A JSON array, or an object in each line.
fn instances(file: &Path) -> Result<Vec<Value>> {
    let content = read(file)?;
    if content.trim_start().starts_with('[') {
        return serde_json::from_str(&content).with_context(|| file.display().to_string());
    }
    let lines = content.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            serde_json::from_str(line)
                .with_context(|| format!("{}, line {}: not JSON", file.display(), index + 1))
        })
        .collect()
}

fn task(
    id: &str,
    instance: &Value,
    args: &ImportSwebench,
    mut task: Map<String, Value>,
) -> Result<Value> {
    let repo = text(instance, "repo")?;
    let test_patch = text(instance, "test_patch")?;
    let own_runtime = task.contains_key("runtime");
    if !own_runtime {
        let own = ["image_name", "docker_image", "image"]
            .iter()
            .find_map(|field| instance[*field].as_str())
            .map_or_else(|| published_image(id), str::to_owned);
        task.insert(
            "runtime".to_owned(),
            json!({
                "type": "docker",
                "image": image(&args.common, id, Some(own)),
                "workdir": REPOSITORY,
                "prepare": [{"type": "scrub_git", "path": REPOSITORY}],
            }),
        );
    }
    task.insert("task_id".to_owned(), json!(task_id(id)?));
    task.insert("instruction".to_owned(), json!(text(instance, "problem_statement")?.trim()));
    let mut evaluator = json!({
        "type": "swebench",
        "instance_id": id,
        "repo": repo,
        "test_patch": test_patch,
        "fail_to_pass": names(instance, "FAIL_TO_PASS")?,
        "pass_to_pass": names(instance, "PASS_TO_PASS")?,
        "test_command": test_command(instance, &repo, &test_patch, args, own_runtime)?,
    });
    // A repository of a template's own making has other commits.
    if let (Some(commit), false) = (instance["base_commit"].as_str(), own_runtime) {
        evaluator["base_commit"] = json!(commit);
    }
    if let Some(parser) = instance["log_parser"].as_str() {
        let parser = parser.strip_prefix("parse_log_").unwrap_or(parser);
        evaluator["log_parser"] = json!(parser);
    }
    task.insert("evaluator".to_owned(), evaluator);
    let metadata = task.entry("metadata").or_insert_with(|| json!({}));
    metadata["instance_id"] = json!(id);
    metadata["repo"] = json!(repo);
    if args.oracle {
        be_the_oracle(instance, &mut task)?;
    }
    Ok(Value::Object(task))
}

/// The images that the benchmark's makers publish.
fn published_image(id: &str) -> String {
    format!("swebench/sweb.eval.x86_64.{}:latest", id.to_lowercase().replace("__", "_1776_"))
}

fn test_command(
    instance: &Value,
    repo: &str,
    test_patch: &str,
    args: &ImportSwebench,
    own_runtime: bool,
) -> Result<String> {
    let own =
        instance["test_cmd"].as_str().or_else(|| instance["install_config"]["test_cmd"].as_str());
    let known = TEST_COMMANDS.iter().find(|(name, _)| *name == repo).map(|(_, command)| *command);
    let command = args.test_command.as_deref().or(own).or(known).unwrap_or(PYTEST);
    let files = test_files(repo, test_patch);
    ensure!(!files.is_empty(), "its test patch has no file with tests");
    // The benchmark's images keep their programs in an environment; a template's do not.
    let activate = if own_runtime { "" } else { ACTIVATE };
    Ok(format!("{activate}{command} {}", files.join(" ")))
}

/// What is given to the tests' program: files, and modules for Django.
fn test_files(repo: &str, patch: &str) -> Vec<String> {
    let paths = patch
        .lines()
        .filter_map(|line| line.strip_prefix("diff --git ")?.split_once(" b/"))
        .map(|(_, path)| path.trim_end())
        .filter(|path| !NO_TESTS.iter().any(|ending| path.ends_with(ending)));
    if repo != "django/django" {
        return paths.map(quoted).collect();
    }
    paths
        .filter(|path| {
            let name = path.rsplit('/').next().unwrap_or(path);
            name == "tests.py"
                || name.starts_with("test_")
                || path.contains("/tests/")
                || path.contains("/test_")
        })
        .map(|path| {
            let path = path.strip_suffix(".py").unwrap_or(path);
            path.strip_prefix("tests/").unwrap_or(path).replace('/', ".")
        })
        .collect()
}

fn quoted(path: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_./-".contains(letter);
    match path.chars().all(plain) {
        true => path.to_owned(),
        false => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

/// The instance's own patch, as if an agent had made it.
fn be_the_oracle(instance: &Value, task: &mut Map<String, Value>) -> Result<()> {
    let patch = text(instance, "patch")?;
    task.insert(
        "harness".to_owned(),
        json!({"name": "shell", "command": format!("git apply -v {GOLD}")}),
    );
    let runtime = task.entry("runtime").or_insert_with(|| json!({"type": "local"}));
    if let Value::String(kind) = runtime {
        *runtime = json!({"type": kind});
    }
    let step = json!({"type": "write_file", "path": GOLD, "content": patch});
    match &mut runtime["prepare"] {
        Value::Array(steps) => steps.push(step),
        other => *other = json!([step]),
    }
    Ok(())
}

fn text(instance: &Value, field: &str) -> Result<String> {
    match &instance[field] {
        Value::String(text) => Ok(text.clone()),
        Value::Null => bail!("it has no `{field}`"),
        _ => bail!("its `{field}` is no text"),
    }
}

/// A list, or a text that holds one, as the published tables have it.
fn names(instance: &Value, field: &str) -> Result<Value> {
    let names = match &instance[field] {
        Value::String(text) => {
            serde_json::from_str(text).with_context(|| format!("its `{field}`"))?
        }
        Value::Null => json!([]),
        other => other.clone(),
    };
    let texts = names.as_array().is_some_and(|names| names.iter().all(Value::is_string));
    ensure!(texts, "its `{field}` is no list of names");
    Ok(names)
}
