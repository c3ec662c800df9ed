//! The parts of a task. Those with a short form accept a bare string as well.

use super::Known;
use super::extras::{McpServer, Skill};
use super::hosts::AllowedHost;
use super::images;
use super::short_form::short_form;
use crate::{EventKind, FieldProblem};
use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Which agent program to run, and with what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct HarnessSpec {
    /// Adapter name, for example `pi` or `claude_code`, or the name inside `adapter`.
    pub name: String,
    /// An adapter given inline instead of a shipped one (the YAML file as JSON).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub adapter: Option<serde_json::Value>,
    /// Model name the harness is told; the adapter's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Command line, for the `shell` harness only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Environment variables added to the adapter's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// MCP servers whose tools it may use, where its program takes any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<McpServer>,
    /// Skills that it may look up, where its program has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<Skill>,
    /// Values for the settings that the adapter declares.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// Names of the adapter's normalisation rules that are not applied, so that the text they
    /// would take out stays in the prompts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
}

short_form!(HarnessSpec, "a harness name such as \"pi\", or an object with `name`", |word| Ok(
    HarnessSpec::named(word)
));

impl HarnessSpec {
    /// The short form: a shipped adapter with its defaults.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            adapter: None,
            model: None,
            command: None,
            env: BTreeMap::new(),
            mcp_servers: Vec::new(),
            skills: Vec::new(),
            settings: serde_json::Map::new(),
            keep: Vec::new(),
        }
    }

    pub(super) fn check(&self, known: &Known, problems: &mut Vec<FieldProblem>) {
        if self.adapter.is_none() && !known.harnesses.contains(&self.name) {
            problems.push(FieldProblem::new(
                "harness.name",
                format!(
                    "no adapter is called {:?}; shipped are {}; one of your own is given whole in \
                     harness.adapter, or by harness.path in a task file",
                    self.name,
                    known.harnesses.join(", ")
                ),
                r#""pi""#,
            ));
        }
        let is_shell = self.name == "shell" && self.adapter.is_none();
        if is_shell && self.command.as_deref().is_none_or(|c| c.trim().is_empty()) {
            problems.push(FieldProblem::new(
                "harness.command",
                "the shell harness needs a command line",
                r#""python agent.py""#,
            ));
        }
        // Of a name that nobody knows it may be right.
        let is_known = self.adapter.is_some() || known.harnesses.contains(&self.name);
        if !is_shell && is_known && self.command.is_some() {
            problems.push(FieldProblem::new(
                "harness.command",
                "only the shell harness takes a command; others build theirs from the adapter: leave \
                 it out",
                "null",
            ));
        }
        if self.command.as_deref().is_some_and(|command| command.contains('\0')) {
            problems.push(nul("harness.command"));
        }
        McpServer::check_all(&self.mcp_servers, problems);
        Skill::check_all(&self.skills, problems);
        if let Some(find) = known.harness_problems.filter(|_| is_known) {
            problems.extend(find(self));
        }
    }
}

/// No program can be given such a character.
pub(super) fn nul(field: impl Into<String>) -> FieldProblem {
    FieldProblem::new(field, "must not hold a NUL character", r#""python agent.py""#)
}

/// What kind of isolation a session gets.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeKind {
    /// bubblewrap on the node itself, or a plain process where the node allows that.
    #[default]
    Local,
    /// A Docker container.
    Docker,
    /// A container of Podman's, without root when the node runs without.
    Podman,
    /// An Apptainer container, without root.
    Apptainer,
}

impl RuntimeKind {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Local, Self::Docker, Self::Podman, Self::Apptainer];

    /// The name used in JSON and in a node's list of runtimes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Apptainer => "apptainer",
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether it is made of an image.
    pub fn takes_image(self) -> bool {
        self != Self::Local
    }
}

/// What the sandbox may reach.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Its own gateway, the `allowed_hosts`, and nothing else.
    #[default]
    None,
    /// Whatever the node can reach.
    Open,
}

/// Where the harness runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct RuntimeSpec {
    /// Kind of isolation.
    #[serde(rename = "type", default)]
    pub kind: RuntimeKind,
    /// Container image, for container runtimes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Folder the harness works in, as seen inside; created when missing.
    #[serde(default = "default_workdir")]
    pub workdir: String,
    /// Steps run inside before the harness, in order.
    #[serde(default)]
    pub prepare: Vec<PrepareStep>,
    /// Environment of every command inside.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What may be reached.
    #[serde(default)]
    pub network: Network,
    /// Hosts that a closed network leads to all the same, by an HTTP proxy that commands find in
    /// their environment: `pypi.org`, `*.debian.org`, `10.0.0.5:8080`. Ports are 80 and 443
    /// unless one is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<String>,
    /// CPU cores, may be fractional.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Memory limit in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Most processes at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// User inside a container, as `name`, `uid` or `uid:gid`; the image's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Most that the sandbox's files may hold, in MiB; a command that writes more is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_mb: Option<u64>,
    /// GPUs of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Folders of the node shown inside, which the node's operator has to allow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountSpec>,
}

