//! Harbor (Terminal-Bench) task folders.
//!
//! ```text
//! task.toml  instruction.md  environment/  tests/test.sh  [solution/solve.sh]
//! ```
//! The tests become steps of `grading.setup`, so that the agent never sees them; what they tell
//! in `/logs/verifier` is the reward.

use super::harbor_image::{self, Recipe};
use super::{image, read, task_id, template};
use crate::args::ImportHarbor;
use crate::task_file;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// How long an agent may work where a task does not say.
const RUN_SECONDS: f64 = 1800.0;
const TESTS: &str = "/tests";
const SOLUTION: &str = "/solution";

/// Keys that say nothing about how a task runs here. Others that are not read are told of.
const INERT: [&str; 8] = [
    "version",
    "schema_version",
    "source",
    "task.description",
    "task.authors",
    "task.keywords",
    "environment.build_timeout_sec",
    "environment.gpu_types",
];

/// What Polar reads of a `task.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    task: Option<Named>,
    metadata: Map<String, Value>,
    verifier: Verifier,
    agent: Agent,
    environment: Environment,
    solution: Solution,
    steps: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Solution {
    env: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Verifier {
    timeout_sec: Option<f64>,
    env: BTreeMap<String, String>,
    user: Option<Value>,
    environment_mode: Option<String>,
    network_mode: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Agent {
    timeout_sec: Option<f64>,
    user: Option<Value>,
    network_mode: Option<String>,
    allowed_hosts: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Environment {
    docker_image: Option<String>,
    workdir: Option<String>,
    cpus: Option<f64>,
    memory_mb: Option<u64>,
    memory: Option<String>,
    storage_mb: Option<u64>,
    storage: Option<String>,
    gpus: u32,
    os: Option<String>,
    allow_internet: Option<bool>,
    network_mode: Option<String>,
    allowed_hosts: Vec<String>,
    env: BTreeMap<String, String>,
    mcp_servers: Vec<McpServer>,
    skills_dir: Option<String>,
    healthcheck: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct McpServer {
    name: String,
    transport: Option<String>,
    url: Option<String>,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
}

impl Config {
    /// The agent's network: its mode, and the hosts of a mode that names some.
    fn network(&self) -> (Option<String>, &[String]) {
        match &self.agent.network_mode {
            Some(mode) => (Some(mode.clone()), &self.agent.allowed_hosts),
            None => (self.environment.network_mode.clone(), &self.environment.allowed_hosts),
        }
    }
}

impl McpServer {
    /// Whether it speaks the older protocol over HTTP.
    fn is_of_events(&self) -> bool {
        self.transport.as_deref() == Some("sse")
    }
}

pub(super) fn import(args: &ImportHarbor) -> Result<Vec<Value>> {
    let template = template(&args.common)?;
    let mut tasks = Vec::new();
    for folder in
        args.folders.iter().map(|folder| task_folders(folder)).collect::<Result<Vec<_>>>()?
    {
        for folder in folder {
            let task = task(&folder, args, template.clone())
                .with_context(|| format!("task folder {}", folder.display()))?;
            tasks.push(task);
        }
    }
    Ok(tasks)
}

/// The folder itself, or those in it.
fn task_folders(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.join("task.toml").is_file() {
        return Ok(vec![folder.to_owned()]);
    }
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.join("task.toml").is_file() {
            found.push(path);
        }
    }
    found.sort();
    ensure!(
        !found.is_empty(),
        "{} is no task folder and holds none: there is no task.toml. Older Terminal-Bench tasks \
         (task.yaml) are made into Harbor's form by Harbor first",
        folder.display()
    );
    Ok(found)
}

fn task(folder: &Path, args: &ImportHarbor, mut task: Map<String, Value>) -> Result<Value> {
    let config = config(folder)?;
    refuse_what_is_not_there(folder, &config)?;
    let name = name_of(folder, &config)?;
    let recipe = Recipe::read(&folder.join("environment"))?;
    let workdir = config
        .environment
        .workdir
        .clone()
        .or_else(|| recipe.as_ref().and_then(|recipe| recipe.workdir.clone()))
        .unwrap_or_else(|| "/app".to_owned());
    if !task.contains_key("runtime") {
        let own = config.environment.docker_image.clone();
        let image = match image(&args.common, &name, own) {
            Some(image) => image,
            None => harbor_image::image(&name, folder, recipe.as_ref(), args.build)?,
        };
        task.insert("runtime".to_owned(), runtime(&config, &image, &workdir)?);
    }
    task.insert("task_id".to_owned(), json!(task_id(&name)?));
    task.insert("instruction".to_owned(), json!(instruction(folder)?));
    task.insert(
        "evaluator".to_owned(),
        json!({"type": "harbor", "env": resolved(&config.verifier.env, "verifier.env")?}),
    );
    task.insert("grading".to_owned(), grading(folder, &config)?);
    let budgets = task.entry("budgets").or_insert_with(|| json!({}));
    budgets["run_seconds"] = json!(config.agent.timeout_sec.unwrap_or(RUN_SECONDS));
    budgets["grade_seconds"] = json!(config.verifier.timeout_sec.unwrap_or(600.0));
    let mut metadata = config.metadata;
    metadata.insert("harbor_task".to_owned(), json!(name));
    task.insert("metadata".to_owned(), Value::Object(metadata));
    if args.oracle {
        be_the_oracle(folder, &config.solution, &mut task)?;
    } else if !config.environment.mcp_servers.is_empty() {
        give_mcp_servers(&config.environment.mcp_servers, &mut task);
    }
    Ok(Value::Object(task))
}

/// The settings of a task folder. Keys that are not read are named on stderr, for they may be
/// misspelt, or of a newer form.
fn config(folder: &Path) -> Result<Config> {
    let text = read(&folder.join("task.toml"))?;
    let mut unread = Vec::new();
    let deserializer = toml::Deserializer::parse(&text).context("task.toml")?;
    let config = serde_ignored::deserialize(deserializer, |path| unread.push(path.to_string()))
        .context("task.toml")?;
    unread.retain(|key| !INERT.contains(&key.as_str()));
    if !unread.is_empty() {
        writeln!(
            std::io::stderr(),
            "warning: {}: nothing is done about {}",
            folder.join("task.toml").display(),
            unread.join(", ")
        )?;
    }
    Ok(config)
}

/// Half a task would be graded as if it were whole.
fn refuse_what_is_not_there(folder: &Path, config: &Config) -> Result<()> {
    let environment = &config.environment;
    let is_root = |user: &Value| *user == json!("root") || *user == json!(0);
    let compose = folder.join("environment/docker-compose.yaml").is_file();
    let what = if !config.steps.is_empty() || folder.join("steps").is_dir() {
        "several steps"
    } else if compose {
        "several containers (environment/docker-compose.yaml)"
    } else if environment.gpus > 0 {
        "GPUs (environment.gpus)"
    } else if environment.os.as_deref().is_some_and(|os| os != "linux") {
        "another system than Linux (environment.os)"
    } else if environment.healthcheck.is_some() {
        "a health check (environment.healthcheck)"
    } else if environment.skills_dir.is_some() {
        "skills from a folder of its image (environment.skills_dir)"
    } else if environment.mcp_servers.iter().any(McpServer::is_of_events) {
        "an MCP server that speaks server-sent events (environment.mcp_servers)"
    } else if config.verifier.network_mode.is_some()
        && config.verifier.network_mode != config.network().0
    {
        "tests with another network than the agent's (verifier.network_mode)"
    } else if config.agent.user.as_ref().is_some_and(|user| !is_root(user)) {
        "an agent that runs as another user than its tests (agent.user)"
    } else if config.verifier.user.as_ref().is_some_and(|user| !is_root(user)) {
        "tests that run as another user (verifier.user)"
    } else if !folder.join("tests/test.sh").is_file() {
        bail!("there is no tests/test.sh");
    } else {
        return Ok(());
    };
    bail!("it asks for {what}, which cannot be imported")
}

fn name_of(folder: &Path, config: &Config) -> Result<String> {
    let named = config.task.as_ref().and_then(|task| task.name.clone());
    let folder = folder.canonicalize()?;
    let own = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    named.or(own).context("a task folder has a name")
}

/// Without the lines at its head that only mark it as no training data.
fn instruction(folder: &Path) -> Result<String> {
    let text = read(&folder.join("instruction.md"))?;
    let marks = |line: &&str| {
        let line = line.trim();
        line.is_empty()
            || ((line.starts_with('#') || line.starts_with("<!--"))
                && line.to_ascii_lowercase().contains("canary"))
    };
    let kept: Vec<&str> = text.lines().skip_while(marks).collect();
    let text = kept.join("\n").trim().to_owned();
    ensure!(!text.is_empty(), "instruction.md says nothing");
    Ok(text)
}

fn runtime(config: &Config, image: &str, workdir: &str) -> Result<Value> {
    let environment = &config.environment;
    let (mode, allowed_hosts) = config.network();
    let open = match mode.as_deref() {
        Some(mode) => mode == "public",
        None => environment.allow_internet.unwrap_or(true),
    };
    let mut runtime = json!({
        "type": "docker",
        "image": image,
        "workdir": workdir,
        "network": if open { "open" } else { "none" },
        "env": resolved(&environment.env, "environment.env")?,
    });
    if mode.as_deref() == Some("allowlist") {
        runtime["allowed_hosts"] = json!(allowed_hosts);
    }
    if let Some(cpus) = environment.cpus {
        runtime["cpus"] = json!(cpus);
    }
    let sizes = [
        ("memory", environment.memory_mb, &environment.memory),
        ("storage", environment.storage_mb, &environment.storage),
    ];
    for (name, number, text) in sizes {
        let size = match (number, text) {
            (None, Some(text)) => Some(megabytes(name, text)?),
            (number, _) => number,
        };
        if let Some(size) = size {
            runtime[format!("{name}_mb")] = json!(size);
        }
    }
    Ok(runtime)
}

/// `2G`, `512M`.
fn megabytes(name: &str, text: &str) -> Result<u64> {
    let text = text.trim().to_ascii_uppercase();
    let (number, factor) = match (text.strip_suffix('G'), text.strip_suffix('M')) {
        (Some(number), _) => (number, 1024.0),
        (_, Some(number)) => (number, 1.0),
        _ => bail!("environment.{name}: {text:?} is no size such as 2G or 512M"),
    };
    let number: f64 = number.parse().with_context(|| format!("environment.{name}: {text:?}"))?;
    Ok((number * factor) as u64)
}

/// `${NAME}` and `${NAME:-default}` as whole values, taken from this process's environment.
fn resolved(env: &BTreeMap<String, String>, at: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for (name, value) in env {
        let inner = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let value = match inner {
            None => value.clone(),
            Some(inner) => {
                let (variable, default) = match inner.split_once(":-") {
                    Some((variable, default)) => (variable, Some(default.to_owned())),
                    None => (inner, None),
                };
                std::env::var(variable).ok().or(default).with_context(|| {
                    format!("{at}.{name} is taken from the variable {variable}, which is not set")
                })?
            }
        };
        found.insert(name.clone(), value);
    }
    Ok(found)
}

fn grading(folder: &Path, config: &Config) -> Result<Value> {
    let clean = format!("rm -rf {TESTS} && mkdir -p {TESTS}");
    let mut setup = vec![json!({"type": "exec", "command": clean, "workdir": "/"})];
    setup.extend(task_file::uploaded(&folder.join("tests"), TESTS)?);
    let mut grading = json!({"setup": setup});
    if config.verifier.environment_mode.as_deref() == Some("separate") {
        grading["sandbox"] = json!("fresh");
    }
    Ok(grading)
}

/// The folder's own solution, as if it were an agent.
fn be_the_oracle(folder: &Path, own: &Solution, task: &mut Map<String, Value>) -> Result<()> {
    let solution = folder.join("solution");
    ensure!(solution.join("solve.sh").is_file(), "there is no solution/solve.sh for --oracle");
    let command = format!("bash {SOLUTION}/solve.sh");
    let mut harness = json!({"name": "shell", "command": command});
    if !own.env.is_empty() {
        harness["env"] = json!(resolved(&own.env, "solution.env")?);
    }
    task.insert("harness".to_owned(), harness);
    if let Some(Value::Object(runtime)) = task.get_mut("runtime") {
        let steps = runtime.entry("prepare").or_insert_with(|| json!([]));
        if let Value::Array(steps) = steps {
            steps.extend(task_file::uploaded(&solution, SOLUTION)?);
        }
    }
    Ok(())
}

fn give_mcp_servers(servers: &[McpServer], task: &mut Map<String, Value>) {
    let harness = task.entry("harness").or_insert(Value::Null);
    if let Value::String(name) = harness {
        *harness = json!({"name": name});
    }
    let servers: Vec<Value> = servers
        .iter()
        .map(|server| match &server.url {
            Some(url) => json!({"name": server.name, "url": url}),
            None => json!({"name": server.name, "command": server.command, "args": server.args}),
        })
        .collect();
    harness["mcp_servers"] = json!(servers);
}
