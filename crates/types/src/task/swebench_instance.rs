//! An instance of SWE-bench or SWE-Gym, as its tables have it, as an evaluator.

use super::benchmarks::{SwebenchEvaluator, SwebenchLogParser};
use serde::Deserialize as _;
use serde_json::Value;

/// How the benchmark's images make the programs of an instance known.
const ACTIVATE: &str = ". /opt/miniconda3/bin/activate testbed && ";

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

/// What an instance lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// A field that must be there.
    #[error("it has no `{0}`")]
    Missing(String),
    /// A field of another shape.
    #[error("its `{0}` is no {1}")]
    Shape(String, &'static str),
    /// Nothing could be run.
    #[error("its test patch has no file with tests")]
    NoTests,
}

/// What an instance's table does not say.
#[derive(Debug, Clone, Copy, Default)]
pub struct InstanceTests<'a> {
    /// Runs the tests, instead of the instance's own command or the repository's.
    pub command: Option<&'a str>,
    /// Whether the image is one of the benchmark's, which keep their programs in an environment
    /// and have the instance's own commits.
    pub in_own_image: bool,
}

impl SwebenchEvaluator {
    /// The evaluator of an instance.
    pub fn of_instance(instance: &Value, tests: InstanceTests<'_>) -> Result<Self, InstanceError> {
        let repo = text(instance, "repo")?;
        let test_patch = text(instance, "test_patch")?;
        let commit = instance["base_commit"].as_str().filter(|_| tests.in_own_image);
        Ok(Self {
            instance_id: text(instance, "instance_id")?,
            test_command: test_command(instance, &repo, &test_patch, tests)?,
            base_commit: commit.map(str::to_owned),
            fail_to_pass: names(instance, "FAIL_TO_PASS")?,
            pass_to_pass: names(instance, "PASS_TO_PASS")?,
            log_parser: log_parser(instance)?,
            repo,
            test_patch,
            workdir: None,
            env: Default::default(),
        })
    }
}

fn log_parser(instance: &Value) -> Result<Option<SwebenchLogParser>, InstanceError> {
    let Some(said) = instance["log_parser"].as_str() else { return Ok(None) };
    let name = Value::from(said.strip_prefix("parse_log_").unwrap_or(said));
    let known = SwebenchLogParser::deserialize(&name);
    known.map(Some).map_err(|_| InstanceError::Shape("log_parser".to_owned(), "parser of logs"))
}

fn test_command(
    instance: &Value,
    repo: &str,
    test_patch: &str,
    tests: InstanceTests<'_>,
) -> Result<String, InstanceError> {
    let own =
        instance["test_cmd"].as_str().or_else(|| instance["install_config"]["test_cmd"].as_str());
    let known = TEST_COMMANDS.iter().find(|(name, _)| *name == repo).map(|(_, command)| *command);
    let command = tests.command.or(own).or(known).unwrap_or(PYTEST);
    let files = test_files(repo, test_patch);
    if files.is_empty() {
        return Err(InstanceError::NoTests);
    }
    let activate = if tests.in_own_image { ACTIVATE } else { "" };
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

fn text(instance: &Value, field: &str) -> Result<String, InstanceError> {
    match &instance[field] {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Err(InstanceError::Missing(field.to_owned())),
        _ => Err(InstanceError::Shape(field.to_owned(), "text")),
    }
}

/// A list, or a text that holds one, as the published tables have it.
fn names(instance: &Value, field: &str) -> Result<Vec<String>, InstanceError> {
    let wrong = || InstanceError::Shape(field.to_owned(), "list of names");
    match &instance[field] {
        Value::String(text) => serde_json::from_str(text).map_err(|_| wrong()),
        Value::Null => Ok(Vec::new()),
        other => Vec::deserialize(other).map_err(|_| wrong()),
    }
}