/// A folder of the node that is shown inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountSpec {
    /// Path on the node.
    pub source: String,
    /// Path inside; the same as on the node when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Whether nothing can be written there.
    #[serde(default = "yes")]
    pub read_only: bool,
}

fn yes() -> bool {
    true
}

impl MountSpec {
    /// Path inside.
    pub fn target(&self) -> &str {
        self.target.as_deref().unwrap_or(&self.source)
    }

    fn check(&self, at: &str, problems: &mut Vec<FieldProblem>) {
        for (field, path) in [("source", self.source.as_str()), ("target", self.target())] {
            let plain = path.starts_with('/') && !path.contains('\0');
            if !plain || path.split('/').any(|part| part == "..") {
                problems.push(FieldProblem::new(
                    format!("{at}.{field}"),
                    "must be an absolute path without `..`",
                    r#""/data/repos""#,
                ));
            }
        }
    }
}

fn default_workdir() -> String {
    "/workspace".to_owned()
}

short_form!(
    RuntimeSpec,
    "a runtime name (\"local\", \"docker\", \"podman\" or \"apptainer\"), or an object with `type`",
    |word| RuntimeKind::named(word).map(RuntimeSpec::of_kind).ok_or_else(|| {
        let known = RuntimeKind::ALL.map(|kind| format!("{:?}", kind.as_str())).join(", ");
        format!("unknown runtime {word:?}; use one of {known}")
    })
);

impl Default for RuntimeSpec {
    fn default() -> Self {
        Self::of_kind(RuntimeKind::Local)
    }
}

impl RuntimeSpec {
    /// The short form: a kind with its defaults.
    pub fn of_kind(kind: RuntimeKind) -> Self {
        Self {
            kind,
            image: None,
            workdir: default_workdir(),
            prepare: Vec::new(),
            env: BTreeMap::new(),
            network: Network::None,
            allowed_hosts: Vec::new(),
            cpus: None,
            memory_mb: None,
            pids: None,
            user: None,
            storage_mb: None,
            gpus: None,
            mounts: Vec::new(),
        }
    }

    /// Hosts that a closed network leads to. What names none was refused with the task.
    pub fn hosts(&self) -> Vec<AllowedHost> {
        self.allowed_hosts.iter().filter_map(|host| host.parse().ok()).collect()
    }

    /// Whether anything but the gateway may be reached.
    pub fn leads_out(&self) -> bool {
        self.network == Network::Open || !self.allowed_hosts.is_empty()
    }

