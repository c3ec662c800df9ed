//! What there is to check of a session: its journal and its trajectory, from files or a server.

use crate::api::Api;
use crate::args::ServerAddress;
use anyhow::{Context, Result, bail};
use polar_record::RecordedSession;
use polar_types::{SessionInfo, SessionReport, Trajectory};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

/// A journal's first bytes.
const JOURNAL: &[u8] = b"POLARJNL";

/// What is known of one session.
#[derive(Default)]
pub(crate) struct Evidence {
    /// The session, and the file where that is needed to tell it from others.
    pub(crate) name: String,
    pub(crate) journal: Option<RecordedSession>,
    pub(crate) trajectory: Option<Trajectory>,
    /// What cannot be checked, and why.
    pub(crate) notes: Vec<String>,
    /// A file that is not what the server's list says.
    pub(crate) damage: Option<String>,
}

/// One session to look at, loaded when its turn comes: a task's may be larger than memory.
pub(crate) enum Source {
    Loaded(Box<Evidence>),
    OnServer(Box<SessionInfo>),
}

/// Where sessions are looked for.
pub(crate) struct Sources {
    api: Option<Api>,
    pub(crate) sources: Vec<Source>,
}

impl Sources {
    /// The sessions of tasks and files. A server is asked only for what is no file.
    pub(crate) async fn of(targets: &[String], server: ServerAddress) -> Result<Self> {
        let (files, tasks): (Vec<_>, Vec<_>) =
            targets.iter().partition(|target| Path::new(target).exists());
        let mut found = Self { api: None, sources: Vec::new() };
        let loaded = joined(files)?;
        found.sources.extend(loaded.into_iter().map(|evidence| Source::Loaded(Box::new(evidence))));
        if tasks.is_empty() {
            return Ok(found);
        }
        let api = Api::of(server)?;
        for task in tasks {
            let sessions = api.sessions(task).await.with_context(|| {
                format!("{task} is no file here, and was looked for on the server as a task")
            })?;
            found.sources.extend(sessions.into_iter().map(|info| Source::OnServer(Box::new(info))));
        }
        found.api = Some(api);
        Ok(found)
    }

    /// Fetches what there is of a session.
    pub(crate) async fn load(&self, source: Source) -> Result<Evidence> {
        match (source, &self.api) {
            (Source::Loaded(evidence), _) => Ok(*evidence),
            (Source::OnServer(info), Some(api)) => from_server(api, &info).await,
            (Source::OnServer(info), None) => bail!("no server to ask for {}", info.session_id),
        }
    }
}

/// Reads files. A trajectory and the only journal of its session are one.
fn joined(files: Vec<&String>) -> Result<Vec<Evidence>> {
    let (mut journals, mut trajectories) = (Vec::new(), Vec::new());
    for file in files {
        let bytes = fs::read(file).with_context(|| format!("read {file}"))?;
        if bytes.starts_with(JOURNAL) {
            let journal = RecordedSession::from_bytes(&bytes).with_context(|| file.clone())?;
            journals.push((file, journal));
        } else {
            let read = read_trajectories(&bytes).with_context(|| {
                format!("{file} is neither a journal nor a trajectory as JSON or JSONL")
            })?;
            trajectories.extend(read);
        }
    }
    let mut evidence = Vec::new();
    for trajectory in trajectories {
        let session = trajectory.session_id.clone();
        let of_session = |(_, journal): &(_, RecordedSession)| journal.header.session_id == session;
        let only = journals.iter().filter(|entry| of_session(entry)).count() == 1;
        let journal = journals.iter().position(of_session).filter(|_| only);
        evidence.push(Evidence {
            name: session.to_string(),
            journal: journal.map(|place| journals.remove(place).1),
            trajectory: Some(trajectory),
            ..Evidence::default()
        });
    }
    evidence.extend(journals.into_iter().map(|(file, journal)| Evidence {
        name: format!("{} ({file})", journal.header.session_id),
        journal: Some(journal),
        ..Evidence::default()
    }));
    Ok(evidence)
}

/// Trajectories one after the other, or arrays of them.
fn read_trajectories(bytes: &[u8]) -> Result<Vec<Trajectory>> {
    let mut found = Vec::new();
    for value in serde_json::Deserializer::from_slice(bytes).into_iter::<Value>() {
        match value? {
            Value::Array(items) => {
                for item in items {
                    found.push(serde_json::from_value(item)?);
                }
            }
            one => found.push(serde_json::from_value(one)?),
        }
    }
    if found.is_empty() {
        bail!("it is empty");
    }
    Ok(found)
}

async fn from_server(api: &Api, info: &SessionInfo) -> Result<Evidence> {
    let mut evidence = Evidence { name: info.session_id.to_string(), ..Evidence::default() };
    let Some(report) = info.report() else {
        let status = info.status.as_str();
        evidence.notes.push(format!("nothing was delivered of it; its status is {status}"));
        return Ok(evidence);
    };
    for name in ["journal", "trajectory.json"] {
        match fetched(api, report, name).await? {
            Fetched::Whole(bytes) if name == "journal" => {
                evidence.journal = Some(RecordedSession::from_bytes(&bytes)?);
            }
            Fetched::Whole(bytes) => {
                evidence.trajectory = Some(serde_json::from_slice(&bytes)?);
            }
            Fetched::Absent => evidence.notes.push(format!("the server keeps no {name} of it")),
            Fetched::Changed => {
                evidence.damage =
                    Some(format!("the server's {name} has another SHA-256 than its node reported"));
            }
        }
    }
    Ok(evidence)
}

enum Fetched {
    Whole(Vec<u8>),
    Absent,
    Changed,
}

async fn fetched(api: &Api, report: &SessionReport, name: &str) -> Result<Fetched> {
    let Some(artifact) = report.artifacts.iter().find(|artifact| artifact.name == name) else {
        return Ok(Fetched::Absent);
    };
    let Some(bytes) = api.blob(&artifact.sha256).await? else { return Ok(Fetched::Absent) };
    let is_same = hex::encode(Sha256::digest(&bytes)) == artifact.sha256;
    Ok(if is_same { Fetched::Whole(bytes) } else { Fetched::Changed })
}