    pub(super) fn check(&self, problems: &mut Vec<FieldProblem>) {
        let mut problem = |field: &str, what: &str, example: &str| {
            problems.push(FieldProblem::new(format!("runtime.{field}"), what, example));
        };
        match self.kind {
            RuntimeKind::Docker | RuntimeKind::Podman => {
                if self.image.as_deref().is_none_or(|i| i.trim().is_empty()) {
                    let what = format!("a {} runtime needs an image", self.kind.as_str());
                    problem("image", &what, r#""debian:12""#);
                } else if let Some(why) = self.image.as_deref().and_then(images::why_no_reference)
                    // Podman takes names of other places than registries.
                    && (self.kind == RuntimeKind::Docker || !why.ends_with("://`"))
                {
                    let what = format!("is no name that an image can have: {why}");
                    problem("image", &what, r#""debian:12""#);
                }
            }
            RuntimeKind::Apptainer => {
                if self.image.as_deref().is_none_or(|i| i.trim().is_empty()) {
                    let what = "an apptainer runtime needs an image: the path of a SIF file, an \
                                archive or a sandbox folder on the node, or a URI";
                    problem("image", what, r#""/images/debian.sif""#);
                }
            }
            RuntimeKind::Local => {
                if self.image.is_some() {
                    problem(
                        "image",
                        "the local runtime has none; leave it out or use docker, podman or \
                         apptainer",
                        "null",
                    );
                }
            }
        }
        let without_users = matches!(self.kind, RuntimeKind::Local | RuntimeKind::Apptainer);
        let refused = [
            ("user", without_users && self.user.is_some(), "docker or podman"),
            ("gpus", self.kind != RuntimeKind::Docker && self.gpus > Some(0), "docker"),
        ];
        for (field, _, others) in refused.into_iter().filter(|(_, refused, _)| *refused) {
            let name = self.kind.as_str();
            let what =
                format!("the {name} runtime cannot hold to this; leave it out or use {others}");
            problem(field, &what, "null");
        }
        for (index, host) in self.allowed_hosts.iter().enumerate() {
            let field = format!("allowed_hosts[{index}]");
            match host.parse::<AllowedHost>() {
                Err(refused) => problem(&field, &refused.to_string(), r#""pypi.org""#),
                Ok(host) if host.is_localhost() => {
                    let what = "no name leads a sandbox to the node itself; say the address";
                    problem(&field, what, r#""127.0.0.1:8080""#);
                }
                Ok(_) => {}
            }
        }
        if self.network == Network::Open && !self.allowed_hosts.is_empty() {
            let what =
                "an open network reaches all hosts; leave this out, or set `network` to none";
            problem("allowed_hosts", what, "[]");
        }
        if !self.workdir.starts_with('/') {
            problem("workdir", "must be an absolute path inside the sandbox", r#""/workspace""#);
        }
        if self.cpus.is_some_and(|c| !c.is_finite() || c < 0.01) {
            problem("cpus", "must be at least 0.01", "2.0");
        }
        if self.memory_mb.is_some_and(|m| m < 16) {
            problem("memory_mb", "must be at least 16", "4096");
        }
        if self.pids.is_some_and(|pids| pids < 16) {
            problem("pids", "must be at least 16, of which the sandbox itself needs some", "512");
        }
        if self.storage_mb.is_some_and(|mb| mb < 16) {
            problem("storage_mb", "must be at least 16", "10240");
        }
        if self.gpus == Some(0) {
            problem("gpus", "must be at least 1; leave it out for none", "null");
        }
        for (index, mount) in self.mounts.iter().enumerate() {
            mount.check(&format!("runtime.mounts[{index}]"), problems);
        }
        for (index, step) in self.prepare.iter().enumerate() {
            step.check(&format!("runtime.prepare[{index}]"), problems);
        }
    }
}

/// How the content of a written file is spelled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// The text itself.
    #[default]
    Utf8,
    /// Standard base64 with padding, for binary files.
    Base64,
}

/// One step of setting a sandbox up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum PrepareStep {
    /// Writes one file; parents are created.
    WriteFile {
        /// Absolute, or relative to the work folder.
        path: String,
        /// What goes in.
        content: String,
        /// How `content` is spelled.
        #[serde(default)]
        encoding: Encoding,
        /// Whether it gets the executable bits.
        #[serde(default)]
        executable: bool,
    },
    /// Runs a shell command. One that ends with another exit code than 0, as often as it may be
    /// tried, fails the session's attempt.
    Exec {
        /// Given to `sh -c`.
        command: String,
        /// Folder it runs in; the work folder when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workdir: Option<String>,
        /// Environment variables of this command only.
        #[serde(default)]
        env: BTreeMap<String, String>,
        /// Times that it is run before it has failed, in the same sandbox, with pauses that double
        /// from half a second: for commands that fetch something.
        #[serde(default = "once", skip_serializing_if = "is_once")]
        #[schema(default = 1)]
        attempts: u32,
    },
    /// Takes out of a git repository what its checked-out commit does not build upon: other
    /// branches, later tags, remotes, the reflog, stashes, and the objects of all of them.
    ScrubGit {
        /// Folder of the repository; the work folder when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
    },
}

fn once() -> u32 {
    1
}

fn is_once(attempts: &u32) -> bool {
    *attempts == 1
}

/// Most times that a step is tried.
const MOST_ATTEMPTS: u32 = 10;

impl PrepareStep {
    pub(super) fn check(&self, at: &str, problems: &mut Vec<FieldProblem>) {
        match self {
            Self::WriteFile { path, .. }
                if path.is_empty() || path.split('/').any(|p| p == "..") =>
            {
                problems.push(FieldProblem::new(
                    format!("{at}.path"),
                    "must be a file path without `..`",
                    r#""src/main.py""#,
                ));
            }
            Self::Exec { command, .. } if command.trim().is_empty() => {
                problems.push(FieldProblem::new(
                    format!("{at}.command"),
                    "must be a shell command",
                    r#""pip install -e .""#,
                ));
            }
            Self::Exec { command, .. } if command.contains('\0') => {
                problems.push(nul(format!("{at}.command")));
            }
            Self::Exec { attempts, .. } if !(1..=MOST_ATTEMPTS).contains(attempts) => {
                problems.push(FieldProblem::new(
                    format!("{at}.attempts"),
                    format!("must be between 1 and {MOST_ATTEMPTS}, not {attempts}"),
                    "3",
                ));
            }
            Self::WriteFile { path, .. } if path.contains('\0') => {
                problems.push(FieldProblem::new(
                    format!("{at}.path"),
                    "must not hold a NUL character",
                    r#""src/main.py""#,
                ));
            }
            Self::ScrubGit { path: Some(path) } if path.is_empty() || path.contains('\0') => {
                problems.push(FieldProblem::new(
                    format!("{at}.path"),
                    "must be the folder of a git repository",
                    r#""/testbed""#,
                ));
            }
            Self::WriteFile { .. } | Self::Exec { .. } | Self::ScrubGit { .. } => {}
        }
    }
}

/// How the calls of a session become traces.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum TrajectoryStrategy {
    /// One trace per call.
    PerRequest,
    /// One trace per chain of calls whose prompts extend each other token by token.
    #[default]
    PrefixMerging,
    /// The same chains, with the beginnings they share stored once, for trainers whose
    /// attention follows a tree.
    PrefixTree,
}

impl TrajectoryStrategy {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PerRequest => "per_request",
            Self::PrefixMerging => "prefix_merging",
            Self::PrefixTree => "prefix_tree",
        }
    }
}

impl Serialize for TrajectoryStrategy {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, s)
    }
}

impl<'de> Deserialize<'de> for TrajectoryStrategy {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Long {
            #[serde(rename = "type", with = "TrajectoryStrategy")]
            kind: TrajectoryStrategy,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = TrajectoryStrategy;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "\"prefix_merging\", \"per_request\" or \"prefix_tree\", or an object with `type`",
                )
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<TrajectoryStrategy, E> {
                TrajectoryStrategy::deserialize(de::value::StrDeserializer::new(word))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TrajectoryStrategy, A::Error> {
                Long::deserialize(MapAccessDeserializer::new(map)).map(|long| long.kind)
            }
        }
        d.deserialize_any(Either)
    }
}

/// Time limits of the stages, in seconds. Each stage has its own, so that a session
/// whose agent runs out of time is still graded and still yields its trajectory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Budgets {
    /// Sandbox up, files in, set-up commands done.
    pub prepare_seconds: f64,
    /// The harness, from its start.
    pub run_seconds: f64,
    /// Trajectory built and result evaluated.
    pub grade_seconds: f64,
}

impl Default for Budgets {
    fn default() -> Self {
        Self { prepare_seconds: 600.0, run_seconds: 1800.0, grade_seconds: 600.0 }
    }
}

impl Budgets {
    pub(super) fn check(&self, problems: &mut Vec<FieldProblem>) {
        /// Thirty days: longer than any run, short enough for every timer.
        const MOST: f64 = 2_592_000.0;
        for (field, value) in [
            ("prepare_seconds", self.prepare_seconds),
            ("run_seconds", self.run_seconds),
            ("grade_seconds", self.grade_seconds),
        ] {
            if !value.is_finite() || value <= 0.0 || value > MOST {
                problems.push(FieldProblem::new(
                    format!("budgets.{field}"),
                    format!("must be above 0 and at most {MOST} seconds"),
                    "600",
                ));
            }
        }
    }
}

/// Who is told when a session ends.
#[derive(Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Callback {
    /// Receives a POST for each end.
    pub url: String,
    /// Key of the HMAC-SHA256 signature in the `polar-signature` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// What is told, and when.
    #[serde(default, skip_serializing_if = "CallbackFormat::is_ends")]
    pub format: CallbackFormat,
}

/// What a callback tells, and when.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CallbackFormat {
    /// Each end, of a session and of the task: what happened, without traces.
    #[default]
    Ends,
    /// The task's end alone: its whole result with all traces, as the published Polar tells it.
    TaskResult,
}

impl CallbackFormat {
    fn is_ends(&self) -> bool {
        *self == Self::Ends
    }

    /// Whether something of this kind is told.
    pub fn tells_of(self, kind: EventKind) -> bool {
        match self {
            Self::Ends => matches!(
                kind,
                EventKind::SessionEnded
                    | EventKind::SessionRegraded
                    | EventKind::SessionRegradeFailed
                    | EventKind::TaskEnded
            ),
            Self::TaskResult => kind == EventKind::TaskEnded,
        }
    }
}

short_form!(Callback, "a URL, or an object with `url` and `secret`", |word| Ok(Callback {
    url: word.to_owned(),
    secret: None,
    format: CallbackFormat::default(),
}));

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = self.secret.as_ref().map(|_| "…");
        f.debug_struct("Callback")
            .field("url", &self.url)
            .field("secret", &secret)
            .field("format", &self.format)
            .finish()
    }
}

impl Callback {
    pub(super) fn check(&self, problems: &mut Vec<FieldProblem>) {
        if !(self.url.starts_with("http://") || self.url.starts_with("https://")) {
            problems.push(FieldProblem::new(
                "callback.url",
                "must be an http or https URL",
                r#""http://trainer:9000/results""#,
            ));
        }
    }
}
